"""Selection of the fields that a loader reads, and checks that plan and options fit them.

Fields, axis and shift are checked once, when they are selected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqdata.batch.axes import TARGETS, Axes, format_unknown_name
from seqdata.capabilities import get_axis_starts, get_base_keys, get_linked_axes
from seqdata.errors import ConfigError, PlanError, as_integer, did_you_mean, must_be, warn
from seqdata.index import SequenceIndex
from seqdata.linked_axes import are_linked
from seqdata.loading.fetcher import FieldReader
from seqdata.loading.options import EngineOptions, OnError
from seqdata.loading.transforms.declare import (
    bind_fields,
    check_transform,
    is_by_timestep,
    length_map_for,
    qualified_name,
)
from seqdata.plan import Plan
from seqdata.planning.build import describe_policy
from seqdata.planning.policy import as_policy, find_base_policy
from seqdata.protocols import Policy, Store
from seqdata.storage.concat import find_item_stores
from seqdata.storage.parts import PartsStore, drop_transform
from seqdata.storage.span_store import find_longest_context
from seqdata.storage.views import View

if TYPE_CHECKING:
    from seqdata.loading.output import Output, ShapedOutput  # which imports torch


def make_reader(
    store: Store, axis: str, options: EngineOptions, output: Output | ShapedOutput | None
) -> FieldReader:
    """Return the reader of the selected fields.

    Args:
        store: Any store; a view, or parts, may carry a transform.
        axis: The axis of the plan.
        options: Fields, shift and transform.
        output: The output of the loader.

    Raises:
        ConfigError: If a field or the axis does not exist, the shift or the transform is invalid,
            or the store carries a transform and there is a second one, or another axis.
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
            f"loader: `transform` is {qualified_name(options.transform)}, but the data carries "
            f"{qualified_name(measured_transform.transform)}. Leave `transform` out."
        )
    if axis != measured_transform.axis:
        raise ConfigError(
            f"loader: the policy plans on axis {axis!r}, but the lengths of the transform's "
            f"results were measured on axis {measured_transform.axis!r}. Pass "
            f"axis={measured_transform.axis!r} to the policy, or measure axis {axis!r}."
        )
    options = replace(options, transform=measured_transform.transform)
    reader = _make_plain_reader(drop_transform(store), axis, options, output)
    return replace(reader, length_map=None, measured_view=store)


def link_fields(reader: FieldReader, policy: Policy, whole: Sequence[str] | None) -> FieldReader:
    """Return a reader that cuts fields of linked axes with the spans of a policy.

    Args:
        reader: The reader.
        policy: The policy.
        whole: Names of fields that come whole.

    Raises:
        ConfigError: If the policy cuts sequences, and a field of another axis would come whole; if
            ``whole`` names a field of the planned axis or without an axis; or if only some parts of
            a mixture are read in windows.
    """
    kinds = {kind for base in _list_base_policies(policy) for kind in [_describe_cuts(base)]}
    axis, axis_of = reader.axis, reader.axes.axis_of
    for name in whole or ():
        if name not in axis_of or axis_of[name] in (None, axis):
            known = [each for each, own in axis_of.items() if own not in (None, axis)]
            choice = f"Choose one of {', '.join(known)}" if known else "Leave it out"
            raise ConfigError(
                f"loader: `whole` must name fields of axes other than {axis!r}, but names "
                f"{name!r}. {choice}."
            )
    linked = {} if reader.has_changed_lengths else get_linked_axes(reader.store)
    apart: dict[str, list[str]] = {}
    for name, own in axis_of.items():
        if own in (None, axis) or name in (whole or ()):
            continue
        if are_linked(linked, axis, own):
            apart.setdefault(str(own), []).append(name)
        elif kinds != {_UNCUT}:
            raise _make_uncut_error(reader, policy, name, str(own))
    if apart and len(kinds) > 1 and "windows" in kinds:
        raise ConfigError(
            "loader: the parts of a mixture must all be read in windows, or none of them, where "
            f"fields run along linked axes, but are read as {' and '.join(sorted(kinds))}. "
            f"Use windows for all, or `fields` along {axis!r} only"
        )
    linked_fields = {own: tuple(names) for own, names in apart.items()}
    return reader.link(linked_fields, is_tiled="windows" not in kinds)


