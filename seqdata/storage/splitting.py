"""Parts and folds of a store, assigned by a stable hash of each id or group.

Ids are hashed in chunks, without a Python object per id if the store supports raw texts. Place in
the flow: between a store and the index that is planned over. Reads: ids or one field. Makes: views.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, as_integer, check_flags, must_be
from seqdata.protocols import Field, Store
from seqdata.storage.fields import default_axis, kind_of, make_unknown_name_error
from seqdata.storage.hashing import MASK, hash_numbers, hash_texts
from seqdata.storage.ids import IDS_PER_PASS, iter_texts, read_id_texts
from seqdata.storage.text_bytes import SupportsRawTexts, TextBytes, concat_texts
from seqdata.storage.views import View, format_title, where


def split(
    store: Store,
    parts: Mapping[str, float],
    *,
    seed: int = 0,
    by: str | None = None,
    exact: bool = False,
    stratify: str | None = None,
) -> SplitViews:
    """Split a store into parts by a hash of each id; see ``seqdata.split``.

    Raises:
        ConfigError: If fractions do not add up to 1, a field does not exist or has many values,
            both ``by`` and ``stratify`` are given, or a part is empty.
    """
    check_flags("split", exact=exact)
    fractions = _check_fractions(parts)
    _check_exclusive("split", by, stratify)
    chosen = np.empty(len(store), dtype=np.min_scalar_type(len(parts)))
    is_exact = exact or stratify is not None
    if is_exact:
        hashes = hash_sequences("split", store, seed, by)
        classes = None if stratify is None else hash_sequences("split", store, 0, stratify)
        chosen[:] = _assign_exactly(hashes, classes, fractions)
    else:
        cut_points = np.cumsum(fractions)[
            :-1
        ].tolist()  # no sequence is lost by rounding: the last part has no upper bound
        limits = np.array([min(int(edge * 2.0**64), MASK) for edge in cut_points], dtype=np.uint64)
        for numbers, hashes in _iter_hashes("split", store, seed, by):
            chosen[numbers] = np.searchsorted(limits, hashes, side="right")
    views = SplitViews({name: where(store, chosen == i) for i, name in enumerate(parts)})
    for name, view in views.items():
        if not len(view):
            axis = next(iter(store.lengths_of), "time")
            other_seed = "" if is_exact else ", try another `seed`"  # exact parts keep their sizes
            raise ConfigError(
                f"split: part {name!r} must have at least one sequence, but is empty "
                f"({len(store)} sequences in all). Make its fraction larger{other_seed}, "
                f"or cut within every sequence: `along={axis!r}`"
            )
    return views


def _check_fractions(parts: Any) -> list[float]:
    """Return the fraction of each part.

    Raises:
        ConfigError: If this is not a mapping of fractions above 0 that add up to 1.
    """
    if not isinstance(parts, Mapping):
        raise ConfigError(
            f"split: `parts` must be a mapping of names to fractions, but is {parts!r:.80}. Write "
            "e.g. "
            "{'train': 0.8, 'val': 0.2}"
        )
    fractions = list(parts.values())
    are_numbers = all(isinstance(fraction, int | float | np.number) for fraction in fractions)
    are_shares = are_numbers and all(0 < fraction < math.inf for fraction in fractions)
    if not are_shares or not abs(sum(fractions) - 1) <= 1e-6:  # not a NaN
        is_partial = are_shares and sum(fractions) < 1
        raise ConfigError(
            f"split: `parts` must be fractions above 0 that add up to 1, but are {dict(parts)!r}. "
            f"{'Name the rest, too' if is_partial else 'Change the fractions'}"
        )
    return fractions


def _check_exclusive(caller: str, by: str | None, stratify: str | None) -> None:
    if by is not None and stratify is not None:
        raise ConfigError(
            f"{caller}: `by` and `stratify` cannot both be given, but are {by!r} and {stratify!r}: "
            "groups that stay together cannot be divided by another value. Leave one of them out"
        )


def _assign_exactly(
    hashes: NDArray[np.uint64], classes: NDArray[np.uint64] | None, fractions: Sequence[float]
) -> NDArray[np.int64]:
    """Return the part of each sequence: equal hashes together, each class by the fractions.

    In each class, hashes are sorted and cut by the fractions, rounded; rounding errors are carried
    to the next class, so that the totals are as close as those of the classes.

    Args:
        hashes: uint64 (n,), of ids or groups.
        classes: uint64 (n,), hashes of the values to balance; None: all are one class.
        fractions: The fraction of each part.
    """
    order, begins_group, begins_class = _sort_groups(hashes, classes)
    groups = np.cumsum(begins_group) - 1
    class_offsets = [*groups[begins_class].tolist(), int(groups[-1]) + 1 if len(groups) else 0]
    part_of = np.empty(class_offsets[-1], dtype=np.int64)
    carry = np.zeros(len(fractions))
    for first, stop in itertools.pairwise(class_offsets):
        exact_counts = (stop - first) * np.asarray(fractions, dtype=float) + carry
        counts = _round_counts(exact_counts, stop - first)
        carry = exact_counts - counts
        part_of[first:stop] = np.repeat(np.arange(len(fractions)), counts)
    chosen = np.empty(len(order), dtype=np.int64)
    chosen[order] = part_of[groups]
    return chosen


def _sort_groups(
    hashes: NDArray[np.uint64], classes: NDArray[np.uint64] | None
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the order by class and hash, and whether a group or a class begins at each position.

    A group is the sequences of one hash within a class, which stay together.
    """
    order = np.lexsort((hashes,) if classes is None else (hashes, classes))
    begins_group = np.ones(len(order), dtype=bool)
    begins_class = np.ones(len(order), dtype=bool)
    begins_class[1:] = False if classes is None else np.diff(classes[order]) != 0
    begins_group[1:] = (np.diff(hashes[order]) != 0) | begins_class[1:]
    return order, begins_group, begins_class


