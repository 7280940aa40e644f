"""Write the archives of ``kaldi/`` with kaldiio 2.18.1: ``python golden_kaldi.py``."""

from pathlib import Path

import kaldiio
import numpy as np

FOLDER = Path(__file__).parent / "kaldi"


def make_features(dtype: str, columns: int) -> dict[str, np.ndarray]:
    """Return some entries; vectors where there are no columns."""
    random = np.random.default_rng(5)
    shapes = {f"utt-{n}": (n, columns) if columns else (n,) for n in (3, 1, 8)}
    return {name: random.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, dtype, columns in (
        ("fm", "f4", 5),
        ("dm", "f8", 5),
        ("fv", "f4", 0),
        ("dv", "f8", 0),
    ):
        kaldiio.save_ark(str(FOLDER / f"{name}.ark"), make_features(dtype, columns))
    compressed = make_features("f4", 5)
    kaldiio.save_ark(str(FOLDER / "cm.ark"), compressed, compression_method=2)
    kaldiio.save_ark(str(FOLDER / "text.ark"), make_features("f4", 5), text=True)
    sound = {"utt-0": (8000, np.arange(20, dtype=np.int16))}
    kaldiio.save_ark(str(FOLDER / "wav.ark"), sound)
