"""Checks that a plan, its policy and the options of a loader fit each other."""

from __future__ import annotations

from seqdata.errors import ConfigError, PlanError, must_be
from seqdata.index import SequenceIndex
from seqdata.loading.fetcher import FieldReader
from seqdata.loading.options import EngineOptions, OnError
from seqdata.loading.output import Output
from seqdata.loading.transforms.declare import is_by_timestep, qualified_name
from seqdata.plan import Plan
from seqdata.planning.build import describe_policy
from seqdata.planning.wrapping import find_base_policy
from seqdata.protocols import Policy, Store, SupportsCrops, SupportsFuture, SupportsMixing
from seqdata.sharing import Tail, World
from seqdata.storage.span_store import find_longest_context


def check_plan(
    plan: Plan,
    policy: Policy,
    reader: FieldReader,
    epoch: int,
    num_batches: int,
    time_parts: int = 1,
) -> None:
    """Raise if a plan does not match its policy, or does not fit the reader.

    Args:
        plan: The plan of an epoch.
        policy: The policy that made it.
        reader: The reader of the fields.
        epoch: Number of the epoch.
        num_batches: The number of batches that it must have.
        time_parts: Parts in which the timesteps of its rows are split.

    Raises:
        PlanError: If the number of batches differs.
        ConfigError: If it cannot be combined with a shift, with lengths that are only bounds, or
            with parts.
    """
    if len(plan) != num_batches:
        raise PlanError(
            f"policy {describe_policy(policy)}: epoch {epoch} must have {num_batches} batches, "
            f"as `num_batches` returns, but has {len(plan)}. Change the policy."
        )
    if time_parts > 1 and (plan.overlap or plan.lookahead):
        raise ConfigError(
            f"loader: rows of {describe_policy(policy)} must have neither overlap nor horizon to "
            f"be split in {time_parts} parts of their time, but have {plan.overlap} and "
            f"{plan.lookahead} timesteps of them. Use whole sequences, chunks or plain windows."
        )
    if plan.lookahead and reader.shift:
        raise ConfigError(
            f"loader: `shift` must be 0 with windows of a horizon of {plan.lookahead}, but is "
            f"{reader.shift}. Use batch.context and batch.future."
        )
    if reader.has_bounded_lengths and (plan.lanes or plan.lookahead):
        raise ConfigError(
            f"loader: {describe_policy(policy)} needs exact lengths, but the transform's are "
            "random (`.max_length`). Use it in a policy of whole sequences, or measure it."
        )


def check_bounded_lengths(reader: FieldReader, policy: Policy, on_error: OnError) -> None:
    """Raise ConfigError if lengths that are only bounds do not fit the other options."""
    if not reader.has_bounded_lengths:
        return
    if isinstance(policy, SupportsMixing):
        for part_policy in policy.policies.values():
            check_bounded_lengths(reader, part_policy, on_error)
        return
    given = {"on_error": on_error, "keep": getattr(policy, "keep", None)}
    for name, value in (("on_error", "replace"), ("keep", "last")):
        if given[name] == value:
            raise ConfigError(
                f"loader: `{name}`={value!r} needs exact lengths, but the transform's are "
                f"random (`.max_length`). Leave `{name}` out."
            )
    if isinstance(policy, SupportsCrops):
        raise ConfigError(
            "loader: windows need exact lengths, but the transform's are random "
            "(`.max_length`). Let the transform keep lengths: it then sees each window."
        )


def check_time_parts(reader: FieldReader, options: EngineOptions) -> None:
    """Raise ConfigError if what is read cannot be split in time, as a ring over time does."""
    parts, transform = options.world.time_parts, reader.transform
    if parts == 1:
        return
    remedy = "or let each process read whole rows: World(rank, size), RingStrategy(whole_rows=True)"
    if transform is not None and (reader.has_changed_lengths or not is_by_timestep(transform)):
        name = qualified_name(transform)
        raise ConfigError(
            f"loader: the transform {name} must work timestep by timestep, because rows are split "
            f"in {parts} parts of their time. Set {name.rpartition('.')[2]}.by_timestep = True if "
            f"it keeps lengths and draws nothing at random, {remedy}"
        )
    others = [
        f"{name!r} ({axis})"
        for name, axis in reader.axes.axis_of.items()
        if axis not in (None, reader.axis)
    ]
    if others:
        raise ConfigError(
            f"loader: fields must run along axis {reader.axis!r}, because its timesteps are split "
            f"in {parts} parts, but {', '.join(others)} would be read whole by every process. "
            f"Leave them out of `fields`, {remedy}"
        )
    if options.on_error != "raise":
        raise ConfigError(
            must_be(
                "loader: `on_error`",
                f"'raise' with rows in {parts} parts",
                repr(options.on_error),
                "A process cannot see what fails in another part of a row",
            )
        )


def check_context(store: Store, policy: Policy, shift: int) -> None:
    """Raise ConfigError if timesteps that are context might become targets.

    Args:
        store: What is read; a part of a split in time may begin with context.
        policy: Only the futures of its windows are targets, if it has any.
        shift: Timesteps between inputs and targets.
    """
    context = find_longest_context(store)
    if not context:
        return
    if not isinstance(policy, SupportsFuture) or policy.horizon < 1 or policy.size < context:
        raise ConfigError(
            f"loader: data with a context of {context} timesteps (`split(..., context=)`) must be "
            f"read in windows with a future and a size of at least {context}, so that no target "
            f"lies in it, but the policy is {describe_policy(policy)}. Use e.g. "
            f"Windows({context}, horizon=1), or a smaller context"
        )
    if shift:
        raise ConfigError(
            f"loader: `shift` must be 0 with a context (`split(..., context=)`), but is {shift}: "
            "targets would lie in it. Use batch.context and batch.future"
        )


def check_filler_marks(output: Output, world: World, tail: Tail, lanes: int, num_left: int) -> None:
    """Raise ConfigError if some of ``num_left`` batches leave a rank with filler.

    Args:
        output: The output, which does not mark filler rows.
        world: This rank and the number of ranks.
        tail: What a rank without a batch in the last step receives.
        lanes: Number of lanes; 0 if batches are divided among ranks.
        num_left: Number of remaining batches.
    """
    size = world.size
    missing = max(0, size - lanes) if lanes else -num_left % size * (tail == "fill")
    if missing:
        dealt = f"{lanes} lanes" if lanes else f"{num_left} batches"
        raise ConfigError(
            f"loader: {dealt} on {size} ranks leave {missing} without one, and "
            f"{tuple(output.names)} has no 'weight' to mark filler rows. Add 'weight', or pass "
            "tail='drop' (in training also 'repeat')."
        )


def make_empty_plan_error(index: SequenceIndex, policy: Policy, reader: FieldReader) -> PlanError:
    """Return the error of a plan without a batch, with the planned lengths."""
    lengths = index.lengths_of[reader.axis]
    have = f"they have {lengths.min()} to {lengths.max()} timesteps" if len(lengths) else "none"
    shift = f", of which a shift takes {reader.shift}" if reader.shift else ""
    has_crops = isinstance(find_base_policy(policy), SupportsCrops)
    advice = "no window fits: make it shorter" if has_crops else "check `empty` and `too_long`"
    return PlanError(
        f"loader: none of the {len(lengths)} sequences is left under {describe_policy(policy)}: "
        f"{have}{shift}; {advice}"
    )
