"""Full backpropagation through rows on a ring; run as ``on_ring_memory.py RANK WORLD FOLDER T``."""

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from seqdata_models import ByteLM
from seqdata_models.parallel import Mesh, Ring
from torch import Tensor

from seqdata import Fixed, Loader, SequenceBatch, World

ROWS = 4


class Saved:
    """A tensor that a graph holds."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Peak:
    """The bytes of tensors that graphs hold, now and at most; what graphs share is counted once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._holders: dict[int, int] = {}

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what is saved in the block."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda saved: saved.tensor):
            yield

    def _pack(self, tensor: Tensor) -> Saved:
        storage, saved = tensor.untyped_storage(), Saved(tensor.detach())
        key, size = storage.data_ptr(), storage.nbytes()
        self._holders[key] = self._holders.get(key, 0) + 1
        if self._holders[key] == 1:
            self.now += size
            self.most = max(self.most, self.now)
        weakref.finalize(saved, self._release, key, size)
        return saved

    def _release(self, key: int, size: int) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            self.now -= size


def make_batch(timesteps: int, world: World) -> SequenceBatch:
    """Return a batch of ragged rows, the longest of ``timesteps``."""
    random = np.random.default_rng(0)
    texts = [
        random.integers(0, 256, timesteps + 1 - 3 * row).astype(np.uint8) for row in range(ROWS)
    ]
    return next(iter(Loader(texts, Fixed(ROWS), shift=1, world=world)))


def train(timesteps: int, mesh: Mesh) -> dict[str, Any]:
    """Return loss, gradients and the peak of what graphs held in one update."""
    torch.manual_seed(0)
    model = ByteLM(4, 16).double()
    ring = Ring(model, mesh, lane_groups=1)
    world, peak = World(mesh.replica, mesh.data, mesh.position, mesh.size), Peak()
    with peak.counting():
        total, count = ring.update([make_batch(timesteps, world)])
    weights = sum(parameter.nbytes for parameter in model.parameters())
    ring.close()
    return {
        "loss": float(total / count),
        "gradients": {name: p.grad for name, p in model.named_parameters()},
        "bytes": peak.most - weights,  # of which each process has all, whatever the length is
    }


def main() -> None:
    torch.set_num_threads(1)
    rank, world, folder, timesteps = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=world,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    mesh = Mesh(world)
    torch.save(train(int(timesteps), mesh), Path(folder) / f"{rank}.pt")
    mesh.barrier("the end")
    mesh.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
