"""Transforms in process: one sequence at a time, between reading and collating.

A transform keeps lengths, and draws from a generator that is keyed by (seed, epoch, sequence), so
that its results do not depend on threads, ranks or resumes. Place in the flow: columns -> columns.
Reads: pieces of columns. Makes: columns over new arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.axes import Axes
from seqdata.errors import ConfigError, DecodeError
from seqdata.planning.randomness import Purpose
from seqdata.protocols import Columns, Store, Transform


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """A column over arrays in memory, all of one dtype and timestep shape."""

    arrays: list[NDArray[Any]]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of one element."""
        return self.arrays[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one timestep."""
        return self.arrays[0].shape[1:]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Timesteps of each piece, int64 (n,)."""
        return np.array([len(array) for array in self.arrays], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, number: int) -> NDArray[Any]:
        return self.arrays[number]

    def fill(self, out: NDArray[Any], bounds: NDArray[np.int64], padding: bytes | None) -> None:
        """Copy all pieces into place, and padding behind each."""
        value = 0 if padding is None else np.frombuffer(padding, self.dtype)[0]
        for array, begin, end in zip(self.arrays, bounds[:-1], bounds[1:], strict=True):
            out[begin : begin + len(array)] = array
            out[begin + len(array) : end] = value


@dataclass(frozen=True, slots=True, eq=False)
class Transforming:
    """Applies a transform to every sequence of a batch.

    Args:
        transform: ``transform(sequence, rng) -> dict``; it keeps lengths.
        store: Whose sequences these are, for their names.
        seed: Of the generators.
        occurrences: int64 (sequences,), how many earlier positions of a view hold the same base
            sequence; None: each is there once.
    """

    transform: Transform
    store: Store
    seed: int
    occurrences: NDArray[np.int64] | None

    def columns(
        self, columns: Columns, numbers: NDArray[np.int64], ids: NDArray[np.int64],
        epoch: int, axes: Axes,
    ) -> tuple[Columns, Axes]:  # fmt: skip
        """Transform the columns of a read.

        Args:
            columns: What was read.
            numbers: int64 (n,), the store's number of each piece.
            ids: int64 (n,), the base number of each piece.
            epoch: Of the plan.
            axes: Which field runs along which axis.

        Returns:
            The new columns, and which of their fields runs along which axis.

        Raises:
            DecodeError: If a result is no dict, or its fields do not fit; naming the sequence.
        """
        made = []
        for piece in range(len(numbers)):
            sequence = {name: _piece(column, piece, axes, name) for name, column in columns.items()}
            lengths = {name: len(sequence[name]) for name in sequence if _ragged(axes, name)}
            result = self._one(sequence, int(numbers[piece]), int(ids[piece]), epoch)
            made.append(self._checked(result, lengths, axes, int(ids[piece])))
        return self._gathered(made, ids, axes)

    def _one(self, sequence: dict[str, Any], number: int, base: int, epoch: int) -> dict[str, Any]:
        occurrence = 0 if self.occurrences is None else int(self.occurrences[number])
        key = np.array([self.seed, epoch], dtype=np.uint64)
        counter = np.array([0, occurrence, int(Purpose.TRANSFORM), base], dtype=np.uint64)
        rng = np.random.Generator(np.random.Philox(key=key, counter=counter))
        try:
            return self.transform(sequence, rng)
        except Exception as error:
            error.add_note(f"in the transform of sequence {self._name(base)}")
            raise

    def _checked(
        self, result: Any, lengths: dict[str, int], axes: Axes, base: int
    ) -> dict[str, Any]:
        if not isinstance(result, Mapping):
            raise self._wrong(base, f"gave {type(result).__name__}, must give a dict of arrays")
        made: dict[str, Any] = {}
        planned = max(
            (lengths[name] for name in lengths if axes.along(name) == axes.axis), default=0
        )
        for name, value in result.items():
            if isinstance(value, str | bytes):
                made[name] = value
                continue
            array = np.asarray(value)
            axis = axes.axis_of.get(name, axes.axis if array.ndim else None)
            if axis is not None and (not array.ndim or array.dtype == object):
                raise self._wrong(base, f"gave field {name!r} as {value!r:.60}, must be an array")
            if axis == axes.axis and len(array) != lengths.get(name, planned):
                raise self._wrong(
                    base,
                    f"gave field {name!r} {len(array)} timesteps, must keep the planned "
                    f"{lengths.get(name, planned)}",
                )
            made[name] = array
        return made

    def _gathered(
        self, made: list[dict[str, Any]], ids: NDArray[np.int64], axes: Axes
    ) -> tuple[Columns, Axes]:
        columns: dict[str, Any] = {}
        axis_of: dict[str, str | None] = {}
        for name, first in made[0].items():
            values: list[Any] = []
            for piece, result in enumerate(made):
                value = result.get(name)
                if not _alike(first, value, axes.along(name)) or len(result) != len(made[0]):
                    raise self._wrong(
                        int(ids[piece]),
                        f"gave {_shown(result)}, must be like {_shown(made[0])} of sequence "
                        f"{self._name(int(ids[0]))}",
                    )
                values.append(value)
            if isinstance(first, str | bytes):
                columns[name], axis_of[name] = values, None
                continue
            axis = axes.axis_of.get(name, axes.axis if first.ndim else None)
            columns[name] = Pieces(values if axis is not None else [one[None] for one in values])
            axis_of[name] = axis
        return columns, Axes(axes.axis, axis_of, axes.shift)

    def _wrong(self, base: int, what: str) -> DecodeError:
        return DecodeError.at(
            f"transform of sequence {self._name(base)}: {what}; change the transform", sequence=base
        )

    def _name(self, base: int) -> str:
        return repr(self.store.keys([base])[0])


def transforming_of(transform: Transform, store: Store, seed: int) -> Transforming:
    """Prepare a transform for the sequences of a store.

    Raises:
        ConfigError: If it changes lengths, or is no function.
    """
    if not callable(transform):
        raise ConfigError(f"loader: `transform` is {transform!r}, must be a function")
    if getattr(transform, "lengths", None) is not None:
        raise ConfigError(
            "loader: `transform` has `.lengths`: transforms that change lengths are not available "
            "in this version; write the transformed data with `write_store`"
        )
    return Transforming(transform, store, seed, occurrences_of(store))


def occurrences_of(store: Store) -> NDArray[np.int64] | None:
    """Count, for each position of a view, the earlier ones that hold the same base sequence."""
    bases = store.base_numbers(np.arange(len(store), dtype=np.int64))
    order = np.argsort(bases, kind="stable")
    ranked = bases[order]
    begins = np.ones(len(bases), dtype=bool)
    begins[1:] = ranked[1:] != ranked[:-1]
    if begins.all():
        return None
    places = np.arange(len(bases))
    firsts = np.maximum.accumulate(np.where(begins, places, 0))
    counted = np.empty(len(bases), dtype=np.int64)
    counted[order] = places - firsts
    return counted


def _piece(column: Any, number: int, axes: Axes, name: str) -> Any:
    if isinstance(column, list):
        return column[number]
    piece = np.array(column[number])  # a copy: what is mapped is not for writing
    return piece if axes.along(name) is not None else piece[0]


def _ragged(axes: Axes, name: str) -> bool:
    return axes.along(name) is not None


def _alike(first: Any, value: Any, axis: str | None) -> bool:
    if isinstance(first, str | bytes):
        return type(value) is type(first)
    if not isinstance(value, np.ndarray) or value.dtype != first.dtype or value.ndim != first.ndim:
        return False
    skip = 0 if axis is None or not first.ndim else 1
    same: bool = value.shape[skip:] == first.shape[skip:]
    return same


def _shown(result: Mapping[str, Any]) -> str:
    parts = (
        f"{name}: {value.dtype}{list(value.shape)}"
        if isinstance(value, np.ndarray)
        else f"{name}: str"
        for name, value in result.items()
    )
    return "{" + ", ".join(parts) + "}"