def _round_counts(exact_counts: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Return integers of at least 0, near the given counts, that add up to ``total``."""
    counts = np.floor(np.maximum(exact_counts + 1e-9, 0)).astype(np.int64)
    while counts.sum() < total:
        counts[np.argmax(exact_counts - counts)] += 1
    while counts.sum() > total:
        counts[np.argmin(np.where(counts > 0, exact_counts - counts, np.inf))] -= 1
    return counts


def folds(
    store: Store, count: int, *, seed: int = 0, by: str | None = None, stratify: str | None = None
) -> Folds:
    """Return the pairs of a cross-validation; see ``seqdata.folds``.

    Raises:
        ConfigError: If ``count`` is not an integer from 2 to the number of sequences, or of values
            of ``by``; a field does not exist or has many values; or both ``by`` and ``stratify``
            are given.
    """
    _check_exclusive("folds", by, stratify)
    if as_integer(count) is None:
        raise ConfigError(must_be("folds: `count`", "an integer", repr(count)))
    all_hashes = hash_sequences("folds", store, seed, by)
    if stratify is None:
        fold, distinct = _assign_folds(all_hashes, max(2, count))
    else:
        classes = hash_sequences("folds", store, 0, stratify)
        order, begins_group, _ = _sort_groups(all_hashes, classes)
        fold, distinct = np.empty(len(store), dtype=np.int64), int(begins_group.sum())
        fold[order] = (np.cumsum(begins_group) - 1) % max(2, count)
    if not 2 <= count <= distinct:
        what = "sequences" if by is None else f"values of {by!r}"
        raise ConfigError(
            f"folds: `count` must be in [2, {distinct}], the number of {what}, but is {count!r}. "
            "Choose another number of folds"
        )
    return Folds(store, fold, count)


class SplitViews(dict[str, View]):
    """Name -> view; an unknown name is an error that suggests the nearest one."""

    def __missing__(self, name: object) -> View:
        raise make_unknown_name_error("split", "part", name, self)


class Folds(Sequence[tuple[View, View]]):
    """The pairs (training view, validation view) of a cross-validation. Created by ``folds``.

    Args:
        store: The store to divide.
        fold: Integers (sequences,): the fold in which each sequence is used for validation.
        count: Number of folds.
    """

    __slots__ = ("_count", "_fold", "_store")

    def __init__(self, store: Store, fold: NDArray[Any], count: int) -> None:
        self._store = store
        self._fold = fold
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"Folds({self._count} of {format_title(self._store)})"

    @overload
    def __getitem__(self, number: int) -> tuple[View, View]: ...
    @overload
    def __getitem__(self, number: slice) -> list[tuple[View, View]]: ...
    def __getitem__(self, number: int | slice) -> tuple[View, View] | list[tuple[View, View]]:
        chosen = range(self._count)[number]
        if isinstance(chosen, range):
            return [self[i] for i in chosen]
        inside = self._fold == chosen
        return where(self._store, ~inside), where(self._store, inside)


def _assign_folds(hashes: NDArray[np.uint64], count: int) -> tuple[NDArray[Any], int]:
    """Return each sequence's fold, by the rank of its hash, and the number of distinct hashes."""
    order = np.argsort(hashes)
    fold = np.empty(len(hashes), dtype=np.min_scalar_type(min(count, len(hashes))))
    distinct, last = 0, None
    for first in range(0, len(order), IDS_PER_PASS):
        indices = order[first : first + IDS_PER_PASS]
        ordered = hashes[indices]
        new = np.empty(len(indices), dtype=np.int64)
        new[0] = ordered[0] != last if last is not None else 1
        new[1:] = ordered[1:] != ordered[:-1]
        ranks = np.cumsum(new) + (distinct - 1)
        fold[indices] = ranks % count
        distinct, last = int(ranks[-1]) + 1, ordered[-1]
    return fold, distinct


def hash_sequences(caller: str, store: Store, seed: int, by: str | None) -> NDArray[np.uint64]:
    """Return the hashes of all ids or values of a field, uint64 (sequences,)."""
    found = np.empty(len(store), dtype=np.uint64)
    for numbers, hashes in _iter_hashes(caller, store, seed, by):
        found[numbers] = hashes
    return found


def _iter_hashes(
    caller: str, store: Store, seed: int, by: str | None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64]]]:
    """Yield chunks of numbers, int64 (n,), with the hashes of their ids or groups, uint64 (n,)."""
    field = None if by is None else store.fields.get(by)
    if by is not None:
        if field is None:
            raise make_unknown_name_error(caller, "field", by, store.fields)
        if field.axis is not None or field.shape:
            raise ConfigError(
                f"{caller}: {by!r} must have one value per sequence, but is a field of many "
                "numbers. Choose another, or None for the id"
            )
    if as_integer(seed) is None:
        raise ConfigError(must_be(f"{caller}: `seed`", "an integer", repr(seed)))
    key = int.from_bytes(hashlib.sha256(f"split:{seed}".encode()).digest()[:8], "little")
    if by is not None and field is not None and kind_of(field).is_array:
        for first in range(0, len(store), IDS_PER_PASS):
            numbers = np.arange(first, min(first + IDS_PER_PASS, len(store)), dtype=np.int64)
            yield numbers, hash_numbers(_read_words(store, numbers, by, field), key)
        return
    for numbers, (values, offsets) in iter_texts(
        len(store), lambda numbers: _read_texts(store, numbers, by)
    ):
        yield numbers, hash_texts(values, offsets, key)


