"""Orders of sequences: of a policy, of a plain permutation, and what can be counted in them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqdata import Plan


class Order(NamedTuple):
    """The sequences of an epoch as they come.

    Args:
        numbers: int64 (rows,), the sequence of each row, or of each place in a packed row.
        offsets: int64 (batches+1,), batch -> rows.
    """

    numbers: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    @property
    def batch_numbers(self) -> NDArray[np.int64]:
        """The batch of each row, int64 (rows,)."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.sizes)

    @property
    def places(self) -> NDArray[np.float64]:
        """Middle of each row's batch in the epoch, float64 (rows,), in (0, 1)."""
        middles = (self.offsets[:-1] + self.offsets[1:]) / (2 * len(self.numbers))
        return np.repeat(middles, self.sizes)


def read_order(plan: Plan) -> Order:
    """Return the order of a plan, small enough to be held whole."""
    table = plan.as_arrays()
    offsets = table.offsets if table.rows is None else table.rows[table.offsets]
    return Order(table.spans[:, 0].copy(), offsets)


def permute(order: Order, rng: np.random.Generator) -> Order:
    """Return a plain global permutation of the same rows, cut where this order is."""
    return Order(rng.permutation(order.numbers), order.offsets)


def permute_batches(order: Order, rng: np.random.Generator) -> Order:
    """Return the same batches in random order."""
    chosen = rng.permutation(len(order.sizes))
    offsets = np.concatenate([[0], np.cumsum(order.sizes[chosen])])
    shift = np.repeat(order.offsets[:-1][chosen] - offsets[:-1], order.sizes[chosen])
    return Order(order.numbers[np.arange(len(shift)) + shift], offsets)


def for_ranks(policy: Any, ranks: int) -> Any:
    """Return a policy whose steps are balanced for so many ranks, where it has such an option."""
    if "balance_ranks" not in {field.name for field in fields(policy)}:
        return policy
    return replace(policy, balance_ranks=ranks)


def count_values(order: Order, values: NDArray[Any], batches: int = 1) -> NDArray[np.int64]:
    """Count the different values in each run of so many batches; a short last run is left out.

    Args:
        order: Whose batches.
        values: Integers (sequences,) from 0 on.
        batches: Batches of a run.

    Returns:
        int64 (runs,).
    """
    kinds, runs = int(values.max()) + 1, len(order.sizes) // batches
    places = order.batch_numbers // batches
    is_met = np.zeros(runs * kinds, dtype=np.bool_)
    is_whole = places < runs
    is_met[places[is_whole] * kinds + values[order.numbers[is_whole]]] = True
    return is_met.reshape(runs, kinds).sum(axis=1)


def count_copies(order: Order) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many rows of each batch repeat another one, and the most copies of one."""
    batches, count = order.batch_numbers, int(order.numbers.max()) + 1
    pairs, copies = np.unique(batches * count + order.numbers, return_counts=True)
    first = np.searchsorted(pairs // count, np.arange(len(order.sizes)))
    return order.sizes - np.diff(np.append(first, len(pairs))), np.maximum.reduceat(copies, first)


def correlate(values: NDArray[Any], lag: int = 1) -> float:
    """Return the correlation of values with those ``lag`` later."""
    return float(np.corrcoef(values[:-lag], values[lag:])[0, 1])
