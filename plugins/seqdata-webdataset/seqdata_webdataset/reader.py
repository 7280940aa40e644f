"""Tar shards as input of ``seqdata write``: each is read once, and nothing is kept beside it.

Place in the flow: files -> sequences of ``seqdata write --format webdataset``. Reads: shards.
Makes: sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.readers.source import ReadOptions, SourceFile
from seqdata.storage.data_location import Place
from seqdata.storage.fields import default_axis
from seqdata_webdataset.indexing import make_index
from seqdata_webdataset.listing import Listed
from seqdata_webdataset.opening import open_shards
from seqdata_webdataset.shard_index import ShardIndex
from seqdata_webdataset.shards import LocalShard
from seqdata_webdataset.store import Options

_RUN = 64  # sequences that are read at once


def read_tar(files: Iterable[SourceFile], options: ReadOptions) -> Iterator[dict[str, Any]]:
    """Give the samples of tar shards; files that end otherwise are passed over.

    A field is named by its extension, and ``id`` is the key.

    Args:
        files: In their order.
        options: Nothing of it is for shards.

    Raises:
        ConfigError: If an option is given.
        DataError: If a shard is damaged, or cannot be read as samples.
    """
    options.one_field("webdataset")
    for file in files:
        if file.path.suffix == ".tar":
            yield from _samples(file.path)


def _samples(path: Path) -> Iterator[dict[str, Any]]:
    shard = _Once(LocalShard(path))
    store = open_shards(Options(location=str(path)), None, [shard], False)
    names = list(store.fields)
    axis = default_axis(store.lengths_of)
    for first in range(0, len(store), _RUN):
        numbers = np.arange(first, min(first + _RUN, len(store)))
        spans = np.zeros((len(numbers), 3), dtype=np.int64)
        spans[:, 0], spans[:, 2] = numbers, store.lengths_of[axis][numbers]
        columns = store.read(spans, names, axis=axis)
        for at, key in enumerate(store.keys(numbers)):
            yield {"id": key, **{name: _value(store.fields[name].axis, columns[name], at)
                                 for name in names}}  # fmt: skip


def _value(axis: str | None, column: Any, at: int) -> Any:
    value = column[at]
    return value[0] if axis is None and isinstance(value, np.ndarray) else value


@dataclass(frozen=True, slots=True)
class _Once:
    """A shard whose index is made when it is asked for, and not kept."""

    shard: LocalShard

    @property
    def name(self) -> str:
        return self.shard.name

    @property
    def folder(self) -> str:
        return self.shard.folder

    @property
    def here(self) -> bool:
        return True

    @property
    def listed(self) -> Listed | None:
        return self.shard.listed

    def content(
        self,
        place: Place,
        index: ShardIndex | None = None,
        *,
        ahead: bool = False,
        release: Callable[[], None] | None = None,
    ) -> NDArray[np.uint8]:
        return self.shard.content(place, index, ahead=ahead, release=release)

    def mend(self, content: NDArray[np.uint8], index: ShardIndex, place: Place) -> bool:
        return self.shard.mend(content, index, place)

    def size(self) -> int:
        return self.shard.size()

    def look(self, place: Place) -> None:
        self.shard.look(place)

    def has_index(self) -> bool:
        return True

    def index(self, dataset: str, number: int) -> ShardIndex | None:
        place = Place(dataset=dataset, shard=number, file=self.name)
        return make_index(self.content(place, ahead=True), self.name, place)

    def keep_index(self, index: ShardIndex) -> str:
        return self.shard.keep_index(index)

    def kept(self, name: str) -> list[Path]:
        del name
        return []

    def list_of_folder(self) -> bytes | None:
        return self.shard.list_of_folder()

    def with_listed(self, listed: Listed | None) -> _Once:
        return _Once(self.shard.with_listed(listed))
