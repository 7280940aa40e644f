"""The sequences of a store as dicts, for writing them again in another form or place.

Place in the flow: ``write_store`` is given a store. Reads: runs of sequences. Makes: dicts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.protocols import Store
from seqdata.storage.schema import TEXTS, default_axis, field_width

_RUN = 64  # sequences that are read at once, at most
_RUN_BYTES = 32 << 20  # of them, unless one alone has more


@dataclass(frozen=True, slots=True, eq=False)
class StoreRows:
    """The sequences of a store, in its order; may be gone through again.

    Attributes:
        store: Any store.
        key: The name under which ids are given, where the store has no such field and its ids are
            not just numbers; empty: they are not given.
    """

    store: Store
    key: str

    @property
    def axes(self) -> dict[str, str | None]:
        """Field -> axis, of all fields of numbers that are no single number."""
        fields = self.store.fields.items()
        return {name: one.axis for name, one in fields if one.axis is not None or one.shape}

    def __len__(self) -> int:
        return len(self.store)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        store, named = self.store, self._is_named()
        axis = default_axis(store.lengths_of)
        for first, stop in self._runs():
            numbers = np.arange(first, stop)
            spans = np.zeros((len(numbers), 3), dtype=np.int64)
            spans[:, 0], spans[:, 2] = numbers, store.lengths_of[axis][first:stop]
            columns = store.read(spans, list(store.fields), axis=axis)
            ids = store.keys(store.base_numbers(numbers)) if named else []
            for at in range(len(numbers)):
                row = {self.key: ids[at]} if named else {}
                yield row | {name: self._value(name, columns[name][at]) for name in store.fields}

    def _is_named(self) -> bool:
        """Tell whether ids are more than numbers, as far as the first and the last ones tell."""
        if not self.key or self.key in self.store.fields:
            return False
        few = np.unique(np.r_[0:_RUN, len(self.store) - _RUN : len(self.store)])
        few = self.store.base_numbers(few[(few >= 0) & (few < len(self.store))])
        return self.store.keys(few) != [str(number) for number in few.tolist()]

    def _value(self, name: str, value: Any) -> Any:
        field = self.store.fields[name]
        return value[0] if field.axis is None and field.dtype not in TEXTS else value

    def _runs(self) -> Iterator[tuple[int, int]]:
        """Give sequences that are read at once: the first, and one past the last."""
        sizes = self._sizes()
        first = 0
        while first < len(self.store):
            size = np.cumsum(sizes[first : first + _RUN])
            stop = first + max(1, int(np.searchsorted(size, _RUN_BYTES, side="right")))
            yield first, stop
            first = stop

    def _sizes(self) -> NDArray[np.int64]:
        """Give the bytes of each sequence along its axes, int64 (sequences,)."""
        sizes = np.zeros(len(self.store), dtype=np.int64)
        for field in self.store.fields.values():
            if field.axis is not None:
                lengths = self.store.lengths_of[field.axis].astype(np.int64)
                sizes += field_width(field) * lengths
        return sizes
