"""The start of a resumed run: at its saved position, or with other parts of a mixture.

The parts of a mixture may be replaced where a segment begins. Each part that stays continues in its
own epochs, from the state alone: the data of the earlier parts is not needed. Place in the flow:
loaded states -> the position of the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from seqdata.errors import ConfigError, ResumeError, must_be
from seqdata.loading.base_engine import BaseEngine
from seqdata.loading.options import OnChanged
from seqdata.planning.part_positions import (
    PartChanges,
    PartPosition,
    PartPositions,
    SavedPart,
    SavedParts,
    digest_part,
)
from seqdata.planning.policy import as_policy
from seqdata.resume_state import ResumeState, RunPosition


@dataclass(frozen=True, slots=True)
class RunStart:
    """The start of a resumed run.

    Attributes:
        run_position: Position at which the run continues.
        is_changed: Whether the plan differs from that of the state.
        positions: Positions of parts that replace those of the state; None: none are replaced.
        reason: Description of the changes and of omitted batches, for a warning.
        warning: Warning about a changed policy, seed or order, or about uneven steps; else empty.
    """

    run_position: RunPosition
    is_changed: bool = False
    positions: PartPositions | None = None
    reason: str = ""
    warning: str = ""

    def load_weights(
        self, engine: BaseEngine, run_position: RunPosition, digest: str | None, values: Any
    ) -> str:
        """Set the weights of the state, or the parts that replace those of the state.

        Args:
            engine: Engine of the run.
            run_position: Position at which the run continues: that of the start, or later.
            digest: Entry of the state about the weights.
            values: The weights, if the digest does not contain them.

        Returns:
            A warning about changes; empty without any.

        Raises:
            ResumeError: If the weights are missing, or are not those of the state, which may have
                none.
            ConfigError: If the weights do not fit the data.
        """
        segments = engine.segments
        if self.is_changed and values is not None:
            raise ResumeError(
                must_be(
                    "resume: `weights`", "None, since the mixture or the data has changed", "given",
                    "Leave them out, and set them where a segment begins",
                )
            )  # fmt: skip
        if segments is None and values is not None:
            raise ResumeError(
                must_be(
                    "resume: `weights`", "None, since the policy has no segments", "given",
                    "Leave them out",
                )
            )  # fmt: skip
        if segments is None:
            return ""
        if not self.is_changed:
            segments.restore(run_position, digest, values)
        elif self.positions is None:
            segments.restore(run_position, None, None)
        else:
            segments.history.replace_parts(
                run_position.epoch, run_position.position, self.positions
            )
            return (
                f"{self.reason} It continues at batch {run_position.position} of epoch "
                f"{run_position.epoch}."
            )
        return ""


def describe_parts(engine: BaseEngine, run_position: RunPosition) -> str | None:
    """Return the entry of a state for a mixture's parts at a position; None without a mixture."""
    if not _has_parts(engine):
        return None
    positions = engine.plan(run_position.epoch).locate_parts(run_position.position)
    if positions is None:
        return None
    digests = _digest_parts(engine)
    parts = {
        name: SavedPart(digests[name], PartPosition(*position))
        for name, position in positions.items()
    }
    return SavedParts(engine.count_batches(run_position.epoch), parts).text


def check_next_segment(engine: BaseEngine, owner: str) -> None:
    """Raise if a run has no segment at which parts could change.

    Args:
        engine: Engine of the run, to which ``on_changed='next_segment'`` was given.
        owner: Name of its receiver, for messages.

    Raises:
        ConfigError: If the policy is not a mixture by segments, or every epoch has the same plan.
    """
    if engine.segments is not None and _has_parts(engine):
        return
    if engine.options.overfit:
        raise ConfigError(
            f"{owner}: `on_changed='next_segment'` must be without `overfit_batches`, which draws "
            "the same batches again and again. Leave one of them out."
        )
    raise ConfigError(
        must_be(
            f"{owner}: `batching` with `on_changed='next_segment'`",
            "segments of a mixture of batches, so that one can begin with other parts",
            f"{engine.policy!r:.200}",
            "Write Segments(Mix({...}, ...), batches=...), or pass on_changed='next_epoch'",
        )
    )


def find_start(
    engine: BaseEngine,
    saved: ResumeState,
    make_state: Callable[[RunPosition], ResumeState],
    on_changed: OnChanged,
) -> RunStart:
    """Return the start of a resumed run, and make the engine continue in its order.

    Args:
        engine: Engine of the run.
        saved: The state.
        make_state: Returns the state of a position, with the current data and policy.
        on_changed: Treatment of changed data, or of changed rules of plans.

    Raises:
        ResumeError: If the state does not fit; it names the reason.
    """
    run_position = saved.run_position
    if on_changed != "next_epoch":
        saved.check_plan_version()
    with ExitStack() as undo:  # a state that does not fit leaves the order as it was
        undo.callback(engine.set_order, *engine.order)
        engine.set_order(run_position.epoch, saved.balance_ranks or 0)
        start = _find_start(engine, saved, make_state(run_position), on_changed)
        undo.pop_all()
    warning = engine.continue_order(start.run_position, saved.balance_ranks)
    return replace(start, warning=start.warning or warning)


