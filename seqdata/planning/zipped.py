"""Parts that are played side by side: a batch of each in every step, each through its own epochs.

An epoch of a part is cut from the endless run of its own epochs, as long as that of the part that
leads. So batch k of epoch e of any part is found without playing what comes before. Place in the
flow: policies of parts -> a plan per part, which the engine of the part plays, and a plan of all
parts together, by which steps are counted. Reads: plans. Makes: batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from seqdata.index import SequenceIndex
from seqdata.plan import Plan, PlanOrigin
from seqdata.plan_table import (
    ArrayTable,
    BatchTable,
    PartLabel,
    PlanBatch,
    slice_table,
)
from seqdata.planning.build import describe_policy, make_fingerprint
from seqdata.planning.mix_table import MixTable, PartRun, join_rows, make_mix_report
from seqdata.planning.part_order import PartOrder
from seqdata.protocols import Policy
from seqdata.report import PlanReport, make_report

_RUN_BATCHES = 64  # that are described at once
_ONLY_PART = PartOrder((), ~0)


@dataclass(frozen=True, slots=True)
class ZippedPart:
    """The policy of one part, over its own store: its endless run, cut into epochs of one length.

    Attributes:
        name: Of the part.
        policy: That batches it.
        batches: Batches of an epoch: those of the part that leads.
    """

    name: str
    policy: Policy
    batches: int

    @property
    def axis(self) -> str:
        """The axis that is planned on."""
        return self.policy.axis

    @property
    def inner_policy(self) -> Policy:
        """The policy that batches the part."""
        return self.policy

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Return the plan of an epoch; the part continues where the epoch before has ended."""
        table = self.make_table(index, seed, epoch)
        (run,) = table.parts
        origin = PlanOrigin(
            fingerprint=lambda: make_fingerprint(index, self, seed, epoch),
            report=lambda made: make_mix_report(made, [run]),
        )
        return Plan.lazy(table, origin, lookahead=run.lookahead)

    def num_batches(self, index: SequenceIndex) -> int:
        """Return the number of batches of every epoch."""
        del index
        return self.batches

    def make_table(
        self, index: SequenceIndex, seed: int, epoch: int, first_sequence: int = 0
    ) -> MixTable:
        """Return the batches of an epoch.

        Args:
            index: The lengths of the part.
            seed: Of the part.
            epoch: Of the steps, not the part's own.
            first_sequence: Number of the part's first sequence in these batches.
        """

        def make_run() -> PartRun:
            lookahead = getattr(self.policy, "horizon", 0)
            count = self.policy.num_batches(index)
            return PartRun(
                self.name, first_sequence, index, self.policy, seed, count, lookahead, "zip"
            )

        key = ("zipped", self.name, describe_policy(self.policy), seed, first_sequence)
        run = index.remember(key, make_run)  # its plans serve the next epoch, too
        return MixTable([run], _ONLY_PART, _RUN_BATCHES, epoch * self.batches, self.batches)


@dataclass(frozen=True, slots=True, eq=False)
class ZipTable:
    """The steps of an epoch: each has the rows of a batch of every part, one part after another.

    Attributes:
        parts: The batches of each part, equally many.
    """

    parts: Sequence[MixTable]

    def __len__(self) -> int:
        return len(self.parts[0])

    def batch(self, number: int) -> PlanBatch:
        """Return the rows of one step."""
        batches = [part.batch(number) for part in self.parts]
        spans = np.concatenate([batch.spans for batch in batches])
        rows = join_rows([batch.rows for batch in batches], [batch.spans for batch in batches])
        return PlanBatch(spans, rows)

    def totals(self, first: int, stop: int, overlap: int) -> tuple[int, int]:
        """Return scored timesteps and rows of steps ``first:stop``, over all parts."""
        of_parts = [part.totals(first, stop, overlap) for part in self.parts]
        return sum(timesteps for timesteps, _ in of_parts), sum(rows for _, rows in of_parts)

    def tables(self) -> Iterator[ArrayTable]:
        """Yield all steps in order, some at a time."""
        for first in range(0, len(self), _RUN_BATCHES):
            yield slice_table(self, first, min(first + _RUN_BATCHES, len(self)))

    def prepare(self, number: int) -> int:
        """Return the first step after those that are described together with this one."""
        return min(part.prepare(number) for part in self.parts)

    def label(self, numbers: Sequence[int]) -> list[PartLabel]:
        """Return the part of each row of these steps, and the part's own epoch."""
        labels = []
        of_parts = [part.label(numbers) for part in self.parts]
        for i, number in enumerate(numbers):
            names: list[str] = []
            epochs: list[int] = []
            for part, found in zip(self.parts, of_parts, strict=True):
                count = len(part.batch(number).lengths)
                names += [cast(str, found[i].part)] * count
                epochs += [cast(int, found[i].epoch)] * count
            labels.append(PartLabel(names, epochs))
        return labels

    def row_weights(self, numbers: Sequence[int]) -> NDArray[np.float32] | None:
        """Return the weights of the rows of steps; None: all are 1."""
        if all(part.row_weights(numbers[:1]) is None for part in self.parts):
            return None
        weights = []
        for number in numbers:
            for part in self.parts:
                found = part.row_weights([number])
                count = len(part.batch(number).lengths)
                weights.append(np.ones(count, dtype=np.float32) if found is None else found)
        return np.concatenate(weights)


def make_zip_report(made: BatchTable, parts: Sequence[MixTable]) -> PlanReport:
    """Return the report of an epoch, with what the parts' policies leave out, split or truncate.

    Args:
        made: The steps of the epoch.
        parts: The batches of each part.
    """
    reports = [make_mix_report(part, list(part.parts)) for part in parts]
    return replace(
        make_report(made),
        dropped=np.concatenate([report.dropped for report in reports]),
        split=np.concatenate([report.split for report in reports]),
        truncated=np.concatenate([report.truncated for report in reports]),
    )
