"""Write the files of ``golden/`` with MosaicML Streaming 0.13.0 and LitData 0.2.76.

Run it where both are installed: ``python golden.py``. The tests read what it wrote.
"""

from pathlib import Path

import numpy as np
import torch
from litdata.streaming.item_loader import TokensLoader
from litdata.streaming.writer import BinaryWriter
from streaming.base.format.mds.writer import MDSWriter

FOLDER = Path(__file__).parent / "golden"


def make_tokens() -> list[np.ndarray]:
    """Return the documents that all files hold: of 1 to 399 tokens, int32."""
    random = np.random.default_rng(3)
    return [random.integers(0, 50_000, n).astype(np.int32) for n in (1, 7, 255, 256, 30, 399, 64)]


def write_mds() -> None:
    """Write each encoding of arrays, bytes, and a shard with other columns."""
    forms = {"ndarray": np.asarray, "ndarray:int32": np.asarray, "bytes": np.ndarray.tobytes}
    for encoding, encode in forms.items():
        out = FOLDER / f"mds-{encoding.replace(':', '-')}"
        with MDSWriter(columns={"tokens": encoding}, out=str(out), size_limit=2_000) as writer:
            for tokens in make_tokens():
                writer.write({"tokens": encode(tokens)})
    columns = {
        "id": "str",
        "tokens": "ndarray:int32",
        "weight": "float32",
        "last": "ndarray:int32:2",
    }
    with MDSWriter(columns=columns, out=str(FOLDER / "mds-columns"), size_limit=2_000) as writer:
        for number, tokens in enumerate(make_tokens()):
            last = np.array([number, 2 * number], np.int32)
            row = {"id": f"{number}é", "tokens": tokens, "weight": 0.5, "last": last}
            writer.write(row)


def write_litdata() -> None:
    """Write chunks of tensors and of arrays."""
    for kind, convert in {"tensor": torch.from_numpy, "numpy": np.asarray}.items():
        out = FOLDER / f"litdata-{kind}"
        writer = BinaryWriter(str(out), chunk_bytes=2_000, item_loader=TokensLoader())
        for number, tokens in enumerate(make_tokens()):
            writer[number] = convert(tokens)
        writer.done()
        writer.merge()


if __name__ == "__main__":
    write_mds()
    write_litdata()
