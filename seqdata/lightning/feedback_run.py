"""Feedback in a fit: scores by id become weights of the next segment, on any number of ranks.

Each rank collects the scores of its own batches. When a segment begins they are gathered once over
all ranks and added as integers, so that the sums do not depend on ranks or order; a pure function
turns them into weights. A checkpoint in the middle of a segment contains the sums so far. Reads:
outputs of training steps. Makes: weights of segments.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from lightning.pytorch import Trainer

from seqdata.errors import (
    ConfigError,
    PeerFailedError,
    RanksDifferError,
    ResumeError,
    SeqDataError,
    must_be,
    warn,
)
from seqdata.lightning import adapter
from seqdata.lightning.ranks.collect import with_rank
from seqdata.lightning.ranks.coordinator import RankCoordinator
from seqdata.lightning.score_means import PartScores, SequenceScores, WeighFn
from seqdata.lightning.scores import ScoreCollector
from seqdata.lightning.trainer_loader import TaggedBatch
from seqdata.loading.base_engine import BaseEngine
from seqdata.loading.rank_comparison import RankValues, describe_differences
from seqdata.loading.segmented_run import SegmentedRun
from seqdata.planning.policy import as_policy
from seqdata.planning.segments import SupportsWeightChanges
from seqdata.resolve import resolve_policy
from seqdata.resume_state import FitState, RunPosition
from seqdata.runs.options import DataOptions
from seqdata.runs.segment_files import SegmentFiles

KEY = "feedback"


@dataclass(frozen=True, slots=True)
class FeedbackOptions:
    """Options of a callback that changes weights.

    Attributes:
        score: Key of the score in the output of a training step.
        every: Number of optimizer updates of a segment.
        weigh: Function of scores that returns weights; None: weights in proportion to scores.
    """

    score: str
    every: int
    weigh: WeighFn | None


@runtime_checkable
class SupportsFeedback(Protocol):
    """Interface of a callback that collects scores from which weights are made."""

    @property
    def feedback_options(self) -> FeedbackOptions:
        """Options of the callback."""
        ...

    feedback_run: FeedbackRun | None


def count_segment_batches(
    feedback: SupportsFeedback, trainer: Trainer, options: DataOptions
) -> int | None:
    """Return the number of batches of a segment, over all ranks; None if nothing is trained.

    Raises:
        ConfigError: If the batches of training are not drawn by weights, or the Trainer has
            ``overfit_batches``.
    """
    if not adapter.is_fitting(trainer):
        return None
    policy = resolve_policy(options.batching)
    if not isinstance(policy, SupportsWeightChanges):
        raise ConfigError(
            must_be(
                "Feedback: `batching` of the DataModule", "Weighted, or a Mix",
                f"{policy!r:.200}", "Pass e.g. Weighted(Bucketed(64))",
            )
        )  # fmt: skip
    if adapter.is_overfitting(trainer):
        raise ConfigError(
            must_be(
                "Feedback: `overfit_batches` of the Trainer", "0", "above 0, which draws the same "
                "batches again and again", "Leave out `overfit_batches`, or the callback",
            )
        )  # fmt: skip
    batches = options.batches_per_update
    if batches is None:
        is_automatic = adapter.has_automatic_optimization(trainer)
        steps = trainer.accumulate_grad_batches if is_automatic else 1
        batches = steps * adapter.get_world(trainer).size
    return batches * feedback.feedback_options.every


class FeedbackRun:
    """Feedback of one fit.

    Args:
        callback: Callback that collects the scores.
        trainer: The Trainer.
        engine: The engine of the training data, whose policy has segments.
        coordinator: Coordinator that gathers the scores of all ranks.
    """

    def __init__(
        self,
        callback: SupportsFeedback,
        trainer: Trainer,
        engine: BaseEngine,
        coordinator: RankCoordinator,
    ) -> None:
        self._trainer = trainer
        self._engine = engine
        self._coordinator = coordinator
        self._segments: SegmentedRun = _get_segments(engine)
        self._begin(callback.feedback_options)
        self._files: SegmentFiles | None = None
        self._segments.history.on_begin = self._on_begin

    def attach(self, callback: SupportsFeedback) -> None:
        """Receive the scores of a callback until the fit ends.

        Args:
            callback: Callback of the Trainer. It may differ from that of the fit before; if its
                score is another one, no sequence has a score yet.
        """
        options = callback.feedback_options
        if options.score != self._collector.score:
            self._begin(options)
        self._scores.weigh_fn = options.weigh
        callback.feedback_run = self

    def _begin(self, options: FeedbackOptions) -> None:
        """Forget all scores."""
        engine, policy = self._engine, self._segments.weighted_policy
        self._scores: Any = (
            PartScores(policy, options.weigh)
            if as_policy(policy).policies
            else SequenceScores(engine.store, len(engine.index), options.weigh)
        )
        self._collector = ScoreCollector(options.score, owner="Feedback")
        self._pending: Any = None  # sums of this segment over all ranks, when last gathered
        self._steps = 0  # steps trained since

    @property
    def segment_batches(self) -> int:
        """Number of batches of a segment, over all ranks."""
        return self._segments.length

    def keep_weights(self, folder: Path | None, run_position: RunPosition) -> None:
        """Write the weights of each segment from a position on, so that it can be replayed.

        Args:
            folder: Folder of the run file; None: nothing is written.
            run_position: Position of the batch that is trained next.
        """
        self._files = None if folder is None else SegmentFiles(folder)
        self._write_weights(run_position, is_first=True)

    def add(self, outputs: Any, batch: Any) -> None:
        """Add the output of a training step.

        Raises:
            ConfigError: If the batch has no ids, or the output has no such score, or one of
                another shape.
        """
        is_automatic = adapter.has_automatic_optimization(self._trainer)
        divided_by = self._trainer.accumulate_grad_batches if is_automatic else 1
        self._collector.add(outputs, batch, divided_by=divided_by)
        self._steps += 1

    def ends_segment(self, tagged: TaggedBatch) -> bool:
        """Return whether a batch is the last one of its segment on this rank."""
        batch_ref = tagged[0]
        if batch_ref is None:
            return False
        start_position = batch_ref.start_position
        share = self._engine.share(start_position.epoch, start_position.position)
        return share.position(batch_ref.step + 1) % self._segments.length == 0

    def make_state(self, run_position: RunPosition) -> dict[str, Any]:
        """Return the entry of a state for weights and scores; a collective operation.

        Args:
            run_position: Position of the batch that is trained next.

        Raises:
            SeqDataError: If a score of any rank is invalid; raised on every rank.
        """
        try:
            pending = self._scores.pending_state(self._gather(run_position))
        except PeerFailedError as cause:
            pending = str(cause)
            _warn(
                f"datamodule: the checkpoint at batch {run_position.position} of epoch "
                f"{run_position.epoch} has no scores of its segment: {cause}. A run that resumes "
                "from it makes other weights. Resume from another checkpoint"
            )
        weights = self._segments.get_weights(run_position)
        return {KEY: {**self._scores.state(weights), "pending": pending}}

    def restore(
        self, state: Mapping[str, Any], run_position: RunPosition, *, is_changed: bool
    ) -> None:
        """Continue with the weights and scores of a saved run.

        Args:
            state: The DataModule's state.
            run_position: Position at which the run continues.
            is_changed: Whether it continues over another plan, as ``on_changed`` allows.

        Raises:
            ResumeError: If they are missing or damaged.
        """
        self._collector.take_batches()  # discard those of a fit that failed
        self._steps, self._pending = 0, None
        saved, digest = state.get(KEY), FitState.from_dict(state).weights
        if is_changed:
            _warn(
                "resume: the data has changed, so that the weights of the saved run do not fit: "
                "weights begin again with those of the policy"
            )
            return
        if not isinstance(saved, Mapping):
            raise ResumeError(
                must_be(
                    f"resume: `{KEY}` of the state", "the weights of the saved run",
                    f"{saved!r:.60}", "Resume from another checkpoint",
                )
            )  # fmt: skip
        pending = saved.get("pending")
        if isinstance(pending, str):
            _warn(f"resume: the checkpoint has no scores of its segment: {pending}")
            pending = None
        try:
            self._pending = self._scores.load_pending(pending)
            values = self._scores.load(saved)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ResumeError(
                f"resume: `{KEY}` of the state is damaged ({error!r}). Resume from another "
                "checkpoint."
            ) from error
        self._segments.restore(run_position, digest, values)

    def _on_begin(self, epoch: int, first: int) -> None:
        """Set the weights of a segment from the scores of the segment before."""
        pending = self._gather(RunPosition(epoch, first))
        if pending is not None:
            self._pending = None
            self._segments.change(epoch, first, self._weigh(pending, epoch, first))
        self._write_weights(RunPosition(epoch, first))

    def _weigh(self, pending: Any, epoch: int, first: int) -> Any:
        """Return the weights of a segment, equal on every rank; a collective operation.

        Raises:
            RanksDifferError: If ranks have different weights; raised on every rank.
            Exception: The one that ``weigh`` raises on this rank.
        """
        values, failure = None, None
        try:
            values = self._scores.weigh(pending)
        except Exception as error:  # `weigh` may raise anything; other ranks wait for this one
            failure = error
        own = None if failure is not None else _describe_weights(values)
        gathered = self._coordinator.all_gather(own, self._trainer.world_size, (epoch, first))
        if failure is not None:
            raise failure
        described = [one for one in gathered if one is not None]
        difference = describe_differences(described) if len(described) == len(gathered) else ""
        if difference:
            raise RanksDifferError.at(
                "Feedback: `weigh` must return the same weights on every rank, but at batch "
                f"{first} of epoch {epoch} {difference}. Make it a function of the scores alone: "
                "without the rank, a clock or an unseeded generator, and rounded if processors "
                "differ"
            )
        return values

    def _write_weights(self, run_position: RunPosition, *, is_first: bool = False) -> None:
        if self._files is None:
            return
        try:
            if is_first:
                self._files.begin_fit(run_position)
            self._files.write(self._segments, run_position)
        except OSError as error:
            _warn(
                "datamodule: the weights of segments cannot be written to "
                f"{self._files.folder} ({error.strerror or error}), so `seqdata replay` cannot "
                "show the batches that are drawn by them"
            )
            self._files = None

    def _gather(self, run_position: RunPosition) -> Any:
        """Return the sums of the segment over all ranks; None if nothing was trained in it.

        Raises:
            SeqDataError: If a score of any rank is invalid; raised on every rank.
        """
        if not self._steps:
            return self._pending
        rank, own, error = adapter.get_world(self._trainer).rank, None, None
        try:
            own = self._scores.reduce(self._collector.take())
        except SeqDataError as failure:
            error = failure
        gathered = self._coordinator.all_gather(
            (rank, own, error),
            self._trainer.world_size,
            (run_position.epoch, run_position.position),
        )
        for failed_rank, _, raised in gathered:
            if raised is not None:
                raise raised if len(gathered) == 1 else with_rank(raised, failed_rank)
        by_rank = {rank: sums for rank, sums, _ in gathered}  # processes may share a rank
        earlier = [] if self._pending is None else [self._pending]
        self._pending, self._steps = self._scores.merge([*earlier, *by_rank.values()]), 0
        return self._pending


def _get_segments(engine: BaseEngine) -> SegmentedRun:
    if engine.segments is None:
        raise ConfigError(
            must_be(
                "Feedback: the training data", "batched in segments",
                f"batched by {engine.policy!r:.200}", "Call `setup` with the Trainer's callbacks",
            )
        )  # fmt: skip
    return engine.segments


def _describe_weights(values: Any) -> RankValues:
    """Return a digest of weights, and their sum."""
    parts = values if isinstance(values, Mapping) else {"": values}
    try:
        arrays = {str(name): np.asarray(part, dtype=np.float64) for name, part in parts.items()}
    except (TypeError, ValueError, RuntimeError):  # invalid weights raise an error later
        return {"weights": f"{values!r:.60}"}
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].shape} ".encode() + arrays[name].tobytes())
    total = math.fsum(float(array.sum()) for array in arrays.values())
    return {"weights": f"{digest.hexdigest()[:8]} (sum {total:.17g})"}


def _warn(message: str) -> None:
    warn(message)
