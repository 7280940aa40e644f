"""The files of one store and their indexes: each file is checked, then mapped or read by ranges.

A file is the one that was indexed if its size, its first and its last bytes are. Place in the flow:
opening makes it, formats and fields ask it. Reads: files. Makes: their bytes, locations for errors.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import CorruptShardError, DataError, FingerprintMismatch
from seqdata.storage.data_location import DataLocation
from seqdata.storage.fields import ShardExtents
from seqdata.storage.indexed.shard_index import ENDS, FieldIndex, FormatIdentity, ShardIndex
from seqdata.storage.indexed.shards import RemoteShard, Shard
from seqdata.storage.remote.file_cache import CacheFullError
from seqdata.storage.remote.open_shards import release_nothing
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.range_cache import (
    RangeDownload,
    allocate_sparse,
    download_ranges,
    union_ranges,
)
from seqdata.storage.remote.remote_files import FileStat, RemoteFiles
from seqdata.storage.remote.transport import ForkSafeThreadPool, make_remote_files
from seqdata.storage.text_bytes import TextSource


class OpenedFiles:
    """The files of a store.

    Args:
        location: Their location, without credentials.
        shards: The files.
        indexes: The index of each file.
        file_format: Format of the files.
        ids: The ids of all sequences.
        verify: When checksums are compared: off, first_read or always.
        remote: How those behind URLs are read.

    Attributes:
        names: Names of the files.
        starts: File -> its first sequence, with the total at the end.
        sizes: File -> its bytes.
    """

    def __init__(
        self,
        location: str,
        shards: Sequence[Shard],
        indexes: Sequence[ShardIndex],
        file_format: FormatIdentity,
        ids: TextSource,
        verify: str = "off",
        remote: Remote | None = None,
    ) -> None:
        self.location = location
        self.shards = shards
        self.indexes = indexes
        self.file_format = file_format
        self.ids = ids
        self.verify = verify
        self.remote = remote or Remote()
        self.names = [shard.name for shard in shards]
        self.starts = shard_offsets_of(indexes)
        self.sizes = [index.bytes for index in indexes]
        urls = {shard.url for shard in shards if isinstance(shard, RemoteShard)}
        self._folders = {url: make_remote_files(url, self.remote) for url in urls}

    def locate_shard(self, number: int) -> DataLocation:
        """Return the location of a file, for an error."""
        return DataLocation(
            dataset=self.location, shard=number, file=self.names[number], verify=True
        )

    def place(self, shard: int, members: FieldIndex, name: str, at: int | None) -> DataLocation:
        """Return the location of a value for an error; of the first one if ``at`` is None.

        Args:
            shard: Index of the file.
            members: The index of the field in it.
            name: Name of the field.
            at: Index of the sequence in the file.
        """
        if at is None:
            at = int(np.argmax(members.begins >= 0)) if len(members.begins) else 0
        number = self.starts[shard] + at
        key = self.ids.take([number])[0] if len(members.begins) else None
        offset = int(members.begins[at]) if len(members.begins) else 0
        return replace(
            self.locate_shard(shard), sequence=number, key=key, field=name, offset=offset
        )

    def locate(self, number: int, member: str, name: str) -> DataLocation:
        """Return the location of a sequence's value for an error."""
        shard = int(np.searchsorted(np.array(self.starts), number, side="right")) - 1
        members = self.indexes[shard].members[member]
        return self.place(shard, members, name, number - self.starts[shard])

    def find_missing(self, name: str) -> tuple[int, Sequence[int]]:
        """Return how many sequences lack a value; see ``SupportsMissing``."""
        found = [index.missing.get(name, (0, ())) for index in self.indexes]
        some = [
            start + number
            for start, (_, own) in zip(self.starts, found, strict=False)
            for number in own
        ]
        return sum(count for count, _ in found), some

    def find_id(self, number: int) -> str | None:
        """Return the id of a sequence for an error; None if it cannot be read."""
        try:
            return str(self.ids.take([number])[0]) if self.ids.is_readable(number) else None
        except DataError:  # an error is being raised already; the id is optional
            return None

    def file(self, number: int) -> tuple[RemoteFiles, str] | None:
        """Return the folder and the name of a remote file; None if the file is local."""
        shard = self.shards[number]
        return (self._folders[shard.url], shard.name) if isinstance(shard, RemoteShard) else None

    def content(self, number: int, release: Callable[[], None] | None = None) -> NDArray[np.uint8]:
        """Return the bytes of a whole file after checking that it is the one that was indexed.

        Args:
            number: The file.
            release: Closes other files if there is no room; None: wait for room.

        Raises:
            CorruptShardError: If its size differs.
            FingerprintMismatch: If it is another file.
        """
        shard, index, location = (
            self.shards[number],
            self.indexes[number],
            self.locate_shard(number),
        )
        content = shard.content(
            replace(location, offset=0, length=index.bytes), index, release=release
        )
        check_size(len(content), index, location)
        try:
            check_content(content, index, location, self.file_format)
        except DataError:
            if self.drop_copy(number) is None:
                raise
            content = shard.content(location, index, release=release)
            check_content(content, index, location, self.file_format)
        return content

    def drop_copy(self, number: int) -> str | None:
        """Drop the copy of a file in the cache; return a line about it, None if it has none."""
        if self.remote.how == "ranges":
            return None
        return self.shards[number].drop_copy(self.indexes[number], self.locate_shard(number))

    def read_extents(self, number: int, extents: ShardExtents) -> NDArray[np.uint8]:
        """Return the bytes of a file, in which at least those of some extents are present."""
        file = self.file(number)
        if file is None:
            return self.content(number)
        if self.remote.how == "cache":
            with suppress(CacheFullError):
                return self.content(number, release_nothing)
        (files, name), location = file, self.locate_shard(number)
        stat = self.check(number)
        content = allocate_sparse(self.sizes[number])
        ranges = union_ranges([np.stack(extents, axis=1)])
        download = RangeDownload(files, name, content, ranges, location)
        download_ranges([download], ForkSafeThreadPool(self.remote.connections))
        files.check_same(name, stat, location)
        return self.view(number, content)

    def check(self, number: int) -> FileStat:
        """Compare the size and both ends of a file behind a URL; see ``ShardFiles``."""
        file, index, location = self.file(number), self.indexes[number], self.locate_shard(number)
        if file is None:
            raise ValueError(f"shard {number}: must be a remote file, but is on this machine")
        files, name = file
        stat = files.stat(name, location)
        check_size(stat.size, index, location)
        first, last = (
            files.read(name, at, min(at + ENDS, index.bytes), location) for at in (0, index.last)
        )
        check_ends(first, last, index, location, self.file_format)
        return stat

    def view(self, number: int, content: bytearray | memoryview) -> NDArray[np.uint8]:
        """Return memory of whole pages as the bytes of a file, read-only."""
        view = np.frombuffer(content, dtype=np.uint8)[: self.sizes[number]]
        view.flags.writeable = False
        return view


