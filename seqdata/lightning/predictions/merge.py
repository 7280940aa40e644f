"""The store that predictions become: every sequence once, in the order of the predicted store.

Place in the flow: rank 0 runs it when all ranks are done. Reads: all ranks' rows. Makes: one Arrow
store, a sequence at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import IncompleteEpochError, PlanError
from seqdata.lightning.predictions.spill import Pool
from seqdata.protocols import Store
from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.concat import JoinedStore
from seqdata.storage.views import View

_RUN = 1 << 12  # sequences whose ids are looked up together


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Where the predictions of one data set go, and what must be there.

    Attributes:
        store: What is predicted.
        root: The folder of the store that is written.
        axis: The axis that was planned on.
        rows: Rows that are planned.
        spans: Whether a row is written for each span.
        partial: Whether rows may be missing.
        last: Whether of a truncated sequence the last timesteps are planned.
        overwrite: Whether a store in ``root`` is replaced.
    """

    store: Store
    root: Path
    axis: str
    rows: int
    spans: bool
    partial: bool
    overwrite: bool
    last: bool = False


def write_pool(pool: Pool, target: Target) -> None:
    """Write the rows of all ranks as one store.

    Raises:
        IncompleteEpochError: If rows are missing.
        PlanError: If a sequence is there twice, has a gap, or was left out by the policy.
        ConfigError: If the folder is not free.
    """
    edges = _edges(pool, target)
    _check_whole(pool, edges, target)
    axes: dict[str, str | None] = dict.fromkeys(pool.fields)
    axes.update({name: target.axis for name, one in pool.fields.items() if one.per == "timestep"})
    numbers = pool.places[edges[:-1], 0]
    write_arrow(
        target.root,
        _sequences(pool, edges, target.store),
        axes={**_ragged(axes, pool), "spans": "spans"},
        key="id" if _each_once(target.store, numbers) else "",
        progress=False,
        overwrite=target.overwrite,
    )


def _ragged(axes: dict[str, str | None], pool: Pool) -> dict[str, str | None]:
    return {
        name: axis for name, axis in axes.items() if axis is not None or pool.fields[name].shape
    }


def _edges(pool: Pool, target: Target) -> NDArray[np.int64]:
    """Give where each sequence to be written begins among the rows, and their end."""
    count = len(pool.places)
    if target.spans:
        return np.arange(count + 1)
    begins = np.flatnonzero(np.diff(pool.places[:, 0], prepend=-1))
    return np.append(begins, count)


def _sequences(pool: Pool, edges: NDArray[np.int64], store: Store) -> Iterator[dict[str, Any]]:
    for first in range(0, len(edges) - 1, _RUN):
        run = edges[first : first + _RUN + 1]
        numbers = pool.places[run[:-1], 0]
        keys = store.keys(store.base_numbers(numbers))
        for key, number, (begin, stop) in zip(
            keys, numbers, itertools.pairwise(run.tolist()), strict=True
        ):
            made: dict[str, Any] = {"id": key, "position": number}
            made.update({name: pool.value(name, begin, stop) for name in pool.fields})
            made["spans"] = pool.places[begin:stop, 1:]
            yield made


def _check_whole(pool: Pool, edges: NDArray[np.int64], target: Target) -> None:
    rows = len(pool.places)
    if rows < target.rows and not target.partial:
        raise IncompleteEpochError(
            f"PredictionWriter: {rows} rows were predicted, must be {target.rows} as planned; "
            "look at `limit_predict_batches`, or pass `partial`=True"
        )
    numbers, starts, stops = pool.places.T
    same = numbers[1:] == numbers[:-1]
    doubled = same & (starts[1:] <= starts[:-1] if target.spans else starts[1:] < stops[:-1])
    if target.spans:
        doubled &= stops[1:] == stops[:-1]
    if doubled.any():
        at = int(np.flatnonzero(doubled)[0])
        raise PlanError.at(
            f"PredictionWriter: {_named(target.store, numbers[at])} was predicted twice from "
            f"timestep {starts[at + 1]} on, must be once; use a loader whose ranks share the data, "
            "and for windows pass `per`='span'",
            sequence=int(numbers[at]),
        )
    if target.spans:
        return
    before = np.concatenate([[0], stops[:-1]])
    before[edges[:-1]] = starts[edges[:-1]] if target.last else 0
    if (starts != before).any():
        at = int(np.flatnonzero(starts != before)[0])
        raise PlanError.at(
            f"PredictionWriter: {_named(target.store, numbers[at])} has no prediction of timesteps "
            f"{before[at]}..{starts[at]}, must be whole; pass `per`='span' for a row of each span",
            sequence=int(numbers[at]),
        )
    if len(edges) - 1 < len(target.store) and not target.partial:
        there = np.zeros(len(target.store), dtype=np.bool_)
        there[numbers] = True
        raise left_out(target.store, np.flatnonzero(~there))


def left_out(store: Store, numbers: NDArray[np.int64]) -> PlanError:
    """Make the error for sequences that the policy leaves out."""
    return PlanError.at(
        f"PredictionWriter: the policy leaves out {len(numbers)} of {len(store)} sequences, the "
        f"first is {_named(store, numbers[0])}, must leave out none; look at `empty` and "
        "`too_long`, or pass `partial`=True",
        sequence=int(numbers[0]),
    )


def _named(store: Store, number: Any) -> str:
    one = np.array([number], dtype=np.int64)
    return f"sequence {int(number)} ({store.keys(store.base_numbers(one))[0]!r})"


def _each_once(store: Store, positions: NDArray[np.int64]) -> bool:
    """Return whether each sequence is there once, so that its id may name it."""
    numbers = store.base_numbers(positions)
    base = store.base if isinstance(store, View) else store
    if isinstance(base, JoinedStore) and not base.has_one_id_each(numbers):
        return False
    seen = np.zeros(int(numbers.max()) + 1, dtype=np.bool_)
    seen[numbers] = True
    return int(seen.sum()) == len(numbers)
