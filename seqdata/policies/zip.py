"""Policy ``zip``: one batch from each of several datasets in every step.

One part is the lead, whose epochs are the epochs of the steps. Other parts are read in their own
epochs, one after another, and continue in the next epoch at their positions. Epoch and index of a
step determine its batches, so a run can continue at any step.

The epochs of a part form an endless run, which is cut into pieces as long as an epoch of the lead.
Batch k of epoch e of any part is therefore found without the batches before it. Place in the flow:
policies of parts -> a plan per part, which the engine of the part executes, and a plan of all parts
together, which counts steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, PlanError, check_flags, did_you_mean, must_be
from seqdata.index import SequenceIndex
from seqdata.plan import Plan, PlanOrigin
from seqdata.plan_table import (
    ArrayTable,
    BatchTable,
    PartLabel,
    PlanBatch,
    join_rows,
)
from seqdata.planning.build import make_fingerprint
from seqdata.planning.mix_table import MixTable, PartRun, make_mix_report
from seqdata.planning.part_order import PartOrder
from seqdata.planning.parts import check_part_policy, derive_part_seed, match_parts
from seqdata.planning.policy import (
    BasePolicy,
    WrapperPolicy,
    as_policy,
    balance_ranks,
    disable_shuffle,
    find_base_policy,
)
from seqdata.protocols import Policy
from seqdata.report import PlanReport, make_report

_RUN_BATCHES = 64  # batches that are described at once
_ONLY_PART = PartOrder((), ~0)


@dataclass(frozen=True, slots=True)
class ZippedPart(WrapperPolicy):
    """Policy of one part over its own store, with epochs as long as those of the lead.

    Attributes:
        name: Name of the part.
        policy: Policy of the part.
        batches: Number of batches of an epoch of the lead.
    """

    name: str
    policy: Policy
    batches: int

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Return the plan of an epoch; the part continues at the end of the previous epoch."""
        table = self.make_table(index, seed, epoch)
        (run,) = table.parts
        origin = PlanOrigin(
            fingerprint=lambda: make_fingerprint(index, self, seed, epoch),
            report=lambda batch_table: make_mix_report(batch_table, [run]),
        )
        return Plan.lazy(table, origin, lookahead=run.lookahead)

    def count_batches(self, index: SequenceIndex, *, seed: int, epoch: int) -> int:
        """Return the number of batches of every epoch."""
        del index, seed, epoch
        return self.batches

    def make_table(
        self, index: SequenceIndex, seed: int, epoch: int, first_sequence: int = 0
    ) -> MixTable:
        """Return the batches of an epoch.

        Args:
            index: Lengths of the part.
            seed: Seed of the part.
            epoch: Epoch of the steps, which may differ from that of the part.
            first_sequence: Index of the first sequence of the part in these batches.
        """

        def make_run() -> PartRun:
            base = find_base_policy(self.policy)
            return PartRun(
                self.name, first_sequence, index, self.policy, seed,
                self.policy.num_batches(index), as_policy(base).horizon, "zip",
                getattr(base, "balance_ranks", None) or 1,
            )  # fmt: skip

        key = ("zipped", self.name, self.policy, seed, first_sequence)
        run = index.remember(key, make_run)  # its plans serve the next epoch, too
        return MixTable([run], _ONLY_PART, _RUN_BATCHES, epoch * self.batches, self.batches)


@dataclass(frozen=True, slots=True, eq=False)
class ZipTable(BatchTable):
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
        """Return the number of scored timesteps and of rows in steps ``first:stop``."""
        totals = [part.totals(first, stop, overlap) for part in self.parts]
        return sum(timesteps for timesteps, _ in totals), sum(rows for _, rows in totals)

    def tables(self) -> Iterator[ArrayTable]:
        """Yield all steps in order, some at a time."""
        for first in range(0, len(self), _RUN_BATCHES):
            yield self.slice(first, min(first + _RUN_BATCHES, len(self)))

    def prepare(self, number: int) -> int:
        """Return the first step after those that are described together with this one."""
        return min(part.prepare(number) for part in self.parts)

    def label(self, numbers: Sequence[int]) -> list[PartLabel]:
        """Return the part of each row of these steps, and the part's own epoch."""
        labels = []
        part_labels = [part.label(numbers) for part in self.parts]
        for i, number in enumerate(numbers):
            names: list[str] = []
            epochs: list[int] = []
            for part, found in zip(self.parts, part_labels, strict=True):
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


def make_zip_report(batch_table: BatchTable, parts: Sequence[MixTable]) -> PlanReport:
    """Return the report of an epoch, with the sequences that parts leave out, split or truncate.

    Args:
        batch_table: The steps of the epoch.
        parts: The batches of each part.
    """
    reports = [make_mix_report(part, list(part.parts)) for part in parts]
    return replace(
        make_report(batch_table),
        dropped=np.concatenate([report.dropped for report in reports]),
        split=np.concatenate([report.split for report in reports]),
        truncated=np.concatenate([report.truncated for report in reports]),
    )


