"""The output of a loader: a SequenceBatch, a tuple or dict of its entries, or a function's result.

Existing models take ``(x, lengths, y)`` and not a SequenceBatch. The memory of outputs is here as
well: copies in pinned memory, from which a device fetches them while the host continues, and a pool
of recycled memory for large outputs, since fresh memory costs two to five times as much, in page
faults.

A block of the pool is leased to an array until its last view is freed: of the array, of a tensor
over it, of ``numpy()``, ``detach()`` or an autograd graph. The owner is an ndarray subclass with
``__del__``, since a finalizer on a tensor would run while views of its storage live. ``__del__``
may run in any thread at any time, so it only appends to a deque; blocks return to the pool in the
next ``allocate``. Place in the flow: the engine passes the pool to collators.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor
from torch.utils.data._utils.pin_memory import pin_memory as _pinned_parts

from seqdata.batch.axes import are_names, format_unknown_name
from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError, describe_stop, must_be

BATCH_KEYS = (
    "lengths", "ids", "weight", "start", "mask", "score", "num_tokens", "global_num_tokens",
    "update_num_tokens", "loss_scale", "sequence_scale", "ends_update", "lanes", "reset", "burn_in",
    "overlap", "lr_scale", "epoch", "number", "part", "part_epoch", "segments", "lengths_of",
    "start_of",
)  # fmt: skip
"""Attributes of a batch that can be chosen in addition to fields."""
DUMMY_MARKS = ("weight", "score")
"""Attributes of a batch that mark rows of weight 0."""


@dataclass(frozen=True, slots=True)
class Output:
    """Selects values of a batch by name: fields first, then attributes of the batch.

    Args:
        names: Names of the selected values, in order.
        is_dict: Whether the result is a dict; otherwise a tuple.
        is_single: Whether the result is the only value itself.

    Raises:
        ConfigError: If ``names`` is empty or a bare string.
    """

    names: Sequence[str]
    is_dict: bool = False
    is_single: bool = False

    def __post_init__(self) -> None:
        if not are_names(self.names):
            option = "as_dict" if self.is_dict else "as_tuple"
            raise ConfigError(
                must_be(
                    f"loader: `{option}`",
                    "a tuple of names",
                    repr(self.names),
                    "Write ('x', 'lengths')",
                )
            )

    @property
    def title(self) -> str:
        """The names, for messages."""
        return str(tuple(self.names))

    def find_marks(self, fields: Iterable[str]) -> set[str]:
        """Return the selected attributes that mark rows of weight 0, if no field has their name."""
        return set(DUMMY_MARKS).intersection(self.names).difference(fields)

    def advise_mark(self, fields: Iterable[str]) -> str:
        """Return advice by which rows of weight 0 are marked."""
        free = [mark for mark in DUMMY_MARKS if mark not in fields]
        if self.is_single:
            return f"Pass `as_tuple={(*self.names, *free[:1])}`"
        mark = DUMMY_MARKS[0]
        return f"Add {free[0]!r}" if free else f"Rename the field {mark!r}, and add {mark!r}"

    def check(self, fields: Iterable[str]) -> None:
        """Raise if a name is neither a field nor an attribute of a batch.

        Raises:
            ConfigError: If a name is unknown.
        """
        allowed_names = (*fields, *BATCH_KEYS)
        for name in self.names:
            if name not in allowed_names:
                raise ConfigError(f"loader: {format_unknown_name(name, allowed_names)}")

    def __call__(self, batch: SequenceBatch) -> Any:
        """Return the selected values of a batch.

        Raises:
            ConfigError: If a name is unknown, or fields hide the marks of rows of weight 0.
        """
        hidden = set(DUMMY_MARKS).intersection(self.names).intersection(batch.data)
        if hidden and not self.find_marks(batch.data):
            is_idle = (batch.lengths == 0) & (batch.lanes is not None)
            if ((batch.on_cpu("weight") == 0) & ~is_idle).any():
                raise ConfigError(
                    "loader: rows that do not count must be told from others, but "
                    f"{min(hidden)!r} is a field of the data here. {self.advise_mark(batch.data)}."
                )
        values = [self._select(batch, name) for name in self.names]
        if self.is_single:
            return values[0]
        return dict(zip(self.names, values, strict=True)) if self.is_dict else tuple(values)

    def _select(self, batch: SequenceBatch, name: str) -> Any:
        if name in batch.data:
            return batch.data[name]
        if name not in BATCH_KEYS:
            raise ConfigError(f"loader: {format_unknown_name(name, (*batch.data, *BATCH_KEYS))}")
        return getattr(batch, name)


@dataclass(frozen=True, slots=True)
class ShapedOutput:
    """The result of a function of the batch.

    Args:
        function: ``as_batch(batch) -> anything``.
    """

    function: Callable[[SequenceBatch], Any]
    title: ClassVar[str] = "the result of `as_batch`"

    def find_marks(self, fields: Iterable[str]) -> set[str]:
        """Return no names: what the function returns is not known; see ``marks_rows``."""
        del fields
        return set()

    def advise_mark(self, fields: Iterable[str]) -> str:
        """Return advice by which rows of weight 0 are marked."""
        del fields
        return "Let `as_batch` return `batch.weight`, too"

    def __call__(self, batch: SequenceBatch) -> Any:
        """Return the function's result for a batch.

        Raises:
            ConfigError: If it returns None.
        """
        place = f"batch {batch.number} of epoch {batch.epoch}"
        try:
            result = self.function(batch)
        except StopIteration as error:  # unchanged, it would end the caller's epoch
            raise RuntimeError(f"{describe_stop('loader: `as_batch`')} (in {place})") from error
        except Exception as error:
            error.add_note(f"in `as_batch`, for {place}")
            raise
        if result is None:
            raise ConfigError(
                must_be(
                    "loader: the result of `as_batch`", "the batch of the model", "None",
                    "The function may lack its `return`",
                )
            )  # fmt: skip
        return result

    def marks_rows(self, make_batch: Callable[[], SequenceBatch]) -> bool:
        """Return whether the result differs between a row that counts and one that does not.

        Args:
            make_batch: Function that returns a new batch of a padding row.
        """
        dummy, counted = make_batch(), make_batch()
        counted.weight.fill_(1)
        return _differ(self(dummy), self(counted))


def _differ(first: Any, second: Any) -> bool:
    """Return whether two values of any kind differ; whole batches do, since they have weights."""
    if isinstance(first, SequenceBatch):
        return True
    if type(first) is not type(second):
        return True
    if isinstance(first, Tensor):
        if first.shape != second.shape:
            return True
        both_nan = (first != first) & (second != second)
        return not bool(((first == second) | both_nan).all())
    if isinstance(first, np.ndarray):
        return not np.array_equal(first, second, equal_nan=first.dtype.kind in "fc")
    if isinstance(first, Mapping):
        if first.keys() != second.keys():
            return True
        return any(_differ(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple):
        return len(first) != len(second) or any(map(_differ, first, second))
    if hasattr(first, "__dict__") and not callable(first):
        return _differ(vars(first), vars(second))
    return bool(first != second)


def make_output(
    as_tuple: Sequence[str] | None,
    as_dict: Sequence[str] | None,
    as_batch: Callable[[SequenceBatch], Any] | None = None,
) -> Output | ShapedOutput | None:
    """Return the output of three options; None: the batch itself.

    Raises:
        ConfigError: If several are given, or one is not a tuple of names, or not a function.
    """
    options = {"as_tuple": as_tuple, "as_dict": as_dict, "as_batch": as_batch}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(
            f"loader: `{given[0]}` and `{given[1]}` cannot both be given. Leave one of them out."
        )
    if as_batch is not None:
        if isinstance(as_batch, type) or not callable(as_batch):
            needed = "a function of the batch"
            raise ConfigError(must_be("loader: `as_batch`", needed, f"{as_batch!r:.200}"))
        return ShapedOutput(as_batch)
    if as_tuple is not None:
        return Output(as_tuple)
    if as_dict is not None:
        return Output(as_dict, is_dict=True)
    return None


def pin(output: Any) -> Any:
    """Return an output with its tensors in pinned memory, as torch's DataLoader does.

    Args:
        output: A batch; or tensors, objects with ``pin_memory()``, tuples and dicts of them.
    """
    return output.pin_memory() if isinstance(output, SequenceBatch) else _pinned_parts(output)  # type: ignore[no-untyped-call]


def check_cuda() -> None:
    """Raise if there is no device to pin memory for.

    Raises:
        ConfigError: If there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise ConfigError(
            "loader: `pin_memory` must be False without a CUDA device, but is True. Under a "
            "Trainer leave it None."
        )


