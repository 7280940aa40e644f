"""One array in chunks: its grid, and the conversion of the stored bytes of a chunk to numbers.

Reads: bytes. Makes: arrays of bands, a band being the chunks of the same timesteps.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

REMEDY_FOR_FIELDS = (
    "Open them as two stores, or name what all of them have with `fields`, `axes` and `attributes`"
)
"""Advice in errors about files whose fields differ."""
Bytes = NDArray[np.uint8]
Codec = Callable[[Bytes, int, int], Any]
"""``codec(stored, mask, size)`` returns the decoded bytes of a chunk, which should be ``size``.

A set bit of ``mask`` marks a filter that the chunk skips.
"""


class MissingCodecError(ValueError):
    """A filter or codec that decodes a chunk is not installed; the message says what to do."""


@dataclass(frozen=True)
class ChunkedArray:
    """An array in chunks of equal shape, in C order.

    Attributes:
        path: Its path in the file.
        dtype: Dtype as stored.
        shape: Its shape.
        chunks: Shape of a chunk; the last ones may extend past the array (``is_padded``).
        fill: One element as stored, the value of chunks that were never written.
        decode: Returns the decoded bytes of a chunk; raises a ValueError if it is damaged.
        order: Order of the numbers within a chunk: ``C`` or ``F``.
        is_padded: Whether the last chunks are stored whole, with numbers beyond the shape.
    """

    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    fill: bytes
    decode: Codec
    order: Literal["C", "F"] = "C"
    is_padded: bool = True

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Number of chunks along each dimension."""
        return tuple(-(-size // chunk) for size, chunk in zip(self.shape, self.chunks, strict=True))

    @property
    def bands(self) -> int:
        """Number of bands."""
        return self.grid[0]

    @cached_property
    def chunks_of_band(self) -> int:
        """Number of chunks in a band."""
        return math.prod(self.grid[1:])

    @property
    def band_bytes(self) -> int:
        """Size of a decoded band in bytes."""
        rows = min(self.chunks[0], self.shape[0])
        return rows * math.prod(self.shape[1:]) * self.dtype.itemsize

    def decode_band(
        self, band: int, stored: Sequence[Bytes | None], masks: Sequence[int]
    ) -> NDArray[Any]:
        """Return a band, (timesteps, *shape[1:]), in native byte order, read-only.

        Args:
            band: Index of the band.
            stored: The bytes of its chunks in C order; None: never written.
            masks: A mask per chunk; a set bit marks a filter that the chunk skips.

        Raises:
            MissingCodecError: If a filter or codec is not installed.
            ValueError: If a chunk is damaged.
        """
        first = band * self.chunks[0]
        rows = min(self.chunks[0], self.shape[0] - first)
        shape = (rows, *self.shape[1:])
        if self.chunks_of_band == 1:
            chunk = self._decode_chunk(stored[0], masks[0], (rows, *self.shape[1:]))
            whole = chunk[tuple(map(slice, shape))]
        else:
            whole = np.empty(shape, dtype=self.dtype.newbyteorder("="))
            for at, where in enumerate(np.ndindex(*self.grid[1:])):
                begins = [
                    number * size for number, size in zip(where, self.chunks[1:], strict=True)
                ]
                sizes = [
                    min(size, whole_size - begin)
                    for size, whole_size, begin in zip(
                        self.chunks[1:], self.shape[1:], begins, strict=True
                    )
                ]
                chunk = self._decode_chunk(stored[at], masks[at], (rows, *sizes))
                target = tuple(slice(b, b + s) for b, s in zip(begins, sizes, strict=True))
                whole[(slice(None), *target)] = chunk[tuple(map(slice, (rows, *sizes)))]
        native = whole.astype(self.dtype.newbyteorder("="), copy=False)
        native.flags.writeable = False
        return native

    def _decode_chunk(
        self, stored: Bytes | None, mask: int, inside: tuple[int, ...]
    ) -> NDArray[Any]:
        """Return the numbers of one chunk in the stored dtype, with its padding if it is padded.

        Raises:
            ValueError: If its decoded size is wrong.
        """
        shape = self.chunks if self.is_padded else inside
        if stored is None:
            value = np.frombuffer(self.fill, self.dtype)[0]
            return np.full(shape, value, dtype=self.dtype)
        size = math.prod(shape) * self.dtype.itemsize
        content = self.decode(stored, mask, size)
        found = memoryview(content).nbytes
        if found != size:
            raise ValueError(f"it decompresses to {found} bytes, not {size}")
        values: NDArray[Any] = np.frombuffer(content, self.dtype)
        return values.reshape(shape, order=self.order)


def pack_array(values: NDArray[Any]) -> list[Any]:
    """Return an array as plain data for JSON: dtype, shape and base64 of its bytes."""
    raw = base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
    return [values.dtype.str, list(values.shape), raw]


def unpack_array(packed: Any) -> NDArray[Any]:
    """Return the array that ``pack_array`` packed."""
    dtype, shape, raw = packed
    return np.frombuffer(base64.b64decode(raw), np.dtype(dtype)).reshape(shape)


@dataclass(frozen=True, slots=True, eq=False)
class FileSequences:
    """The sequences of one file, whose values are in chunked arrays.

    Attributes:
        name: Name of the file.
        arrays: The arrays of the fields.
        ids: Ids of the sequences; None: the name of the file.
        axes: Field -> its axis.
        spans: Field -> int64 (n, 3): array, first timestep, one past the last.
        values: Field of numbers per sequence -> (n, *shape).
        texts: Field of strings per sequence -> n strings.
        missing: Attribute that only some sequences have -> number and some indices of the others.
    """

    name: str
    arrays: Sequence[ChunkedArray]
    ids: Sequence[str] | None
    axes: Mapping[str, str]
    spans: Mapping[str, NDArray[np.int64]]
    values: Mapping[str, NDArray[Any]]
    texts: Mapping[str, Sequence[str]]
    missing: Mapping[str, tuple[int, Sequence[int]]]

    def __len__(self) -> int:
        return len(next(iter(self.spans.values())))