_UNCUT = "whole sequences"


def pass_items(reader: FieldReader, policy: Policy, options: EngineOptions) -> FieldReader:
    """Return a reader of a Dataset's own items, if nothing has to be done to them.

    Args:
        reader: The reader of fields.
        policy: The policy.
        options: The options; their collator takes items.

    Raises:
        ConfigError: If items have no fields, but something has to be done to them.
    """
    datasets = find_item_stores(reader.store)
    changed = _name_changes(reader, policy, options)
    if datasets and not changed:
        return replace(reader, is_opaque=True)
    problem = next((dataset.problem for dataset in datasets if dataset.problem), "")
    if problem:
        raise ConfigError(
            f"loader: items that are not made of arrays are passed whole to the `collate_fn`, but "
            f"{changed} needs their fields. Leave it out, or let the Dataset return dicts of "
            f"arrays: {problem}"
        )
    return reader


def _name_changes(reader: FieldReader, policy: Policy, options: EngineOptions) -> str:
    """Return the first argument by which items are changed, cut or selected from; else ''."""
    if reader.transform is not None:
        return "a transform"
    names = ("fields", "whole", "dtype", "check_values", "shift")
    given = next((f"`{name}`" for name in names if getattr(options, name)), "")
    if given:
        return given
    for base in _list_base_policies(policy):
        may_cut = getattr(base, "max_length", None) is not None
        if _describe_cuts(base) != _UNCUT:
            return f"a policy that cuts sequences in {_describe_cuts(base)}"
        if may_cut and getattr(base, "too_long", "") in ("split", "truncate"):
            return f"`too_long={base.too_long!r}`"  # type: ignore[attr-defined]
    return ""


def _describe_cuts(policy: Policy) -> str:
    asked = as_policy(policy)
    if asked.cuts_windows:
        return "windows"
    return "chunks" if asked.cuts_sequences else _UNCUT


def _list_base_policies(policy: Policy) -> list[Policy]:
    """Return the innermost policies that make rows: of a mixture those of its parts."""
    base = find_base_policy(policy)
    parts = as_policy(base).policies
    return [each for part in parts.values() for each in _list_base_policies(part)] or [base]


def _make_uncut_error(reader: FieldReader, policy: Policy, name: str, axis: str) -> ConfigError:
    kind = "window" if as_policy(find_base_policy(policy)).cuts_windows else "chunk"
    steps = np.asarray(reader.store.lengths_of[axis])
    longest = int(steps.max(initial=0))
    ways = f"leave it out with `fields`, or pass whole=({name!r},) if it is meant"
    if reader.has_changed_lengths:
        link = f"The transform changes lengths, so that the axes cannot be linked: {ways}"
    else:
        mine = [each for each, own in reader.axes.axis_of.items() if own == reader.axis]
        example = f"rates={{{(mine or ['x'])[0]!r}: 100, {name!r}: 500}}"
        link = (
            f"Link the axes by their sampling rates, e.g. {example} of open_store or the "
            f"DataModule; {ways}"
        )
    return ConfigError(
        f"loader: fields along axes other than {reader.axis!r} must be linked to be cut into "
        f"{kind}s, but {name!r} runs along {axis!r} and would come whole, up to {longest:,} "
        f"timesteps, with each {kind}. {link}"
    )