@dataclass(frozen=True, slots=True)
class Zip(BasePolicy):
    """Steps with one batch from each of several named datasets.

    The Loader or DataModule takes the datasets by name, for example ``Loader({"labelled": ...,
    "unlabelled": ...}, Zip(...))``. A step is a dict from name to ``SequenceBatch``. Each batch has
    the fields, ``weight`` and ``loss_scale`` of its own dataset. ``batch["unlabelled"].part_epoch``
    counts the passes over a part.

    Every part is read without repetition and shuffled again after each pass. A part continues at
    its position in the next epoch, so that all sequences of a long part are read.

    Args:
        parts: Name -> policy of the part.
        lead: Part whose number of batches determines the length of an epoch; None: the part with
            the most batches, or the first of several equal ones.
        shuffle: Whether to shuffle the parts. Otherwise each part is in the order of the data, with
            each sequence once in each epoch of the part.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata.policies.fixed import Fixed
        >>> lengths = {"labelled": [3, 1, 2, 2], "unlabelled": [5, 4, 1]}
        >>> parts = {name: SequenceIndex.from_lengths(of) for name, of in lengths.items()}
        >>> steps = Zip({"labelled": Fixed(2), "unlabelled": Fixed(1)}, lead="labelled")
        >>> plan = steps.plan(SequenceIndex.from_parts(parts), seed=0, epoch=0)
        >>> len(plan), [label.part for label in plan.label_parts([0])]
        (2, [['labelled', 'labelled', 'unlabelled']])
    """

    parts: Mapping[str, Policy]
    lead: str | None = None
    shuffle: bool = True

    def __post_init__(self) -> None:
        check_flags("policy 'zip'", shuffle=self.shuffle)
        if not isinstance(self.parts, Mapping) or not self.parts:
            raise ConfigError(
                must_be(
                    "policy 'zip': `parts`", "a mapping of names to policies", f"{self.parts!r}",
                    'Write e.g. {"labelled": Bucketed(16), "unlabelled": Bucketed(64)}',
                )
            )  # fmt: skip
        for name, policy in self.parts.items():
            if not isinstance(name, str):
                raise ConfigError(must_be("policy 'zip': a part's name", "a string", f"{name!r}"))
            advice = "Pass a policy whose epochs all have the same number of batches."
            check_part_policy("zip", name, policy, advice)
            if as_policy(policy).changes_weights:
                raise ConfigError(
                    f"policy 'zip': the weights of part {name!r} must not change within an epoch, "
                    f"but those of {type(policy).__name__} may change. Pass the inner policy."
                )
            if as_policy(policy).policies:
                raise ConfigError(
                    f"policy 'zip': the policy of part {name!r} must batch one store, but is a "
                    f"{type(policy).__name__}, which draws from several. Name these as parts."
                )
        if self.lead is not None and self.lead not in self.parts:
            hint = did_you_mean(self.lead, self.parts)
            raise ConfigError(
                must_be(
                    "policy 'zip': `lead`", f"one of {', '.join(map(repr, self.parts))}",
                    f"{self.lead!r}", hint or "Pass a part's name, or None for the longest",
                )
            )  # fmt: skip

    def __hash__(self) -> int:
        return hash((tuple(self.parts.items()), self.lead, self.shuffle))

    @property
    def axis(self) -> str:
        """Axis of the lead, or of the first part; the plan of each part uses its own axis."""
        return self.parts[next(iter(self.parts)) if self.lead is None else self.lead].axis

    @property
    def policies(self) -> Mapping[str, Policy]:
        """Name -> policy, for each part."""
        if self.shuffle:
            return dict(self.parts)
        return {name: disable_shuffle(policy) for name, policy in self.parts.items()}

    def for_ranks(self, ranks: int) -> Zip:
        """Return the policy whose parts are balanced for a number of ranks."""
        return replace(
            self,
            parts={name: balance_ranks(policy, ranks) for name, policy in self.parts.items()},
        )

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Return the plan of an epoch, in which a batch has the rows of all parts of a step.

        The engine executes a plan for each part; this plan lists the sequences of a step.
        """
        starts = accumulate(map(len, index.parts.values()), initial=0)
        tables = [
            part.make_table(index.parts[name], derive_part_seed(seed, name), epoch, first)
            for (name, part), first in zip(self.split(index).items(), starts)  # noqa: B905
        ]
        origin = PlanOrigin(
            fingerprint=lambda: make_fingerprint(index, self, seed, epoch),
            report=lambda batch_table: make_zip_report(batch_table, tables),
        )
        lookahead = max(run.lookahead for table in tables for run in table.parts)
        return Plan.lazy(ZipTable(tables), origin, lookahead=lookahead)

    def count_batches(self, index: SequenceIndex, *, seed: int, epoch: int) -> int:
        """Return the number of steps of every epoch, which is the number of batches of the lead."""
        del seed, epoch
        return self._count_batches(index)[self.find_lead(index)]

    def find_lead(self, index: SequenceIndex) -> str:
        """Return the name of the lead."""
        if self.lead is not None:
            return self.lead
        counts = self._count_batches(index)
        return max(counts, key=counts.__getitem__)

    def split(self, index: SequenceIndex) -> dict[str, ZippedPart]:
        """Return the policy of each part over its own store, in the order of the data.

        Raises:
            ConfigError: If the data has no names, or names that differ from those of the policy.
            PlanError: If a part has no batch.
        """
        policies, count = self.policies, self.num_batches(index)
        return {name: ZippedPart(name, policies[name], count) for name in index.parts}

    def _count_batches(self, index: SequenceIndex) -> dict[str, int]:
        """Return the number of batches of one pass over each part."""
        advice = "Pass one, or leave this part out of the data."
        parts = match_parts("zip", self.parts, index, "a policy", advice)
        policies: Any = self.policies
        counts = {name: policies[name].num_batches(part) for name, part in parts.items()}
        for name, count in counts.items():
            if not count:
                raise PlanError(
                    f"policy 'zip': part {name!r} must have a sequence to draw, but its policy "
                    f"makes no batch from {len(parts[name])} sequences. Leave the part out, or "
                    "change its policy."
                )
        return counts
