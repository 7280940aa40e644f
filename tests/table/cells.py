"""The table of what goes together: store kind x policy x layout x (axes, shift).

A cell is a combination; ``refusal`` says which make no sense, and by which words they are refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

from seqdata import (
    TBPTT,
    Bucketed,
    Fixed,
    Packed,
    Sorted,
    TokenBudget,
    Windows,
    open_store,
    write_store,
)
from seqdata.batch.layouts import LAYOUTS
from seqdata.storage.memory import MemoryStore
from seqdata_testing.lanes import FewLanes

RANDOM = np.random.default_rng(5)
LENGTHS = (4, 9, 3, 12, 7, 5, 11, 6, 3, 8)
ROWS: list[dict[str, Any]] = [
    {
        "id": f"s{number}",
        "x": RANDOM.normal(size=(length, 2)).astype(np.float32),
        "text": RANDOM.integers(0, 50, 2 + number % 4),
        "y": number * 10,
    }
    for number, length in enumerate(LENGTHS)
]
AXES = {"text": "text"}


def _arrow(folder: Path) -> Any:
    return write_store(folder / "arrow", ROWS, axes=AXES, shard_bytes=200)


def _table() -> pa.Table:
    arrays = {name: [row[name] for row in ROWS] for name in ROWS[0]}
    frames = pa.array([row.tolist() for row in arrays["x"]], pa.list_(pa.list_(pa.float32(), 2)))
    text = pa.array([row.tolist() for row in arrays["text"]], pa.list_(pa.int64()))
    return pa.table({"id": arrays["id"], "x": frames, "text": text, "y": arrays["y"]})


def _foreign(folder: Path) -> Any:
    folder.mkdir(exist_ok=True)
    pyarrow.feather.write_feather(_table(), folder / "foreign.feather", compression="lz4")
    return open_store(folder / "foreign.feather")


def _parquet(folder: Path) -> Any:
    folder.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(_table(), folder / "foreign.parquet", row_group_size=3)
    return open_store(folder / "foreign.parquet")


STORES: dict[str, Callable[[Path], Any]] = {
    "memory": lambda folder: MemoryStore.from_sequences(ROWS, axes=AXES),
    "arrow": _arrow,
    "take": lambda folder: _arrow(folder).take([7, 3, 3, 0, 9, 1]),
    "where of take": lambda folder: _arrow(folder).take(range(9, -1, -1)).where([True, False] * 5),
    "feather": _foreign,
    "parquet": _parquet,
}
POLICIES: dict[str, Any] = {
    "fixed": Fixed(3),
    "sorted": Sorted(3),
    "bucketed": Bucketed(3),
    "token-budget": TokenBudget(30, too_long="split"),
    "packed": Packed(rows=2, row_length=14),
    "windows": Windows(size=3, stride=2, batch_size=4),
    "forecast": Windows(size=2, stride=1, batch_size=4, horizon=1),
    "crops": Windows(size=3, batch_size=4, random=True, per_sequence=2),
    "lanes": FewLanes(lanes=8, chunk=4),
    "tbptt": TBPTT(lanes=8, chunk=4),
    "overlap": TBPTT(lanes=4, chunk=4, advance=3),
    "stream": TBPTT(lanes=4, chunk=5, continuous=True),
    "overlap of a stream": TBPTT(lanes=2, chunk=5, advance=3, continuous=True),
    "segments": TBPTT(lanes=4, chunk=5, segments=True, jitter=True),
}
FIELDS: dict[str, dict[str, Any]] = {
    "plain": {"fields": ("x", "y", "id")},
    "two axes": {"fields": ("x", "text", "y")},
    "shift": {"fields": ("x", "y"), "shift": 1},
}


class Cell(NamedTuple):
    """One combination, by name."""

    store: str
    policy: str
    layout: str
    fields: str


def refusal(cell: Cell) -> str | None:
    """Return the words by which a combination that makes no sense is refused."""
    if cell.fields == "shift" and cell.policy == "forecast":
        return "`shift` must be 0 with windows of a horizon of 1, but is 1"
    return None


IDLE = r"rows \[.*\] of length 0 cannot be packed"
"""How a PackedSequence is refused where lanes have run dry."""


def all_cells() -> list[Cell]:
    """Return the whole table."""
    return [Cell(*names) for names in itertools.product(STORES, POLICIES, LAYOUTS, FIELDS)]


def pairwise() -> Iterator[Cell]:
    """Yield few cells in which every two values of different columns meet at least once."""
    missing = {pair for cell in all_cells() for pair in _pairs(cell)}
    cells = all_cells()
    while missing:
        best = max(cells, key=lambda cell: len(missing & _pairs(cell)))
        missing -= _pairs(best)
        yield best


def _pairs(cell: Cell) -> set[tuple[Any, ...]]:
    return set(itertools.combinations(enumerate(cell), 2))
