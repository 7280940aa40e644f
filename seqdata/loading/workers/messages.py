"""Requests and columns as bytes in shared memory: each is written once and read where it lies.

Place in the flow: between the crew and its workers. Makes: bytes, requests, columns.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.axes import Axes
from seqdata.errors import LimitError
from seqdata.kernel.dispatch import Kernel
from seqdata.loading.step_requests import Request
from seqdata.loading.workers.shared_slots import HEAD
from seqdata.protocols import Columns

ALIGNED = 64  # bytes
_FACTS = 5  # int64 per request: spans, epoch, horizon, together, whether occurrences follow
Tell = Callable[[int], None]


def room_for(request: Request) -> int:
    """Give the bytes that a request takes in a slot."""
    more = 0 if request.occurrences is None else len(request.ids)
    return 8 * (_FACTS + 4 * len(request.ids) + more)


def put_requests(slot: memoryview, requests: Sequence[Request]) -> None:
    """Write the requests of a task into a slot.

    Raises:
        LimitError: If they do not fit.
    """
    needed = 8 + sum(map(room_for, requests))
    if HEAD + needed > len(slot):
        raise LimitError(
            f"loader: {len(requests[0].ids)} spans of one batch take {needed} bytes, must take at "
            f"most {len(slot) - HEAD} to be sent to a worker process; make batches smaller, or "
            "pass num_workers=0"
        )
    numbers = np.frombuffer(slot, dtype=np.int64, count=needed // 8, offset=HEAD)
    numbers[0] = len(requests)
    at = 1
    for one in requests:
        count, occurrences = len(one.ids), one.occurrences
        known = occurrences is not None
        how = one.together + 2 * one.streamed
        numbers[at : at + _FACTS] = count, one.epoch, one.horizon, how, known
        at += _FACTS
        numbers[at : at + 3 * count] = one.spans.reshape(-1)
        numbers[at + 3 * count : at + 4 * count] = one.ids
        at += 4 * count
        if occurrences is not None:
            numbers[at : at + count] = occurrences
            at += count


def get_requests(slot: memoryview, tell: Tell) -> list[Request]:
    """Read the requests of a task; they are copies, so that answers may be written over them."""
    numbers = np.frombuffer(slot, dtype=np.int64, offset=HEAD)
    found = []
    at = 1
    for _ in range(int(numbers[0])):
        count, epoch, horizon, how, known = numbers[at : at + _FACTS].tolist()
        at += _FACTS
        whole = numbers[at : at + (4 + known) * count].copy()
        at += len(whole)
        spans = whole[: 3 * count].reshape(count, 3)
        occurrences = whole[4 * count :] if known else None
        ids = whole[3 * count : 4 * count]
        together, streamed = bool(how & 1), bool(how & 2)
        found.append(Request(spans, ids, epoch, horizon, together, occurrences, tell, streamed))
    return found


class Parcel:
    """The columns of one answer, before they are written.

    Args:
        columns: Field -> column.
        axes: Which field runs along which axis; None: as the main process knows.
    """

    def __init__(self, columns: Columns, axes: Axes | None) -> None:
        self._fills: list[tuple[Any, NDArray[np.int64], int, int]] = []
        fields: dict[str, Any] = {}
        at = 0
        column: Any
        for name, column in columns.items():
            if isinstance(column, list):
                fields[name] = column
                continue
            lengths = np.ascontiguousarray(column.lengths, dtype=np.int64)
            values_at = _aligned(at + lengths.nbytes + 8)
            dtype, shape, total = column.dtype, tuple(column.shape), int(lengths.sum())
            fields[name] = (dtype.str, shape, at, len(lengths), values_at, total)
            self._fills.append((column, lengths, at, values_at))
            at = _aligned(values_at + total * dtype.itemsize * math.prod(shape))
        told = None if axes is None else (axes.axis, dict(axes.axis_of), dict(axes.shift))
        self.head = pickle.dumps((fields, told), protocol=5)
        self.size = at

    def write(self, to: memoryview) -> None:
        """Copy the columns to their place; ``to`` has room for them and the head.

        Raises:
            DataError: If what is stored is damaged.
        """
        for column, lengths, at, values_at in self._fills:
            bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
            np.cumsum(lengths, out=bounds[1:])
            np.frombuffer(to, dtype=np.int64, count=len(bounds), offset=at)[:] = bounds
            shape = (int(bounds[-1]), *column.shape)
            count = math.prod(shape)
            values = np.frombuffer(to, dtype=column.dtype, count=count, offset=values_at)
            column.fill(values.reshape(shape), bounds, None)
        to[self.size : self.size + len(self.head)] = self.head


def _aligned(position: int) -> int:
    return -(-position // ALIGNED) * ALIGNED


def columns_of(
    answer: memoryview, head: memoryview, engine: Kernel
) -> tuple[dict[str, Any], Axes | None]:
    """Give the columns of an answer, where they lie: they are there until the slot is used again.

    Args:
        answer: Its bytes.
        head: The part that says what they are.
        engine: Copies the values later.
    """
    fields, told = pickle.loads(head)  # our own worker wrote it
    columns = {
        name: one if isinstance(one, list) else SentColumn(answer, engine, *one)
        for name, one in fields.items()
    }
    return columns, None if told is None else Axes(*told)


class SentColumn:
    """One field of the spans that a worker read: a ``Column``.

    Where pieces begin is copied at once: whoever was left behind while it collates may be
    overwritten values, but never reads outside of them.

    Args:
        answer: Bytes of shared memory.
        engine: The kernel that copies.
        dtype: Of one element.
        shape: Of one timestep.
        edges_at: Where it lies where each piece begins, and the last one ends.
        count: How many pieces.
        values_at: Where the values lie.
        total: Timesteps of all pieces.
    """

    __slots__ = ("_edges", "_engine", "_values", "_width", "dtype", "shape")

    def __init__(
        self, answer: memoryview, engine: Kernel, dtype: str, shape: tuple[int, ...],
        edges_at: int, count: int, values_at: int, total: int,
    ) -> None:  # fmt: skip
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self._engine = engine
        self._edges = np.frombuffer(answer, np.int64, count + 1, edges_at).copy()
        self._width = self.dtype.itemsize * math.prod(shape)
        self._values = answer[values_at : values_at + total * self._width]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Timesteps of each piece, int64 (n,)."""
        return np.diff(self._edges)

    def __len__(self) -> int:
        return len(self._edges) - 1

    def __getitem__(self, number: int) -> NDArray[Any]:
        """Give one piece, (length, *shape): a copy."""
        begin, end = self._edges[number : number + 2].tolist()
        piece = self._values[begin * self._width : end * self._width]
        return np.frombuffer(bytearray(piece), self.dtype).reshape(end - begin, *self.shape)

    def fill(self, out: NDArray[Any], bounds: NDArray[np.int64], padding: bytes | None) -> None:
        """Copy all pieces into place and pad.

        Args:
            out: (timesteps, *shape), C-contiguous, of the column's dtype.
            bounds: int64 (n+1,), rising.
            padding: The bytes of one element; None: zeros.

        Raises:
            ValueError: If ``bounds`` do not fit ``out``, or its dtype is another.
        """
        if out.dtype != self.dtype:
            raise ValueError(f"fill: `out` is {out.dtype}, must be {self.dtype}; make it so")
        if not self._width:  # timesteps of no elements
            return
        count, edges = len(self), self._edges
        spans = np.zeros((count, 3), dtype=np.int64)
        spans[:, 0] = np.arange(count)
        np.subtract(edges[1:], edges[:-1], out=spans[:, 2])
        starts = np.array([0, count], dtype=np.int64)
        source = self._engine.source(
            (self._values,), ((edges[:-1], edges[1:]),), starts, self._width
        )
        self._engine.fill(source, spans, bounds, out, padding)
