"""A store over a map-style Dataset of the user: lengths are given, items are read one at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, DecodeError, StopIterationGuard
from seqdata.index import DEFAULT_AXIS
from seqdata.protocols import Field
from seqdata.storage.array_column import ArrayColumn, check_spans
from seqdata.storage.data_location import DataLocation, ShardLayout, narrow_lengths
from seqdata.storage.dataset_items import (
    ItemForm,
    OpaqueItem,
    as_mapping,
    check_value,
    infer_item_fields,
)
from seqdata.storage.fields import find_key, kind_of, make_unknown_name_error
from seqdata.storage.ids import name_sequences
from seqdata.storage.views import SequenceStore
from seqdata.storage.writing.progress import progress_bar

_DATASET_NAME = "dataset"


@runtime_checkable
class MapStyle(Protocol):
    """Object with a length and items by index, such as a ``torch.utils.data.Dataset``."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


LengthFn = Callable[[Any], int]
"""Item -> its timesteps."""


class DatasetStore(SequenceStore):
    """The items of a Dataset, behind the interface of a store. Created by ``from_dataset``.

    Args:
        dataset: The Dataset.
        lengths: Number of timesteps of each item, integers (items,).
        fields: Name -> field.
        names: Names of the parts of items that are tuples; None: not given.
        key: The ``str`` field of ids; None: an item is named by its number.
        item_form: The structure of items; None: it is not known.
        problem: Why items have no fields, so that they can only be passed as they are.
    """

    is_copied_to_workers = True

    def __init__(
        self,
        dataset: MapStyle,
        lengths: NDArray[Any],
        fields: Mapping[str, Field],
        names: Sequence[str] | None,
        key: str | None,
        item_form: ItemForm | None = None,
        problem: str = "",
    ) -> None:
        self.item_form = item_form
        self.problem = problem
        self._dataset = dataset
        self._lengths_of = {DEFAULT_AXIS: lengths}
        self._fields = dict(fields)
        self._part_names = names
        self._key = key
        self._layout = ShardLayout(
            _DATASET_NAME, (_DATASET_NAME,), [0, len(lengths)], self._lengths_of
        )
        self._fingerprint: str | None = None

    @classmethod
    def from_dataset(
        cls,
        dataset: MapStyle,
        lengths: Any,
        *,
        names: Sequence[str] | None = None,
        axes: Mapping[str, str | None] | None = None,
        key: str = "id",
        progress: bool | None = None,
        may_be_opaque: bool = False,
    ) -> DatasetStore:
        """Return a store of a Dataset whose items are arrays, tuples or dicts of them.

        An array whose first dimension is the item's length runs along ``time``; the first item
        determines the fields, and every other item must match. Arrays may be tensors on the CPU.

        Args:
            dataset: Object with a length and items by index; an item must not change.
            lengths: Number of timesteps of each item, integers (items,); or a function that
                returns it for an item, for which every item is read once.
            names: Names of the parts of items that are tuples; None: ``x``, ``y``, ``z``,
                ``field3``, ….
            axes: Field -> ``time``, or None for one value per item, even if its first dimension is
                the length of the first item.
            key: The ``str`` field of ids, if there is one.
            progress: Whether to show a progress bar while lengths are counted; None: on a terminal.
            may_be_opaque: Whether items may be of any type, for a ``collate_fn`` that takes them as
                they are; the store has no fields if the first item does not determine them.

        Raises:
            ConfigError: If there is no item, or lengths, names or axes do not fit.
            DecodeError: If the first item holds a value that is not an array, number, ``str`` or
                ``bytes``.

        Examples:
            >>> items = {0: np.arange(3), 1: np.arange(2)}  # stands for a Dataset
            >>> DatasetStore.from_dataset(items, [3, 2]).lengths.tolist()
            [3, 2]
        """
        count = len(dataset)
        if not count:
            raise ConfigError(
                "dataset: must have at least one item, but has none. Check where it comes from"
            )
        with StopIterationGuard("dataset: `__getitem__`", type(dataset)):
            item_lengths = _resolve_lengths(dataset, lengths, progress)
            item = _get_item(dataset, 0)
        try:
            fields = infer_item_fields(as_mapping(item, names), int(item_lengths[0]), axes)
        except (ConfigError, DecodeError) as error:
            if not may_be_opaque:
                raise
            return cls(dataset, item_lengths, {}, names, None, None, str(error))
        form = ItemForm.from_item(item, names)
        return cls(dataset, item_lengths, fields, names, find_key(fields, key), form)

    def __reduce__(self) -> tuple[Any, ...]:
        lengths = self._lengths_of[DEFAULT_AXIS]
        arguments = (
            self._dataset,
            lengths,
            self._fields,
            self._part_names,
            self._key,
            self.item_form,
            self.problem,
        )
        return DatasetStore, arguments

    def __len__(self) -> int:
        return len(self._layout)

    @property
    def title(self) -> str:
        """One line that names the Dataset."""
        return f"DatasetStore({type(self._dataset).__name__}, {len(self)} items)"

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name -> field."""
        return self._fields

    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]:
        """Axis -> number of timesteps of each item, integers (items,)."""
        return self._lengths_of

    @property
    def shards(self) -> Sequence[str]:
        """One name: the files of a Dataset are not known."""
        return (_DATASET_NAME,)

    @property
    def fingerprint(self) -> str:
        """Digest of lengths and schema (32 hex digits); the content is not part of it."""
        if self._fingerprint is None:
            digest = hashlib.sha256(repr((self._fields, self._key)).encode())
            digest.update(self.lengths.data)
            self._fingerprint = digest.hexdigest()[:32]
        return self._fingerprint

    def keys(self, numbers: Any) -> list[str]:
        """Return the ids of items by index, or of a batch's rows.

        If items have a field of ids, they are read for this.
        """
        return name_sequences(numbers, self._read_keys)

    def _read_keys(self, numbers: NDArray[np.int64]) -> list[str]:
        items = numbers.tolist()
        for index in items:
            self._layout.find_shard(index)
        if self._key is None:
            return [str(index) for index in items]
        return [
            cast(str, self._check_value(index, self._read_item(index), self._key))
            for index in items
        ]

    def base_numbers(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same numbers: this store is not a view."""
        return numbers

    def locate(self, number: int) -> DataLocation:
        """Return the location of an item, for an error."""
        return DataLocation(dataset=_DATASET_NAME, sequence=number)

    def read(
        self, spans: NDArray[np.int64], fields: Iterable[str], *, axis: str = "time"
    ) -> dict[str, Any]:
        """Read a batch as columns, each item once; see ``protocols.Store.read``."""
        spans = np.ascontiguousarray(spans, dtype=np.int64)
        names = list(fields)
        if axis not in self._lengths_of:
            raise make_unknown_name_error(_DATASET_NAME, "axis", axis, self._lengths_of)
        for name in names:
            if name not in self._fields:
                raise make_unknown_name_error(_DATASET_NAME, "field", name, self._fields)
        check_spans(self._layout, ", ".join(names), axis, spans)
        items: dict[int, Mapping[str, Any]] = {}
        values: dict[str, list[Any]] = {name: [] for name in names}
        for index, start, stop in spans.tolist():
            if index not in items:
                items[index] = self._read_item(index)
            for name in names:
                value = self._check_value(index, items[index], name)
                if self._fields[name].axis is not None:
                    value = np.array(value[start:stop])  # the Dataset may reuse its memory
                values[name].append(value)
        return {name: self._make_column(name, found) for name, found in values.items()}

    def observe(self, on_sequence: Callable[[int], None]) -> DatasetStore:
        """Return the same store, which reports the index of each item before it is read."""
        lengths = self._lengths_of[DEFAULT_AXIS]
        observed = _ObservedDataset(self._dataset, on_sequence)
        return DatasetStore(
            observed, lengths, self._fields, self._part_names, self._key, self.item_form,
            self.problem,
        )  # fmt: skip

    def read_items(self, numbers: NDArray[np.int64]) -> list[OpaqueItem]:
        """Return items as the Dataset returns them, each read once."""
        found: dict[int, OpaqueItem] = {}
        for index in numbers.tolist():
            if index not in found:
                self._layout.find_shard(index)
                found[index] = OpaqueItem(_get_item(self._dataset, index))
        return [found[index] for index in numbers.tolist()]

    def _read_item(self, index: int) -> Mapping[str, Any]:
        item = _get_item(self._dataset, index)
        fields = as_mapping(item, self._part_names)
        if fields.keys() != self._fields.keys():
            raise DecodeError.at(
                f"dataset: item {index} must have {', '.join(self._fields)} like item 0, but has "
                f"{', '.join(map(str, fields)) or 'no fields'}. Give all items the same fields",
                sequence=index,
            )
        return fields

    def _check_value(self, index: int, item: Mapping[str, Any], name: str) -> Any:
        length = int(self.lengths[index])
        return check_value(index, name, item[name], self._fields[name], length)

    def _make_column(self, name: str, values: list[Any]) -> ArrayColumn | list[Any]:
        field = self._fields[name]
        if field.axis is None and kind_of(field).is_array:
            values = [value[None] for value in values]
        return kind_of(field).gather(field, values)


