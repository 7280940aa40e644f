"""Existing data, the backend that opens it, and its whole sequences.

All data is read once, sequence by sequence; other reads are compared with it.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np

from seqdata.capabilities import get_base_keys
from seqdata.detect import as_opener, find_opener
from seqdata.protocols import Field, Store
from seqdata.storage.fields import kind_of
from seqdata_testing.stores import Sequences

MOST_COPIED = 256 << 20
"""Maximum size in bytes of data that is copied to be damaged; larger data is not damaged."""
INDEX_FOLDER = "seqdata-index"


@dataclass(frozen=True, slots=True, eq=False)
class WholeReads:
    """The values of whole sequences, each read alone.

    Attributes:
        sequences: Field -> value, of each sequence.
        problems: ``dtype`` (also: cannot be read), ``shape`` or ``length`` -> description of the
            first value that does not match its field.
    """

    sequences: list[dict[str, Any]]
    problems: dict[str, str]


@dataclass(eq=False)
class LocationCase:
    """Existing data and the backend that opens it.

    Attributes:
        location: The location to open: a path, a pattern, a URL, or a list of these.
        folder: An empty folder for copies of the data.
        backend: Name of a backend, a format, or a function that opens a location; None: found from
            the location.
        sequences: The expected content, as for ``check_store``; None: not known.
        methods: Start methods of child processes.
    """

    location: Any
    folder: Path
    backend: Any = None
    sequences: Sequences | None = None
    methods: Sequence[str] = ("fork", "spawn")
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)

    @cached_property
    def opener(self) -> Callable[..., Any]:
        """Function that opens a location with the backend."""
        if self.backend is None or isinstance(self.backend, str):
            first = self.location[0] if isinstance(self.location, list) else self.location
            return find_opener(first, backend=self.backend)
        return as_opener(self.backend)

    @cached_property
    def store(self) -> Store:
        """Store of the data."""
        return self.open(self.location)

    @cached_property
    def whole(self) -> WholeReads:
        """The values of each sequence, read alone."""
        return read_whole(self.store)

    @cached_property
    def reference(self) -> list[dict[str, Any]]:
        """Field -> value of each sequence, read alone, with its ``id``.

        Raises:
            SkipTest: If a value does not match its field, which another check reports.
        """
        for problem in self.whole.problems.values():
            raise SkipTest(f"values do not fit their description: {problem}")
        if "id" not in self.store.fields:
            for sequence, key in zip(self.whole.sequences, list_ids(self.store), strict=False):
                sequence["id"] = key
        return self.whole.sequences

    def open(self, location: Any) -> Store:
        """Open data with the backend."""
        store: Store = self.opener(location, verify=None)
        return store

    def copy(self) -> Path:
        """Copy the data, without its index, into a new folder, and return the new location.

        Raises:
            SkipTest: If the data is not one file or folder on this machine, or is too large.
        """
        source = Path(str(self.location).removeprefix("file://"))
        if isinstance(self.location, list) or not source.exists():
            raise SkipTest("it needs one file or folder on this machine")
        folder = self.folder / f"copy-{next(self._numbers)}"
        files = [source] if source.is_file() else list(source.rglob("*"))
        if source.is_file():  # with the files that belong to it: `a.bin`, `a.idx`
            files = [path for path in source.parent.iterdir() if path.stem.startswith(source.stem)]
        files = [path for path in files if path.is_file() and INDEX_FOLDER not in path.parts]
        if (size := sum(path.stat().st_size for path in files)) > MOST_COPIED:
            raise SkipTest(
                f"it copies at most {MOST_COPIED >> 20} MiB, but the data has {size >> 20} MiB"
            )
        root = source.parent if source.is_file() else source
        for path in files:
            target = folder / source.name / path.relative_to(root)
            target = folder / path.relative_to(root) if source.is_file() else target
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        return folder / source.name


def read_whole(store: Store) -> WholeReads:
    """Read each sequence of a store once, by itself."""
    whole = WholeReads([dict[str, Any]() for _ in range(len(store))], {})
    for name, each in store.fields.items():
        axis = each.axis or next(iter(store.lengths_of))
        for number, length in enumerate(np.asarray(store.lengths_of[axis]).tolist()):
            where = f"field {name!r} of sequence {number}"
            try:
                column = store.read(np.array([[number, 0, length]], np.int64), [name], axis=axis)
                value = column[name][0]
            except Exception as error:  # the code of a plugin may raise anything
                text = f"{where} cannot be read ({type(error).__name__}: {error})"
                whole.problems.setdefault("dtype", text)
                continue
            for kind, problem in _find_problems(each, value, length):
                whole.problems.setdefault(kind, f"{where} {problem}")
            if isinstance(value, np.ndarray):
                value = value[0] if each.axis is None and value.ndim else value
                value = np.array(value, copy=True)
            whole.sequences[number][name] = value
    return whole


def _find_problems(described: Field, value: Any, length: int) -> Iterator[tuple[str, str]]:
    """Yield kind and description of each way in which a value does not match its field."""
    is_number = isinstance(value, np.ndarray | np.generic)
    found = str(value.dtype) if is_number else type(value).__name__
    if found != described.dtype:
        yield "dtype", f"must be {described.dtype}, as its Field says, but is {found}"
    if not kind_of(described).is_array:
        return
    shape, due = np.shape(value), tuple(described.shape)
    if described.axis is None:
        if shape != (1, *due):
            yield (
                "shape",
                f"has shape {shape}, but must have {(1, *due)}: one value per sequence is a piece "
                "of one timestep. Use `values.reshape(1, ...)`",
            )
    elif not shape or shape[1:] != due:
        text = f"has shape {shape}, but must have timesteps of shape {due}, as its Field says"
        yield "shape", text
    elif shape[0] != length:
        axis = described.axis
        text = f"has {shape[0]} timesteps, but must have {length}, as `lengths_of[{axis!r}]` says"
        yield "length", text


def list_ids(store: Store, numbers: Any = None) -> list[Any]:
    """Return the ids of sequences, by default of all."""
    asked = np.arange(len(store)) if numbers is None else numbers
    return list(get_base_keys(store, store.base_numbers(asked)))
