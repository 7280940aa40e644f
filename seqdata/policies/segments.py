"""Policy ``segments``: weights that change within an epoch, at declared batches.

The batches at which weights may change are declared before the run, and the number of batches does
not depend on the weights. The length of an epoch is therefore exact, batches that are read ahead
are never outdated, and a resumed run has the batches of an uninterrupted run.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

from seqdata.errors import ConfigError, must_be
from seqdata.index import SequenceIndex
from seqdata.plan import Plan, PlanOrigin
from seqdata.plan_table import BatchTable
from seqdata.planning.build import check_counts
from seqdata.planning.policy import WrapperPolicy, as_policy, find_varying
from seqdata.planning.segments import SegmentedTable, SupportsWeightChanges, WeightHistory, Weights
from seqdata.protocols import Policy
from seqdata.report import PlanReport, make_report


@dataclass(frozen=True, slots=True)
class Segments(WrapperPolicy):
    """Batches of a policy whose weights may change after a fixed number of batches.

    ``Loader.set_weights`` sets the weights of the following segments. Under a Trainer, ``Feedback``
    sets the weights. All epochs have as many batches as the first epoch of the policy, independent
    of the weights. If the number of batches depends on lengths, a segment ends with its last
    declared batch, and the remaining sequences drawn for the segment are dropped.

    For evaluation, only the innermost policy plans the batches.

    Args:
        policy: ``Weighted`` or ``Mix``. A ``Mix`` with ``rows`` must use ``Fixed``, ``Sorted`` or
            ``Bucketed``, without ``too_long="split"``, or ``Windows`` with one random window of
            each sequence. The policy within ``Weighted`` must have the same number of batches in
            every epoch, unlike a ``Curriculum``.
        batches: Number of batches of a segment, over all ranks. The last segment of an epoch may
            have fewer.

    Raises:
        ConfigError: If an argument is invalid.

    Examples:
        >>> from seqdata.policies.fixed import Fixed
        >>> from seqdata.policies.weighted import Weighted
        >>> index = SequenceIndex.from_lengths([3, 1, 2, 2])
        >>> policy = Segments(Weighted(Fixed(1), draws=6), batches=2)
        >>> len(policy.plan(index, seed=0, epoch=0))
        6
    """

    policy: Policy
    batches: int

    def __post_init__(self) -> None:
        check_counts("segments", self, "batches")
        policy: Any = self.policy
        if isinstance(policy, type) or not isinstance(policy, SupportsWeightChanges):
            raise ConfigError(
                must_be(
                    "policy 'segments': `policy`", "Weighted, or a Mix",
                    f"{self.policy!r}", "Pass e.g. Weighted(Bucketed(64))",
                )
            )  # fmt: skip
        if isinstance(policy, WrapperPolicy):
            _check_epochs(policy.policy)
        rows_policy = getattr(self.policy, "policy", None)
        items = getattr(rows_policy, "items_per_sequence", None)
        if getattr(policy, "rows", False) is True and items != 1:
            raise ConfigError(
                "policy 'segments': a Mix with `rows=True` must have a policy that makes one row "
                "of each sequence and a number of batches that does not depend on lengths, but has "
                f"{rows_policy!r:.200}. Pass e.g. Bucketed(64)."
            )

    @property
    def changes_weights(self) -> bool:
        """True: a run may change weights within an epoch."""
        return True

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Return the plan of an epoch with the weights of the policy."""
        return self.plan_epoch(index, seed=seed, epoch=epoch, history=self.make_history())

    def count_batches(self, index: SequenceIndex, *, seed: int, epoch: int) -> int:
        """Return the number of batches of every epoch."""
        del seed, epoch  # all have as many as the first one of the policy
        return self.policy.num_batches(index)

    def make_history(self) -> WeightHistory:
        """Return the history of a run without changes of weights."""
        return WeightHistory(cast(SupportsWeightChanges, self.policy).max_changes)

    def make_weights(self, index: SequenceIndex, weights: Any) -> Weights:
        """Return weights in the form of the policy.

        Args:
            index: Lengths of the sequences.
            weights: float (sequences,) for ``Weighted``, or part -> weight for a ``Mix``.

        Raises:
            ConfigError: If the weights are invalid.
        """
        return cast(SupportsWeightChanges, self.policy).make_weights(index, weights)

    def plan_epoch(
        self, index: SequenceIndex, *, seed: int, epoch: int, history: WeightHistory
    ) -> Plan:
        """Return the plan of an epoch whose segments have the weights of a run.

        Args:
            index: Lengths of the sequences.
            seed: Seed of the run.
            epoch: Index of the epoch.
            history: Weights of the run, which are read when a segment is planned.
        """
        policy: Any = self.policy

        def make_plans(segment: Any, changes: Any) -> Any:
            return policy.plan_segment(index, seed=seed, segment=segment, changes=changes)

        @cache
        def plan_unchanged() -> Plan:
            return self.policy.plan(index, seed=seed, epoch=epoch)

        @cache
        def make_fingerprint() -> str:
            text = f"{plan_unchanged().fingerprint};segments of {self.batches}"
            return hashlib.sha256(text.encode()).hexdigest()[:32]

        def report(table: BatchTable) -> PlanReport:
            unchanged = plan_unchanged().report
            return replace(
                make_report(table), dropped=unchanged.dropped, split=unchanged.split,
                truncated=unchanged.truncated,
            )  # fmt: skip

        table = SegmentedTable(epoch, self.num_batches(index), self.batches, history, make_plans)
        origin = PlanOrigin(fingerprint=make_fingerprint, report=report)
        return Plan.lazy(table, origin, lookahead=plan_unchanged().lookahead)


def _check_epochs(policy: Policy) -> None:
    """Raise if epochs of a policy differ in their number of batches, which a segment fixes."""
    varying = find_varying(policy)
    if varying is None:
        return
    name = type(varying).__name__
    advice = "Pass e.g. Weighted(Bucketed(64))"
    if as_policy(varying).inner_policy is not None:
        advice += f", or leave the segments out and write {name}(Weighted(...), ...)"
    raise ConfigError(
        "policy 'segments': the epochs of the weighted policy must all have the same number of "
        f"batches, but those of {name} vary. {advice}."
    )