class _ObservedDataset:
    """A Dataset that reports the index of each item before it is read."""

    __slots__ = ("_dataset", "_on_item")

    def __init__(self, dataset: MapStyle, on_item: Callable[[int], None]) -> None:
        self._dataset = dataset
        self._on_item = on_item

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        self._on_item(index)
        return self._dataset[index]


def _get_item(dataset: MapStyle, index: int) -> Any:
    try:
        return dataset[index]
    except Exception as error:
        error.add_note(f"in item {index} of the dataset")
        raise


def _resolve_lengths(dataset: MapStyle, lengths: Any, progress: bool | None) -> NDArray[Any]:
    count = len(dataset)
    counted = np.asarray(
        _count_lengths(dataset, lengths, progress) if callable(lengths) else lengths
    )
    if counted.dtype.kind not in "iu" or counted.shape != (count,):
        raise ConfigError(
            f"dataset: `lengths` must be integers of shape ({count},), one per item, but are "
            f"{counted.dtype} of shape {counted.shape}. Pass the lengths of this dataset"
        )
    if (counted < 0).any():
        at = int(np.flatnonzero(counted < 0)[0])
        raise ConfigError(
            f"dataset: `lengths` must not be negative, but has {counted[at]} for item {at}. Pass "
            "the actual lengths"
        )
    return narrow_lengths(counted.astype(np.int64))


def _count_lengths(dataset: MapStyle, measure: LengthFn, progress: bool | None) -> list[int]:
    lengths = []
    with progress_bar(progress, "counting lengths", len(dataset)) as bar:
        for index in range(len(dataset)):
            lengths.append(_measure_length(dataset, measure, index))
            if bar is not None:
                bar.update(index + 1)
    return lengths


def _measure_length(dataset: MapStyle, measure: LengthFn, index: int) -> int:
    item = _get_item(dataset, index)
    with StopIterationGuard("dataset: `lengths`", measure):
        length = measure(item)
    if isinstance(length, bool) or not isinstance(length, int | np.integer):
        raise ConfigError(
            f"dataset: `lengths` must return an integer, but returned {length!r} for item "
            f"{index}. Change the function"
        )
    return int(length)
