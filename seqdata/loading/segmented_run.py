"""The segments of a run, whose weights may change where one begins.

Threads and worker processes read ahead within a segment and never beyond it, since the weights of
the next one may not exist yet. Place in the flow: policy of segments -> plans, and the iterator
over an epoch's batches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from seqdata.errors import ConfigError, PlanError, ResumeError, must_be
from seqdata.index import SequenceIndex
from seqdata.loading.options import UpdateSchedule
from seqdata.plan import Plan
from seqdata.planning.segments import WeightChange, WeightHistory, Weights
from seqdata.policies.segments import Segments
from seqdata.protocols import Policy
from seqdata.resume_state import EpochProgress, RunPosition
from seqdata.sharing import RankPlan


class SegmentedRun:
    """The segments of an engine's epochs, and the weights that the run has set.

    Args:
        policy: A policy of segments.
        index: The lengths.

    Attributes:
        length: Batches of a segment.
        history: Weights of the run so far.
    """

    def __init__(self, policy: Segments, index: SequenceIndex) -> None:
        self.length = policy.batches
        self.history: WeightHistory = policy.make_history()
        self._policy = policy
        self._index = index
        self._max_changes = self.history.max_changes
        self._shutdowns = 0

    def plan(self, policy: Any, *, seed: int, epoch: int) -> Plan:
        """Return the plan of an epoch whose segments have the weights of the run.

        Args:
            policy: The policy, balanced for the ranks of the epoch.
            seed: Seed of the plan.
            epoch: Index of the epoch.
        """
        balanced: Segments = policy
        return balanced.plan_epoch(self._index, seed=seed, epoch=epoch, history=self.history)

    def find_first(self, position: int) -> int:
        """Return the index of the first batch of a position's segment."""
        return position - position % self.length

    def iterate(
        self,
        progress: EpochProgress,
        first_step: int,
        schedule: UpdateSchedule,
        iterate_steps: Callable[[range], Iterator[Any]],
    ) -> Generator[Any, None, None]:
        """Yield the rest of an epoch's batches; a segment begins with the call for its first one.

        Args:
            progress: Progress of the epoch.
            first_step: Index of the step to begin with.
            schedule: Grouping of steps into optimizer updates.
            iterate_steps: Returns the batches of some steps.

        Raises:
            ConfigError: If an update would lie in two segments.
            PlanError: If a step would lie in two segments.
        """
        share, step, shutdowns = progress.share, first_step, self._shutdowns
        self._check_updates(share, schedule)
        while step < len(share):
            numbers = self._find_steps(share, step)
            if not progress.is_inspection:
                self.history.begin(progress.epoch, share.position(step), self.length)
            yield from iterate_steps(numbers)
            step = numbers.stop
            if self._shutdowns != shutdowns:
                return

    def shutdown(self) -> None:
        """End running iterations at the end of their segments."""
        self._shutdowns += 1

    def set_weights(self, run_position: RunPosition, values: Any) -> Weights:
        """Set the weights from a position on, and return them.

        Args:
            run_position: Position of the next batch.
            values: The weights.

        Raises:
            ConfigError: If no segment begins there, or the weights are invalid.
        """
        first, epoch = self.find_first(run_position.position), run_position.epoch
        if run_position.position != first or self.history.has_begun(epoch, first):
            is_within = run_position.position != first
            found = "lies within one" if is_within else "has been drawn already"
            raise ConfigError(
                "segments: weights must be set where a segment begins, but batch "
                f"{run_position.position} of epoch {epoch} {found}. Set them before batch "
                f"{first + self.length} is drawn, or when the epoch has ended."
            )
        return self.change(epoch, first, values)

    def change(self, epoch: int, first: int, values: Any) -> Weights:
        """Set the weights of a segment that begins now, and return them.

        Raises:
            ConfigError: If the weights are invalid.
        """
        weights = self._make_weights(values)
        self.history.set(epoch, first, weights)
        return weights

    def _make_weights(self, values: Any) -> Weights:
        return self._policy.make_weights(self._index, values)

    @property
    def weighted_policy(self) -> Policy:
        """The policy whose weights change."""
        return self._policy.inner_policy

    def get_weights(self, run_position: RunPosition) -> Any:
        """Return the weights at a position; None if they are the policy's own."""
        changes = self.history.find(run_position.epoch, self.find_first(run_position.position))
        return changes[-1].weights if changes else None

    def describe_changes(self, run_position: RunPosition) -> str | None:
        """Return the entry of a state for the weights at a position; None: the policy's own.

        It has all changes of the run if a plan depends on all of them, else the last digest.
        """
        changes = self.history.find(run_position.epoch, self.find_first(run_position.position))
        if not changes:
            return None
        if self._max_changes is None:
            return self._describe(changes)
        return str(changes[-1].weights.digest)

    def describe_origin(self) -> str | None:
        """Return the entry of a state for replaced parts of the mixture; None without any."""
        origin = self.history.origin
        return None if origin is None else self._describe([origin])

    def restore(self, run_position: RunPosition, digest: str | None, values: Any) -> None:
        """Continue with the weights of a saved run.

        Args:
            run_position: Position of the run.
            digest: Entry of the state about its weights; None if it had set none.
            values: The weights; None if the entry is enough, or there are none.

        Raises:
            ResumeError: If the weights are missing, or are not those of the state, which may have
                none.
            ConfigError: If the weights do not fit the data.
        """
        first = self.find_first(run_position.position)
        changes: Sequence[WeightChange] = ()
        if digest is not None and self._max_changes is None:
            changes = self._parse_changes(digest)
            if values is not None:
                self._check_same(self._make_weights(values), str(changes[-1].weights.digest))
        elif digest is not None:
            if values is None:
                raise ResumeError(
                    must_be(
                        "resume: `weights`", f"the weights of digest {digest} that the run had set",
                        "None", "Pass them: load_state_dict(state, weights=...)",
                    )
                )  # fmt: skip
            weights = self._make_weights(values)
            self._check_same(weights, digest)
            changes = [WeightChange(run_position.epoch, first, weights)]
        elif values is not None:
            raise ResumeError(
                must_be(
                    "resume: `weights`", "None, since the saved run had set none", "given",
                    "Leave them out, and set them where a segment begins",
                )
            )  # fmt: skip
        self.history.restore(changes, run_position.epoch, first)

    @staticmethod
    def _check_same(weights: Weights, digest: str) -> None:
        if weights.digest != digest:
            raise ResumeError(
                must_be(
                    "resume: the digest of `weights`", digest, str(weights.digest),
                    "Pass the weights of the saved run",
                )
            )  # fmt: skip

    @staticmethod
    def _describe(changes: Sequence[WeightChange]) -> str:
        return ";".join(f"{epoch}:{first}:{each.digest}" for epoch, first, each in changes)

    def _parse_changes(self, text: str) -> list[WeightChange]:
        """Return the changes of weights in the entry of a state.

        Raises:
            ResumeError: If the entry is damaged.
        """
        changes = []
        for change in text.split(";"):
            epoch, _, rest = change.partition(":")
            first, _, digest = rest.partition(":")
            if not (epoch.isdecimal() and first.isdecimal()):
                raise ResumeError(
                    must_be("resume: `weights` of the state", "changes of weights", f"{text!r:.60}")
                    + ". The state is damaged."
                )
            weights = self._policy.make_weights(self._index, digest)
            changes.append(WeightChange(int(epoch), int(first), weights))
        return changes

    def _find_steps(self, share: RankPlan, step: int) -> range:
        """Return the steps up to the end of a step's segment."""
        position, batches = share.position(step), len(share.plan)
        stop = min(self.find_first(position) + self.length, batches)
        steps = -(-(stop - position) // share.stride)
        if stop < batches and share.position(step + steps) != stop:
            raise PlanError(
                f"segments: {share.stride} ranks must divide the {stop - position} batches from "
                f"batch {position} to the end of its segment, but do not. Resume with another "
                "number of ranks, or from a checkpoint at the end of an update."
            )
        return range(step, min(step + steps, len(share)))

    def _check_updates(self, share: RankPlan, schedule: UpdateSchedule) -> None:
        update = share.stride * schedule.accumulate
        if self.length % update and self.length < len(share.plan):
            raise ConfigError(
                f"segments: the {self.length} batches of a segment must be a multiple of the "
                f"{update} of an update ({share.stride} ranks, {schedule.accumulate} steps), but "
                f"are not. Pass batches={-(-self.length // update) * update}, or use another "
                "number of ranks."
            )
