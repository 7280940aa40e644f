"""Any object as bytes in shared memory: what a ``collate_fn`` makes in a worker.

Arrays and tensors inside of it are written once beside the pickle, and copied out once. Place in
the flow: the other form of an answer, beside columns. Makes: bytes, objects.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.loading.workers.messages import ALIGNMENT


class ObjectMessage:
    """An object before it is written.

    Args:
        value: Anything that pickles.
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
        """Copy everything to its place; ``target`` has room for it."""
        for raw, offset in self._buffers:
            target[offset : offset + raw.nbytes] = raw
        target[self.size : self.size + len(self.header)] = self.header


def unpack_object(answer: memoryview, header: memoryview) -> Any:
    """Return the object; nothing of it lies in the slot any more.

    Args:
        answer: Its bytes.
        header: The part that says what they are.
    """
    pickled, extents = pickle.loads(header)  # our own worker wrote it
    return pickle.loads(
        pickled, buffers=[bytearray(answer[offset : offset + size]) for offset, size in extents]
    )


class _Pickler(pickle.Pickler):
    """Pickles plain tensors as arrays, whose bytes go beside the pickle."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor:
            return NotImplemented
        return reduce_tensor(value)


def reduce_tensor(value: Any) -> Any:
    """Return how a tensor is pickled as an array; ``NotImplemented`` where it is no plain one."""
    import torch

    is_plain = value.layout is torch.strided and value.device.type == "cpu"
    if not is_plain or value.requires_grad or value.is_quantized or not value.numel():
        return NotImplemented
    flat = value.contiguous().reshape(-1).view(torch.uint8)
    return _rebuild_tensor, (
        flat.numpy(),
        str(value.dtype).removeprefix("torch."),
        tuple(value.shape),
    )


def _rebuild_tensor(flat: NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.from_numpy(flat).view(getattr(torch, dtype)).reshape(shape)
