"""The files of a store that are not all on this machine: how each is compared and opened.

Place in the flow: shards on demand ask it. Reads: files, or ranges of them. Makes: fields of files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation, ShardLayout
from seqdata.storage.fields import ShardExtents
from seqdata.storage.indexed.file_fields import FileFields
from seqdata.storage.indexed.file_identity import (
    check_ends,
    check_size,
    get_checked_content,
)
from seqdata.storage.indexed.indexed_format import IndexedFormat
from seqdata.storage.indexed.remote_shards import RemoteShard
from seqdata.storage.indexed.shard_index import ENDS, ShardIndex
from seqdata.storage.indexed.shards import Shard
from seqdata.storage.remote.copy_repair import RepairFn
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.range_cache import SparseFile, allocate_sparse
from seqdata.storage.remote.remote_files import FileStat, RemoteFiles
from seqdata.storage.remote.transport import make_remote_files
from seqdata.storage.remote_shards import OpenShard
from seqdata.storage.shards_on_demand import RangeReader
from seqdata.storage.store import StoreFields
from seqdata.storage.text_bytes import TextSource


@dataclass(frozen=True, slots=True, eq=False)
class FileShards:
    """The files of a store: ``RemoteShards``, once their fields are known.

    Attributes:
        location: Of the store, without credentials.
        shards: The files.
        indexes: Of the files.
        file_format: Of the files.
        remote: How those behind URLs are read.
        folders: URL -> the files there.
        sizes: Shard -> its bytes.
        file_fields: What the store consists of.
        known: Shard -> what it was when it was first read by ranges.
    """

    location: str
    shards: Sequence[Shard]
    indexes: Sequence[ShardIndex]
    file_format: IndexedFormat
    remote: Remote
    folders: Mapping[str, RemoteFiles]
    sizes: Sequence[int]
    file_fields: FileFields | None = None
    known: dict[int, FileStat] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        location: str,
        shards: Sequence[Shard],
        indexes: Sequence[ShardIndex],
        file_format: IndexedFormat,
        remote: Remote,
    ) -> FileShards:
        """Return files that were found, whose fields are not known yet."""
        urls = {shard.url for shard in shards if isinstance(shard, RemoteShard)}
        folders = {url: make_remote_files(url, remote) for url in urls}
        sizes = [index.bytes for index in indexes]
        return cls(location, shards, indexes, file_format, remote, folders, sizes)

    @property
    def layout(self) -> ShardLayout:
        """Where sequences lie."""
        return self._known_fields.layout

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        return self._known_fields.fields

    @property
    def ids(self) -> TextSource:
        """The ids of sequences, from the indexes."""
        return self._known_fields.ids

    @property
    def _known_fields(self) -> FileFields:
        if self.file_fields is None:
            raise ValueError(f"{self.location}: fields are asked for before they are known")
        return self.file_fields

    def opens_for_texts(self, number: int) -> bool:
        """Return True: texts are read as any other field."""
        del number
        return True

    def content(self, number: int, release: Callable[[], None] | None = None) -> NDArray[np.uint8]:
        """Return the bytes of a whole file that is the one that was indexed."""
        place = self.locate(number)
        return get_checked_content(
            self.shards[number], self.indexes[number], place, self.file_format, release
        )

    def hold(self, number: int, release: Callable[[], None]) -> OpenShard:
        """Open a file, fetched whole where it is not on this machine; see ``RemoteShards``."""
        fields = self._known_fields.open_file(number, self.content(number, release), None)
        return OpenShard(number, fields)

    def download(self, number: int) -> None:
        """Bring a file into the cache, which must find room as it is."""
        self.content(number, release_nothing)

    def file(self, number: int) -> tuple[RemoteFiles, str] | None:
        """Return where a file lies, and its name there; None: on this machine."""
        shard = self.shards[number]
        return (self.folders[shard.url], shard.name) if isinstance(shard, RemoteShard) else None

    def locate(self, number: int) -> DataLocation:
        """Return the place of a file, for an error."""
        name = self.shards[number].name
        return DataLocation(dataset=self.location, shard=number, file=name, verify=True)

    def check(self, number: int) -> FileStat:
        """Compare the size and both ends of a file behind a URL; see ``RemoteShards``."""
        file, index, place = self.file(number), self.indexes[number], self.locate(number)
        if file is None:
            raise ValueError(f"shard {number}: must be read by ranges, but is on this machine")
        files, name = file
        stat = files.stat(name, place)
        check_size(stat.size, index, place)
        first, last = (
            files.read(name, at, min(at + ENDS, index.bytes), place) for at in (0, index.last)
        )
        check_ends(first, last, index, place, self.file_format)
        return stat

    def lay(self, number: int, content: Any, repair: RepairFn) -> StoreFields:
        """Return fields over a file of which some ranges are there; see ``RemoteShards``."""
        return self._known_fields.open_file(number, self._make_view(number, content), repair)

    def join(self, shards: Sequence[OpenShard]) -> None:
        """Return None: each file is read by itself."""
        del shards

    def read_extents(self, number: int, extents: ShardExtents) -> NDArray[np.uint8]:
        """Return a file behind a URL of which the values of one field are there."""
        reader = RangeReader(self)
        reader.check([number])
        file = SparseFile(allocate_sparse(self.indexes[number].bytes))
        reader.download({number: file}, {number: [np.stack(extents, axis=1)]})
        return self._make_view(number, file.content)

    def _make_view(self, number: int, content: Any) -> NDArray[np.uint8]:
        view = np.frombuffer(content, dtype=np.uint8)[: self.indexes[number].bytes]
        view.flags.writeable = False
        return view


def release_nothing() -> None:
    """Close no shard: what is fetched must find room as it is."""
