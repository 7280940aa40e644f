"""Random numbers that are the same with every release of NumPy.

Only the raw 64-bit output of Philox4x64-10 is used (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", SC11), keyed by (seed, epoch) with the counter at (0, 0, purpose, block).
Permutations are a stable argsort of it; NumPy's own shuffles may change their streams (NEP 19).

``KeyedPermutation`` is a permutation of any size that is computed for some numbers at a time, so
that no array of its size is ever held.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, must_be

_MIN_KEYS = 1 << 10  # fewer keys are not sorted faster
_MIN_KEYS_PER_TIE = 8  # nor are keys if more than one in 8 is equal to another


def stable_argsort(keys: NDArray[Any]) -> NDArray[np.int64]:
    """Return exactly ``np.argsort(keys, kind="stable")``, int64 (n,).

    It is fast if few keys are equal, such as random ones: NumPy sorts 64-bit keys several times
    faster if the order of equal ones may be arbitrary; here that order is restored afterwards.

    Args:
        keys: Integers (n,).

    Examples:
        >>> stable_argsort(np.array([3, 1, 3, 2])).tolist()
        [1, 3, 0, 2]
    """
    if len(keys) < _MIN_KEYS:
        return np.argsort(keys, kind="stable")
    order = np.argsort(keys)
    ranked = keys.take(order)
    same = ranked[1:] == ranked[:-1]
    if not same.any():
        return order
    tied = np.zeros(len(keys), dtype=bool)
    tied[1:] = same
    tied[:-1] |= same
    tied_positions = np.flatnonzero(tied)
    if len(tied_positions) * _MIN_KEYS_PER_TIE > len(keys):
        return np.argsort(keys, kind="stable")
    tie_groups = np.zeros(len(keys), dtype=np.int64)  # equal keys have equal numbers
    np.cumsum(~same, out=tie_groups[1:])
    order[tied_positions] = order[
        tied_positions[np.lexsort((order[tied_positions], tie_groups[tied_positions]))]
    ]
    return order


class Purpose(IntEnum):
    """The purposes of draws. The numbers are part of every plan: never change or reuse one."""

    BLOCKS = 1  # order of the blocks
    MEMBERS = 2  # order of a block's sequences, and of ties
    NOISE = 3  # Bucketed's noise on lengths
    MIX = 4  # order of the rows inside a bucket
    REMAINDER = 5  # where the remainder is cut out
    GROUPS = 6  # order of the groups
    HALVES = 7  # halves inside a group
    LAST_HALVES = 8  # halves inside the remainder
    TRANSFORM = 9  # what a transform's generator draws
    CROPS = 10  # starts of random crops
    PAIRS = 11  # which lanes exchange sequences
    CUTS = 12  # after which items they do
    LANES = 13  # order of the lanes
    LENGTHS = 14  # lengths of chunks, where they vary; once for all epochs
    SCHEDULE = 15  # order of these lengths
    SHARED = 16  # a model's numbers that are equal on all ranks
    PER_RANK = 17  # those of each rank
    PER_LANE = 18  # those of each lane
    PARTS = 19  # where the parts of a mixture begin; the seed of each, by a digest of its name
    OFFSET = 20  # where the systematic sample of a weighted epoch begins
    DRAWS = 21  # the order of the sequences that it goes along
    ROWS = 22  # where each pass over the rows of a part begins, and its step
    WRITING = 23  # the random order in which sequences are written
    RUNS = 24  # order in which runs of items are distributed over blocks; once for all epochs
    SHORT_GROUPS = 25  # where the groups of the short block come
    SIZES = 26  # sizes of windows, where they vary


@dataclass(frozen=True, slots=True)
class Draw:
    """The random numbers of one epoch.

    Args:
        seed: Seed in ``[0, 2**64)``.
        epoch: Index of the epoch, from 0.

    Raises:
        ConfigError: If ``seed`` or ``epoch`` is out of range.
    """

    seed: int
    epoch: int

    def __post_init__(self) -> None:
        for name in ("seed", "epoch"):
            value = getattr(self, name)
            if not 0 <= value < 1 << 64:
                raise ConfigError(
                    must_be(f"plan: `{name}`", "in [0, 2**64)", f"{value!r}", "Pass another")
                )

    def raw(self, purpose: Purpose, count: int, block: int = 0) -> NDArray[np.uint64]:
        """Draw ``count`` uniform 64-bit integers, uint64 (count,)."""
        key = np.array([self.seed, self.epoch], dtype=np.uint64)
        counter = np.array([0, 0, int(purpose), block], dtype=np.uint64)
        return np.random.Philox(key=key, counter=counter).random_raw(count)

    def permutation(self, purpose: Purpose, count: int, block: int = 0) -> NDArray[np.int64]:
        """Draw a permutation of ``range(count)``, int64 (count,)."""
        return stable_argsort(self.raw(purpose, count, block))

    def each(
        self, purpose: Purpose, occurrences: NDArray[np.int64], sequences: NDArray[np.int64]
    ) -> NDArray[np.uint64]:
        """Draw one number per occurrence of a sequence, uint64 (n,), independent of other draws.

        Each is the first word of Philox with key (seed, epoch) at counter (0, occurrence, purpose,
        sequence).
        """
        return _philox(self.seed, self.epoch, occurrences, int(purpose), sequences)

    def hash_each(
        self, purpose: Purpose, occurrences: NDArray[np.int64], sequences: NDArray[np.int64]
    ) -> NDArray[np.uint64]:
        """Return one number per occurrence of a sequence, uint64 (n,), faster than ``each``.

        Each is a word of Philox with key (seed, epoch), mixed with both by SplitMix64's finaliser
        (Steele, Lea and Flood, 2014, "Fast splittable pseudorandom number generators").
        """
        mixed = sequences.astype(np.uint64) * _ODD
        mixed += self.raw(purpose, 1)
        _finalise(mixed)
        mixed += occurrences.astype(np.uint64) * _ODD
        _finalise(mixed)
        return mixed

    def below(self, purpose: Purpose, bound: int, block: int = 0) -> int:
        """Draw one integer in ``[0, bound)``."""
        return int(self.raw(purpose, 1, block)[0]) % bound


_ODD = np.uint64(0x9E3779B97F4A7C15)
_FINALISER_STEPS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)


def _finalise(words: NDArray[np.uint64]) -> None:
    """Mix each word in place, one to one."""
    for shift, factor in _FINALISER_STEPS:
        words ^= words >> shift
        words *= factor
    words ^= words >> _LAST_SHIFT


_MULTIPLIERS = (np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157))
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_CHUNK_DRAWS = 1 << 13  # draws that stay in the cache


def _philox(
    seed: int, epoch: int, second: NDArray[np.int64], purpose: int, fourth: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return the first word of Philox4x64-10 for counters (0, second, purpose, fourth) at once.

    NumPy raises the lowest word before it draws, so it is 1 here.
    """
    drawn = np.empty(len(second), dtype=np.uint64)
    for first in range(0, len(second), _CHUNK_DRAWS):
        chunk = slice(first, first + _CHUNK_DRAWS)
        count = len(drawn[chunk])
        words = [
            np.full(count, 1, dtype=np.uint64),
            second[chunk].astype(np.uint64),
            np.full(count, purpose, dtype=np.uint64),
            fourth[chunk].astype(np.uint64),
        ]
        keys = [seed, epoch]
        for _ in range(10):
            high0, low0 = _multiply(words[0], _MULTIPLIERS[0])
            high1, low1 = _multiply(words[2], _MULTIPLIERS[1])
            words = [high1 ^ words[1] ^ np.uint64(keys[0]), low1,
                     high0 ^ words[3] ^ np.uint64(keys[1]), low0]  # fmt: skip
            keys = [(key + weyl) % (1 << 64) for key, weyl in zip(keys, _WEYL, strict=True)]
        drawn[chunk] = words[0]
    return drawn


