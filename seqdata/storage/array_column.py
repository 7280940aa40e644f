"""A column over arrays in memory, for stores whose bytes are not mapped.

Place in the flow: decoded files and Datasets return it where mapped stores return ``SpanColumn``.
Reads: arrays. Makes: filled output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError
from seqdata.storage.data_location import ShardLayout


@dataclass(frozen=True, slots=True, eq=False)
class ArrayColumn:
    """One field of the spans of a batch; a ``Column``.

    Attributes:
        dtype: Dtype of one element.
        shape: Shape of one timestep.
        pieces: Array of each span, (length, *shape), of that dtype.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: list[NDArray[Any]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of timesteps of each piece, int64 (n,)."""
        return np.array([len(piece) for piece in self.pieces], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, number: int) -> NDArray[Any]:
        """Return one piece, (length, *shape)."""
        return self.pieces[number]

    def fill(self, out: NDArray[Any], bounds: NDArray[np.int64], padding: bytes | None) -> None:
        """Copy all pieces into place and pad.

        Args:
            out: Output, (timesteps, *shape), in the dtype of the column.
            bounds: int64 (n+1,), ascending. Piece i is copied to the beginning of
                ``out[bounds[i]:bounds[i + 1]]``, and the rest of this range is padded.
            padding: Bytes of one element of padding; None: zeros.

        Raises:
            ValueError: If ``bounds`` do not match ``out``, or its dtype differs.
        """
        offsets = bounds.tolist()
        is_rising = len(offsets) == len(self.pieces) + 1 and offsets == sorted(offsets)
        if (
            out.dtype != self.dtype
            or not is_rising
            or not 0 <= offsets[0] <= offsets[-1] <= len(out)
        ):
            raise ValueError(
                f"fill: `out` must be {self.dtype} with {len(self.pieces) + 1} ascending bounds "
                f"inside it, but is {out.dtype} of {len(out)} timesteps with {len(offsets)} "
                f"bounds, {offsets[:3]}…. Pass such an array"
            )
        value = 0 if padding is None else np.frombuffer(padding, self.dtype)[0]
        for piece, begin, end in zip(self.pieces, offsets[:-1], offsets[1:], strict=True):
            out[begin : begin + len(piece)] = piece
            out[begin + len(piece) : end] = value


def check_spans(
    layout: ShardLayout, name: str, axis: str | None, spans: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the length of each span's sequence, int64 (n,); raise if a span is outside.

    Raises:
        ConfigError: If a sequence or a timestep does not exist.
    """
    numbers = spans[:, 0]
    layout.check_numbers(numbers)
    lengths = np.ones(len(spans), dtype=np.int64)
    if axis is not None:
        lengths = layout.lengths_of[axis][numbers].astype(np.int64)
    inside = (spans[:, 1] >= 0) & (spans[:, 1] <= spans[:, 2]) & (spans[:, 2] <= lengths)
    if not inside.all():
        at = int(np.flatnonzero(~inside)[0])
        number, start, stop = spans[at].tolist()
        raise ConfigError(
            f"{layout.location}: sequence {layout.locate(number).sequence}, field {name!r}: "
            f"timesteps must be in 0..{lengths[at]}, but {start}..{stop} were requested. Use a "
            "plan that was made for this data."
        )
    return lengths
