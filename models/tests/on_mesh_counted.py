"""Count what a process sends and keeps: ``on_mesh_counted.py RANK WORLD FOLDER SPEC`` (JSON)."""

import itertools
import json
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from seqdata_models import StatefulLM
from seqdata_models.parallel import Mesh, Ring, Wavefront

from seqdata import TBPTT, Loader, World

BOOKKEEPING = 64  # bytes: losses, tokens and norms are summed, too


class Kept:
    """Bytes of values that autograd keeps and has not released: now, and at most."""

    def __init__(self, weights: set[int]) -> None:
        self.weights, self.most = weights, 0
        self.alive: Counter[int] = Counter()
        self.sizes: dict[int, int] = {}

    def pack(self, value: torch.Tensor) -> Any:
        storage = value.untyped_storage()
        if storage.data_ptr() in self.weights or not value.is_floating_point():
            return value
        return _Handle(self, value)


class _Handle:
    """A kept value; its death is noticed."""

    def __init__(self, kept: Kept, value: torch.Tensor) -> None:
        self.kept, self.value = kept, value
        self.key = value.untyped_storage().data_ptr()
        kept.alive[self.key] += 1
        kept.sizes[self.key] = value.untyped_storage().nbytes()
        total = sum(kept.sizes[key] for key in kept.alive)
        kept.most = max(kept.most, total)

    def __del__(self) -> None:
        self.kept.alive[self.key] -= 1
        if not self.kept.alive[self.key]:
            del self.kept.alive[self.key]


def unpack(handle: Any) -> torch.Tensor:
    return handle.value if isinstance(handle, _Handle) else handle


def count_sends(sent: list[int]) -> None:
    """Make sends and sums of torch.distributed note their bytes."""

    def note(value: torch.Tensor) -> None:
        size = value.numel() * value.element_size()
        if size > BOOKKEEPING:
            sent.append(size)

    isend, all_reduce, broadcast = dist.isend, dist.all_reduce, dist.broadcast

    def send(value: torch.Tensor, *more: Any, **options: Any) -> Any:
        note(value)
        return isend(value, *more, **options)

    def reduce(value: torch.Tensor, *more: Any, **options: Any) -> Any:
        note(value)
        return all_reduce(value, *more, **options)

    def spread(value: torch.Tensor, source: int, *more: Any, **options: Any) -> Any:
        if source == dist.get_rank():
            note(value)
        return broadcast(value, source, *more, **options)

    dist.isend, dist.all_reduce, dist.broadcast = send, reduce, spread


def main() -> None:
    torch.set_num_threads(1)
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    spec = json.loads(sys.argv[4])
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=world,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    mesh = Mesh(spec["size"])
    sent: list[int] = []
    count_sends(sent)
    found = {}
    for kind, (name, cell) in itertools.product(spec["kinds"], spec["models"].items()):
        found[f"{kind} {name}"] = count(kind, cell, mesh, spec, sent)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    mesh.close()
    dist.destroy_process_group()


def count(
    kind: str, cell: list[Any], mesh: Mesh, spec: dict[str, Any], sent: list[int]
) -> dict[str, int]:
    """Return what this process sends and keeps in one update."""
    model = StatefulLM(*cell).double()
    engine = Wavefront(model, mesh) if kind == "wave" else Ring(model, mesh, spec["lane_groups"])
    lanes, chunk, chunks = spec["lanes"], spec["chunk"], spec["chunks"]
    tokens = torch.arange(lanes * (chunk * chunks + 1)).numpy() % cell[0]
    policy = TBPTT(lanes, chunk, continuous=True)
    world_of_data = World(mesh.replica, mesh.data)
    batches = list(Loader([tokens], policy, world=world_of_data, shift=1, accumulate=chunks))
    sent.clear()
    kept = Kept({value.untyped_storage().data_ptr() for value in model.parameters()})
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, unpack):
        engine.update(batches[:chunks])
    found = {"sent": sum(sent), "kept": kept.most, "batches": len(batches[:chunks])}
    mesh.barrier("the end")
    engine.close()
    return found


if __name__ == "__main__":
    main()