def _read_texts(store: Store, numbers: NDArray[np.int64], by: str | None) -> TextBytes:
    if by is None:
        return read_id_texts(store, numbers)
    base = store.base if isinstance(store, View) else store
    if isinstance(base, SupportsRawTexts):
        base_name = store.base_name(by) if isinstance(store, View) else by
        return base.raw_texts(base_name, store.base_numbers(numbers))
    return concat_texts(_read_field(store, numbers, by))


def _read_words(
    store: Store, numbers: NDArray[np.int64], by: str, field: Field
) -> NDArray[np.uint64]:
    """Return the 8 bytes of one number per sequence, uint64 (n,), equal for equal numbers."""
    values = np.empty(len(numbers), dtype=field.dtype)
    _read_field(store, numbers, by).fill(values, np.arange(len(numbers) + 1), None)
    if values.dtype.kind != "f":
        return values.astype(np.uint64 if field.dtype == "uint64" else np.int64).view(np.uint64)
    exact = values.astype(np.float64) + 0.0  # -0.0 is 0.0
    exact[np.isnan(exact)] = np.nan
    return exact.view(np.uint64)


def _read_field(store: Store, numbers: NDArray[np.int64], name: str) -> Any:
    spans = np.zeros((len(numbers), 3), dtype=np.int64)
    spans[:, 0] = numbers
    return store.read(spans, [name], axis=default_axis(store.lengths_of))[name]
