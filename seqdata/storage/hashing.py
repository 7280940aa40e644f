"""A stable 64-bit hash of strings, keyed by a seed, without Python code per string.

The hash of a string never changes: not with the machine, its byte order, the version of NumPy, or
the other strings; the parts of a split depend on it. One of at most ``HASH_CHUNK`` bytes is read as
little-endian words of 8 bytes, the last one padded with zeros::

    h = mix(seed + GAMMA);  for each word: h = mix(h ^ word);  hash = mix(h ^ bytes)

and a longer one as the bytes of its blocks' hashes: ``hash = mix(hash(hashes) ^ bytes)``. ``mix``
is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014; its multipliers are "variant 13" of D. Stafford), a bijection. It spreads
ids well, but does not protect against ids that are chosen to collide.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import DecodeError

HASH_CHUNK = 512
"""Bytes of a string that are hashed in one chain."""
TEXTS_PER_PASS = 1 << 14
"""Strings that are hashed together: their state fits into the CPU cache."""
MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_FIRST_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_WORD_MASKS = np.array([(1 << 8 * count) - 1 for count in range(9)], dtype=np.uint64)
"""Number of valid bytes of a word -> its mask."""
_WORD = np.dtype("<u8")

Hashes = NDArray[np.int64] | NDArray[np.uint64]


def hash_texts(
    values: NDArray[np.uint8], offsets: NDArray[np.int64], seed: int = 0
) -> NDArray[np.uint64]:
    """Return the hash of each string, uint64 (n,).

    Args:
        values: The bytes of all strings, uint8 (bytes,).
        offsets: Offsets of the strings, int64 (n+1,), ascending inside ``values``.
        seed: In [0, 2^64); another seed gives unrelated hashes.

    Raises:
        ValueError: If an argument is invalid.

    Examples:
        >>> hash_texts(np.frombuffer(b"abc", np.uint8), np.array([0, 1, 3])).tolist()
        [13241633793171066038, 11824316391123867011]
    """
    if values.dtype != np.uint8 or values.ndim != 1 or not values.flags.c_contiguous:
        raise ValueError("hash_texts: `values` must be uint8 of one dimension, without gaps")
    if not 0 <= seed <= MASK:
        raise ValueError(f"hash_texts: `seed` must be in [0, 2^64), but is {seed}")
    count = len(offsets) - 1
    if count < 0 or offsets[0] < 0 or offsets[-1] > len(values):
        raise ValueError(
            f"hash_texts: `offsets` must have at least one element, inside 0..{len(values)}"
        )
    hashes = np.empty(count, dtype=np.uint64)
    for first in range(0, count, TEXTS_PER_PASS):
        pass_offsets = offsets[first : first + TEXTS_PER_PASS + 1].astype(np.int64, copy=False)
        sizes = np.diff(pass_offsets)
        if (sizes < 0).any():
            raise ValueError("hash_texts: `offsets` must be ascending")
        hashes[first : first + TEXTS_PER_PASS] = _hash_pass(values, pass_offsets[:-1], sizes, seed)
    return hashes


def hash_numbers(numbers: NDArray[np.uint64], seed: int = 0) -> NDArray[np.uint64]:
    """Return the hash of each number, uint64 (n,): that of its 8 little-endian bytes."""
    hashes = np.empty(len(numbers), dtype=np.uint64)
    key = _mix_seed(seed)
    for first in range(0, len(numbers), TEXTS_PER_PASS):
        mixed = _mix(numbers[first : first + TEXTS_PER_PASS] ^ key)
        hashes[first : first + TEXTS_PER_PASS] = _mix(mixed ^ np.uint64(8))
    return hashes


def _hash_pass(
    values: NDArray[np.uint8], begins: NDArray[np.int64], sizes: NDArray[np.int64], seed: int
) -> NDArray[np.uint64]:
    hashes = np.full(len(begins), _mix_seed(seed), dtype=np.uint64)
    long = sizes > HASH_CHUNK
    if long.any():
        for i in np.flatnonzero(long).tolist():
            first, size = int(begins[i]), int(sizes[i])
            chunk_offsets = np.append(np.arange(first, first + size, HASH_CHUNK), first + size)
            inner = hash_texts(values, chunk_offsets, seed).astype(_WORD).view(np.uint8)
            hashes[i] = hash_texts(inner, np.array([0, len(inner)]), seed)[0]
    # whole words are read: a string near the end of the buffer is read from a padded copy
    near_end = (begins + sizes > len(values) - 7) & ~long & (sizes > 0)
    rest = ~long & ~near_end
    if near_end.any():
        start = int(begins[near_end].min())
        copy = np.append(values[start:], np.zeros(8, dtype=np.uint8))
        hashes[near_end] = _mix_words(
            copy, begins[near_end] - start, sizes[near_end], hashes[near_end]
        )
    if rest.all():
        hashes = _mix_words(values, begins, sizes, hashes)
    elif rest.any():
        hashes[rest] = _mix_words(values, begins[rest], sizes[rest], hashes[rest])
    return _mix(hashes ^ sizes.view(np.uint64))


def _mix_words(
    values: NDArray[np.uint8],
    begins: NDArray[np.int64],
    sizes: NDArray[np.int64],
    hashes: NDArray[np.uint64],
) -> NDArray[np.uint64]:
    """Mix the words of each string into its hash; return ``hashes``, which is changed in place."""
    words = np.ndarray((max(0, len(values) - 7),), dtype=_WORD, buffer=values, strides=(1,))
    most = int(sizes.max(initial=0))
    least = int(sizes.min(initial=most))
    for done in range(0, most, 8):
        if least > done + 7:  # every string has another whole word
            hashes = _mix(words[begins + done] ^ hashes)
            continue
        unfinished = np.flatnonzero(sizes > done)
        remaining = np.minimum(sizes[unfinished] - done, 8)
        word = words[begins[unfinished] + done] & _WORD_MASKS[remaining]
        hashes[unfinished] = _mix(word ^ hashes[unfinished])
    return hashes


def _mix_seed(seed: int) -> np.uint64:
    return np.uint64(_mix(np.array([(seed + _GAMMA) & MASK], dtype=np.uint64))[0])


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread every bit over all others; return ``state``, which is changed in place."""
    state ^= state >> _SHIFTS[0]
    state *= _FIRST_MULTIPLIER
    state ^= state >> _SHIFTS[1]
    state *= _SECOND_MULTIPLIER
    state ^= state >> _SHIFTS[2]
    return state


