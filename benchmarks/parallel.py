"""One recurrent stack on several processes: measured speedup next to the formula's.

    python benchmarks/parallel.py [--quick] [--hidden H] [--lanes B] [--steps T]

The same updates on one process and on two (gloo, one thread each): a wavefront of S = 2 stages over
N = 1, 4 and 8 chunks, N S / (N + S - 1), and a ring of D = 2 parts with M = 1, 2 and 4 lane groups,
M D / (M + D - 1). ``split``: the wavefront with ``split_backward``, 3 N S / (3 N + S - 1), next to
one process with the same cells. ``torch``: its 1F1B schedule. Stages of equal cost: two layers of
one size, and a small head.

One process alone, two at once that know nothing of each other, and the two that share the work take
turns, round by round; printed are medians of the rounds' ratios. ``at once`` is what two processes
of this machine cost each other (1: nothing): what is measured cannot exceed formula / at once.
A ring's groups have B lanes each, as the items of the wavefront do.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

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


class Course:
    """A model that is trained update by update, with the seconds that each has taken."""

    def __init__(self, kind: str, items: int, options: argparse.Namespace, mesh: Mesh) -> None:
        torch.manual_seed(0)
        model = StatefulLM(64, options.hidden, options.hidden, 2)
        self.chunks, self.lanes, self.steps = items, options.lanes, options.steps
        self.engine: Engine
        if kind == "ring":
            self.chunks, self.lanes = 1, options.lanes * items
            self.engine = Ring(model, mesh, items)
        elif kind == "torch" and mesh.size > 1:
            self.engine = TorchWavefront(model, mesh)
        else:
            self.engine = Wavefront(model, mesh, split_backward=kind == "split")
        self.first = 0

    def update(self) -> float:
        """Train with the next chunks; return the seconds."""
        batches = batches_of(self.chunks, self.lanes, self.steps, self.first)
        self.first += self.chunks
        began = time.perf_counter()
        self.engine.update(batches)
        return time.perf_counter() - began


def measure(alone: Course, shared: Course, rounds: int) -> list[tuple[float, float, float]]:
    """Return seconds of an update in each round: alone, two at once, one shared."""
    mesh, found = shared.engine.mesh, []
    for _ in range(rounds + 1):
        mesh.barrier("alone")
        lonely = alone.update() if mesh.rank == 0 else 0.0
        mesh.barrier("at once")
        both = alone.update()
        mesh.barrier("shared")
        found.append((lonely, both, shared.update()))
    return found[1:]


def work(rank: int, folder: str, options: argparse.Namespace) -> None:
    """Measure all cases as one of two processes."""
    torch.set_num_threads(1)
    alone = [Course(*case, options, Mesh(1)) for case in CASES]  # before there is a group
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
    found = []
    for case, course in zip(CASES, alone, strict=True):
        mesh = Mesh(2)
        found.append(measure(course, Course(*case, options, mesh), options.rounds))
        mesh.close()
    torch.save(found, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    for name, default in (("hidden", 256), ("lanes", 32), ("steps", 64), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.quick:
        options.hidden, options.lanes, options.steps, options.rounds = 32, 8, 16, 1
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (folder, options), nprocs=2)
        first, second = (torch.load(Path(folder) / f"{rank}.pt") for rank in range(2))
    print(f"{'':10} {'items':>5} {'formula':>8} {'measured':>9} {'at once':>8}  alone, ms")
    for case, (kind, items) in enumerate(CASES):
        formula = 6 * items / (3 * items + 1) if kind == "split" else items * 2 / (items + 1)
        rounds = list(zip(first[case], second[case], strict=True))
        speedup = statistics.median(own[0] / max(own[2], peer[2]) for own, peer in rounds)
        at_once = statistics.median((own[1] + peer[1]) / 2 / own[0] for own, peer in rounds)
        alone = statistics.median(own[0] for own, _ in rounds)
        print(
            f"{kind:10} {items:5} {formula:8.2f} {speedup:9.2f} {at_once:8.2f}  {1e3 * alone:9.1f}"
        )


if __name__ == "__main__":
    main()
