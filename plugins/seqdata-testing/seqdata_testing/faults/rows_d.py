"""Rows D1 to D9: damage of files, for every way to open and to read.

Place in the flow: cells for the matrix. Makes: cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from seqdata_testing.faults import damaged
from seqdata_testing.faults.damaged import Harms, How
from seqdata_testing.faults.outcome import MENDED, WHOLE, Expectation
from seqdata_testing.faults.subject import Subject
from seqdata_testing.faults.table import Cell

SHARD_FACTS = ("dataset", "shard", "file", "offset", "length")
FILE_FACTS = ("dataset", "file")
NAMED = 0.95  # of the errors about values name the sequence
_WAYS = {None: "read", 0: "workers 0", 2: "workers 2"}
_MOST = {None: 1000, 0: 20, 2: 3}  # trials; a loader with workers takes a second to start
_MOST_OF_A_QUICK_ONE = {None: 40, 0: 4, 2: 1}
_OPENING = 5.0  # seconds
_MENDED = {0: 20, 2: 2}  # trials of loaders that go on
_GOING_ON = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A kind of damage, and what must come of it.

    Attributes:
        fault: Its name in ``FAULTS``.
        harms: Draws the damage.
        part: Which files: ``shards`` or the ``others``.
        kinds: What must come of it.
        facts: That the errors must have.
        count: Trials at most.
        named: Which part of the errors must name the sequence.
        off: Why it cannot be noticed with ``verify`` off; empty: it is.
        unread: Whether it may be in files that nobody reads with ``verify`` off.
    """

    fault: str
    harms: Harms
    part: str = "shards"
    kinds: tuple[str, ...]
    facts: tuple[str, ...] = SHARD_FACTS
    count: int = 100
    named: float = 0.0
    off: str = ""
    unread: bool = False


_BELIEVED = "off asks for no look at values and lengths"
OWN_ROWS = (
    Row(
        fault="D1", harms=damaged.flips_of_values, kinds=("CorruptSampleError",), count=1000,
        facts=(*SHARD_FACTS, "field"), named=NAMED, off=_BELIEVED,
    ),
    Row(fault="D2", harms=damaged.flips_of_the_rest, kinds=("CorruptShardError", WHOLE), count=300),
    Row(
        fault="D2", harms=damaged.flips_of_the_rest, part="others", kinds=("DataError", WHOLE),
        facts=FILE_FACTS, count=300, off=_BELIEVED,
    ),
    Row(fault="D3", harms=damaged.cuts, kinds=("CorruptShardError",)),
    Row(
        fault="D3", harms=damaged.cuts, part="others", kinds=("DataError",), facts=FILE_FACTS,
        unread=True,
    ),
    Row(fault="D4", harms=damaged.cuts_of_blocks, kinds=("CorruptShardError",)),
    Row(fault="D5", harms=damaged.emptied, kinds=("CorruptShardError",)),
    Row(
        fault="D5", harms=damaged.emptied, part="others", kinds=("DataError",), facts=FILE_FACTS,
        unread=True,
    ),
    Row(
        fault="D6", harms=damaged.zeroed, kinds=("CorruptSampleError", "CorruptShardError"),
        off=_BELIEVED,
    ),
    Row(fault="D7", harms=damaged.removed, kinds=("MissingShardError",)),
    Row(
        fault="D7", harms=damaged.removed, part="others", facts=FILE_FACTS, unread=True,
        kinds=("MissingShardError", "IncompleteDatasetError"),
    ),
    Row(fault="D8", harms=damaged.swapped, kinds=("CorruptShardError", "FingerprintMismatch")),
    Row(
        fault="D9", harms=damaged.stale, part="others", kinds=("DataError",), facts=FILE_FACTS,
        unread=True,
    ),
)  # fmt: skip
REACHES = tuple(row for row in OWN_ROWS if row.fault in ("D1", "D6"))
"""Damage that reaches sequences: that a store opens with."""

_FOREIGN_FACTS = ("dataset", "shard", "file")
FOREIGN_ROWS = (
    Row(fault="D3", harms=damaged.cuts, kinds=("DataError",), facts=_FOREIGN_FACTS),
    Row(
        fault="D4", harms=damaged.cuts_of_blocks, kinds=("CorruptShardError",),
        facts=_FOREIGN_FACTS,
    ),
    Row(fault="D5", harms=damaged.emptied, kinds=("DataError",), facts=_FOREIGN_FACTS),
)  # fmt: skip
_CANNOT = {
    "D1": "such files have no checksums: opening says that they are unverified",
    "D2": "as D1; that no byte ends the process is shown by tests/fuzz",
    "D6": "as D1",
    "D7": "such a folder has no manifest: nobody knows which files belong to it (a saved dataset "
    "has one)",
    "D8": "as D7; a state of other data is refused by its fingerprint",
}


def cells(subject: Subject, *, quick: bool = False) -> list[Cell]:
    """Give the cells of D1 to D9.

    Args:
        subject: What is damaged.
        quick: Whether only the cells that run at every change, which try little.
    """
    checked = bool(subject.verified)
    none = {} if checked else _CANNOT
    found = [Cell(fault=one, way=subject.name, reason=reason) for one, reason in none.items()]
    for row in OWN_ROWS if checked else FOREIGN_ROWS:
        for verify in subject.verify:
            if row.off and verify == "off":
                way = f"{subject.name}, verify off, {row.part}"
                found.append(Cell(fault=row.fault, way=way, reason=row.off))
                continue
            found += [_cell(subject, row, verify, how, quick=quick) for how in _WAYS]
    return found


def cells_of_row(subject: Subject, row: Row, *, quick: bool = False) -> list[Cell]:
    """Return the cells of one kind of damage, for every way to open and to read."""
    verify = subject.verify[-1]
    return [_cell(subject, row, verify, how, quick=quick) for how in _WAYS]


def mended_cells(subject: Subject, rows: Sequence[Row], *, quick: bool = False) -> list[Cell]:
    """Give the cells of loaders that go on: bad sequences are replaced, or masked.

    Args:
        subject: What is damaged.
        rows: The damage that reaches sequences.
        quick: Whether each tries little.
    """
    made = []
    for policy in ("replace", "mask"):
        for row in rows:
            for workers in (0, 2):
                count = min(row.count, _MENDED[workers], _MOST_OF_A_QUICK_ONE[2] if quick else 99)
                how = How(verify=subject.verify[-1], workers=workers, policy=policy)
                tries = partial(damaged.harmed, subject, how, row.harms, count, row.part)
                must = Expectation(
                    kinds=(MENDED, *row.kinds[1:]), facts=FILE_FACTS, seconds=_GOING_ON
                )
                way = f"{subject.name}, workers {workers}, on_error {policy}, {row.part}"
                made.append(
                    Cell(fault=row.fault, way=way, tries=tries, must=must, policy=policy,
                         bound=120.0)
                )  # fmt: skip
    return made


def _cell(subject: Subject, row: Row, verify: str, how: int | None, *, quick: bool) -> Cell:
    count = min(row.count, (_MOST_OF_A_QUICK_ONE if quick else _MOST)[how])
    kinds = (*row.kinds, WHOLE) if row.unread and verify == "off" else row.kinds
    return Cell(
        fault=row.fault,
        way=f"{subject.name}, verify {verify}, {_WAYS[how]}, {row.part}",
        tries=partial(
            damaged.harmed, subject, How(verify=verify, workers=how), row.harms, count, row.part
        ),
        must=Expectation(kinds=kinds, facts=row.facts, seconds=_OPENING),
        quick=how is None and verify == subject.verify[-1],
        named=row.named,
    )
