"""A collator around a torch ``collate_fn``, which takes a list of samples and returns anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from seqdata.batch.axes import Axes
from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError
from seqdata.protocols import Columns
from seqdata.storage.dataset_items import ITEMS, ItemForm, ValueForm

COLLATED = "collated"
"""The key of ``batch.data`` that holds the function's result."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Passes the rows of a batch to a ``collate_fn``.

    A sample is a dict: a tensor (length, *shape) per ragged field, a tensor of the value per other
    field of numbers, or a string; with a shift also ``targets``. Samples of a Dataset have the form
    of its items: tuples are tuples, and arrays, numbers and lists keep their types. If nothing has
    to be done to them before, they are the Dataset's own items, whatever these hold.

    Args:
        collate_fn: ``collate_fn(samples) -> anything``.
        form: Form of the Dataset's items; None: dicts of tensors.
        takes_items: Whether the only column, ``ITEMS``, has the Dataset's own items.
    """

    output_field: ClassVar[str] = COLLATED
    collate_fn: Callable[[list[Any]], Any]
    form: ItemForm | None = None
    takes_items: bool = False

    def with_item_form(self, form: ItemForm | None) -> Samples:
        """Return a copy of the collator for items of a form; None: dicts of tensors."""
        return replace(self, form=form)

    def with_items(self) -> Samples:
        """Return a copy of the collator for the Dataset's own items."""
        return replace(self, takes_items=True)

    def __call__(self, columns: Columns, batch: SequenceBatch) -> SequenceBatch:
        """Fill ``batch.data``: ``collated``, and its entries by name if it is a mapping.

        Raises:
            ConfigError: If a row holds several spans, which a list of samples cannot represent.
        """
        _refuse_packed_rows(batch)
        return self.fill_batch(self.collate_columns(columns, batch.axes, len(batch)), batch)

    def collate_columns(self, columns: Columns, axes: Axes, count: int) -> Any:
        """Return the function's result for ``count`` rows, one span each."""
        if self.takes_items:
            opaque: Any = columns[ITEMS]
            return self._collate([item.value for item in opaque])
        samples: list[dict[str, Any]] = [{} for _ in range(count)]
        forms = {} if self.form is None else self.form.values
        for name, column in columns.items():
            is_ragged = axes.along(name) is not None
            _add_field(samples, name, column, ragged=is_ragged, form=forms.get(name, "tensor"))
        items = (
            samples if self.form is None else [self.form.make_item(sample) for sample in samples]
        )
        return self._collate(items, f" with {', '.join(samples[0])}")

    def _collate(self, items: list[Any], described: str = "") -> Any:
        try:
            return self.collate_fn(items)
        except Exception as error:
            kind = type(items[0]).__name__ if items else "nothing"
            error.add_note(
                f"in the `collate_fn`, which received a list of {len(items)} samples, each a "
                f"{kind}{described}. If it joins sequences of different lengths, pad them there, "
                "or leave the function out: batches are then padded"
            )
            raise

    def fill_batch(self, result: Any, batch: SequenceBatch) -> SequenceBatch:
        """Put the function's result into a batch.

        Raises:
            ConfigError: If a row holds several spans, which a list of samples cannot represent.
        """
        _refuse_packed_rows(batch)
        batch.data = dict(result) if isinstance(result, Mapping) else {}
        batch.data[COLLATED] = result
        return batch


def _refuse_packed_rows(batch: SequenceBatch) -> None:
    if batch.segments is not None:
        raise ConfigError(
            "collator: a `collate_fn` takes one sequence per row, but rows of this policy hold "
            "several. Use a collator such as 'varlen', or another policy."
        )


def _add_field(
    samples: list[dict[str, Any]], name: str, column: Any, *, ragged: bool, form: ValueForm
) -> None:
    if isinstance(column, list):
        for sample, text in zip(samples, column, strict=True):
            sample[name] = text
        return
    for number, sample in enumerate(samples):
        piece = np.array(column[number])  # a copy: mapped bytes are read-only
        sample[name] = _convert(piece if ragged else np.asarray(piece[0]), form)


def _convert(value: NDArray[Any], form: ValueForm) -> Any:
    """Return a value in the type that the Dataset returned."""
    if form == "tensor":
        return torch.from_numpy(value)
    if form in ("list", "number"):
        return value.tolist()
    return value[()] if form == "scalar" else value
