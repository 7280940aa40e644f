"""Files that are read once, with an index in memory only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.file_kind import FileKind
from seqdata.storage.indexed.opening import Options, open_shards
from seqdata.storage.indexed.shard_index import Kind, ShardIndex
from seqdata.storage.indexed.shards import LocalShard
from seqdata.storage.store import ShardStore


def open_once(path: Path, kind: FileKind) -> ShardStore:
    """Open a local file with an index that is built now and not written.

    Raises:
        DataError: If it is damaged, or not of the kind.
    """
    shard = _FileWithoutIndex(path.parent, path.name, file_kind=kind)
    return open_shards(Options(location=str(path), kind=kind), None, [shard], False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileWithoutIndex(LocalShard):
    file_kind: FileKind

    def has_index(self, kind: Kind) -> bool:
        del kind
        return True

    def index(self, dataset: str, number: int, kind: Kind) -> ShardIndex | None:
        del kind
        place = DataLocation(dataset=dataset, shard=number, file=self.name)
        content = self.content(place, ahead=True)
        return self.file_kind.make_index(content, self.name, place, self.neighbour)

    def kept(self, name: str) -> list[Path]:
        del name
        return []
