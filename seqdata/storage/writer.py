"""Writing a store: any iterable of sequences, shard by shard, all of it or nothing.

One sequence and one shard are in memory at a time. Place in the flow: the user's data becomes a store.
Reads: sequences. Makes: Arrow shards, lengths and a manifest.
"""

from __future__ import annotations

import hashlib
import os
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError
from seqdata.protocols import Field
from seqdata.storage.arrow import ArrowStore, open_arrow
from seqdata.storage.commit import aside, commit, write_synced
from seqdata.storage.location import local_path
from seqdata.storage.manifest import (
    MANIFEST, LengthsFile, Manifest, Shard, dump_manifest,
)  # fmt: skip
from seqdata.storage.packing import Packer, TextPacker, check_axes, make_packer, pack_one, same_ids
from seqdata.storage.schema import axes_of, infer_fields
from seqdata.storage.shards import write_shard
from seqdata.storage.tables import as_rows

SHARD_BYTES = 256 << 20
_BETWEEN = 1024  # sequences between two steps of the progress bar
_UINT32 = 1 << 32


def write_arrow(
    location: str | os.PathLike[str],
    sequences: Iterable[Any],
    *,
    axes: Mapping[str, str | None] | None = None,
    shard_bytes: int = SHARD_BYTES,
    key: str = "id",
    progress: bool | None = None,
    overwrite: bool = False,
) -> ArrowStore:
    """Write sequences as a store and open it.

    The first sequence fixes the fields. The store is there when all of it is: a writer that fails or
    is killed leaves nothing that could be read, and an older store as it was.

    Args:
        location: A folder, local; made where it is not there.
        sequences: Dicts of arrays, numbers, ``str`` or ``bytes``; or Arrow tables.
        axes: Field -> axis; None: a vector per sequence. Arrays that are not named run on ``time``.
        shard_bytes: Size from which on a shard is closed, in bytes.
        key: The ``str`` field that names a sequence, where there is one.
        progress: Whether to show a bar; None: where standard error is a terminal.
        overwrite: Whether to replace a store that is there.

    Raises:
        ConfigError: If an argument cannot be meant, there is no sequence, or there is a store.
        DataError: If a sequence is not like the first one; naming it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = write_arrow(folder, [{"x": [1, 2]}, {"x": [3]}])
        ...     store.lengths.tolist()
        [2, 1]
    """
    if shard_bytes < 1:
        raise ConfigError(f"`shard_bytes` is {shard_bytes!r}, must be at least 1; leave it out")
    root = local_path(location)
    rows = as_rows(sequences)
    with aside(root, overwrite=overwrite) as folder, _bar(progress, sequences, root) as advance:
        writing: _Writing | None = None
        for number, sequence in enumerate(rows):
            if writing is None:
                writing = _Writing(folder, infer_fields(sequence, axes), key, shard_bytes)
            writing.add(sequence, number)
            if number % _BETWEEN == 0:
                advance(number + 1)
        if writing is None:
            raise ConfigError("`sequences` is empty, must hold at least one; check it")
        advance(writing.sequences)
        manifest = writing.finish()
        write_synced(folder / MANIFEST, dump_manifest(manifest))
        files = [shard.file for shard in manifest.shards]
        commit(root, folder, files + [one.file for one in manifest.lengths.values()])
    return open_arrow(root)


class _Writing:
    """The state of a store that is being written into a folder."""

    def __init__(self, folder: Path, fields: dict[str, Field], key: str, shard_bytes: int) -> None:
        self._folder = folder
        self._fields = fields
        self._key = key
        self._has_key = key in fields and fields[key].dtype == "str"
        self._packers: dict[str, Packer] = {
            name: make_packer(field, is_key=name == key) for name, field in fields.items()
        }
        self._shard_bytes = shard_bytes
        self._lengths = {axis: _LengthsWriter(folder, axis) for axis in axes_of(fields)}
        self._shards: list[Shard] = []
        self._flushed = 0  # sequences in shards
        self._bytes = 0  # of the open shard
        self.sequences = 0

    def add(self, sequence: Any, number: int) -> None:
        self._bytes += pack_one(self._packers, sequence, number, self._key)
        self.sequences = number + 1
        if self._bytes >= self._shard_bytes:
            self._flush()

    def _flush(self) -> None:
        packed = {name: packer.take() for name, packer in self._packers.items()}
        lengths = check_axes(self._fields, packed, self._flushed, self._key)
        for axis, one in lengths.items():
            self._lengths[axis].add(one)
        number = len(self._shards)
        name = f"part-{number:05d}.arrow"
        timesteps = {axis: int(one.sum()) for axis, one in lengths.items()}
        path = self._folder / name
        self._shards.append(write_shard(path, name, self._fields, packed, timesteps, number))
        self._flushed = self.sequences
        self._bytes = 0

    def finish(self) -> Manifest:
        if self._flushed < self.sequences:
            self._flush()
        manifest = Manifest(
            fields=self._fields,
            key=self._key if self._has_key else None,
            sequences=self.sequences,
            lengths={axis: one.finish() for axis, one in self._lengths.items()},
            shards=tuple(self._shards),
        )
        write_synced(self._folder / MANIFEST, dump_manifest(manifest))
        if self._has_key:
            self._check_ids()
        return manifest

    def _check_ids(self) -> None:
        """Refuse two sequences of one id; ids are read back only where hashes are equal."""
        packer = self._packers[self._key]
        if not isinstance(packer, TextPacker) or packer.hashes is None:
            return
        hashes = np.frombuffer(packer.hashes, dtype=np.int64)
        order = np.argsort(hashes, kind="stable")
        twice = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
        if not len(twice):
            return
        store = open_arrow(self._folder)
        first: dict[str, int] = {}
        for number in np.unique(order[np.concatenate([twice, twice + 1])]).tolist():
            name = store.keys([number])[0]
            if first.setdefault(name, number) != number:
                raise same_ids(first[name], number, name)


class _LengthsWriter:
    """Writes one axis' lengths of all shards into one raw file; wider once they need it."""

    def __init__(self, folder: Path, axis: str) -> None:
        self._folder = folder
        self._axis = axis
        self._dtype = np.dtype("<u4")
        self._file: BinaryIO = open(folder / self._name, "w+b")

    @property
    def _name(self) -> str:
        return f"lengths-{self._axis}.u{8 * self._dtype.itemsize}"

    def add(self, lengths: NDArray[np.int64]) -> None:
        if self._dtype.itemsize == 4 and int(lengths.max(initial=0)) >= _UINT32:
            self._widen()
        self._file.write(lengths.astype(self._dtype).data)

    def _widen(self) -> None:
        narrow = self._file
        self._dtype = np.dtype("<u8")
        self._file = open(self._folder / self._name, "w+b")
        narrow.seek(0)
        while block := narrow.read(1 << 22):
            self._file.write(np.frombuffer(block, dtype="<u4").astype(self._dtype).data)
        narrow.close()

    def finish(self) -> LengthsFile:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.seek(0)
        digest = hashlib.file_digest(self._file, "sha256").hexdigest()
        self._file.close()
        dtype = f"uint{8 * self._dtype.itemsize}"
        return LengthsFile(file=self._name, dtype=dtype, sha256=digest)


@contextmanager
def _bar(
    progress: bool | None, sequences: Iterable[Any], root: Path
) -> Iterator[Callable[[int], None]]:
    """Give a function that is told how many sequences are written."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    total = len(sequences) if isinstance(sequences, Sized) else None
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(f"writing {root.name}", total=total)
        yield lambda count: bar.update(task, completed=count)