MIN_BUFFER_BYTES = 512 << 10
"""Largest output, in bytes, whose memory is not recycled."""
MAX_POOL_BYTES = 512 << 20
"""Maximum number of bytes that a pool holds, leased or free."""
_MAX_OVERSIZE = 64  # factor of a free block over the needed size: reuse is faster than fresh memory


class BufferPool:
    """A pool of reusable memory blocks of power-of-two sizes.

    Args:
        capacity: Maximum size of the pool in bytes; beyond it outputs are ordinary arrays.
        min_bytes: Maximum size in bytes of outputs that are ordinary arrays.
    """

    def __init__(self, capacity: int = MAX_POOL_BYTES, min_bytes: int = MIN_BUFFER_BYTES) -> None:
        self._capacity = capacity
        self._min_bytes = min_bytes
        self._free: dict[int, list[mmap.mmap]] = {}  # size -> blocks, last in first out
        self._returned: deque[mmap.mmap] = deque()
        self._total_bytes = 0
        self._lock = threading.Lock()

    @property
    def total_bytes(self) -> int:
        """Bytes of all blocks, leased and free."""
        return self._total_bytes

    def allocate(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return a C-contiguous, writable array with undefined content."""
        element_dtype = np.dtype(dtype)
        needed = math.prod(shape) * element_dtype.itemsize
        if needed <= self._min_bytes:
            return np.empty(shape, dtype=element_dtype)
        buffer = self._lease_buffer(1 << (needed - 1).bit_length())
        if buffer is None:
            return np.empty(shape, dtype=element_dtype)
        lease: _Lease = np.ndarray.__new__(_Lease, (len(buffer),), dtype=np.uint8, buffer=buffer)
        lease.buffer, lease.returned = buffer, self._returned
        return np.ndarray(shape, dtype=element_dtype, buffer=lease)

    def clear(self) -> None:
        """Free the unused blocks; leased ones follow in later calls."""
        with self._lock:
            self._reclaim()
            for size in list(self._free):
                self._drop_free(size)

    def _lease_buffer(self, size: int) -> mmap.mmap | None:
        with self._lock:
            self._reclaim()
            for free_size in sorted(self._free):
                if size <= free_size <= size * _MAX_OVERSIZE and self._free[free_size]:
                    return self._free[free_size].pop()
            for free_size in sorted(self._free, reverse=True):
                if self._total_bytes + size <= self._capacity:
                    break
                self._drop_free(free_size)
            if self._total_bytes + size > self._capacity:
                return None
            self._total_bytes += size
        return _map_buffer(size)

    def _reclaim(self) -> None:
        while self._returned:
            buffer = self._returned.popleft()
            self._free.setdefault(len(buffer), []).append(buffer)

    def _drop_free(self, size: int) -> None:
        self._total_bytes -= size * len(self._free.pop(size))


def _map_buffer(size: int) -> mmap.mmap:
    if sys.platform != "linux":
        return mmap.mmap(-1, size)
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # only advice: some kernels have no huge pages
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer


class _Lease(np.ndarray):
    """All bytes of one block, which is returned when the last array over them is freed."""

    buffer: mmap.mmap | None = None
    returned: deque[mmap.mmap] | None = None

    def __del__(self) -> None:
        if self.buffer is not None and self.returned is not None:
            self.returned.append(self.buffer)
