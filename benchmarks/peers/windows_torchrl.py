"""torchrl: a replay buffer in memory with its ``SliceSampler``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from peers.asking import CONTEXT, HORIZON, WINDOWS, Ask, Peer, Reading

SIZE = CONTEXT + HORIZON


class Slices:
    """As many batches as there are places for 120 timesteps; they are drawn with replacement."""

    def __init__(self, ask: Ask) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, ReplayBuffer
        from torchrl.data.replay_buffers.samplers import SliceSampler

        values = torch.from_numpy(np.load(ask.folder / "values.npy"))
        lengths = np.diff(np.load(ask.folder / "offsets.npy"))
        series = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths))
        sampler = SliceSampler(slice_len=SIZE, traj_key="series", cache_values=True)
        storage = LazyTensorStorage(len(values))
        self._buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=WINDOWS * SIZE)
        self._buffer.extend(TensorDict({"x": values, "series": series}, [len(values)]))
        self._count = len(values) // (WINDOWS * SIZE)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._count):
            x = self._buffer.sample()["x"].view(WINDOWS, SIZE, -1)
            yield x[:, :CONTEXT], x[:, CONTEXT:]


def read(ask: Ask) -> Reading:
    return Reading(Slices(ask))


PEER = Peer(
    "torchrl SliceSampler", ("torchrl",), read, reads="windows_by_hand", sets=("W",),
    lacks="draws with replacement: no epoch; all in memory here",
)  # fmt: skip
