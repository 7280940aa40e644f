"""One writer, once: a program for the environment that has the writer's library.

    python benchmarks/writers.py NAME FOLDER COUNT [--labelled]

Writes S and prints a line of JSON: the seconds, without imports and without making the tokens, the
bytes of the files, and the library's version. Every writer gets the same iterable of dicts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from samples import Samples, tokens, touch

Write = Callable[[Iterator[dict[str, Any]], Path], None]
CHUNK = "64MB"  # what litdata's guide takes, and the default size of MosaicML's shards


def seqdata_store() -> Write:
    import pyarrow.ipc  # noqa: F401, what the first shard would import

    from seqdata import write_store

    return lambda sequences, folder: write_store(folder / "store", sequences, progress=False)


def webdataset_shards() -> Write:
    """A tar member per field, encoded by its ending, as in the library's guide."""
    from webdataset import ShardWriter

    def write(sequences: Iterator[dict[str, Any]], folder: Path) -> None:
        with ShardWriter(str(folder / "shard-%06d.tar"), maxcount=100_000, verbose=0) as sink:
            for number, sequence in enumerate(sequences):
                key = sequence.get("id", f"sequence-{number:09d}")
                sample = {"__key__": key, "x.npy": sequence["x"]}
                sink.write({**sample, "y.cls": sequence["y"]} if "y" in sequence else sample)

    return write


def mosaic_shards(compression: str | None = None) -> Write:
    """Columns by name and encoding; compression and hashes are off unless asked for."""
    _let_torchvision_load()
    from streaming import MDSWriter

    def write(sequences: Iterator[dict[str, Any]], folder: Path) -> None:
        first = next(sequences)
        columns = {"id": "str", "x": "ndarray", "y": "int"}
        columns = {name: columns[name] for name in first}
        with MDSWriter(out=str(folder / "mds"), columns=columns, compression=compression) as sink:
            sink.write(first)
            for sequence in sequences:
                sink.write(sequence)

    return write


def _let_torchvision_load() -> None:
    """MosaicML's package imports torchvision, whose wheel cannot load beside torch without CUDA.

    It stops at two operators that are not there; nothing here calls them.
    """
    import torch

    if torch.version.cuda is None:
        _LIBRARIES.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            _LIBRARIES[0].define(
                f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )


_LIBRARIES: list[Any] = []  # operators are there as long as their library


def litdata_optimize() -> Write:
    """One worker that iterates: a generator as ``fn`` over one input."""
    from litdata import optimize

    def write(sequences: Iterator[dict[str, Any]], folder: Path) -> None:
        optimize(
            fn=partial(_every, sequences), inputs=[0], output_dir=str(folder / "chunks"),
            chunk_bytes=CHUNK, num_workers=1, start_method="fork", verbose=False,
        )  # fmt: skip

    return write


def _every(sequences: Iterator[dict[str, Any]], _: int) -> Iterator[dict[str, Any]]:
    yield from sequences


def litdata_binary() -> Write:
    """Writer of a worker of ``optimize``: no public name, the fastest that litdata has."""
    from litdata.streaming.writer import BinaryWriter

    def write(sequences: Iterator[dict[str, Any]], folder: Path) -> None:
        sink = BinaryWriter(str(folder), chunk_bytes=CHUNK)
        for number, sequence in enumerate(sequences):
            sink.add_item(number, sequence)
        sink.done()
        sink.merge()

    return write


WRITERS: dict[str, tuple[str, Callable[[], Write]]] = {
    "seqdata write_store": ("lightning-seqdata", seqdata_store),
    "webdataset ShardWriter": ("webdataset", webdataset_shards),
    "MosaicML MDSWriter": ("mosaicml-streaming", mosaic_shards),
    "MosaicML MDSWriter, zstd": ("mosaicml-streaming", partial(mosaic_shards, "zstd")),
    "litdata optimize": ("litdata", litdata_optimize),
    "litdata BinaryWriter": ("litdata", litdata_binary),
}
OURS = "seqdata write_store"


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def once(name: str, folder: Path, samples: Samples, labelled: bool) -> dict[str, Any]:
    """Write with one writer."""
    package, make = WRITERS[name]
    write = make()
    touch(3 * samples.values.nbytes)
    began = time.perf_counter()
    write(samples.dicts(labelled), folder)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "bytes": size_of(folder), "version": version(package)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", choices=WRITERS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("--labelled", action="store_true", help="with an id and a label")
    options = parser.parse_args()
    answer = os.dup(1)
    os.dup2(2, 1)  # what libraries print on the way is not the answer
    sys.stdout = sys.stderr
    found = once(options.name, options.folder, tokens(options.count), options.labelled)
    os.write(answer, json.dumps(found).encode() + b"\n")


if __name__ == "__main__":
    main()