def is_among(hashes: Hashes, others: Hashes) -> NDArray[np.bool_]:
    """Return which hashes are among others.

    Args:
        hashes: (n,).
        others: (m,).

    Returns:
        bool (n,).
    """
    return np.isin(hashes, others, kind="sort")  # else NumPy 2.0 overflows


def check_unique_ids(
    hashes: Hashes,
    id_for: Callable[[int], str],
    first: int = 0,
    remedy: str = "name another field as `key`",
    describe: Callable[[int], str] = "sequence {}".format,
) -> None:
    """Raise if two sequences have the same id.

    Args:
        hashes: uint64 or int64 (sequences,), of their ids.
        id_for: Function from ``i`` to the id of sequence ``first + i``.
        first: Index of the first of these sequences, for the message.
        remedy: Alternative to making ids unique, for the message.
        describe: Function from the index of a sequence to its name in the message.

    Raises:
        DecodeError: If two do; the message names both.
    """
    ordered = np.sort(hashes)  # much faster than an argsort, which is rarely needed
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(repeated):
        return
    seen: dict[str, int] = {}
    for number in np.flatnonzero(is_among(hashes, repeated)).tolist():
        name = id_for(number)
        first_number = seen.setdefault(name, number)
        if first_number != number:
            raise DecodeError.at(
                f"{describe(first + number)}: the id must be unique, but {name!r} is also the id "
                f"of {describe(first + first_number)}. Make ids unique, or {remedy}",
                sequence=first + number,
            )
