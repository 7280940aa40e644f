"""One recurrent stack on several processes: measured speedup next to the formula's.

    python benchmarks/parallel.py [--quick] [--hidden H] [--lanes B] [--steps T]

The same updates on one process and on two (gloo, one thread each): a wavefront of S = 2 stages over
N = 1, 4 and 8 chunks, N S / (N + S - 1), and a ring of D = 2 parts with M = 1, 2 and 4 lane groups,
M D / (M + D - 1). ``split``: the wavefront with ``split_backward``, 3 N S / (3 N + S - 1), next to
one process with the same cells and, in brackets, with torch's. ``torch``: its 1F1B schedule. Stages
of equal cost: two layers of one size, and a small head. On cores that
others use the measured column says nothing; the processes' own computing time, printed beside it,
does.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from seqdata_models import StatefulLM
from seqdata_models.parallel import Engine, Mesh, Ring, TorchWavefront, Wavefront
from torch import multiprocessing

from seqdata import SequenceBatch

ITEMS = {"wavefront": (1, 4, 8), "split": (8,), "torch": (8,), "ring": (1, 2, 4)}
CASES = [(kind, items) for kind, counts in ITEMS.items() for items in counts]


def batches_of(chunks: int, lanes: int, steps: int, first: int) -> list[SequenceBatch]:
    """Return consecutive chunks of full rows."""
    tokens = torch.randint(64, (chunks, lanes, steps + 1))
    rows, count = torch.arange(lanes), lanes * steps
    return [
        SequenceBatch(
            data={"x": chunk[:, :-1], "targets": chunk[:, 1:]},
            lengths=torch.full((lanes,), steps),
            ids=rows,
            weight=torch.ones(lanes),
            start=torch.full((lanes,), (first + number) * steps),
            number=first + number,
            lanes=rows,
            reset=torch.full((lanes,), first + number == 0),
            num_tokens=count,
            loss_scale=1 / (chunks * count),
            padded_length=steps,
        )
        for number, chunk in enumerate(tokens)
    ]


def measure(kind: str, items: int, options: argparse.Namespace) -> tuple[float, float]:
    """Return seconds and computing seconds of an update: the least of some rounds."""
    torch.manual_seed(0)
    model = StatefulLM(64, options.hidden, options.hidden, 2)
    mesh = Mesh(dist.get_world_size() if dist.is_initialized() else 1)
    chunks = 1 if kind == "ring" else items
    engine: Engine
    if kind == "ring":
        engine = Ring(model, mesh, items)
    elif kind == "torch" and mesh.size > 1:
        engine = TorchWavefront(model, mesh)
    else:
        engine = Wavefront(model, mesh, split_backward=kind == "split")
    found = []
    for turn in range(options.rounds + 1):
        batches = batches_of(chunks, options.lanes, options.steps, turn * chunks)
        mesh.barrier("round")
        began, computed = time.perf_counter(), time.process_time()
        engine.update(batches)
        found.append((time.perf_counter() - began, time.process_time() - computed))
    engine.close()
    mesh.close()
    return min(seconds for seconds, _ in found[1:]), min(cpu for _, cpu in found[1:])


def work(rank: int, folder: str, options: argparse.Namespace) -> None:
    """Measure all cases as one of two processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
    found = [measure(kind, items, options) for kind, items in CASES]
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    for name, default in (("hidden", 256), ("lanes", 32), ("steps", 64), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.quick:
        options.hidden, options.lanes, options.steps, options.rounds = 32, 8, 16, 1
    torch.set_num_threads(1)
    alone = [measure(kind, items, options) for kind, items in CASES]
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (folder, options), nprocs=2)
        found: list[Any] = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]
    print(f"{'':10} {'items':>5} {'formula':>8} {'measured':>9}  computing s: one, each")
    for number, (kind, items) in enumerate(CASES):
        formula = 6 * items / (3 * items + 1) if kind == "split" else items * 2 / (items + 1)
        seconds = max(rank[number][0] for rank in found)
        cpu = [f"{rank[number][1]:.3f}" for rank in found]
        speedup = alone[number][0] / seconds
        note = ""
        if kind == "split":
            torchs = alone[CASES.index(("wavefront", items))][0]
            note = f" ({torchs / seconds:.2f} over torch's cells)"
        print(
            f"{kind:10} {items:5} {formula:8.2f} {speedup:9.2f}   {alone[number][1]:.3f}, "
            f"{cpu}{note}"
        )


if __name__ == "__main__":
    main()
