"""Locations of data as plain data, and back: paths, and calls that make views of stores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.api import open_store
from seqdata.errors import ConfigError, must_be
from seqdata.linked_axes import Axis
from seqdata.loading.measure_lengths import TransformedRows
from seqdata.protocols import Store, Transform
from seqdata.resolve import STORE_MEMBERS, are_locations, is_map_style
from seqdata.runs.class_paths import (
    INIT_ARGS,
    ArgumentReader,
    ArgumentWriter,
    NotReplayableError,
    is_call,
    make_call,
)
from seqdata.runs.side_files import MOST_NUMBERS, read_arrays
from seqdata.storage.concat import ConcatStore, concat_stores
from seqdata.storage.remote.urls import redact_secrets
from seqdata.storage.selection import MeasuredTransform
from seqdata.storage.span_store import SpanStore
from seqdata.storage.views import (
    SequenceStore,
    View,
    as_sequence_store,
    link_axes,
    take,
    with_transform,
)

_OWNER = "a view has arrays that"


def open_view(
    base: Any,
    *,
    names: Mapping[str, str] | None = None,
    first: int | None = None,
    stop: int | None = None,
    arrays: str | None = None,
    transform: Transform | None = None,
    axis: str | None = None,
    linked_axes: Mapping[str, Mapping[str, Any]] | None = None,
    owner: str = _OWNER,
) -> Store:
    """Open a view as a run file describes it.

    Args:
        base: Base of the view: a path, several to concatenate, or a store.
        names: Name of a field -> its name in the base; None: all fields.
        first: First sequence of a range.
        stop: Index after the last sequence of a range.
        arrays: Path of the side file with the indices of sequences (``numbers``), and ``lengths``
            of the results of the transform.
        transform: The transform that the view carries.
        axis: The axis whose lengths the transform changes.
        linked_axes: Axis -> the arguments of its ``Axis``; None: those of the base.
        owner: Beginning of messages about the arrays.

    Raises:
        ConfigError: If the side file cannot be read.
        DataError: If the data is incomplete.
    """
    base = _open_base(base)
    content = {} if arrays is None else read_arrays(Path(arrays), owner)
    view: SequenceStore = as_sequence_store(base)
    if first is not None or "numbers" in content:
        view = take(base, content["numbers"] if first is None else np.arange(first, stop))
    if names is not None:
        view = view.select(*names.values()).rename({old: new for new, old in names.items()})
    if linked_axes is not None:
        clocks = {name: Axis(**clock) for name, clock in linked_axes.items()}
        view = link_axes(view, clocks)
    if transform is None:
        return view
    carried = MeasuredTransform(transform, str(axis), content["lengths"], TransformedRows)
    return with_transform(view, carried)


def open_spans(base: Any, axis: str, arrays: str, owner: str = _OWNER) -> Store:
    """Open spans of sequences, cut along their axis, as a run file describes them.

    Args:
        base: Store of the whole sequences: a path, several to concatenate, or a store.
        axis: The axis along which sequences are cut.
        arrays: Path of the side file with the ``sequences``, ``starts``, ``stops`` and
            ``contexts`` of ``SpanStore``.
        owner: Beginning of messages about the arrays.

    Raises:
        ConfigError: If the side file cannot be read.
        DataError: If the data is incomplete.
    """
    content = read_arrays(Path(arrays), owner)
    names = ("sequences", "starts", "stops", "contexts")
    return SpanStore(_open_base(base), axis, *(content[name].astype(np.int64) for name in names))


def location_to_plain(data: Any, argument: str, writer: ArgumentWriter) -> Any:
    """Return a location as plain data: a path, a list of them, or the call that makes a view.

    Args:
        data: A path, a store, sequences or a Dataset.
        argument: Name of the argument.
        writer: Writer of the transforms of views, which collects the files next to the run file.

    Raises:
        NotReplayableError: If it cannot be saved.
    """
    if data is None:
        return None
    if isinstance(data, str | os.PathLike):
        return make_absolute(os.fspath(data))
    if isinstance(data, View):
        return _view_to_plain(data, argument, writer)
    if isinstance(data, ConcatStore) or are_locations(data):
        stores = data.stores if isinstance(data, ConcatStore) else data
        return [location_to_plain(store, argument, writer) for store in stores]
    if isinstance(data, SpanStore):
        return _spans_to_plain(data, argument, writer)
    location = getattr(data, "location", None)
    if isinstance(location, str) and set(STORE_MEMBERS) <= set(dir(data)):
        return make_absolute(location)
    raise NotReplayableError(f"{_describe_data(data)} has no path")


def _view_to_plain(view: View, argument: str, writer: ArgumentWriter) -> Any:
    base = location_to_plain(view.base, argument, writer)
    if view.is_identity:
        return base
    if len(view) > MOST_NUMBERS:
        raise NotReplayableError(f"a view of {len(view)} sequences, more than {MOST_NUMBERS}")
    call = make_call(open_view, base=base)
    arguments, arrays = call[INIT_ARGS], dict[str, NDArray[Any]]()
    if view.own_linked_axes is not None:
        linked = view.own_linked_axes.items()
        arguments["linked_axes"] = {axis: clock.to_plain() for axis, clock in linked}
    if view.names is not None:
        arguments["names"] = dict(view.names)
    numbers, measured_transform = view.numbers, view.measured_transform
    first, last = (int(numbers[0]), int(numbers[-1])) if len(numbers) else (0, -1)
    if view.has_all_sequences:
        pass  # neither a range nor indices are needed
    elif last - first + 1 == len(numbers) and (np.diff(numbers) == 1).all():
        arguments |= {"first": first, "stop": last + 1}
    else:
        arrays["numbers"] = numbers
    if measured_transform is not None:
        arguments["transform"] = writer.to_plain(measured_transform.transform, argument)
        arguments["axis"] = measured_transform.axis
        arrays["lengths"] = np.asarray(measured_transform.lengths)
    if arrays:
        arguments["arrays"] = writer.save_arrays(arrays, argument, "numbers of a view")
    return call


def _spans_to_plain(store: SpanStore, argument: str, writer: ArgumentWriter) -> Any:
    base = location_to_plain(store.base, argument, writer)
    sequences, starts, stops = store.spans.T
    arrays = {
        "sequences": sequences, "starts": starts, "stops": stops, "contexts": store.contexts
    }  # fmt: skip
    if len(store) > MOST_NUMBERS:
        raise NotReplayableError(f"spans of {len(store)} sequences, more than {MOST_NUMBERS}")
    path = writer.save_arrays(arrays, argument, "numbers of spans")
    return make_call(open_spans, base=base, axis=store.axis, arrays=path)


def make_absolute(location: str) -> str:
    """Return a location independent of the working folder; a URL without secrets."""
    if "://" in location:
        return redact_secrets(location)
    return os.path.abspath(os.path.expanduser(location))


def location_from_plain(
    plain: Any, argument: str, reader: ArgumentReader, backend: str | None = None
) -> Store:
    """Open a location of a run file.

    Args:
        plain: The result of ``location_to_plain``.
        argument: Name of the argument.
        reader: Reader of views and their transforms.
        backend: Name of the backend that opens it; None: detected from the location.

    Raises:
        ConfigError: If it is not a location, or a side file is missing.
        DataError: If the data is incomplete.
    """
    if isinstance(plain, str):
        return open_store(plain, backend=backend)
    if isinstance(plain, list):
        return concat_stores(
            [location_from_plain(part, argument, reader, backend) for part in plain]
        )
    if not is_call(plain, open_view, open_spans):
        raise ConfigError(
            must_be(
                f"{reader.file}: `{argument}`",
                "a location",
                f"{plain!r:.200}",
                "Restore the file as the run wrote it",
            )
        )
    arguments = dict(plain.get(INIT_ARGS, {}))
    arguments["base"] = location_from_plain(arguments.get("base"), argument, reader, backend)
    if "transform" in arguments:  # parts carry the same
        arguments["transform"] = reader.from_plain_once(arguments["transform"], argument)
    store: Store = reader.from_plain({**plain, INIT_ARGS: arguments}, argument)
    return store


def _open_base(base: Any) -> Any:
    if isinstance(base, list):
        return concat_stores([_open_base(part) for part in base])
    return open_store(base) if isinstance(base, str) else base


def list_store_paths(plain: Any) -> list[str]:
    """Return the paths of stores in an argument of a run file, in order."""
    if isinstance(plain, str):
        return [plain]
    if isinstance(plain, Mapping):
        return list_store_paths(
            plain[INIT_ARGS]["base"] if is_call(plain) else list(plain.values())
        )
    return [path for part in plain or () for path in list_store_paths(part)]


def _describe_data(data: Any) -> str:
    kind = type(data).__name__
    if is_map_style(data):
        return f"a Dataset ({kind})"
    count = f"{len(data)} " if "__len__" in dir(data) else ""
    return f"data in memory ({count}in a {kind})"
