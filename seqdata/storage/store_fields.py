"""The fields of a store, and reading of spans over them, for every built-in store.

Place in the flow: a store holds one ``StoreFields`` and delegates reads to it. Reads: spans. Makes:
columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DataError
from seqdata.protocols import Field
from seqdata.storage.columns import BufferSource
from seqdata.storage.data_location import DataLocation, ShardLayout
from seqdata.storage.fields import make_unknown_name_error
from seqdata.storage.text_bytes import TextBytes, TextSource, format_decimals


class FieldSource(Protocol):
    """One field of a store, that spans are read of."""

    @property
    def field(self) -> Field:
        """What it holds."""
        ...

    @property
    def stored(self) -> BufferSource | None:
        """The stored bytes that are read for it; None: none are."""
        ...

    @property
    def texts(self) -> TextSource | None:
        """Itself, where it holds texts or bytes; None: it holds arrays."""
        ...

    def column(self, spans: NDArray[np.int64]) -> Any:
        """Return the column of spans, int64 (n, 3), or a list of objects.

        Raises:
            ConfigError: If a span is not there.
            CorruptSampleError: If what is stored is damaged.
            DecodeError: If bytes are not a value.
        """
        ...


def add_ids(layout: ShardLayout, ids: TextSource) -> ShardLayout:
    """Return a layout whose locations include the ids of sequences, if they can be read.

    Args:
        layout: The shards and lengths of sequences.
        ids: The field of ids, over a layout without ids.
    """

    def find_id(number: int) -> str | None:
        try:
            return str(ids.take([number])[0]) if ids.is_readable(number) else None
        except DataError:  # an error is being raised already; the id is optional
            return None

    return replace(layout, find_id=find_id)


@dataclass(frozen=True, slots=True, eq=False)
class StoreFields:
    """The fields of a store.

    Attributes:
        layout: The shards and lengths of sequences.
        sources: Field -> its source.
        ids: The texts that name sequences; None: a sequence is named by its number.
    """

    layout: ShardLayout
    sources: Mapping[str, FieldSource]
    ids: TextSource | None

    @classmethod
    def of(
        cls,
        layout: ShardLayout,
        names: Iterable[str],
        key: str | None,
        make_source: Callable[[str, ShardLayout], FieldSource],
    ) -> StoreFields:
        """Return fields over a layout, whose places name sequences by the field of ids.

        Args:
            layout: The shards and lengths of sequences.
            names: Of the fields.
            key: The field of ids; None: there is none.
            make_source: Makes the source of a field.
        """
        ids = None if key is None else make_source(key, replace(layout, repair=None)).texts
        layout = layout if ids is None else add_ids(layout, ids)
        sources = {name: make_source(name, layout) for name in names}
        return cls(layout, sources, None if key is None else sources[key].texts)

    def read(self, spans: NDArray[np.int64], fields: Iterable[str], axis: str) -> dict[str, Any]:
        """Return the columns of a batch; see ``protocols.Store.read``.

        Raises:
            ConfigError: If a field or the axis is not there.
        """
        spans = np.ascontiguousarray(spans, dtype=np.int64)
        if spans.ndim != 2 or spans.shape[1] != 3:
            raise ConfigError(
                f"{self.layout.location}: `spans` must have shape (n, 3): sequence, start, stop, "
                f"but have {spans.shape}"
            )
        if axis not in self.layout.lengths_of:
            raise make_unknown_name_error(
                self.layout.location, "axis", axis, self.layout.lengths_of
            )
        spans_by_axis: dict[str | None, NDArray[np.int64]] = {axis: spans}
        columns: dict[str, Any] = {}
        for name in fields:
            source = self.sources.get(name)
            if source is None:
                raise make_unknown_name_error(self.layout.location, "field", name, self.sources)
            field_axis = source.field.axis
            if field_axis not in spans_by_axis:
                spans_by_axis[field_axis] = self._make_full_spans(spans[:, 0], field_axis)
            columns[name] = source.column(spans_by_axis[field_axis])
        return columns

    def _make_full_spans(self, numbers: NDArray[np.int64], axis: str | None) -> NDArray[np.int64]:
        """Return the spans of whole sequences; unknown numbers are refused by the read."""
        spans = np.zeros((len(numbers), 3), dtype=np.int64)
        spans[:, 0] = numbers
        spans[:, 2] = 1 if axis is None else self.layout.lengths_of[axis].take(numbers, mode="clip")
        return spans

    def place(self, number: int) -> DataLocation:
        """Return the location of a sequence for an error; of the data set if it does not exist."""
        if 0 <= number < len(self.layout):
            return self.layout.locate(number)
        return DataLocation(dataset=self.layout.location)

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Return the ids of sequences.

        Raises:
            ConfigError: If there is no such sequence.
        """
        wanted = np.asarray(numbers, dtype=np.int64)
        if self.ids is not None:
            return self.ids.take(wanted)
        number_list = wanted.tolist()
        for number in number_list:
            self.layout.find_shard(number)
        return [str(number) for number in number_list]

    def raw_texts(self, name: str | None, numbers: NDArray[np.int64]) -> TextBytes:
        """Return the bytes of ids or of a field of texts; see ``SupportsRawTexts``.

        Raises:
            ConfigError: If there is no such sequence or field of texts.
        """
        texts = {known: one.texts for known, one in self.sources.items() if one.texts is not None}
        source = self.ids if name is None else texts.get(name)
        if source is not None:
            return source.read_bytes(numbers)
        if name is not None:
            raise make_unknown_name_error(self.layout.location, "field of texts", name, texts)
        is_outside = (numbers < 0) | (numbers >= len(self.layout))
        if is_outside.any():
            self.layout.find_shard(int(numbers[is_outside][0]))
        return format_decimals(numbers)
