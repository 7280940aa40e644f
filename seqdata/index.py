"""The lengths of all sequences and, for weights, values per sequence: the data for planning.

An index holds one length array per axis, usually memory-mapped, and reads it in chunks, so that
10^8 sequences cost no Python object and no copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seqdata import index_scans
from seqdata.capabilities import get_base_keys
from seqdata.errors import ConfigError, PlanError, did_you_mean
from seqdata.index_scans import (
    NumberMap,
    chunk_numbers,
    count_earlier,
    has_repeats,
    read_values,
)
from seqdata.protocols import Store, SupportsBase, SupportsParts

SCAN_CHUNK = index_scans.SCAN_CHUNK
DEFAULT_AXIS = index_scans.DEFAULT_AXIS
Value = TypeVar("Value")
LengthMap = Callable[[NDArray[np.int64]], NDArray[np.int64]]


class _HasLengths(Protocol):
    @property
    def lengths_of(self) -> Mapping[str, NDArray[Any]]: ...


class Copies(NamedTuple):
    """Relation of each position to the other positions of the same sequence.

    Attributes:
        numbers: int64 (n,), number of earlier positions of the same sequence.
        firsts: int64 (n,), the first position of that sequence.
    """

    numbers: NDArray[np.int64]
    firsts: NDArray[np.int64]


class ConcatLengths(Mapping[str, NDArray[Any]]):
    """Axis -> lengths of several stores or indexes, concatenated at first use."""

    __slots__ = ("_lengths", "_sources")

    def __init__(self, sources: Sequence[_HasLengths]) -> None:
        self._sources = tuple(sources)
        self._lengths: dict[str, NDArray[Any]] = {}

    def __getitem__(self, axis: str) -> NDArray[Any]:
        if axis not in self._lengths:
            self._lengths[axis] = np.concatenate(
                [source.lengths_of[axis] for source in self._sources]
            )
        return self._lengths[axis]

    def __contains__(self, axis: object) -> bool:
        return all(axis in source.lengths_of for source in self._sources)

    def __iter__(self) -> Iterator[str]:
        return filter(self.__contains__, self._sources[0].lengths_of)

    def __len__(self) -> int:
        return len(list(iter(self)))


@dataclass(frozen=True, eq=False)
class SequenceIndex:
    """Lengths of the sequences of a dataset, per axis.

    Args:
        lengths_of: Axis -> integer array (sequences,), in timesteps, all of the same size.
        keys: Function of indices that returns the names of sequences; None: their indices.
        digest: Fingerprint of the data, or a function that returns it; None: computed from the
            lengths.
        maps: Axis -> named changes from stored lengths to planned lengths.
        shifts: Axis -> number of timesteps that the last change subtracts, for shifted targets.
        bases: Function of indices in a view that returns indices in the data; None without a view.
        parts: Name -> index of each part of the data, in order, for a mixture; empty for one store.
        read_values: Function of the name of a per-sequence field that returns its values; None:
            only lengths are known.

    Raises:
        ConfigError: If there is no axis, or the axes differ in their number of sequences. Values
            of the arrays are not checked; ``from_lengths`` checks them.

    Examples:
        >>> from seqdata import SequenceIndex
        >>> index = SequenceIndex.from_lengths([3, 1, 2])
        >>> len(index)
        3
    """

    lengths_of: Mapping[str, NDArray[Any]]
    keys: Callable[[Sequence[int]], Sequence[str]] | None = None
    digest: str | Callable[[], str] | None = None
    maps: Mapping[str, tuple[tuple[str, LengthMap], ...]] = field(default_factory=dict)
    shifts: Mapping[str, int] = field(default_factory=dict)
    bases: NumberMap | None = None
    parts: Mapping[str, SequenceIndex] = field(default_factory=dict)
    read_values: Callable[[str], NDArray[Any]] | None = None
    _memo: dict[object, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.parts:
            return  # each has been checked, and their lengths are concatenated only when needed
        if not self.lengths_of:
            raise ConfigError("index: must have at least one axis, but has none. Pass lengths.")
        sizes = {axis: len(lengths) for axis, lengths in self.lengths_of.items()}
        if len(set(sizes.values())) > 1:
            raise ConfigError(
                f"index: all axes must have the same number of sequences, but have {sizes}."
            )

    @classmethod
    def from_lengths(
        cls, lengths: ArrayLike, *, axis: str = DEFAULT_AXIS, keys: Sequence[str] | None = None
    ) -> Self:
        """Return an index of given lengths, which is sufficient for planning.

        Args:
            lengths: Integers (sequences,), in timesteps. A memory-mapped array stays mapped.
            axis: Name of the axis.
            keys: Name of each sequence, for messages.

        Raises:
            ConfigError: If the lengths are not one-dimensional, non-negative integers.

        Examples:
            >>> len(SequenceIndex.from_lengths([3, 1, 2]))
            3
        """
        array = validate_lengths(lengths)
        if keys is None:
            return cls({axis: array})
        return cls({axis: array}, keys=lambda numbers: [keys[number] for number in numbers])

    @classmethod
    def from_parts(cls, parts: Mapping[str, SequenceIndex]) -> Self:
        """Return the index of several datasets, one after the other, for a mixture.

        Args:
            parts: Name -> index, at least one.

        Examples:
            >>> books, code = map(SequenceIndex.from_lengths, ([3, 1], [2]))
            >>> SequenceIndex.from_parts({"books": books, "code": code}).lengths.tolist()
            [3, 1, 2]
        """

        def digest() -> str:
            lines = [f"{name}={part.fingerprint}" for name, part in parts.items()]
            return hashlib.sha256("\n".join(["parts", *lines]).encode()).hexdigest()[:32]

        return cls(ConcatLengths(list(parts.values())), digest=digest, parts=dict(parts))

    @classmethod
    def from_store(cls, store: Store) -> Self:
        """Return the index of a store, its sequences named by their ids."""
        if isinstance(store, SupportsParts):
            parts = {name: SequenceIndex.from_store(part) for name, part in store.parts.items()}
        else:
            parts = {}

        def names(numbers: Sequence[int]) -> Sequence[str]:
            return get_base_keys(store, store.base_numbers(np.asarray(numbers, dtype=np.int64)))

        return cls(
            store.lengths_of,
            keys=names,
            digest=lambda: store.fingerprint,
            bases=store.base_numbers if isinstance(store, SupportsBase) else None,
            parts=parts,
            read_values=lambda name: read_values(store, name),
        )

    def __len__(self) -> int:
        if self.parts:
            return sum(map(len, self.parts.values()))
        return len(next(iter(self.lengths_of.values())))

    @property
    def lengths(self) -> NDArray[Any]:
        """Planned lengths of the axis ``time``, or else of the first axis, integers (n,)."""
        axis = DEFAULT_AXIS if DEFAULT_AXIS in self.lengths_of else next(iter(self.lengths_of))
        return self.run(axis, 0, len(self)) if self.maps.get(axis) else self.lengths_of[axis]

    def run(self, axis: str, first: int, stop: int) -> NDArray[Any]:
        """Return the planned lengths of sequences ``first:stop`` along an axis, integers.

        Raises:
            PlanError: If there is no such axis.
        """
        if axis not in self.lengths_of:
            have = ", ".join(sorted(self.lengths_of))
            hint = did_you_mean(axis, self.lengths_of) or "pass `axis`."
            raise PlanError(f"index: no axis {axis!r}; {hint} Axes: {have}.")
        lengths: NDArray[Any] = self.lengths_of[axis][first:stop]
        for _, change in self.maps.get(axis, ()):
            lengths = change(np.asarray(lengths, dtype=np.int64))
        return np.asarray(lengths)

    def at(self, axis: str, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the planned lengths of some sequences along an axis, int64 (n,)."""
        lengths = np.asarray(self.lengths_of[axis][numbers], dtype=np.int64)
        for _, change in self.maps.get(axis, ()):
            lengths = change(lengths)
        return lengths

    def mapped(self, axis: str, name: str, change: LengthMap) -> SequenceIndex:
        """Return an index whose lengths along ``axis`` are changed when they are read.

        Args:
            axis: The axis.
            name: Name of the change, for the fingerprint: equal names must mean equal changes.
            change: Elementwise function of lengths, int64 (n,) -> int64 (n,).
        """
        chain = (*self.maps.get(axis, ()), (name, change))
        parts = {part: index.mapped(axis, name, change) for part, index in self.parts.items()}
        return self._with_lengths(axis, chain, parts)

    def shifted(self, axis: str, shift: int) -> SequenceIndex:
        """Return the index of targets: every length reduced by ``shift``, to at least 0."""
        result = self.mapped(axis, f"shift={shift}", lambda lengths: np.maximum(lengths - shift, 0))
        parts = {name: part.shifted(axis, shift) for name, part in self.parts.items()}
        return replace(result, shifts={**result.shifts, axis: shift}, parts=parts)

    def unshifted(self, axis: str) -> tuple[SequenceIndex, int]:
        """Return the unshifted index, and the shift that was applied.

        For plans over a stream, which is shifted as a whole.
        """
        shift = self.shifts.get(axis, 0)
        if not shift:
            return self, 0
        return self.remember(("whole", axis), lambda: self._make_unshifted(axis)), shift

    def _make_unshifted(self, axis: str) -> SequenceIndex:
        parts = {name: part.unshifted(axis)[0] for name, part in self.parts.items()}
        return self._with_lengths(axis, self.maps[axis][:-1], parts)

    def _with_lengths(
        self, axis: str, chain: tuple[tuple[str, LengthMap], ...], parts: dict[str, SequenceIndex]
    ) -> SequenceIndex:
        """Return an index with these changes of lengths along an axis, and without its shift."""
        shifts = {name: shift for name, shift in self.shifts.items() if name != axis}
        maps = {**self.maps, axis: chain}
        return replace(self, maps=maps, shifts=shifts, parts=parts, _memo={})

    def select(self, numbers: NDArray[Any]) -> SequenceIndex:
        """Return the index of some sequences, which may be repeated.

        Args:
            numbers: Integers (m,), indices of sequences.
        """
        keys, bases, read = self.keys, self.bases, self.read_values

        def digest() -> str:
            content = np.ascontiguousarray(numbers, dtype="<i8").tobytes()
            return f"{self.fingerprint}:{hashlib.sha256(content).hexdigest()[:32]}"

        def names(positions: Sequence[int]) -> Sequence[Any]:
            chosen = [int(numbers[position]) for position in positions]
            return chosen if keys is None else keys(chosen)

        return replace(
            self,
            lengths_of={axis: lengths[numbers] for axis, lengths in self.lengths_of.items()},
            keys=names,
            digest=digest,
            bases=lambda positions: (bases or _as_int64)(_as_int64(numbers[positions])),
            read_values=None if read is None else lambda name: read(name)[numbers],
            parts={},
            _memo={},
        )

    def values(self, name: str) -> NDArray[Any]:
        """Return the values of a per-sequence field, numbers or ``str`` (n,), which are read once.

        Raises:
            ConfigError: If only lengths are known, or there is no such field of one value each.
        """
        read = self.read_values
        if read is None:
            raise ConfigError(
                f"index: the values of field {name!r} must come from a store, but only lengths are "
                "known. Pass an array with a value for each sequence."
            )
        return self.remember(("values", name), lambda: read(name))

    @property
    def renumbers(self) -> bool:
        """Whether a view numbers sequences differently from the data."""
        return self.remember("renumbers", self._compute_renumbers)

    def _compute_renumbers(self) -> bool:
        if self.bases is None:
            return False
        chunks = (chunk_numbers(first, len(self)) for first in range(0, len(self), SCAN_CHUNK))
        return any(not np.array_equal(self.bases(run), run) for run in chunks)

    def drawn_for(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the keys of the random numbers of sequences, which are equal in every view.

        Args:
            numbers: int64 (n,), indices of sequences.

        Returns:
            The number of earlier positions of the same sequence, int64 (n,), and its index in the
                data, int64 (n,).
        """
        if self.bases is None or not self.renumbers:
            return np.zeros_like(numbers), numbers
        bases = self.bases
        earlier = self.remember("earlier", lambda: count_earlier(bases, len(self)))
        earlier_counts = np.zeros_like(numbers) if earlier is None else earlier[numbers]
        return earlier_counts, bases(numbers)

    @property
    def has_copies(self) -> bool:
        """Whether a sequence of the data occurs several times, as in a view that repeats some."""
        bases = self.bases
        if bases is None:
            return False
        return self.remember("copies", lambda: has_repeats(bases, len(self)))

    def find_copies(self, numbers: NDArray[np.int64]) -> Copies:
        """Return, for each position, how many earlier ones have the same sequence, and the first.

        Args:
            numbers: int64 (n,), indices of sequences.
        """
        bases = numbers if self.bases is None else self.bases(numbers)
        is_sorted = bool((bases[1:] >= bases[:-1]).all())
        order = np.arange(len(bases)) if is_sorted else np.argsort(bases, kind="stable")
        ranked = bases[order]
        is_first = np.ones(len(ranked), dtype=np.bool_)
        is_first[1:] = ranked[1:] != ranked[:-1]
        positions = np.arange(len(ranked))
        ranked_firsts = np.maximum.accumulate(np.where(is_first, positions, 0))
        copies, firsts = np.empty((2, len(ranked)), dtype=np.int64)
        copies[order], firsts[order] = positions - ranked_firsts, order[ranked_firsts]
        return Copies(copies, firsts)

    def names(self, numbers: Sequence[int] | NDArray[np.int64], most: int = 5) -> str:
        """Return the names of the first ``most`` sequences, and the number of others, as text."""
        first = [int(number) for number in numbers[:most]]
        keys = first if self.keys is None else [repr(key) for key in self.keys(first)]
        others = f" and {len(numbers) - most} more" if len(numbers) > most else ""
        return ", ".join(str(key) for key in keys) + others

    def remember(self, key: object, make: Callable[[], Value]) -> Value:
        """Return the result of ``make``, which is called once per index and ``key``.

        If ``key`` has no hash, such as a mutable policy, ``make`` is called every time.
        """
        try:
            hash(key)
        except TypeError:
            return make()
        if key not in self._memo:
            self._memo[key] = make()
        value: Value = self._memo[key]
        return value

    @property
    def fingerprint(self) -> str:
        """Digest of the data and of all changes of its lengths (32 hex digits).

        It is derived from ``digest`` if given, or else computed in one pass over the lengths.
        """
        return self.remember("fingerprint", self._compute_fingerprint)

    def _compute_fingerprint(self) -> str:
        hasher = hashlib.sha256()
        if self.digest is not None:
            digest = self.digest if isinstance(self.digest, str) else self.digest()
            hasher.update(digest.encode())
        else:
            for axis in sorted(self.lengths_of):
                hasher.update(f"{axis}:{len(self)};".encode())
                for first in range(0, len(self), SCAN_CHUNK):
                    lengths = self.lengths_of[axis][first : first + SCAN_CHUNK]
                    hasher.update(np.ascontiguousarray(lengths, dtype="<u8").tobytes())
        for axis in sorted(self.maps):
            hasher.update("".join(f"{axis}:{name};" for name, _ in self.maps[axis]).encode())
        return hasher.hexdigest()[:32]


def _as_int64(numbers: NDArray[Any]) -> NDArray[np.int64]:
    return numbers.astype(np.int64)


def validate_lengths(lengths: ArrayLike) -> NDArray[Any]:
    """Return ``lengths`` as a one-dimensional array of non-negative integers.

    Raises:
        ConfigError: If they are not one-dimensional, non-negative integers.
    """
    array = np.asarray(lengths)
    if array.size == 0 and array.ndim == 1:
        return array.astype(np.uint32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ConfigError(
            "index: lengths must be integers in one dimension, but are "
            f"{array.dtype} of {array.ndim} dimensions. Pass the number of timesteps of each "
            "sequence."
        )
    if array.dtype.kind == "i":
        for first in range(0, len(array), SCAN_CHUNK):
            chunk = array[first : first + SCAN_CHUNK]
            if chunk.min() < 0:
                position = first + int(np.argmin(chunk))
                raise ConfigError(
                    f"index: the length of sequence {position} must be at least 0, but is "
                    f"{int(chunk.min())}. Pass true lengths."
                )
    return array
