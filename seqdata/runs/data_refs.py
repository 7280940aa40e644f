"""Locations of data as plain data, and back: paths, and views whose numbers are in side files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.api import open_store
from seqdata.errors import ConfigError, must_be
from seqdata.loading.measure_lengths import TransformedRows
from seqdata.protocols import Store
from seqdata.resolve import STORE_MEMBERS, are_locations, is_location, is_map_style, resolve_store
from seqdata.runs.side_files import MOST_NUMBERS, read_arrays
from seqdata.runs.to_plain import UNREPLAYABLE, PlainReader, PlainWriter
from seqdata.storage.concat import ConcatStore, concat_stores
from seqdata.storage.remote.urls import redact_secrets
from seqdata.storage.selection import MeasuredTransform
from seqdata.storage.span_store import SpanStore
from seqdata.storage.views import SequenceStore, View, as_sequence_store, take, with_transform

PATH, VIEW, RANGE, NUMBERS = "path", "view", "range", "numbers"
TRANSFORM, AXIS, CONCAT, NAMES = "transform", "axis", "concat", "names"
SPANS = "spans"


@dataclass(slots=True, eq=False)
class DataRefWriter:
    """Converts locations of data to plain data.

    Attributes:
        writer: Converts the transforms of views, and collects the files next to the run file.
    """

    writer: PlainWriter

    def to_plain(self, data: Any, argument: str) -> Any:
        """Return a location: its path, or the selection of a view; or why it cannot be saved.

        Args:
            data: A path, a store, sequences or a Dataset.
            argument: Name of the argument.
        """
        if data is None:
            return None
        if isinstance(data, str | os.PathLike):
            return {PATH: make_absolute(os.fspath(data))}
        if isinstance(data, View):
            return self._view_to_plain(data, argument)
        if are_locations(data):
            if not all(map(is_location, data)):
                return self.to_plain(resolve_store(data), argument)
            return self._concat_to_plain(data, argument)
        if isinstance(data, ConcatStore):
            return self._concat_to_plain(data.stores, argument)
        if isinstance(data, SpanStore):
            return self._spans_to_plain(data, argument)
        location = getattr(data, "location", None)
        if isinstance(location, str) and set(STORE_MEMBERS) <= set(dir(data)):
            return {PATH: make_absolute(location)}
        return self.writer.mark_unreplayable(argument, f"{_describe_data(data)} has no path")

    def _concat_to_plain(self, stores: Sequence[Any], argument: str) -> Any:
        plain = [self.to_plain(store, argument) for store in stores]
        unreplayable = [plain_store for plain_store in plain if UNREPLAYABLE in plain_store]
        return unreplayable[0] if unreplayable else {CONCAT: plain}

    def _view_to_plain(self, view: View, argument: str) -> Any:
        base = self.to_plain(view.base, argument)
        if UNREPLAYABLE in base or view.is_identity:
            return base
        if len(view) > MOST_NUMBERS:
            return self.writer.mark_unreplayable(
                argument, f"a view of {len(view)} sequences, more than {MOST_NUMBERS}"
            )
        plain_view: dict[str, Any] = {VIEW: base}
        if view.names is not None:
            plain_view[NAMES] = dict(view.names)
        numbers, measured_transform = view.numbers, view.measured_transform
        arrays: dict[str, NDArray[Any]] = {}
        first, last = (int(numbers[0]), int(numbers[-1])) if len(numbers) else (0, -1)
        if view.has_all_sequences:
            pass  # a range or numbers are not saved
        elif last - first + 1 == len(numbers) and (np.diff(numbers) == 1).all():
            plain_view[RANGE] = [first, last + 1]
        else:
            arrays["numbers"] = numbers
        if measured_transform is not None:
            plain_view[TRANSFORM] = self.writer.to_plain(measured_transform.transform, argument)
            plain_view[AXIS] = measured_transform.axis
            arrays["lengths"] = np.asarray(measured_transform.lengths)
        if arrays:
            plain_view[NUMBERS] = self.writer.side_files.add(argument, arrays)
        return plain_view

    def _spans_to_plain(self, store: SpanStore, argument: str) -> Any:
        base = self.to_plain(store.base, argument)
        if UNREPLAYABLE in base:
            return base
        if len(store) > MOST_NUMBERS:
            return self.writer.mark_unreplayable(
                argument, f"spans of {len(store)} sequences, more than {MOST_NUMBERS}"
            )
        sequences, starts, stops = store.spans.T
        arrays = {
            "sequences": sequences, "starts": starts, "stops": stops, "contexts": store.contexts
        }  # fmt: skip
        name = self.writer.side_files.add(argument, arrays)
        return {SPANS: base, AXIS: store.axis, NUMBERS: name}


def make_absolute(location: str) -> str:
    """Return a location that does not depend on the working folder; a URL without secrets."""
    if "://" in location:
        return redact_secrets(location)
    return os.path.abspath(os.path.expanduser(location))


def open_data_ref(
    plain: Any, argument: str, folder: Path, reader: PlainReader, backend: str | None = None
) -> Store:
    """Open a location from a run file.

    Args:
        plain: The result of ``DataRefWriter``.
        argument: Name of the argument.
        folder: Folder of the run file and its side files.
        reader: Restores the transforms of views.
        backend: Name of the backend that opens it; None: found from the location.

    Raises:
        ConfigError: If it could not be saved, or a side file is missing.
        DataError: If the data is incomplete.
    """
    forms = {PATH, VIEW, CONCAT, SPANS, UNREPLAYABLE}
    if not isinstance(plain, Mapping) or not forms & plain.keys():
        raise ConfigError(
            must_be(
                f"{reader.file}: `{argument}`",
                "a location",
                f"{plain!r:.200}",
                "It was not part of the run, or the file was changed",
            )
        )
    if UNREPLAYABLE in plain:
        reader.from_plain(plain, argument)
    if PATH in plain:
        return open_store(plain[PATH], backend=backend)
    if CONCAT in plain:
        return concat_stores(
            [
                open_data_ref(plain_store, argument, folder, reader, backend)
                for plain_store in plain[CONCAT]
            ]
        )
    owner = f"{reader.file}: `{argument}` is a view whose numbers"
    if SPANS in plain:
        base = open_data_ref(plain[SPANS], argument, folder, reader, backend)
        arrays = read_arrays(folder / plain[NUMBERS], owner)
        names = ("sequences", "starts", "stops", "contexts")
        return SpanStore(base, plain[AXIS], *(arrays[name].astype(np.int64) for name in names))
    base = open_data_ref(plain[VIEW], argument, folder, reader, backend)
    arrays = read_arrays(folder / plain[NUMBERS], owner) if NUMBERS in plain else {}
    view: SequenceStore = as_sequence_store(base)
    if RANGE in plain or "numbers" in arrays:
        view = take(base, np.arange(*plain[RANGE]) if RANGE in plain else arrays["numbers"])
    if NAMES in plain:
        view = view.select(*plain[NAMES].values())
        view = view.rename({old: new for new, old in plain[NAMES].items()})
    if TRANSFORM not in plain:
        return view
    transform = reader.from_plain_once(plain[TRANSFORM], argument)  # parts carry the same
    carried = MeasuredTransform(transform, plain[AXIS], arrays["lengths"], TransformedRows)
    return with_transform(view, carried)


def _describe_data(data: Any) -> str:
    kind = type(data).__name__
    if is_map_style(data):
        return f"a Dataset ({kind})"
    count = f"{len(data)} " if "__len__" in dir(data) else ""
    return f"data in memory ({count}in a {kind})"