def _find_start(
    engine: BaseEngine, saved: ResumeState, current: ResumeState, on_changed: OnChanged
) -> RunStart:
    run_position, changed = saved.run_position, saved.find_changes(current)
    if saved.plan_version != current.plan_version:
        wrong = [name for name in changed if name not in ("data", "policy")]
        if wrong:
            saved.check_plan(current)
        if not run_position.position:
            return RunStart(run_position, is_changed=True)
        warning = (
            f"the state is of plan version {saved.plan_version or 1}, whose order is no longer "
            f"made: epoch {run_position.epoch} is left after {run_position.position} batches, and "
            "the next one begins in the new order"
        )
        return RunStart(run_position.next_epoch, is_changed=True, warning=warning)
    if changed and set(changed) <= {"data", "policy"} and _has_parts(engine):
        start = _find_mixture_start(engine, saved, current, on_changed, changed)
        if start is not None:
            return start
    if changed == ["data"] and on_changed == "next_epoch":
        start_position = run_position.next_epoch if run_position.position else run_position
        return RunStart(start_position, is_changed=True)
    may_change = {"data"} if _has_parts(engine) else {"data", "policy", "seed"}
    is_epoch_start = not run_position.position
    if changed and set(changed) <= may_change and is_epoch_start and on_changed == "next_epoch":
        warning = f"{saved.describe_differences(current, changed)}, from epoch {saved.epoch} on"
        return RunStart(run_position, is_changed=True, warning=warning)
    saved.check_plan(current, may_change)
    saved.check_position(engine.count_batches(saved.epoch))
    return RunStart(run_position)


def _find_mixture_start(
    engine: BaseEngine,
    saved: ResumeState,
    current: ResumeState,
    on_changed: OnChanged,
    changed: list[str],
) -> RunStart | None:
    """Return the start of a run whose mixture has changed; None: as without a mixture.

    Raises:
        ResumeError: If the change is not allowed, or the state has no positions of parts.
    """
    if saved.parts is None:
        if on_changed != "next_segment":
            return None
        raise ResumeError(
            f"{saved.owner}: `parts` of the state must be the positions of the mixture's parts, "
            "but "
            "is missing: an earlier release saved the state, or a run without Mix. Resume with the "
            "data and the policy of that run and save again, or begin a new run."
        )
    parts = SavedParts.from_text(saved.parts)
    changes = PartChanges.from_saved(parts.parts, _digest_parts(engine))
    is_allowed = on_changed == "next_segment" or (on_changed == "next_epoch" and "data" in changed)
    if is_allowed and engine.segments is not None:
        return _replace_parts(engine, saved, parts, changes, on_changed)
    if is_allowed and changed == ["data"]:
        return None
    problem = f"the mixture has changed since the state was saved: {changes}"
    if not any(changes):
        problem += f": {saved.describe_differences(current, changed)}"
    advice = "pass on_changed='next_segment' to continue with it where the next segment begins"
    if engine.segments is None:
        advice = f"write Segments(Mix({{...}}, ...), batches=...) and {advice}"
    if changed == ["data"] or (engine.segments is not None and "data" in changed):
        advice += ", or on_changed='next_epoch' to do so where the next epoch begins"
    raise ResumeError(
        f"{saved.owner}: {problem}. Restore what changed, or {advice}, or {saved.alternative}."
    )


def _replace_parts(
    engine: BaseEngine,
    saved: ResumeState,
    parts: SavedParts,
    changes: PartChanges,
    on_changed: OnChanged,
) -> RunStart:
    """Return the start of a run whose parts replace those of a state."""
    saved.check_position(parts.epoch_batches)
    run_position, batches = saved.run_position, engine.count_batches(saved.epoch)
    length = engine.segments.length if engine.segments else batches
    first = batches if on_changed == "next_epoch" else -(-run_position.position // length) * length
    if run_position.position in (0, parts.epoch_batches):
        start = run_position.next_epoch if run_position.position else run_position
        end = run_position.position
    else:
        start = (
            run_position.next_epoch if first >= batches else RunPosition(run_position.epoch, first)
        )
        end = parts.epoch_batches if on_changed == "next_epoch" else first
        end = min(end, parts.epoch_batches) if start.epoch > run_position.epoch else end
    positions = []
    restarted = []
    for name in engine.index.parts:
        own = parts.parts[name].position if name in parts.parts else PartPosition(0, 0)
        if name in changes.changed and own.batch:
            restarted.append(f"epoch {own.epoch} of {name!r} from its batch {own.batch} on")
            own = PartPosition(own.epoch + 1, 0)
        positions.append(own)
    position, epoch = run_position.position, run_position.epoch
    rest = f"Batches {position} to {end - 1} of epoch {epoch} are dropped"
    texts = [
        f"{saved.owner}: the mixture has changed: {changes}.",
        f"{rest} ({end - position}): parts draw the sequences of these batches later."
        if end > position
        else "No batch is dropped.",
        f"The rest of {' and of '.join(restarted)} is dropped." if restarted else "",
    ]
    return RunStart(start, True, PartPositions(tuple(positions)), " ".join(filter(None, texts)))


def _has_parts(engine: BaseEngine) -> bool:
    """Return whether the batches are from the parts of a mixture, each with its own epochs."""
    if engine.options.overfit:
        return False
    policy = engine.policy if engine.segments is None else engine.segments.weighted_policy
    asked = as_policy(policy)
    is_mixture = bool(asked.policies) and not asked.zips_parts
    return is_mixture and not getattr(policy, "rows", False)


def _digest_parts(engine: BaseEngine) -> dict[str, str]:
    """Return name -> a digest of the inputs of the part's batches."""
    policy = engine.policy if engine.segments is None else engine.segments.weighted_policy
    policies = as_policy(policy).policies
    return {name: digest_part(part, policies[name]) for name, part in engine.index.parts.items()}
