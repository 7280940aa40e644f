"""Selects the fields that a loader reads; fields, axis and shift are checked once.

The result is a ``FieldReader``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from seqdata.batch.axes import TARGETS, Axes, format_unknown_name
from seqdata.errors import ConfigError, did_you_mean, must_be
from seqdata.loading.fetcher import FieldReader
from seqdata.loading.options import EngineOptions
from seqdata.loading.transforms.declare import check_transform, length_map_for, qualified_name
from seqdata.protocols import Store
from seqdata.storage.parts import drop_transform, find_transform

if TYPE_CHECKING:  # needs torch, which worker processes do not load
    from seqdata.loading.output import Output


def make_reader(
    store: Store, axis: str, options: EngineOptions, output: Output | None
) -> FieldReader:
    """Return the reader of the selected fields.

    Args:
        store: Any store; a view, or parts, that carry a transform bring it.
        axis: The axis of the plan.
        options: Fields, shift and transform.
        output: The output of the loader.

    Raises:
        ConfigError: If a field or the axis does not exist, the shift is invalid, or there are two
            transforms.
    """
    if axis not in store.lengths_of:
        axes, hint = ", ".join(store.lengths_of), did_you_mean(axis, store.lengths_of)
        raise ConfigError(
            f"loader: the policy plans on axis {axis!r}, but the store has {axes}. Pass `axis` "
            f"to the policy{'; ' if hint else ''}{hint}"
        )
    measured_transform = find_transform(store)
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
            must_be("loader: `shift`", "a whole number of timesteps", repr(timesteps))
        )
    return name, timesteps
