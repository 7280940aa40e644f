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

from seqdata.loading.workers.messages import ALIGNED


class ObjectParcel:
    """An object before it is written.

    Args:
        value: Anything that pickles.
    """

    def __init__(self, value: Any) -> None:
        self._buffers: list[tuple[memoryview, int]] = []
        at = 0
        apart: list[pickle.PickleBuffer] = []
        file = io.BytesIO()
        _Pickler(file, protocol=5, buffer_callback=apart.append).dump(value)
        for one in apart:
            raw = one.raw()
            self._buffers.append((raw, at))
            at = -(-(at + raw.nbytes) // ALIGNED) * ALIGNED
        places = [(place, raw.nbytes) for raw, place in self._buffers]
        self.head = pickle.dumps((file.getvalue(), places), protocol=5)
        self.size = at

    def write(self, to: memoryview) -> None:
        """Copy everything to its place; ``to`` has room for it."""
        for raw, at in self._buffers:
            to[at : at + raw.nbytes] = raw
        to[self.size : self.size + len(self.head)] = self.head


def object_of(answer: memoryview, head: memoryview) -> Any:
    """Give the object; nothing of it lies in the slot any more.

    Args:
        answer: Its bytes.
        head: The part that says what they are.
    """
    text, places = pickle.loads(head)  # our own worker wrote it
    return pickle.loads(text, buffers=[bytearray(answer[at : at + size]) for at, size in places])


class _Pickler(pickle.Pickler):
    """Pickles plain tensors as arrays, whose bytes go beside the pickle."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor:
            return NotImplemented
        return reduced_tensor(value)


def reduced_tensor(value: Any) -> Any:
    """Give how a tensor is pickled as an array; ``NotImplemented`` where it is no plain one."""
    import torch

    plain = value.layout is torch.strided and value.device.type == "cpu"
    if not plain or value.requires_grad or value.is_quantized or not value.numel():
        return NotImplemented
    flat = value.contiguous().reshape(-1).view(torch.uint8)
    return _tensor, (flat.numpy(), str(value.dtype).removeprefix("torch."), tuple(value.shape))


def _tensor(flat: NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.from_numpy(flat).view(getattr(torch, dtype)).reshape(shape)
