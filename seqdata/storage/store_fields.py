"""All fields of a store, and the reading of spans over them, the same for every store of ours.

Place in the flow: stores hold one ``Sources`` and hand their reads to it. Reads: spans. Makes:
columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DataError
from seqdata.storage.columns import Layout, Source, SpanColumn
from seqdata.storage.data_location import Place
from seqdata.storage.decoded_source import DecodedSource
from seqdata.storage.fields import TEXTS, no_such
from seqdata.storage.text_bytes import Raw, decimals, join_texts
from seqdata.storage.text_source import TextSource


def keyed(layout: Layout, ids: TextSource | DecodedSource) -> Layout:
    """Give a layout whose places name sequences by their ids, as far as they can be read.

    Args:
        layout: Where sequences lie.
        ids: The field of ids, over a layout without.
    """

    def key_of(number: int) -> str | None:
        try:
            if isinstance(ids, TextSource):
                return str(ids.take([number])[0]) if ids.is_there(number) else None
            return str(ids.take(np.array([[number, 0, 1]], dtype=np.int64))[0])
        except DataError:  # an error is being made already, about more than its name
            return None

    return replace(layout, key_of=key_of)


@dataclass(frozen=True, slots=True, eq=False)
class Sources:
    """The fields of a store.

    Attributes:
        layout: Where sequences lie.
        by_name: Field -> its source.
        key: The field of ids; None: a sequence is named by its number.
    """

    layout: Layout
    by_name: Mapping[str, Source | TextSource | DecodedSource]
    key: str | None

    def read(self, spans: NDArray[np.int64], fields: Iterable[str], axis: str) -> dict[str, Any]:
        """Give the columns of a batch; see ``protocols.Store.read``.

        Raises:
            ConfigError: If a field or the axis is not there.
        """
        spans = np.ascontiguousarray(spans, dtype=np.int64)
        if spans.ndim != 2 or spans.shape[1] != 3:
            raise ConfigError(
                f"{self.layout.location}: `spans` have shape {spans.shape}, must be (n, 3); give "
                "sequence, start, stop"
            )
        if axis not in self.layout.lengths_of:
            raise no_such(self.layout.location, "axis", axis, self.layout.lengths_of)
        whole: dict[str | None, NDArray[np.int64]] = {axis: spans}
        columns: dict[str, Any] = {}
        for name in fields:
            source = self.by_name.get(name)
            if source is None:
                raise no_such(self.layout.location, "field", name, self.by_name)
            if isinstance(source, TextSource):
                columns[name] = source.take(spans[:, 0])
                continue
            along = source.field.axis
            if along not in whole:
                whole[along] = self._whole(spans[:, 0], along)
            if isinstance(source, DecodedSource):
                columns[name] = source.take(whole[along])
            else:
                columns[name] = SpanColumn(source, whole[along])
        return columns

    def _whole(self, numbers: NDArray[np.int64], axis: str | None) -> NDArray[np.int64]:
        """Give the spans of whole sequences; a number that is not there stays to be refused."""
        spans = np.zeros((len(numbers), 3), dtype=np.int64)
        spans[:, 0] = numbers
        spans[:, 2] = 1 if axis is None else self.layout.lengths_of[axis].take(numbers, mode="clip")
        return spans

    def place(self, number: int) -> Place:
        """Give the place of a sequence, for an error; of one that is not there, the data set's."""
        if 0 <= number < len(self.layout):
            return self.layout.place(number)
        return Place(dataset=self.layout.location)

    def keys(self, numbers: Sequence[int] | NDArray[np.int64]) -> list[str]:
        """Give the ids of sequences.

        Raises:
            ConfigError: If there is no such sequence.
        """
        asked = np.asarray(numbers, dtype=np.int64)
        source = None if self.key is None else self.by_name[self.key]
        if isinstance(source, TextSource):
            return source.take(asked)
        if isinstance(source, DecodedSource):
            return cast("list[str]", source.take(self._whole(asked, None)))
        wanted = asked.tolist()
        for number in wanted:
            self.layout.shard_of(number)
        return [str(number) for number in wanted]

    def raw_texts(self, name: str | None, numbers: NDArray[np.int64]) -> Raw:
        """Give the bytes of ids or of a field of texts; see ``raw.RawTexts``.

        Raises:
            ConfigError: If there is no such sequence or field of texts.
        """
        if name is not None and (
            name not in self.by_name or self.by_name[name].field.dtype not in TEXTS
        ):
            texts = [name for name, one in self.by_name.items() if one.field.dtype in TEXTS]
            raise no_such(self.layout.location, "field of texts", name, texts)
        name = self.key if name is None else name
        source = None if name is None else self.by_name[name]
        if isinstance(source, TextSource):
            return source.raw(numbers)
        if isinstance(source, DecodedSource):
            return join_texts(cast("list[str]", source.take(self._whole(numbers, None))))
        outside = (numbers < 0) | (numbers >= len(self.layout))
        if outside.any():
            self.layout.shard_of(int(numbers[outside][0]))
        return decimals(numbers)