def shard_offsets_of(indexes: Sequence[ShardIndex]) -> list[int]:
    """Return file -> its first sequence, with the total at the end."""
    return [0, *itertools.accumulate(map(len, indexes))]


def check_content(
    content: NDArray[np.uint8], index: ShardIndex, place: DataLocation, file_format: FormatIdentity
) -> None:
    """Raise if the first or last bytes of a file of the right size differ; see ``check_ends``."""
    first, last = (bytes(content[at : at + ENDS]) for at in (0, index.last))
    check_ends(first, last, index, place, file_format)


def check_size(size: int, index: ShardIndex, place: DataLocation) -> None:
    """Raise if the size of a file differs.

    Raises:
        CorruptShardError: If it does.
    """
    if size != index.bytes:
        shorter, longer = sorted((size, index.bytes))
        raise replace(place, offset=shorter, length=longer - shorter).make_error(
            CorruptShardError,
            f"must have {index.bytes} bytes as when it was indexed, but has {size}. Restore it, "
            "or, if it was written again, rebuild its index with `seqdata verify --repair-index`",
            expected=index.bytes, found=size,
        )  # fmt: skip


def check_ends(
    first: bytes, last: bytes, index: ShardIndex, place: DataLocation, file_format: FormatIdentity
) -> None:
    """Raise if the first or last bytes of a file differ.

    Raises:
        CorruptShardError: If they cannot be of such a file.
        FingerprintMismatch: If they are of another file.
    """
    found = hashlib.sha256(first + last).hexdigest()
    if found == index.ends:
        return
    for at, block in ((0, first), (index.last, last)):
        if not file_format.is_header(block):
            raise replace(place, offset=at, length=ENDS).make_error(
                CorruptShardError,
                "must be the header that was indexed, but is not a valid header of this kind of "
                "file. Restore the file, or, if it was written again, rebuild its index with "
                "`seqdata verify --repair-index`",
                expected=index.ends, found=found,
            )  # fmt: skip
    raise replace(place, offset=index.last, length=ENDS).make_error(
        FingerprintMismatch,
        f"must have first and last bytes of digest {index.ends[:16]} as when it was indexed, but "
        f"has {found[:16]}: it is another file. Restore it, or rebuild its index with `seqdata "
        "verify --repair-index`",
        expected=index.ends, found=found,
    )  # fmt: skip
