"""Requests, columns and objects as bytes in memory that a rank and its workers share.

The memory has a status line per worker, and slots. A slot holds the requests of a task, and then
its answers. The number of finished answers is counted inside of it, so that they can be taken even
if the worker was killed. Columns are read in place. The result of a ``collate_fn`` in a worker is
an object, whose arrays and tensors are written next to its pickle and copied out once.
"""

from __future__ import annotations

import errno
import io
import math
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.batch.axes import Axes
from seqdata.errors import LimitError, must_be
from seqdata.kernel.dispatch import Kernel
from seqdata.loading.step_requests import StepRequest
from seqdata.protocols import Columns
from seqdata.storage.local_files import describe_limit
from seqdata.storage.shared_memory import AnonymousMemory

STATUS_WIDTH = 8  # int64 per worker
PROGRESS, SEQUENCE, MEMORY = 0, 1, 2  # columns of the status: a count, a base index, KiB
MAX_REQUESTS = 16  # most requests of a task
SLOT_HEADER = 512  # bytes of a slot before its data: number of answers, and position of each
_PAGE = 4096


@dataclass(frozen=True, slots=True, eq=False)
class SharedSlots:
    """Shared memory, divided into status lines and slots.

    Attributes:
        memory: The whole memory.
        num_workers: Number of status lines.
        num_slots: Number of slots.
        slot_bytes: Size of a slot; memory is only taken when it is written.
    """

    memory: AnonymousMemory
    num_workers: int
    num_slots: int
    slot_bytes: int

    @classmethod
    def allocate(cls, num_workers: int, num_slots: int, slot_bytes: int) -> SharedSlots:
        """Return new shared memory.

        Raises:
            OSError: If the system has no memory or descriptor left.
        """
        status_bytes = -(-num_workers * STATUS_WIDTH * 8 // _PAGE) * _PAGE
        return cls(
            AnonymousMemory(status_bytes + num_slots * slot_bytes),
            num_workers,
            num_slots,
            slot_bytes,
        )

    def view_status(self) -> NDArray[np.int64]:
        """Return the status lines of all workers, int64 (workers, 8)."""
        flat = np.frombuffer(
            self.memory.mapping, dtype=np.int64, count=self.num_workers * STATUS_WIDTH
        )
        return flat.reshape(self.num_workers, STATUS_WIDTH)

    def view_slot(self, number: int) -> memoryview:
        """Return the bytes of a slot."""
        first = self.memory.size - (self.num_slots - number) * self.slot_bytes
        return memoryview(self.memory.mapping)[first : first + self.slot_bytes]


def view_num_done(slot: memoryview) -> NDArray[np.int64]:
    """Return the number of finished requests of a slot, int64 (1,)."""
    return np.frombuffer(slot, dtype=np.int64, count=1)


def view_answer_table(slot: memoryview) -> NDArray[np.int64]:
    """Return the table of answers, int64 (16, 3): position, bytes, bytes of the header.

    A position of -1 means separate memory, bytes of -1 an error.
    """
    flat = np.frombuffer(slot, dtype=np.int64, count=3 * MAX_REQUESTS, offset=8)
    return flat.reshape(MAX_REQUESTS, 3)


def receive_overflow(connection: Connection, size: int, *, timeout: float) -> AnonymousMemory:
    """Return the announced memory of a large answer.

    Args:
        connection: The connection to the worker.
        size: Size of the memory in bytes.
        timeout: Seconds to wait for its descriptor.

    Raises:
        EOFError: If the worker has ended, or the descriptor does not arrive.
        LimitError: If this process has no descriptor or memory left.
    """
    try:
        if not connection.poll(timeout):
            raise EOFError
        memory = AnonymousMemory(size, reduction.recv_handle(connection))
    except ConnectionError as error:
        raise EOFError from error
    except (OSError, RuntimeError) as error:  # RuntimeError: the message had no descriptor
        full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        raise LimitError(
            f"loader: a batch of {size} bytes does not fit its slot, and separate memory could "
            f"not be received ({error}). Use smaller batches, or raise {describe_limit(full)}."
        ) from error
    memory.close()
    return memory


ALIGNMENT = 64  # bytes
_HEADER_NUMBERS = 5  # int64 per request: spans, epoch, horizon, flags, whether occurrences follow
OnSequence = Callable[[int], None]


def count_request_bytes(request: StepRequest) -> int:
    """Return the number of bytes of a request in a slot."""
    num_occurrences = 0 if request.occurrences is None else len(request.ids)
    return 8 * (_HEADER_NUMBERS + 4 * len(request.ids) + num_occurrences)


def write_requests(slot: memoryview, requests: Sequence[StepRequest]) -> None:
    """Write the requests of a task into a slot.

    Raises:
        LimitError: If they do not fit.
    """
    needed = 8 + sum(map(count_request_bytes, requests))
    if SLOT_HEADER + needed > len(slot):
        raise LimitError(
            f"loader: the {len(requests[0].ids)} spans of a batch take {needed} bytes, but at "
            f"most {len(slot) - SLOT_HEADER} can be sent to a worker process. Use smaller "
            "batches, or pass num_workers=0."
        )
    numbers = np.frombuffer(slot, dtype=np.int64, count=needed // 8, offset=SLOT_HEADER)
    numbers[0] = len(requests)
    offset = 1
    for request in requests:
        count, occurrences = len(request.ids), request.occurrences
        has_occurrences = occurrences is not None
        flags = request.joint_targets + 2 * request.is_shifted_stream + 4 * request.has_lanes
        numbers[offset : offset + _HEADER_NUMBERS] = (
            count,
            request.epoch,
            request.horizon,
            flags,
            has_occurrences,
        )
        offset += _HEADER_NUMBERS
        numbers[offset : offset + 3 * count] = request.spans.reshape(-1)
        numbers[offset + 3 * count : offset + 4 * count] = request.ids
        offset += 4 * count
        if occurrences is not None:
            numbers[offset : offset + count] = occurrences
            offset += count


def read_requests(slot: memoryview, on_sequence: OnSequence) -> list[StepRequest]:
    """Return copies of a task's requests, so that answers may overwrite them."""
    numbers = np.frombuffer(slot, dtype=np.int64, offset=SLOT_HEADER)
    requests = []
    offset = 1
    for _ in range(int(numbers[0])):
        count, epoch, horizon, flags, has_occurrences = numbers[
            offset : offset + _HEADER_NUMBERS
        ].tolist()
        offset += _HEADER_NUMBERS
        content = numbers[offset : offset + (4 + has_occurrences) * count].copy()
        offset += len(content)
        spans = content[: 3 * count].reshape(count, 3)
        occurrences = content[4 * count :] if has_occurrences else None
        ids = content[3 * count : 4 * count]
        joint_targets, is_streamed, has_lanes = bool(flags & 1), bool(flags & 2), bool(flags & 4)
        requests.append(
            StepRequest(
                spans, ids, epoch, horizon, joint_targets, occurrences, on_sequence, is_streamed,
                has_lanes,
            )
        )  # fmt: skip
    return requests


class ColumnsMessage:
    """The columns of an answer, before they are written.

    Args:
        columns: Field -> column.
        axes: The axis of each field; None: known to the training process.
    """

    def __init__(self, columns: Columns, axes: Axes | None) -> None:
        self._fills: list[tuple[Any, NDArray[np.int64], int, int]] = []
        fields: dict[str, Any] = {}
        offset = 0
        column: Any
        for name, column in columns.items():
            if isinstance(column, list):
                fields[name] = column
                continue
            lengths = np.ascontiguousarray(column.lengths, dtype=np.int64)
            values_at = _align(offset + lengths.nbytes + 8)
            dtype, shape, total = column.dtype, tuple(column.shape), int(lengths.sum())
            fields[name] = (dtype.str, shape, offset, len(lengths), values_at, total)
            self._fills.append((column, lengths, offset, values_at))
            offset = _align(values_at + total * dtype.itemsize * math.prod(shape))
        axes_args = None if axes is None else (axes.axis, dict(axes.axis_of), dict(axes.shift))
        self.header = pickle.dumps((fields, axes_args), protocol=5)
        self.size = offset

    def write(self, target: memoryview) -> None:
        """Copy the columns into ``target``, which has room for them and the header.

        Raises:
            DataError: If stored data is damaged.
        """
        for column, lengths, offset, values_at in self._fills:
            offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
            np.cumsum(lengths, out=offsets[1:])
            np.frombuffer(target, dtype=np.int64, count=len(offsets), offset=offset)[:] = offsets
            shape = (int(offsets[-1]), *column.shape)
            count = math.prod(shape)
            values = np.frombuffer(target, dtype=column.dtype, count=count, offset=values_at)
            column.fill(values.reshape(shape), offsets, None)
        target[self.size : self.size + len(self.header)] = self.header


def _align(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def unpack_columns(
    answer: memoryview, header: memoryview, kernel: Kernel
) -> tuple[dict[str, Any], Axes | None]:
    """Return the columns of an answer, in place: they are valid until the slot is reused.

    Args:
        answer: The bytes of the answer.
        header: The bytes that describe the answer.
        kernel: Kernel that copies the values later.
    """
    fields, axes_args = pickle.loads(header)  # written by a worker of this process
    columns = {
        name: sent if isinstance(sent, list) else SharedColumn(answer, kernel, *sent)
        for name, sent in fields.items()
    }
    return columns, None if axes_args is None else Axes(*axes_args)


class SharedColumn:
    """A ``Column`` of a field that a worker read, in shared memory.

    The offsets are copied at once: if an abandoned iteration still collates while the slot is
    reused, its values may be overwritten, but it never reads outside of them.

    Args:
        answer: Bytes of shared memory.
        kernel: The kernel that copies values.
        dtype: Dtype of an element.
        shape: Shape of a timestep.
        offsets_at: Position of the offsets of the pieces.
        count: Number of pieces.
        values_at: Position of the values.
        total: Number of timesteps of all pieces.
    """

    __slots__ = ("_kernel", "_offsets", "_values", "_width", "dtype", "shape")

    def __init__(
        self, answer: memoryview, kernel: Kernel, dtype: str, shape: tuple[int, ...],
        offsets_at: int, count: int, values_at: int, total: int,
    ) -> None:  # fmt: skip
        self.dtype = np.dtype(dtype)
        self.shape = shape
        self._kernel = kernel
        self._offsets = np.frombuffer(answer, np.int64, count + 1, offsets_at).copy()
        self._width = self.dtype.itemsize * math.prod(shape)
        self._values = answer[values_at : values_at + total * self._width]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of timesteps of each piece, int64 (n,)."""
        return np.diff(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> NDArray[Any]:
        """Return one piece, (length, *shape): a copy."""
        start, stop = self._offsets[number : number + 2].tolist()
        piece = self._values[start * self._width : stop * self._width]
        return np.frombuffer(bytearray(piece), self.dtype).reshape(stop - start, *self.shape)

    def fill(self, out: NDArray[Any], bounds: NDArray[np.int64], padding: bytes | None) -> None:
        """Copy all pieces into ``out``, with padding.

        Args:
            out: (timesteps, *shape), C-contiguous, of the column's dtype.
            bounds: int64 (n+1,), non-decreasing.
            padding: The bytes of one element; None: zeros.

        Raises:
            ValueError: If ``bounds`` do not fit ``out``, or its dtype differs.
        """
        if out.dtype != self.dtype:
            raise ValueError(
                must_be("fill: `out`", f"{self.dtype}", f"{out.dtype}", "Pass such an array")
            )
        if not self._width:  # timesteps without elements
            return
        count, offsets = len(self), self._offsets
        spans = np.zeros((count, 3), dtype=np.int64)
        spans[:, 0] = np.arange(count)
        np.subtract(offsets[1:], offsets[:-1], out=spans[:, 2])
        starts = np.array([0, count], dtype=np.int64)
        source = self._kernel.source(
            (self._values,), ((offsets[:-1], offsets[1:]),), starts, self._width
        )
        self._kernel.fill(source, spans, bounds, out, padding)


class ObjectMessage:
    """An object before it is written.

    Args:
        value: Any picklable object.
    """

    def __init__(self, value: Any) -> None:
        self._buffers: list[tuple[memoryview, int]] = []
        offset = 0
        pickle_buffers: list[pickle.PickleBuffer] = []
        file = io.BytesIO()
        _Pickler(file, protocol=5, buffer_callback=pickle_buffers.append).dump(value)
        for pickle_buffer in pickle_buffers:
            raw = pickle_buffer.raw()
            self._buffers.append((raw, offset))
            offset = -(-(offset + raw.nbytes) // ALIGNMENT) * ALIGNMENT
        extents = [(begin, raw.nbytes) for raw, begin in self._buffers]
        self.header = pickle.dumps((file.getvalue(), extents), protocol=5)
        self.size = offset

    def write(self, target: memoryview) -> None:
        """Copy the object into ``target``, which has room for it."""
        for raw, offset in self._buffers:
            target[offset : offset + raw.nbytes] = raw
        target[self.size : self.size + len(self.header)] = self.header


def unpack_object(answer: memoryview, header: memoryview) -> Any:
    """Return the object, which no longer uses the slot.

    Args:
        answer: The bytes of the answer.
        header: The bytes that describe the answer.
    """
    pickled, extents = pickle.loads(header)  # written by a worker of this process
    return pickle.loads(
        pickled, buffers=[bytearray(answer[offset : offset + size]) for offset, size in extents]
    )


class _Pickler(pickle.Pickler):
    """Pickles plain tensors as arrays, whose bytes are stored next to the pickle."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor:
            return NotImplemented
        return reduce_tensor(value)


def reduce_tensor(value: Any) -> Any:
    """Return the reduction of a plain tensor to an array; ``NotImplemented`` for any other."""
    import torch

    is_plain = value.layout is torch.strided and value.device.type == "cpu"
    is_plain = is_plain and not (value.is_nested or value.requires_grad or value.is_quantized)
    if not is_plain or not value.numel():
        return NotImplemented
    flat = value.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return _rebuild_tensor, (
        flat.numpy(),
        str(value.dtype).removeprefix("torch."),
        tuple(value.shape),
    )


def _rebuild_tensor(flat: NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.from_numpy(flat).view(getattr(torch, dtype)).reshape(shape)
