"""The store over tar shards: indexed once, then read in place.

Place in the flow: a location becomes a store. Reads: indexes, spans. Makes: columns
over mapped shards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Field
from seqdata.storage.data_location import Place
from seqdata.storage.fields import TEXTS, default_axis, no_such
from seqdata.storage.remote.options import Remote
from seqdata.storage.text_bytes import Raw, join_texts
from seqdata.storage.views import SequenceStore
from seqdata_webdataset.fields import Made
from seqdata_webdataset.parts import Parts
from seqdata_webdataset.placed import PlacedTexts
from seqdata_webdataset.reading import check_read, read_sources
from seqdata_webdataset.schema import Schema
from seqdata_webdataset.shards import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a store is opened; all of it is pickled with it.

    Attributes:
        schema: Extension -> what it holds.
        verify: When checksums are looked at; None: at the first read.
        keys: ``unique``, or ``by_shard``: a key is unique in its shard only.
        remote: How URLs are read.
        location: Where the shards lie, with what may be secret.
        unsafe: Kinds of members that may run code.
    """

    location: str = field(repr=False)
    schema: Schema | None = None
    verify: str | None = None
    keys: str = "unique"
    remote: Remote | None = None
    unsafe: frozenset[str] = frozenset()


class WebDatasetStore(SequenceStore):
    """A store of indexed tar shards. Made by ``open_webdataset``.

    Args:
        location: Where they lie.
        options: How it was opened.
        shards: The tar files.
        made: What was made of their indexes.
        parts: Opens shards when they are needed; None: all are open.
        reopen: Makes the same store in another process.
    """

    def __init__(
        self,
        location: str,
        options: Options,
        shards: Sequence[Shard],
        made: Made,
        parts: Parts | None,
        reopen: Any,
    ) -> None:
        self._location = location
        self._options = options
        self._made = made
        self._parts = parts
        self._reopen = reopen
        self._names = [path.name for path in shards]
        self._fingerprint: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reopen, (self._options, self._made.bits, self.fingerprint)

    def __len__(self) -> int:
        return len(self._made.layout)

    @property
    def location(self) -> str:
        """Where the shards lie, as one text."""
        return self._location

    @property
    def verify(self) -> str:
        """When checksums are looked at: off, first_read or always."""
        return self._made.verify

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        return self._made.fields

    @property
    def lengths(self) -> NDArray[Any]:
        """Timesteps of each sequence along the default axis, integers (sequences,)."""
        return self.lengths_of[default_axis(self.lengths_of)]

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> timesteps of each sequence, integers (sequences,)."""
        return self._made.layout.lengths_of

    @property
    def shards(self) -> Sequence[str]:
        """Names of the tar files, in the order of their sequences."""
        return self._names

    @property
    def fingerprint(self) -> str:
        """Digest of schema and content (32 hex digits), from the indexes."""
        if self._fingerprint is None:
            told = repr((sorted(self.fields.items()), self._options.keys))
            made = hashlib.sha256(told.encode())
            for index in self._made.indexes:
                made.update(f"{index.sha256}\n".encode())
            self._fingerprint = made.hexdigest()[:32]
        return self._fingerprint

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Give the keys of sequences."""
        return self._made.ids.take(np.asarray(numbers, dtype=np.int64))

    def raw_texts(self, name: str | None, numbers: NDArray[np.int64]) -> Raw:
        """Give the bytes of keys or of a field of texts; see ``raw.RawTexts``."""
        if name is None:
            return self._made.ids.raw(numbers)
        source = self._made.sources.get(name)
        if isinstance(source, PlacedTexts):
            return source.raw(numbers)
        texts = [name for name, field in self.fields.items() if field.dtype in TEXTS]
        if self._parts is None or name not in texts:
            raise no_such(self._location, "field of texts", name, texts)
        return join_texts(self._parts.texts(name, numbers))

    def expect(self, numbers: NDArray[np.int64]) -> bool:
        """Begin to fetch what sequences need, in their order; whether more may be told already."""
        return False if self._parts is None else self._parts.expect(numbers)

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give the same numbers: this store is no view."""
        return numbers

    def place(self, number: int) -> Place:
        """Give the place of a sequence, for an error; of one that is not there, the data set's."""
        if 0 <= number < len(self):
            return self._made.layout.place(number)
        return Place(dataset=self._location)

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch as columns; see ``protocols.Store.read``."""
        spans = np.ascontiguousarray(spans, dtype=np.int64)
        if self._parts is not None:
            names = list(fields)
            check_read(self._location, self.fields, self.lengths_of, spans, names, axis)
            return self._parts.read(spans, names, axis)
        sources = self._made.sources
        return read_sources(
            self._location, sources, self.fields, self.lengths_of, spans, fields, axis
        )
