"""Writing a store: any iterable of sequences, shard by shard, all of it or nothing.

One sequence and one shard are in memory at a time. Place in the flow: the user's data becomes a
store. Reads: sequences. Makes: Arrow shards, lengths and a manifest.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from seqdata.errors import ConfigError
from seqdata.protocols import Field
from seqdata.storage.arrow import ArrowStore, open_arrow
from seqdata.storage.checksums import BLOCK, algorithm
from seqdata.storage.commit import aside, commit, write_synced
from seqdata.storage.ids import check_ids
from seqdata.storage.lengths import LengthsWriter
from seqdata.storage.location import local_path
from seqdata.storage.manifest import MANIFEST, Checking, Manifest, Shard, dump_manifest
from seqdata.storage.packing import Packed, Packer, TextPacker, check_axes, make_packer, pack_one
from seqdata.storage.schema import axes_of, infer_fields
from seqdata.storage.shards import write_shard
from seqdata.storage.tables import as_rows

SHARD_BYTES = 256 << 20
_BETWEEN = 1024  # sequences between two calls of `progress`
Progress = Callable[[int, int], None]


def write_arrow(
    location: str | os.PathLike[str],
    sequences: Iterable[Any],
    *,
    axes: Mapping[str, str | None] | None = None,
    shard_bytes: int = SHARD_BYTES,
    key: str = "id",
    progress: bool | Progress | None = None,
    overwrite: bool = False,
) -> ArrowStore:
    """Write sequences as a store and open it.

    The first sequence fixes the fields. The store is there when all of it is: a writer that fails
    or is killed leaves nothing that could be read, and an older store as it was.

    Args:
        location: A folder, local; made where it is not there.
        sequences: Dicts of arrays, numbers, ``str`` or ``bytes``; plain arrays, which become the
            field ``x``; or Arrow tables, or a data frame. Read once, in order.
        axes: Field -> axis; None: a vector per sequence. Arrays that are not named run on ``time``.
        shard_bytes: Size from which on a shard is closed, in bytes.
        key: The ``str`` field that names a sequence, where there is one.
        progress: Called now and then with (sequences, bytes); True: a bar on standard error; None:
            a bar where that is a terminal.
        overwrite: Whether a store that is there is replaced.

    Raises:
        ConfigError: If an argument cannot be meant, there is no sequence, or there is a store.
        DecodeError: If a sequence is not like the first one; naming it.

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
    rows, axes = as_rows(sequences, axes)
    with aside(root, overwrite=overwrite) as folder, _told(progress, sequences, root) as tell:
        first = next(rows)
        writing = _Writing(folder, infer_fields(first, axes), key, shard_bytes)
        writing.add(first)
        for sequence in rows:
            writing.add(sequence)
            if writing.sequences % _BETWEEN == 0:
                tell(writing.sequences, writing.bytes)
        manifest = writing.finish()
        tell(writing.sequences, writing.bytes)
        files = [shard.file for shard in manifest.shards]
        files += [one.checksums.file for one in manifest.shards if one.checksums is not None]
        commit(root, folder, [*files, *(one.file for one in manifest.lengths.values())])
    return open_arrow(root)


class _Writing:
    """A store that is being written into a folder."""

    def __init__(self, folder: Path, fields: dict[str, Field], key: str, shard_bytes: int) -> None:
        self._folder = folder
        self._fields = fields
        self._key = key
        self._shard_bytes = shard_bytes
        self._packers: dict[str, Packer] = {
            name: make_packer(field, is_key=name == key) for name, field in fields.items()
        }
        self._lengths = {axis: LengthsWriter(folder, axis) for axis in axes_of(fields)}
        self._shards: list[Shard] = []
        self._flushed = 0  # sequences in shards
        self._open = 0  # bytes of the open shard
        self.sequences = 0
        self.bytes = 0  # of all shards

    @property
    def _hashes(self) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        ids = self._packers.get(self._key)
        return np.array(ids.hashes) if isinstance(ids, TextPacker) and ids.hashes else None

    def add(self, sequence: Any) -> None:
        size = pack_one(self._packers, sequence, self.sequences, self._key)
        self.sequences += 1
        self._open += size
        self.bytes += size
        if self._open >= self._shard_bytes:
            self._flush()

    def _flush(self) -> None:
        packed = {name: packer.take() for name, packer in self._packers.items()}
        lengths = check_axes(self._fields, packed, self._flushed, self._key)
        self._check_ids(packed)
        for axis, one in lengths.items():
            self._lengths[axis].add(one)
        number = len(self._shards)
        path = self._folder / f"part-{number:05d}.arrow"
        timesteps = {axis: int(one.sum()) for axis, one in lengths.items()}
        self._shards.append(write_shard(path, self._fields, packed, timesteps, number))
        self._flushed = self.sequences
        self._open = 0

    def _check_ids(self, packed: Packed) -> None:
        """Refuse one id twice in the shard that is written now."""
        hashes = self._hashes
        if hashes is not None:
            values, offsets = packed[self._key]
            edges = np.asarray(offsets)
            check_ids(
                hashes[self._flushed :],
                lambda i: values[edges[i] : edges[i + 1]].tobytes().decode(),
                self._flushed,
            )

    def finish(self) -> Manifest:
        """Write what is left and the manifest."""
        if self._flushed < self.sequences:
            self._flush()
        hashes = self._hashes
        manifest = Manifest(
            fields=self._fields,
            key=None if hashes is None else self._key,
            sequences=self.sequences,
            lengths={axis: one.finish() for axis, one in self._lengths.items()},
            shards=tuple(self._shards),
            checksums=Checking(algorithm=algorithm(), block=BLOCK),
        )
        write_synced(self._folder / MANIFEST, dump_manifest(manifest))
        if hashes is not None and len(self._shards) > 1:
            written = open_arrow(self._folder)
            check_ids(hashes, lambda number: written.keys([number])[0])
        return manifest


@contextmanager
def _told(
    progress: bool | Progress | None, sequences: Iterable[Any], root: Path
) -> Iterator[Progress]:
    """Give the function that is told how many sequences and bytes are written."""
    if callable(progress):
        yield progress
        return
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda _sequences, _bytes: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    total = len(sequences) if isinstance(sequences, Sized) else None
    with Bar(console=Console(stderr=True)) as bar:
        task = bar.add_task(f"writing {root.name}", total=total)
        yield lambda count, _bytes: bar.update(task, completed=count)
