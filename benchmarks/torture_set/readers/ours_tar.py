"""seqdata on tar shards: its own, and in the hostile case those of webdataset's writer."""

from __future__ import annotations

from pathlib import Path

from torture_set.asking import Hostile, Library, Rows
from torture_set.readers import ours, wds
from torture_set.truth import BATCH


def write(folder: Path, rows: Rows) -> None:
    ours.write(folder, rows, "webdataset")


def read_hostile(folder: Path) -> None:
    from seqdata import Fixed, Loader, open_store

    for batch in Loader(open_store(folder, index="build"), Fixed(BATCH)):
        batch.ids.sum()


LIBRARY = Library(
    ours.LIBRARY.packages, ours.load, write, ours.read, Hostile(wds.write_hostile, read_hostile)
)
