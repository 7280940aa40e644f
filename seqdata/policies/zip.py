"""Policy ``zip``: a batch of each of several data sets in every step.

One part leads: its epochs are those of the steps. The others go through their own epochs, one after
another, and continue in the next epoch where they were. All of it follows from epoch and number of
a step, so a run continues anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from seqdata.errors import ConfigError, PlanError, did_you_mean, must_be
from seqdata.index import SequenceIndex
from seqdata.plan import Plan, PlanOrigin
from seqdata.planning.build import make_fingerprint
from seqdata.planning.parts import check_part_policy, derive_part_seed, match_parts
from seqdata.planning.segments import SupportsSegments
from seqdata.planning.wrapping import disable_shuffle
from seqdata.planning.zipped import ZippedPart, ZipTable, make_zip_report
from seqdata.protocols import Policy, SupportsMixing


@dataclass(frozen=True, slots=True)
class Zip:
    """A batch of each of several named data sets in every step.

    The data is given by name: ``Loader({"labelled": ..., "unlabelled": ...}, Zip(...))``. A step is
    a dict: name -> ``SequenceBatch``, each with the fields of its own data, its own ``weight`` and
    ``loss_scale``. ``batch["unlabelled"].part_epoch`` counts the passes over a part.

    Every part is gone through without repetition, shuffled again in each of its own epochs. Its
    position is kept over the epochs of the steps, so that nothing of a long part is left out.

    Args:
        parts: Name -> how the part is batched.
        lead: The part whose epochs are those of the steps; None: the one with the most batches, of
            equal ones the first.
        shuffle: Whether the parts are shuffled; else each is in the data's order, and is not drawn
            by weight: each of its sequences comes once in each of its epochs.

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
        if not isinstance(self.parts, Mapping) or not self.parts:
            raise ConfigError(
                must_be(
                    "policy 'zip': `parts`", "a mapping of names to policies", f"{self.parts!r}",
                    'Write e.g. {"labelled": Bucketed(16), "unlabelled": Bucketed(64)}',
                )
            )  # fmt: skip
        for name, policy in self.parts.items():
            if not isinstance(name, str):
                raise ConfigError(must_be("policy 'zip': a part's name", "a text", f"{name!r}"))
            check_part_policy("zip", name, policy, "Pass one whose batches are as many, always.")
            if isinstance(policy, SupportsSegments):
                raise ConfigError(
                    f"policy 'zip': the weights of part {name!r} must stay in an epoch, but those "
                    f"of {type(policy).__name__} may change. Pass the policy within."
                )
            if isinstance(policy, SupportsMixing):
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
        """The axis of the part that leads, or of the first; each is planned on its own."""
        return self.parts[next(iter(self.parts)) if self.lead is None else self.lead].axis

    @property
    def policies(self) -> Mapping[str, Policy]:
        """Name -> the policy that batches the part."""
        if self.shuffle:
            return dict(self.parts)
        return {name: disable_shuffle(policy) for name, policy in self.parts.items()}

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Make the epoch's plan, in which a batch has the rows of all parts of a step.

        The engine plays a plan for each part; this one says which sequences a step has.
        """
        starts = accumulate(map(len, index.parts.values()), initial=0)
        tables = [
            part.make_table(index.parts[name], derive_part_seed(seed, name), epoch, first)
            for (name, part), first in zip(self.split(index).items(), starts)  # noqa: B905
        ]
        origin = PlanOrigin(
            fingerprint=lambda: make_fingerprint(index, self, seed, epoch),
            report=lambda made: make_zip_report(made, tables),
        )
        lookahead = max(run.lookahead for table in tables for run in table.parts)
        return Plan.lazy(ZipTable(tables), origin, lookahead=lookahead)

    def num_batches(self, index: SequenceIndex) -> int:
        """Return the number of steps of every epoch: the batches of the part that leads."""
        return self._count_batches(index)[self.find_lead(index)]

    def find_lead(self, index: SequenceIndex) -> str:
        """Return the name of the part that leads."""
        if self.lead is not None:
            return self.lead
        counts = self._count_batches(index)
        return max(counts, key=counts.__getitem__)

    def split(self, index: SequenceIndex) -> dict[str, ZippedPart]:
        """Return the policy of each part, over its own store, in the data's order.

        Raises:
            ConfigError: If the data has no names, or others than the policy.
            PlanError: If a part has no batch.
        """
        policies, count = self.policies, self.num_batches(index)
        return {name: ZippedPart(name, policies[name], count) for name in index.parts}

    def _count_batches(self, index: SequenceIndex) -> dict[str, int]:
        """Return the batches of an own epoch of each part."""
        advice = "Pass how it is batched, or leave it out of the data."
        parts = match_parts("zip", self.parts, index, "a policy", advice)
        policies: Any = self.policies
        counts = {name: policies[name].num_batches(part) for name, part in parts.items()}
        for name, count in counts.items():
            if not count:
                raise PlanError(
                    f"policy 'zip': part {name!r} must have a sequence to draw, but has none: "
                    f"{len(parts[name])} sequences make no batch. Leave it out, or change its "
                    "policy."
                )
        return counts