def check_ends(reader: FieldReader, policy: Policy) -> None:
    """Raise ConfigError if linked axes do not begin and end within a chunk or window of each other.

    The excess would come with the first or last chunk, or in no window, or chunks and windows would
    lack the axis. A smaller difference of more than two timesteps of the slower axis is a warning.

    Args:
        reader: The reader.
        policy: The policy; only chunks of lanes and windows are checked.
    """
    linker = reader.linker
    sizes = [size for base in _list_base_policies(policy) for size in _list_sizes(base)]
    if linker is None or not sizes:
        return
    clocks = get_linked_axes(reader.store)
    for axis in reader.linked_fields:
        gaps = linker.measure_gaps(axis)
        clock, other = clocks[reader.axis], clocks[axis]
        rounding = math.ceil(2 * clock.rate / min(clock.rate, other.rate))
        delay = math.ceil(abs(other.offset - clock.offset) * clock.rate)  # which the user says
        limit = max(min(sizes), rounding + 1)
        is_apart, is_far = gaps > rounding + delay, gaps >= limit
        if is_far.any():
            raise ConfigError(
                f"loader: linked axes must begin and end together, less than {limit} timesteps of "
                f"{reader.axis!r} apart, but do not in {np.count_nonzero(is_far)} "
                f"of {len(gaps)} sequences: {_describe_ends(reader, axis, int(gaps.argmax()))}. "
                "Correct `rates`, or crop the recordings alike, or leave them out (`where`)"
            )
        if is_apart.any():
            warn(
                "loader: linked axes do not begin and end together in "
                f"{np.count_nonzero(is_apart)} of {len(gaps)} sequences: "
                f"{_describe_ends(reader, axis, int(gaps.argmax()))}. Windows and chunks there "
                "have fewer timesteps along one axis (`batch.lengths_of`), or leave out its excess",
            )


def _list_sizes(policy: Policy) -> list[int]:
    """Return the timesteps of a chunk of lanes, or of the smallest window; else nothing."""
    chunk, asked = getattr(policy, "chunk", None), as_policy(policy)
    if asked.cuts_windows:
        chunk = getattr(policy, "least_size", None)
    return [chunk] if isinstance(chunk, int) else []


def _describe_ends(reader: FieldReader, axis: str, number: int) -> str:
    """Return the seconds of a linked axis and of the planned one in a sequence, with its id."""
    store, clocks = reader.store, get_linked_axes(reader.store)
    base = store.base_numbers(np.array([number], dtype=np.int64))
    said = []
    for name in (axis, reader.axis):
        clock, starts = clocks[name], get_axis_starts(store, name)
        first = 0 if starts is None else int(starts[number])
        stop = first + int(store.lengths_of[name][number])
        times = [float(clock.offset + each / clock.rate) for each in (first, stop)]
        said.append(
            f"axis {name!r} ({float(clock.rate):g} Hz) is from {times[0]:g} to {times[1]:g} s"
        )
    return f"in {get_base_keys(store, base)[0]!r} {' and '.join(said)}"


def make_full_reader(store: Store, axis: str, transform: Any) -> FieldReader:
    """Return a reader of whole sequences with all fields, to measure a transform.

    Raises:
        ConfigError: If the transform is not callable.
    """
    reader = _make_plain_reader(store, axis, EngineOptions(transform=transform), None)
    return replace(reader, measured_view=store)


def _make_plain_reader(
    store: Store, axis: str, options: EngineOptions, output: Output | ShapedOutput | None
) -> FieldReader:
    field_names, transform = _choose_fields(store, axis, options, output), options.transform
    for name in field_names:
        if name not in store.fields:
            raise ConfigError(f"loader: `fields`: {format_unknown_name(name, store.fields)}")
    axis_of = {name: store.fields[name].axis for name in field_names}
    if transform is not None:
        check_transform(transform)
        transform = bind_fields(transform, store.fields)
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
    store: Store, axis: str, options: EngineOptions, output: Output | ShapedOutput | None
) -> tuple[str, ...]:
    if options.fields is not None:
        return tuple(dict.fromkeys(options.fields))
    others = (options.as_batch, options.transform, options.collator)
    if output is None or any(each is not None for each in others):
        return tuple(store.fields)
    chosen: Any = output
    wanted_names = set(chosen.names)
    if options.shift and TARGETS in wanted_names:
        ragged = (name for name in store.fields if store.fields[name].axis == axis)
        wanted_names.update(options.shift if isinstance(options.shift, Mapping) else ragged)
    chosen.check((*store.fields, TARGETS) if options.shift else store.fields)
    return tuple(name for name in store.fields if name in wanted_names)


