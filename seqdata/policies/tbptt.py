"""Policy ``tbptt``: long sequences in chunks, each lane reading on where it stopped.

For truncated backpropagation through time (Williams and Peng, 1990; Sutskever, 2013): row j of the
next batch goes on where row j of this one stopped, so a recurrent state can be carried on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError
from seqdata.index import DEFAULT_AXIS, SequenceIndex
from seqdata.plan import Origin, Plan
from seqdata.planning.chunks import Chunks
from seqdata.planning.cutting import check_count
from seqdata.planning.items import Empty, Items, WholeSequences, select
from seqdata.planning.lanes import Dealt, deal, queues
from seqdata.planning.making import fingerprint_of, whole_report
from seqdata.planning.queued import queued
from seqdata.planning.randomness import Draw
from seqdata.planning.running import run_table
from seqdata.tables import ArrayTable, BatchTable


@dataclass(frozen=True, slots=True)
class TBPTT:
    """Chunks of at most ``chunk`` timesteps in ``lanes`` lanes; a batch has a row of each lane.

    Sequences are packed so that lanes end together, in the same number of steps in every epoch. A
    lane whose sequence ends takes the next one, with ``batch.reset``; one that has run dry is a row
    of weight 0. Sequences are shuffled, never the chunks of one.

    Args:
        lanes: Rows of a batch, of all ranks together.
        chunk: Most timesteps of a row.
        shuffle: Whether sequences are shuffled between epochs; else lanes read in the data's order.
        axis: The axis that is planned on.
        empty: What happens to sequences of length 0: ``drop`` or ``error``.

    Raises:
        ConfigError: If an argument cannot be meant.

    Example:
        >>> index = SequenceIndex.from_lengths([5, 2, 3])
        >>> plan = TBPTT(2, 2, shuffle=False).plan(index, seed=0, epoch=0)
        >>> [plan.batch(step).spans.tolist() for step in range(len(plan))]
        [[[0, 0, 2], [1, 0, 2]], [[0, 2, 4], [2, 0, 2]], [[0, 4, 5], [2, 2, 3]]]
    """

    lanes: int
    chunk: int
    shuffle: bool = True
    axis: str = DEFAULT_AXIS
    empty: Empty = "drop"

    def __post_init__(self) -> None:
        check_count("tbptt", "lanes", self.lanes)
        check_count("tbptt", "chunk", self.chunk)
        if not isinstance(self.shuffle, bool):
            raise ConfigError(
                f"policy 'tbptt': `shuffle` is {self.shuffle!r}, must be True or False; whole "
                "sequences are shuffled, and never the chunks of one: their lane carries a state"
            )
        self._rule()

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Make the epoch's plan."""
        items, draw = self._items(index), Draw(seed, epoch)
        return Plan.lazy(
            self._table(items, draw if self.shuffle else None),
            Origin(
                fingerprint=lambda: fingerprint_of(index, self, seed, epoch),
                report=lambda made: whole_report(items, made),
            ),
            lanes=self.lanes,
        )

    def num_batches(self, index: SequenceIndex) -> int:
        """Give the number of batches of every epoch."""
        return int(self._dealt(self._items(index)).loads.max())

    @property
    def _chunks(self) -> Chunks:
        return Chunks(self.chunk, self.chunk)

    def _items(self, index: SequenceIndex) -> Items:
        return select(index, self.axis, self._rule(), policy="tbptt")

    def _rule(self) -> WholeSequences:
        return WholeSequences(empty=self.empty)

    def _dealt(self, items: Items) -> Dealt:
        """Pack the lanes, once per index."""
        chunks = self._chunks
        return items.index.remember(
            ("dealt", items.axis, items.rule, chunks, self.lanes),
            lambda: deal(chunks.counts(_kept(items)[1]), self.lanes),
        )

    def _table(self, items: Items, draw: Draw | None) -> BatchTable:
        numbers, lengths = _kept(items)
        chunks, dealt = self._chunks, self._dealt(items)
        steps = int(dealt.loads.max())
        if not steps:
            return ArrayTable.checked([], None, [0], self.lanes)
        made = queues(chunks.counts(lengths), dealt, draw, most=steps, unit=1)
        taken = made.members
        lanes = queued(numbers[taken], lengths[taken], made.edges, chunks, steps)
        return run_table(lanes)


def _kept(items: Items) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Give the sequences that are planned, in the data's order, and their lengths, int64 (n,)."""
    lengths = np.asarray(items.index.run(items.axis, 0, len(items.index)), dtype=np.int64)
    numbers = np.flatnonzero(lengths)
    kind = np.uint32 if len(lengths) < 1 << 32 else np.int64
    return numbers.astype(kind), lengths[numbers]
