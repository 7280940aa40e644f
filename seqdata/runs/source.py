"""The source of a DataModule: opened, renamed, selected, prepared and split by its arguments."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from seqdata.api import open_store, split
from seqdata.errors import ConfigError, must_be
from seqdata.protocols import Store
from seqdata.resolve import are_locations, is_collate_fn, is_location, resolve_store
from seqdata.runs.options import DataKind, DataOptions
from seqdata.storage.braces import has_url
from seqdata.storage.fields import make_unknown_name_error
from seqdata.storage.local_files import is_remote
from seqdata.storage.remote.options import Remote, resolve_remote
from seqdata.storage.remote.urls import redact_url
from seqdata.storage.row_chunks import flatten_column
from seqdata.storage.time_split import make_bounds, make_limit
from seqdata.storage.views import SequenceStore, as_sequence_store

LENGTH = "length"
"""Key of ``where`` for the length of a sequence in timesteps, unless a field has this name."""
OPENED_WITH = ("backend", "remote", "group", "order", "missing", "id")
"""Arguments with which locations are opened, those of ``open_store`` of the same names."""
_FAR = 0.05  # difference of a part's share from its fraction from which on it is said
_CHUNK = 1 << 16  # sequences that are compared at a time


@dataclass(frozen=True, slots=True, eq=False)
class OpenedSource:
    """A source that was opened.

    Attributes:
        store: All its sequences.
        notes: Notes on the opening, a line each.
    """

    store: SequenceStore
    notes: tuple[str, ...]


def open_source(options: DataOptions, location: Any, lengths: Any) -> OpenedSource:
    """Open one location as the arguments of a DataModule say.

    Args:
        options: The arguments.
        location: The location.
        lengths: Lengths of a Dataset's items.

    Raises:
        SeqDataError: If an argument does not fit the data.
    """
    given = {name: getattr(options, name) for name in OPENED_WITH}
    given["remote"] = _select_remote(options, location)
    given = {name: value for name, value in given.items() if value is not None}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        clocks: dict[str, Any] = {"rates": options.rates, "axes": options.axes}
        if given:
            store = open_store(location, lengths=lengths, **given, **clocks)
        else:
            as_items = is_collate_fn(options.collator)
            store = resolve_store(
                location, lengths=lengths, names=options.fields, as_items=as_items, **clocks
            )
    notes = [str(warning.message) for warning in caught]
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if options.group is not None and is_location(location) and is_remote(location):
        where = redact_url(os.fspath(location))
        notes.insert(0, f"files of {where} are copied to {resolve_remote(options.remote).copies}")
    if options.order is not None:
        notes.insert(0, f"rows of each {options.group!r} are in the order of {options.order!r}")
    if options.rename:
        store = store.rename(options.rename)
    if options.where is not None:
        count = len(store)
        store = select_where(store, options.where)
        notes.append(f"where: {len(store)} of {count} sequences are selected")
        if not len(store):
            raise ConfigError(
                f"datamodule: `where` must select at least one sequence, but selects none of "
                f"{count}. Change its conditions"
            )
    if options.prepare is not None:
        prepared = options.prepare(store)
        if isinstance(prepared, tuple):
            prepared, added = prepared
            notes += added
        store = as_sequence_store(prepared)
    return OpenedSource(store, tuple(notes))


def holds_url(data: Any) -> bool:
    """Return whether data is a URL, or several locations, by name or in a list, with one."""
    if isinstance(data, Mapping):
        return any(map(holds_url, data.values()))
    if are_locations(data):
        return any(map(has_url, filter(is_location, data)))
    return is_location(data) and has_url(data)


def _select_remote(options: DataOptions, location: Any) -> Remote | str | None:
    """Return the access to URLs for a location; None for a path if another location is a URL."""
    is_path = is_location(location) or are_locations(location)
    if not is_path or holds_url(location):
        return options.remote
    kinds: tuple[DataKind, ...] = get_args(DataKind)
    has_urls = any(holds_url(options.get_given(kind)) for kind in kinds)
    return None if has_urls else options.remote


def split_source(options: DataOptions, store: Store) -> Mapping[DataKind, Any]:
    """Return the parts of a source, by kind."""
    parts = {str(kind): options.split_parts[kind] for kind in options.split_parts}
    found: Any = split(store, parts, **options.split_options)
    return dict(found)


def describe_shares(options: DataOptions, store: Store, parts: Mapping[DataKind, Any]) -> list[str]:
    """Return a note if parts are far from their fractions, and exact ones are nearer.

    Args:
        options: Arguments of a DataModule.
        store: The source that is split.
        parts: Its parts.
    """
    fractions: dict[Any, Any] = {**options.split_parts}
    given = options.split_options
    if any(isinstance(each, str) for each in fractions.values()) or given.get("along") is not None:
        return []
    if given.get("exact") or given.get("stratify") is not None:
        return []
    far = _find_farthest(fractions, parts)
    if far <= _FAR:
        return []
    try:
        exact: Any = split(store, fractions, **{**given, "exact": True})
    except ConfigError:  # a part is empty then
        return []
    if _find_farthest(fractions, exact) >= far:
        return []
    found = ", ".join(f"{kind} {len(parts[kind]):,}" for kind in fractions)
    return [
        f"parts are {found} of {len(store):,} sequences, farther from {fractions} than they "
        "need to be: each is chosen by a hash. Write 'exact': True in `split` for exact fractions"
    ]


def _find_farthest(fractions: Mapping[Any, Any], parts: Mapping[Any, Any]) -> float:
    """Return by how much the share of a part differs from its fraction at most."""
    total = sum(len(parts[kind]) for kind in fractions)
    return max(abs(len(parts[kind]) / total - float(each)) for kind, each in fractions.items())


def select_where(
    store: SequenceStore, where: Mapping[str, Any] | Callable[[Any], bool]
) -> SequenceStore:
    """Return the view of the sequences that meet all conditions.

    Args:
        store: A store.
        where: A function of a sequence that returns a bool; or field -> a value, a list of values,
            or a range ``"start..stop"`` without its stop, also of dates.

    Raises:
        ConfigError: If there is no such field, it does not have one value per sequence, or a
            condition does not fit its values.
    """
    if not isinstance(where, Mapping):
        return store.where(where)
    mask = np.ones(len(store), dtype=bool)
    for name, condition in where.items():
        mask &= _match(store, str(name), condition)
    return store.where(mask)


def _match(store: SequenceStore, name: str, condition: Any) -> NDArray[np.bool_]:
    if name == LENGTH and name not in store.fields:
        values: Any = np.asarray(store.lengths)
        return _compare(name, values, condition, None)
    if name == "id" and name not in store.fields:
        wanted = _to_list(condition)
        return np.isin(np.array(list(store.ids), dtype=object), np.array(wanted, dtype=object))
    if name not in store.fields:
        raise make_unknown_name_error("datamodule: `where`", "field", name, store.fields)
    field = store.fields[name]
    if field.axis is not None or field.shape:
        raise ConfigError(
            must_be(
                f"datamodule: field {name!r} of `where`",
                "one with a value per sequence",
                f"{field.dtype}{list(field.shape)} along {field.axis}",
                "Pass a function of a sequence instead",
            )
        )
    found = []
    for first in range(0, len(store), _CHUNK):
        numbers = np.arange(first, min(first + _CHUNK, len(store)), dtype=np.int64)
        spans = np.stack([numbers, 0 * numbers, 0 * numbers], axis=1)
        axis = next(iter(store.lengths_of))
        values = flatten_column(store.read(spans, [name], axis=axis)[name])
        found.append(_compare(name, values, condition, field))
    return np.concatenate(found) if found else np.zeros(0, dtype=bool)


def _compare(name: str, values: Any, condition: Any, field: Any) -> NDArray[np.bool_]:
    if isinstance(values, list):
        texts = {str(value) for value in _to_list(condition)}
        return np.fromiter((value in texts for value in values), dtype=bool, count=len(values))
    if isinstance(condition, str) and ".." in condition:
        start, stop = make_bounds(name, condition, None if field is None else field.logical)
        mask = np.ones(len(values), dtype=bool)
        if start is not None:
            mask &= values >= make_limit(start, values.dtype)
        if stop is not None:
            mask &= values < make_limit(stop, values.dtype)
        return mask
    wanted = _to_list(condition)
    if any(isinstance(value, str) for value in wanted):
        raise ConfigError(
            must_be(
                f"datamodule: `where` of {name!r}",
                "a number, a list of numbers, or a range 'start..stop'",
                repr(condition),
                f"The field holds {np.asarray(values).dtype}",
            )
        )
    return np.isin(values, np.asarray(wanted))


def _to_list(condition: Any) -> list[Any]:
    is_several = isinstance(condition, Sequence | set | frozenset) and not isinstance(
        condition, str
    )
    return list(condition) if is_several else [condition]