def _resolve_shift(
    store: Store, axis: str, shift: int | Mapping[str, int], field_names: tuple[str, ...]
) -> tuple[str | None, int]:
    ragged = [name for name in field_names if store.fields[name].axis == axis]
    name, timesteps = _parse_shift(shift)
    if name is not None and name not in ragged:
        raise ConfigError(f"loader: `shift`: {format_unknown_name(name, tuple(ragged))}")
    if name is None and timesteps and len(ragged) != 1:
        found = "is none. Leave it out, or read such a field"
        if ragged:
            found = (
                f"are {len(ragged)} ({', '.join(ragged)}). Name the field, such as "
                f"shift={{{ragged[0]!r}: {timesteps}}}."
            )
        raise ConfigError(
            f"loader: `shift` without a field name must have one field on axis {axis!r}, but there "
            f"{found}"
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
    number = as_integer(timesteps)
    if number is None or number < 0:
        raise ConfigError(
            must_be("loader: `shift`", "an integer of at least 0 (timesteps)", repr(timesteps))
        )
    return name, number


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
            with time parts.
    """
    if len(plan) != num_batches:
        raise PlanError(
            f"policy {describe_policy(policy)}: epoch {epoch} must have {num_batches} batches, "
            f"as `num_batches` returns, but has {len(plan)}. Change the policy."
        )
    if time_parts > 1 and (plan.overlap or plan.lookahead):
        raise ConfigError(
            f"loader: rows that are split along time into {time_parts} parts must have no overlap "
            f"and no horizon, but those of {describe_policy(policy)} have an overlap of "
            f"{plan.overlap} and a horizon of {plan.lookahead} timesteps. Use whole sequences, "
            "chunks or plain windows."
        )
    if plan.carry and reader.shift and reader.linker is not None:
        raise ConfigError(
            "loader: a shift of a continuous stream must have fields of one axis, but "
            f"{', '.join(map(repr, reader.linked_fields))} are linked to {reader.axis!r}. Name "
            "the fields of one axis with `fields`, or leave out `continuous`"
        )
    if plan.lookahead and reader.shift:
        raise ConfigError(
            f"loader: `shift` must be 0 with windows of a horizon of {plan.lookahead}, but is "
            f"{reader.shift}. Use batch.context and batch.future."
        )
    if reader.has_bounded_lengths and (plan.lanes or plan.lookahead):
        raise ConfigError(
            f"loader: {describe_policy(policy)} needs exact lengths, but the transform's are "
            "random (`.max_length`). Use a policy of whole sequences, or declare `.lengths`."
        )


def check_bounded_lengths(
    reader: FieldReader, policy: Policy, on_error: OnError, *, sorts: bool = False
) -> None:
    """Raise ConfigError if lengths that are only bounds do not fit the other options."""
    if not reader.has_bounded_lengths:
        return
    if part_policies := as_policy(policy).policies:
        for part_policy in part_policies.values():
            check_bounded_lengths(reader, find_base_policy(part_policy), on_error, sorts=sorts)
        return
    options = {
        "on_error": on_error,
        "keep": getattr(policy, "keep", None),
        "sort_within_batch": sorts,
    }
    for name, value in (("on_error", "replace"), ("keep", "last"), ("sort_within_batch", True)):
        if options[name] == value:
            raise ConfigError(
                f"loader: `{name}={value!r}` needs exact lengths, but the transform's are "
                f"random (`.max_length`). Leave `{name}` out."
            )
    if as_policy(policy).cuts_windows:
        raise ConfigError(
            "loader: windows need exact lengths, but the transform's are random "
            "(`.max_length`). Let the transform keep lengths: it then sees each window."
        )


def check_time_parts(reader: FieldReader, options: EngineOptions) -> None:
    """Raise ConfigError if an option does not allow the time parts that a ring needs."""
    parts, transform = options.world.time_parts, reader.transform
    if parts == 1:
        return
    remedy = "or let each process read whole rows: World(rank, size), RingStrategy(whole_rows=True)"
    if transform is not None and (reader.has_changed_lengths or not is_by_timestep(transform)):
        name = qualified_name(transform)
        raise ConfigError(
            f"loader: the transform {name} must work timestep by timestep, because rows are split "
            f"along time into {parts} parts. Set {name.rpartition('.')[2]}.by_timestep = True if "
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
            f"into {parts} parts, but {', '.join(others)} would be read whole by every process. "
            f"Leave them out of `fields`, {remedy}"
        )
    if options.on_error != "raise":
        raise ConfigError(
            must_be(
                "loader: `on_error`",
                f"'raise' where rows are split along time into {parts} parts",
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
    if as_policy(policy).horizon < 1 or getattr(policy, "least_size", 0) < context:
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


def check_mask_marks(
    output: Output | ShapedOutput, fields: Iterable[str], on_error: OnError
) -> None:
    """Raise ConfigError if rows that are masked cannot be told from others.

    Args:
        output: The output.
        fields: Names of the fields of the data.
        on_error: Treatment of a sequence that cannot be read; ``replace`` may mask.
    """
    fields = list(fields)
    if on_error != "raise" and not output.find_marks(fields):
        raise ConfigError(
            f"loader: rows that `on_error={on_error!r}` masks must be told from others, but "
            f"{output.title} has no 'weight' for that. {output.advise_mark(fields)}."
        )


def check_dummy_marks(
    output: Output | ShapedOutput,
    fields: Iterable[str],
    options: EngineOptions,
    lanes: int,
    num_left: int,
    marks_rows: Callable[[], bool] = lambda: False,
) -> None:
    """Raise ConfigError if ranks will have padding rows that the output does not mark.

    Args:
        output: The output, none of whose selected attributes marks padding rows.
        fields: Names of the fields of the data.
        options: The ranks, and the treatment of ranks without a batch in the last step.
        lanes: Number of lanes; 0 if batches are divided among ranks.
        num_left: Number of remaining batches.
        marks_rows: Function that returns whether the result of the user's ``as_batch`` marks
            padding rows all the same; called only if there are any.
    """
    size = options.world.size
    missing = max(0, size - lanes) if lanes else -num_left % size * (options.tail == "fill")
    if missing and not marks_rows():
        divided = f"{lanes} lanes" if lanes else f"{num_left} batches"
        where, other = "loader", "tail='drop' (in training also 'repeat')"
        if num_left < size:  # all would be dropped
            other = "tail='repeat' (in training), or use fewer ranks or smaller batches"
        if options.is_evaluation:  # which leaves out no row
            where = f"loader of {options.name!r}"
            other = f"an `eval_batching` of which {size} divides the number of batches"
        if lanes:
            other = f"at least {size} lanes"
        raise ConfigError(
            f"{where}: {divided} on {size} ranks leave {missing} without one, and "
            f"{output.title} has no 'weight' to mark padding rows. "
            f"{output.advise_mark(list(fields))}, or pass {other}."
        )


def make_empty_plan_error(index: SequenceIndex, policy: Policy, reader: FieldReader) -> PlanError:
    """Return the error of a plan without a batch, with the planned lengths."""
    lengths = index.lengths_of[reader.axis]
    if not len(lengths):
        return PlanError(
            "loader: the data must have at least one sequence, but has none. Check the source, or "
            "`where` or `take` of the view"
        )
    have = f"they have {lengths.min()} to {lengths.max()} timesteps"
    shift = f", of which a shift takes {reader.shift}" if reader.shift else ""
    has_crops = as_policy(find_base_policy(policy)).cuts_windows
    advice = "no window fits: make it shorter" if has_crops else "check `empty` and `too_long`"
    return PlanError(
        f"loader: none of the {len(lengths)} sequences is left under {describe_policy(policy)}: "
        f"{have}{shift}; {advice}"
    )
