"""The store over files that are indexed once, then read in place.

Place in the flow: a location becomes a store. Reads: indexes, spans. Makes: columns over mapped
files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Field
from seqdata.storage.data_location import DataLocation
from seqdata.storage.fields import default_axis, kind_of, make_unknown_name_error
from seqdata.storage.indexed.file_fields import FileFields
from seqdata.storage.indexed.file_kind import FileKind
from seqdata.storage.indexed.read_spans import check_read, read_sources
from seqdata.storage.indexed.shard_index import digest_extents
from seqdata.storage.indexed.shards import Shard
from seqdata.storage.indexed.shards_on_demand import ShardsOnDemand
from seqdata.storage.indexed.small_files import SmallFiles
from seqdata.storage.remote.options import Remote
from seqdata.storage.text_bytes import TextBytes, concat_texts
from seqdata.storage.views import SequenceStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a store is opened; all of it is pickled with it.

    Attributes:
        location: Where the files lie, with what may be secret.
        kind: What they are.
        verify: When checksums are compared; None: at the first read.
        keys: ``unique``, or ``by_shard``: an id is unique in its file only.
        remote: How URLs are read.
    """

    location: str = field(repr=False)
    kind: FileKind
    verify: str | None = None
    keys: str = "unique"
    remote: Remote | None = None


class IndexedStore(SequenceStore):
    """A store of indexed files. Made by ``open_files``.

    Args:
        location: Where they lie.
        options: How it was opened.
        shards: The files.
        parts: What was made of their indexes.
        on_demand: Opens files when they are needed; None: all are open.
        reopen: Makes the same store in another process.
    """

    def __init__(
        self,
        location: str,
        options: Options,
        shards: Sequence[Shard],
        parts: FileFields,
        on_demand: ShardsOnDemand | SmallFiles | None,
        reopen: Any,
    ) -> None:
        self._location = location
        self._options = options
        self._parts = parts
        self._on_demand = on_demand
        self._reopen = reopen
        self._names = [path.name for path in shards]
        self._fingerprint: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reopen, (self._options, self._parts.bits, self.fingerprint)

    def __len__(self) -> int:
        return len(self._parts.layout)

    @property
    def location(self) -> str:
        """Where the shards lie, as one text."""
        return self._location

    @property
    def verify(self) -> str:
        """When checksums are looked at: off, first_read or always."""
        return self._parts.verify

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        return self._parts.fields

    @property
    def lengths(self) -> NDArray[Any]:
        """Timesteps of each sequence along the default axis, integers (sequences,)."""
        return self.lengths_of[default_axis(self.lengths_of)]

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> timesteps of each sequence, integers (sequences,)."""
        return self._parts.layout.lengths_of

    @property
    def shards(self) -> Sequence[str]:
        """Names of the files, in the order of their sequences."""
        return self._names

    @property
    def fingerprint(self) -> str:
        """Digest of schema and content (32 hex digits), from the indexes."""
        if self._fingerprint is None:
            told = repr((sorted(self.fields.items()), self._options.keys))
            digest = hashlib.sha256(told.encode())
            for index in self._parts.indexes:
                digest.update(f"{index.sha256}\n".encode())
                if index.kind:  # the same bytes may be divided in another way
                    digest.update(digest_extents(index))
            self._fingerprint = digest.hexdigest()[:32]
        return self._fingerprint

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return the keys of sequences."""
        return self._parts.ids.take(np.asarray(numbers, dtype=np.int64))

    def raw_texts(self, name: str | None, numbers: NDArray[np.int64]) -> TextBytes:
        """Return the bytes of keys or of a field of texts; see ``read_bytes.SupportsRawTexts``."""
        if name is None:
            return self._parts.ids.read_bytes(numbers)
        source = self._parts.sources.get(name)
        if source is not None and source.texts is not None:
            return source.texts.read_bytes(numbers)
        texts = [name for name, field in self.fields.items() if not kind_of(field).is_array]
        if self._on_demand is None or name not in texts:
            raise make_unknown_name_error(self._location, "field of texts", name, texts)
        return concat_texts(self._on_demand.texts(name, numbers))

    def expect(self, numbers: NDArray[np.int64]) -> bool:
        """Begin to fetch what sequences need, in their order; whether more may be told already."""
        return False if self._on_demand is None else self._on_demand.expect(numbers)

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same numbers: this store is no view."""
        return numbers

    def place(self, number: int) -> DataLocation:
        """Return place of a sequence, for an error; of one that is not there, the data set's."""
        if 0 <= number < len(self):
            return self._parts.layout.locate(number)
        return DataLocation(dataset=self._location)

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch as columns; see ``protocols.Store.read``."""
        spans = np.ascontiguousarray(spans, dtype=np.int64)
        if self._on_demand is not None:
            names = list(fields)
            check_read(self._location, self.fields, self.lengths_of, spans, names, axis)
            return self._on_demand.read(spans, names, axis)
        sources = self._parts.sources
        return read_sources(
            self._location, sources, self.fields, self.lengths_of, spans, fields, axis
        )
