"""The concatenated bytes of strings, such as ids for hashing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

TextBytes = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""The concatenated bytes of texts, uint8, and their offsets, int64 (n+1,), from 0."""

_POWERS_OF_TEN = np.array([10**power for power in range(1, 19)], dtype=np.int64)


@runtime_checkable
class SupportsRawTexts(Protocol):
    """A store that returns the bytes of ids and strings without a Python object for each."""

    def raw_texts(self, name: str | None, numbers: NDArray[np.int64]) -> TextBytes:
        """Return the bytes of one string per sequence.

        Args:
            name: A field of ``str`` or ``bytes``; None: the ids, as ``keys`` returns them.
            numbers: int64 (n,), sequences of the base store.

        Raises:
            ConfigError: If there is no such sequence or field of strings.
            DataError: If stored data is damaged.
        """
        ...


class TextSource(Protocol):
    """Strings of sequences, such as their ids."""

    def take(self, numbers: ArrayLike) -> list[Any]:
        """Return the strings of sequences.

        Raises:
            ConfigError: If there is no such sequence.
            DataError: If stored data is damaged.
        """
        ...

    def read_bytes(self, numbers: NDArray[np.int64]) -> TextBytes:
        """Return the concatenated bytes of strings; see ``text_bytes``."""
        ...

    def is_readable(self, number: int) -> bool:
        """Return whether a string can be read at all."""
        ...


def concat_texts(texts: Iterable[str | bytes]) -> TextBytes:
    """Return the concatenated bytes of strings; of ``str`` as UTF-8."""
    pieces = [text if isinstance(text, bytes) else text.encode() for text in texts]
    offsets = np.zeros(len(pieces) + 1, dtype=np.int64)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    return np.frombuffer(b"".join(pieces), dtype=np.uint8), offsets


def reorder_texts(texts: Sequence[TextBytes], order: NDArray[np.int64]) -> TextBytes:
    """Return the strings of several parts in the order of a request.

    Args:
        texts: Per part, its strings.
        order: Position in the request of each string, part by part.
    """
    sizes = np.concatenate([np.diff(offsets) for _, offsets in texts])
    values = np.concatenate([values for values, _ in texts])
    ends = np.cumsum(sizes)
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    offsets = np.zeros(len(order) + 1, dtype=np.int64)
    np.cumsum(sizes[inverse], out=offsets[1:])
    if (inverse == np.arange(len(inverse))).all():
        return values, offsets
    source_positions = np.repeat((ends - sizes)[inverse] - offsets[:-1], sizes[inverse])
    return values[source_positions + np.arange(len(values))], offsets


def format_decimals(numbers: NDArray[np.int64]) -> TextBytes:
    """Return the concatenated decimal digits of numbers.

    Args:
        numbers: int64 (n,), none below 0.

    Examples:
        >>> values, offsets = format_decimals(np.array([7, 10, 0]))
        >>> values.tobytes(), offsets.tolist()
        (b'7100', [0, 1, 3, 4])
    """
    counts = np.searchsorted(_POWERS_OF_TEN, numbers, side="right") + 1
    offsets = np.zeros(len(numbers) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    width = int(counts.max(initial=1))
    digits = np.empty((len(numbers), width), dtype=np.uint8)
    rest = numbers
    for column in range(width - 1, -1, -1):
        quotient = rest // 10
        digits[:, column] = rest - quotient * 10 + ord("0")
        rest = quotient
    if int(counts.min(initial=width)) == width:
        return digits.reshape(-1), offsets
    return digits[np.arange(width) >= (width - counts)[:, None]], offsets