def _multiply(
    words: NDArray[np.uint64], factor: np.uint64
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the high and low words of 128-bit products."""
    low, high = words & _LOW, words >> _HALF
    factor_low, factor_high = factor & _LOW, factor >> _HALF
    middle = high * factor_low + ((low * factor_low) >> _HALF)
    carry = low * factor_high + (middle & _LOW)
    return high * factor_high + (middle >> _HALF) + (carry >> _HALF), words * factor


_ROUNDS = 4  # a pseudorandom permutation from pseudorandom functions (Luby and Rackoff, 1988)


class KeyedPermutation:
    """A pseudorandom permutation of ``range(count)``, computed for some numbers at a time.

    A Feistel network over pairs ``(left, right)``: each round adds a hash of one side to the other.
    Pairs that stand for no number are mapped again ("cycle walking", Black and Rogaway, 2002,
    "Ciphers with arbitrary finite domains"); there are about ``sqrt(count)`` such pairs.

    Args:
        count: Size of the permutation, below 2^62.
        key: Key of the permutation; different keys give different permutations.
    """

    __slots__ = ("_keys", "_sides", "count")

    def __init__(self, count: int, key: int) -> None:
        self.count = count
        left = max(1, math.isqrt(max(0, count - 1)) + 1)
        self._sides = left, max(1, -(-count // left))
        self._keys = Draw(key, count).raw(Purpose.RUNS, _ROUNDS)

    def apply(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the image of each number, int64 (n,)."""
        return self._walk(numbers, range(_ROUNDS), np.add)

    def invert(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the preimage of each number, int64 (n,)."""
        return self._walk(numbers, range(_ROUNDS - 1, -1, -1), np.subtract)

    def _walk(
        self, numbers: NDArray[np.int64], rounds: range, combine: np.ufunc
    ) -> NDArray[np.int64]:
        mapped = self._map(numbers, rounds, combine)
        outside = np.flatnonzero(mapped >= self.count)
        while len(outside):
            mapped[outside] = self._map(mapped[outside], rounds, combine)
            outside = outside[mapped[outside] >= self.count]
        return mapped

    def _map(
        self, numbers: NDArray[np.int64], rounds: range, combine: np.ufunc
    ) -> NDArray[np.int64]:
        mapped = np.empty(len(numbers), dtype=np.int64)
        for first in range(0, len(numbers), _CHUNK_DRAWS):
            chunk = slice(first, first + _CHUNK_DRAWS)
            mapped[chunk] = self._map_chunk(numbers[chunk], rounds, combine)
        return mapped

    def _map_chunk(
        self, numbers: NDArray[np.int64], rounds: range, combine: np.ufunc
    ) -> NDArray[np.int64]:
        width = self._sides[1]
        left = numbers // width
        sides = [left, numbers - left * width]
        for number in rounds:
            changed = number % 2
            size = self._sides[changed]
            words = sides[1 - changed].astype(np.uint64)
            words += self._keys[number]
            words *= _ODD
            _finalise(words)
            words >>= _HALF  # 32 bits, scaled to the side's size
            words *= np.uint64(size)
            words >>= _HALF
            side = combine(sides[changed], words.view(np.int64))
            # back into the side, without a branch: -1 where it left it, else 0
            if combine is np.add:
                side -= size
            side += size & (side >> 63)
            sides[changed] = side
        return sides[0] * width + sides[1]
