"""Selection of the fields that a loader reads, and checks that plan and options fit them.

Fields, axis and shift are checked once, when they are selected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seqdata.batch.axes import TARGETS, Axes, format_unknown_name
from seqdata.errors import ConfigError, PlanError, did_you_mean, must_be
from seqdata.index import SequenceIndex
from seqdata.loading.fetcher import FieldReader
from seqdata.loading.options import EngineOptions, OnError
from seqdata.loading.transforms.declare import (
    check_transform,
    is_by_timestep,
    length_map_for,
    qualified_name,
)
from seqdata.plan import Plan
from seqdata.planning.build import describe_policy
from seqdata.planning.policy import as_policy, find_base_policy
from seqdata.protocols import Policy, Store
from seqdata.storage.parts import PartsStore, drop_transform
from seqdata.storage.span_store import find_longest_context
from seqdata.storage.views import View

if TYPE_CHECKING:
    from seqdata.loading.output import Output  # which imports torch


def make_reader(
    store: Store, axis: str, options: EngineOptions, output: Output | None
) -> FieldReader:
    """Return the reader of the selected fields.

    Args:
        store: Any store; a view, or parts, may carry a transform.
        axis: The axis of the plan.
        options: Fields, shift and transform.
        output: The output of the loader.

    Raises:
        ConfigError: If a field or the axis does not exist, the shift is invalid, or there are two
            transforms.
    """
    if not isinstance(axis, str) or axis not in store.lengths_of:
        axes, hint = ", ".join(store.lengths_of), did_you_mean(axis, store.lengths_of)
        raise ConfigError(
            f"loader: the policy plans on axis {axis!r}, but the store has {axes}. Pass `axis` "
            f"to the policy{'; ' if hint else ''}{hint}"
        )
    measured_transform = None
    if isinstance(store, View | PartsStore):
        measured_transform = store.measured_transform
    if measured_transform is None:
        return _make_plain_reader(store, axis, options, output)
    if options.transform is not None:
        raise ConfigError(
            f"loader: `transform` is {qualified_name(options.transform)}, but the view carries "
            f"{qualified_name(measured_transform.transform)}. Leave `transform` out."
        )
    if axis != measured_transform.axis:
        raise ConfigError(
            f"loader: the policy plans on axis {axis!r}, but axis {measured_transform.axis!r} "
            f"was measured. Pass `axis` to the policy, or measure axis {axis!r}."
        )
    options = replace(options, transform=measured_transform.transform)
    reader = _make_plain_reader(drop_transform(store), axis, options, output)
    return replace(reader, length_map=None, measured_view=store)


def make_full_reader(store: Store, axis: str, transform: Any) -> FieldReader:
    """Return a reader of whole sequences with all fields, to measure a transform.

    Raises:
        ConfigError: If the transform is not callable.
    """
    reader = _make_plain_reader(store, axis, EngineOptions(transform=transform), None)
    return replace(reader, measured_view=store)


def _make_plain_reader(
    store: Store, axis: str, options: EngineOptions, output: Output | None
) -> FieldReader:
    field_names, transform = _choose_fields(store, axis, options, output), options.transform
    for name in field_names:
        if name not in store.fields:
            raise ConfigError(f"loader: `fields` names {format_unknown_name(name, store.fields)}")
    axis_of = {name: store.fields[name].axis for name in field_names}
    if transform is not None:
        check_transform(transform)
        shifted_name, timesteps = _parse_shift(options.shift)
        return FieldReader(
            store,
            axis,
            field_names,
            shifted_name,
            timesteps,
            Axes(axis, axis_of),
            transform,
            length_map_for(transform),
        )
    shifted_field, shift = _resolve_shift(store, axis, options.shift, field_names)
    axes = Axes(axis, axis_of, {} if shifted_field is None else {shifted_field: shift})
    unshifted_fields = tuple(name for name in field_names if name != shifted_field)
    return FieldReader(store, axis, unshifted_fields, shifted_field, shift, axes)


def _choose_fields(
    store: Store, axis: str, options: EngineOptions, output: Output | None
) -> tuple[str, ...]:
    if options.fields is not None:
        return tuple(dict.fromkeys(options.fields))
    if output is None or options.transform is not None or options.collator is not None:
        return tuple(store.fields)
    wanted_names = set(output.names)
    if options.shift and TARGETS in wanted_names:
        ragged = (name for name in store.fields if store.fields[name].axis == axis)
        wanted_names.update(options.shift if isinstance(options.shift, Mapping) else ragged)
    output.check((*store.fields, TARGETS) if options.shift else store.fields)
    return tuple(name for name in store.fields if name in wanted_names)


def _resolve_shift(
    store: Store, axis: str, shift: int | Mapping[str, int], field_names: tuple[str, ...]
) -> tuple[str | None, int]:
    ragged = [name for name in field_names if store.fields[name].axis == axis]
    name, timesteps = _parse_shift(shift)
    if name is not None and name not in ragged:
        raise ConfigError(f"loader: `shift` names {format_unknown_name(name, tuple(ragged))}")
    if name is None and timesteps and len(ragged) != 1:
        raise ConfigError(
            f"loader: `shift` is {shift!r} with {len(ragged)} fields on axis {axis!r} "
            f"({', '.join(ragged) or 'none'}). Name the field: shift={{'tokens': 1}}."
        )
    if timesteps and TARGETS in field_names:
        raise ConfigError(
            "loader: `shift` adds a field 'targets', but the data has one. Leave it out of "
            "`fields`."
        )
    return (name or ragged[0], timesteps) if timesteps else (None, 0)


def _parse_shift(shift: int | Mapping[str, int]) -> tuple[str | None, int]:
    """Return the named field, or None, and the timesteps."""
    name, timesteps = None, shift
    if isinstance(shift, Mapping):
        if len(shift) != 1:
            raise ConfigError(f"loader: `shift` must name one field, but is {dict(shift)!r}.")
        name, timesteps = next(iter(shift.items()))
    if not isinstance(timesteps, int) or timesteps < 0:
        raise ConfigError(
            must_be("loader: `shift`", "an integer number of timesteps", repr(timesteps))
        )
    return name, timesteps


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
        epoch: Index of the epoch.
        num_batches: Expected number of batches.
        time_parts: Number of time parts of its rows.

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
    if part_policies := as_policy(policy).policies:
        for part_policy in part_policies.values():
            check_bounded_lengths(reader, find_base_policy(part_policy), on_error)
        return
    options = {"on_error": on_error, "keep": getattr(policy, "keep", None)}
    for name, value in (("on_error", "replace"), ("keep", "last")):
        if options[name] == value:
            raise ConfigError(
                f"loader: `{name}`={value!r} needs exact lengths, but the transform's are "
                f"random (`.max_length`). Leave `{name}` out."
            )
    if as_policy(policy).cuts_windows:
        raise ConfigError(
            "loader: windows need exact lengths, but the transform's are random "
            "(`.max_length`). Let the transform keep lengths: it then sees each window."
        )


def check_time_parts(reader: FieldReader, options: EngineOptions) -> None:
    """Raise ConfigError if fields or transform do not allow time parts, which a ring needs."""
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


def check_context(store: Store, policy: Policy, reader: FieldReader) -> None:
    """Raise ConfigError if timesteps that are context might become targets.

    Args:
        store: The store; a part of a split in time may begin with context.
        policy: The policy; if it makes windows, only their futures are targets.
        reader: The reader, which must have no shift and no transform that changes lengths.
    """
    context = find_longest_context(store)
    if not context:
        return
    if part_policies := as_policy(policy).policies:
        for part_policy in part_policies.values():
            check_context(store, find_base_policy(part_policy), reader)
        return
    if reader.has_changed_lengths:
        raise ConfigError(
            f"loader: the transform {qualified_name(reader.transform)} must keep lengths with a "
            f"context of {context} timesteps (`split(..., context=)`), but changes them: targets "
            "might lie in it. Split without `context`, or let the transform keep lengths"
        )
    if as_policy(policy).horizon < 1 or getattr(policy, "size", 0) < context:
        raise ConfigError(
            f"loader: data with a context of {context} timesteps (`split(..., context=)`) must be "
            f"read in windows with a future and a size of at least {context}, so that no target "
            f"lies in it, but the policy is {describe_policy(policy)}. Use e.g. "
            f"Windows({context}, horizon=1), or a smaller context"
        )
    if reader.shift:
        raise ConfigError(
            "loader: `shift` must be 0 with a context (`split(..., context=)`), but is "
            f"{reader.shift}: targets would lie in it. Use batch.context and batch.future"
        )


def check_mask_marks(output: Output, fields: Iterable[str], on_error: OnError) -> None:
    """Raise ConfigError if rows that are masked cannot be told from others.

    Args:
        output: The output.
        fields: Names of the fields of the data.
        on_error: Treatment of a sequence that cannot be read; ``replace`` may mask.
    """
    fields = list(fields)
    if on_error != "raise" and not output.find_marks(fields):
        raise ConfigError(
            f"loader: rows that `on_error`={on_error!r} masks must be told from others, but "
            f"{tuple(output.names)} has no 'weight' for that. {output.advise_mark(fields)}."
        )


def check_dummy_marks(
    output: Output, fields: Iterable[str], options: EngineOptions, lanes: int, num_left: int
) -> None:
    """Raise ConfigError if some of ``num_left`` batches leave a rank with dummy rows.

    Args:
        output: The output, which does not mark dummy rows.
        fields: Names of the fields of the data.
        options: The ranks, and the treatment of ranks without a batch in the last step.
        lanes: Number of lanes; 0 if batches are divided among ranks.
        num_left: Number of remaining batches.
    """
    size = options.world.size
    missing = max(0, size - lanes) if lanes else -num_left % size * (options.tail == "fill")
    if missing:
        divided = f"{lanes} lanes" if lanes else f"{num_left} batches"
        where, other = "loader", "tail='drop' (in training also 'repeat')"
        if options.is_evaluation:  # which leaves out no row
            where = f"loader of {options.name!r}"
            other = f"an `eval_batching` of which {size} divides the number of batches"
        if lanes:
            other = f"at least {size} lanes"
        raise ConfigError(
            f"{where}: {divided} on {size} ranks leave {missing} without one, and "
            f"{tuple(output.names)} has no 'weight' to mark dummy rows. "
            f"{output.advise_mark(list(fields))}, or pass {other}."
        )


def make_empty_plan_error(index: SequenceIndex, policy: Policy, reader: FieldReader) -> PlanError:
    """Return the error of a plan without a batch, with the planned lengths."""
    lengths = index.lengths_of[reader.axis]
    have = f"they have {lengths.min()} to {lengths.max()} timesteps" if len(lengths) else "none"
    shift = f", of which a shift takes {reader.shift}" if reader.shift else ""
    has_crops = as_policy(find_base_policy(policy)).cuts_windows
    advice = "no window fits: make it shorter" if has_crops else "check `empty` and `too_long`"
    return PlanError(
        f"loader: none of the {len(lengths)} sequences is left under {describe_policy(policy)}: "
        f"{have}{shift}; {advice}"
    )
