"""Batches that are made by hand, and whether two are the same."""

import torch
from torch.nn.utils.rnn import PackedSequence

from seqdata.batch.axes import Axes
from seqdata.batch.batch import SequenceBatch


def make_batch(lengths=(3, 1, 2), weight=None, fill=0.0, **more):
    """Rows of ones with ``fill`` in their padding, a field per sequence and one of text."""
    rows, width = len(lengths), max(1, *lengths)
    x = torch.full((rows, width, 2), fill)
    for row, length in enumerate(lengths):
        x[row, :length] = 1.0
    weight = torch.ones(rows) if weight is None else torch.tensor(weight)
    counted = sum(
        max(0, length - int(more["burn_in"][row] if "burn_in" in more else 0))
        for row, length in enumerate(lengths)
        if weight[row] > 0
    )
    data = {"x": x, "y": torch.arange(rows), "id": [f"s{row}" for row in range(rows)]}
    axis_of = {"x": "time", "y": None, "id": None}
    return SequenceBatch(
        data=data,
        lengths=torch.tensor(lengths),
        ids=torch.arange(rows) + 10,
        weight=weight,
        start=torch.zeros(rows, dtype=torch.int64),
        num_tokens=counted,
        padded_length=width,
        axes=Axes("time", axis_of),
        **more,
    )


def are_alike(one, other):
    """Return whether two parts of batches are the same, down to dtypes and bits."""
    if isinstance(one, torch.Tensor) and one.is_nested:
        return are_alike(list(one.unbind()), list(other.unbind()))
    if isinstance(one, list):
        return len(one) == len(other) and all(map(are_alike, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_alike(one[key], other[key]) for key in one)
    if isinstance(one, Axes):
        return repr(one) == repr(other)
    if isinstance(one, PackedSequence):
        return all(are_alike(*parts) for parts in zip(one, other, strict=True))
    return type(one) is type(other) and one == other
