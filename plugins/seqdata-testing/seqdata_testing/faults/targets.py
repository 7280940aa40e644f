"""Targets of faults: kinds of datasets, with functions that write, open and describe them.

A plugin defines a ``FaultTarget``, on which all faults are tried by ``python -m
seqdata_testing.faults --target MODULE:NAME`` or ``cases.cases_for``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from seqdata.api import open_store, write_store
from seqdata.errors import SeqDataWarning
from seqdata.protocols import Store
from seqdata.storage.arrow.manifest import MANIFEST, load_manifest
from seqdata.storage.remote.options import Remote
from seqdata_testing.faults.outcome import WHOLE

Extent = tuple[str, int, int]
"""Name of a file, position in it, and number of bytes."""

VERIFY = ("off", "first_read", "always")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFile:
    """A kind of file that is stored next to data and trusted later.

    Attributes:
        name: Name in the matrix.
        write: Writes data and its saved file into a folder; returns the saved file.
        read: Returns the content of the saved file, or content that was computed again, to compare.
        kinds: Allowed outcomes of damage.
    """

    name: str
    write: Callable[[Path], Path]
    read: Callable[[Path], Any]
    kinds: tuple[str, ...] = (WHOLE,)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTarget:
    """A kind of dataset.

    Attributes:
        name: Name in the matrix.
        verify: Values of ``verify``; those that compare checksums come last.
        write: Writes sequences into a folder.
        open: Opens the folder with a ``verify``.
        served: Opens a URL that serves the folder; None: such data is local.
        hits: Part of the names of shards, for network faults that only apply to shards.
        shards: Returns the names of its shards.
        values: Returns the positions of the values of sequences.
        others: Returns the names of other required files: manifest, lengths, index.
        dataset: Returns the sequences.
        saved_files: Files that are stored next to such data.
    """

    name: str
    verify: tuple[str, ...]
    write: Callable[[Path, Sequence[Mapping[str, Any]]], None]
    open: Callable[[Path, str], Store]
    shards: Callable[[Path], list[str]]
    values: Callable[[Path], list[Extent]]
    others: Callable[[Path], list[str]]
    dataset: Callable[[], list[dict[str, Any]]] = field(default_factory=lambda: sequences)
    served: Callable[[str, str, Remote], Store] | None = None
    hits: str = ""
    saved_files: tuple[SavedFile, ...] = ()

    @property
    def verified(self) -> tuple[str, ...]:
        """Values of ``verify`` that compare checksums."""
        return tuple(mode for mode in self.verify if mode != "off")


def sequences() -> list[dict[str, Any]]:
    """Return sequences of many lengths: one empty, one with several checksum blocks, many equal."""
    random = np.random.default_rng(0)
    lengths = np.full(80, 8)  # the second half makes shards of one size
    lengths[:40] = random.integers(1, 40, 40)
    lengths[[3, 20]] = 0, 20_000
    return [
        {
            "id": f"s{i:02}",
            "x": random.standard_normal((length, 2)).astype(np.float32),
            "y": np.int64(i),
        }
        for i, length in enumerate(lengths.tolist())
    ]


def _write_own(folder: Path, dataset: Sequence[Mapping[str, Any]]) -> None:
    write_store(folder, dataset, shard_bytes=1_000, progress=False)


def _open_own(folder: Path, verify: str) -> Store:
    return open_store(folder, verify=verify)


def _open_served(url: str, verify: str, remote: Remote) -> Store:
    return open_store(url, verify=verify, remote=remote)


def _shards_of_own(folder: Path) -> list[str]:
    return [shard.file for shard in load_manifest(folder).shards]


def _values_of_own(folder: Path) -> list[Extent]:
    return [
        (shard.file, position, size)
        for shard in load_manifest(folder).shards
        for places in shard.buffers.values()
        for position, size in places
        if size
    ]


def _others_of_own(folder: Path) -> list[str]:
    shards = _shards_of_own(folder)
    names = sorted(path.name for path in folder.iterdir() if path.name not in shards)
    return [MANIFEST, *(name for name in names if name != MANIFEST)]


OWN = FaultTarget(
    name="arrow", verify=VERIFY, write=_write_own, open=_open_own, shards=_shards_of_own,
    values=_values_of_own, others=_others_of_own, served=_open_served, hits=".arrow",
)  # fmt: skip
"""A store written by seqdata on a local disk."""


def _write_foreign(folder: Path, dataset: Sequence[Mapping[str, Any]]) -> None:
    import pyarrow as pa

    folder.mkdir()
    third = -(-len(dataset) // 3)
    for number in range(3):
        rows = dataset[number * third : (number + 1) * third]
        table = pa.table(
            {
                "id": [row["id"] for row in rows],
                "x": pa.array(
                    [row["x"].tolist() for row in rows], pa.list_(pa.list_(pa.float32(), 2))
                ),
                "y": [int(row["y"]) for row in rows],
            }
        )
        with pa.ipc.new_file(folder / f"{number}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=8)


def _open_foreign(folder: Path, verify: str) -> Store:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeqDataWarning)  # that nothing is verified is known here
        return open_store(folder, backend="foreign", verify=verify)


def _files_of_foreign(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.arrow"))


def _nothing(_: Path) -> list[Any]:
    return []


FOREIGN = FaultTarget(
    name="files of others", verify=("off",), write=_write_foreign, open=_open_foreign,
    shards=_files_of_foreign, values=_nothing, others=_nothing,
)  # fmt: skip
"""Uncompressed Arrow files that were not written by seqdata."""

TARGETS = (OWN, FOREIGN)
