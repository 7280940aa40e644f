"""One LSTM on one device: dense, packed and segmented rows, copies, waiting, stages as streams.

    python benchmarks/recurrent.py [--quick] [--device cuda|cpu] [--rounds N]

Four tables: nn.LSTM per shape over dense rows, packed rows and rows of several sequences; copies of
a batch to the device, from pinned memory and from other; the share of a step that waits for its
batch; and two stages of a wavefront as two CUDA streams, next to the formula. Where there is no GPU
everything that can be runs on the CPU, and the output names what was left out. All times are the
least of some rounds, in milliseconds of wall time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import machine
from rich.console import Console
from rich.table import Table
from torch import nn

from seqdata import TBPTT, Bucketed, LaneStates, Loader, SequenceBatch

SHAPES = ((16, 32, 128), (64, 128, 128), (64, 128, 512), (256, 128, 512), (64, 512, 1024))
QUICK = ((4, 8, 16), (8, 16, 32))
FEATURES = 32


def measure(work: Callable[[], object], device: str, rounds: int) -> float:
    """Return the milliseconds of one call: the least of some rounds after one that warms up."""
    found = []
    for _ in range(rounds + 1):
        finish(device)
        began = time.perf_counter()
        work()
        finish(device)
        found.append((time.perf_counter() - began) * 1e3)
    return min(found[1:])


def finish(device: str) -> None:
    """Return once the device has done its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def series(rows: int, steps: int) -> list[np.ndarray]:
    """Return sequences of 1/4 to 1 times ``steps`` timesteps."""
    random = np.random.default_rng(0)
    lengths = random.integers(max(1, steps // 4), steps + 1, 4 * rows)
    return [random.normal(size=(n, FEATURES)).astype("float32") for n in lengths]


def first_batch(data: list[np.ndarray], policy: Any, device: str) -> SequenceBatch:
    """Return a loader's second batch, on the device: rows of it begin within sequences."""
    batches = iter(Loader(data, policy, seed=0))
    next(batches)
    return next(batches).to(device)


def train_step(work: Callable[[], torch.Tensor]) -> Callable[[], None]:
    """Return what runs forward and backward."""
    return lambda: work().square().sum().backward()


def compare_rows(options: argparse.Namespace, out: Console) -> None:
    """Print milliseconds per 1,000 timesteps that are real, of each way to run ragged rows."""
    titles = ("rows x steps x size", "dense, full", "dense, padded", "packed", "segments")
    table = Table(*titles, title="nn.LSTM, forward and backward: ms per 1,000 real timesteps")
    for rows, steps, size in QUICK if options.quick else SHAPES:
        lstm = nn.LSTM(FEATURES, size, batch_first=True).to(options.device)
        lanes, data = LaneStates(), series(rows, steps)
        full = torch.zeros(rows, steps, FEATURES, device=options.device)
        ragged = first_batch(data, Bucketed(rows), options.device)
        filled = first_batch(data, TBPTT(rows, steps, segments=True), options.device)
        works: list[tuple[int, Callable[[], torch.Tensor]]] = [
            (rows * steps, lambda x=full, lstm=lstm: lstm(x)[0]),
            (ragged.num_tokens, lambda b=ragged, lstm=lstm: lstm(b["x"])[0] * b.mask[..., None]),
            (ragged.num_tokens, lambda b=ragged, lstm=lstm: lstm(b.packed("x"))[0].data),
            (
                filled.num_tokens,
                lambda b=filled, run=lanes.run, lstm=lstm: run(lstm, b, "x", None)[0],
            ),
        ]
        cells = [
            f"{measure(train_step(work), options.device, options.rounds) / real * 1e3:.3f}"
            for real, work in works
        ]
        table.add_row(f"{rows} x {steps} x {size}", *cells)
    out.print(table)
    out.print("dense, padded computes padding; packed and segments do not")


def compare_copies(options: argparse.Namespace, out: Console) -> None:
    """Print milliseconds and GB/s of copies of a batch to the device."""
    if options.device != "cuda":
        out.print("\npinned copies: left out, for there is no GPU")
        return
    table = Table("MiB", "memory", "ms", "GB/s", title="Copies to the GPU")
    for size in (1, 16, 256):
        plain = torch.zeros(size << 18)
        for name, source in (("pageable", plain), ("pinned", plain.pin_memory())):
            taken = measure(
                lambda s=source: s.to("cuda", non_blocking=True), "cuda", options.rounds
            )
            table.add_row(str(size), name, f"{taken:.3f}", f"{size / taken * 1.048576:.1f}")
    out.print(table)


def compare_waiting(options: argparse.Namespace, out: Console) -> None:
    """Print the share of a training loop that waits for batches."""
    rows, steps, size = QUICK[-1] if options.quick else SHAPES[1]
    data, device = series(8 * rows, steps), options.device
    lstm = nn.LSTM(FEATURES, size, batch_first=True).to(device)
    table = Table("prefetch", "share of waiting", title="Waiting for a batch, of a training loop")
    for prefetch in (0, 2):
        loader = Loader(data, Bucketed(rows), seed=0, prefetch=prefetch)
        waited = total = 0.0
        batches, began = iter(loader), time.perf_counter()
        for _ in range(len(loader)):
            requested = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - requested
            lstm(batch.to(device)["x"])[0].square().sum().backward()
            finish(device)
        total = time.perf_counter() - began
        table.add_row(str(prefetch), f"{waited / total:.1%}")
    out.print(table)


def run_stages(layers: list[nn.LSTM], chunks: torch.Tensor, streams: list[Any]) -> None:
    """Run chunks through two layers forward, each layer in its stream; states are carried."""
    states: list[Any] = [None, None]
    for x in chunks:
        out, event = x, None
        for number, layer in enumerate(layers):
            stream = streams[number] if streams else None
            with torch.cuda.stream(stream):  # None: the stream in use
                if event is not None and stream is not None:
                    stream.wait_event(event)
                out, states[number] = layer(out, states[number])
                event = stream.record_event() if stream is not None else None


def compare_streams(options: argparse.Namespace, out: Console) -> None:
    """Print the forward of two layers over chunks: one after the other, and as two streams."""
    rows, steps, size = QUICK[-1] if options.quick else SHAPES[0]
    device = options.device
    layers = [nn.LSTM(size, size, batch_first=True).to(device) for _ in range(2)]
    table = Table("chunks", "one stream", "two streams", "speedup", "formula",
                  title="Two stages on one device, forward: ms")  # fmt: skip
    for chunks in (1, 4, 8):
        x = torch.zeros(chunks, rows, steps, size, device=device)
        with torch.no_grad():
            alone = measure(lambda x=x: run_stages(layers, x, []), device, options.rounds)
            cells = ["-", "-"]
            if device == "cuda":
                streams = [torch.cuda.Stream() for _ in layers]
                both = measure(lambda x=x, s=streams: run_stages(layers, x, s), device,
                               options.rounds)  # fmt: skip
                cells = [f"{both:.3f}", f"{alone / both:.2f}"]
        table.add_row(str(chunks), f"{alone:.3f}", *cells, f"{chunks * 2 / (chunks + 1):.2f}")
    out.print(table)
    if device != "cuda":
        out.print(
            "two streams: left out, for there is no GPU; benchmarks/parallel.py has processes"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    found = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=["cuda", "cpu"], default=found)
    options = parser.parse_args()
    options.rounds = 1 if options.quick else options.rounds
    out = Console(width=100)
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else "no GPU: on the CPU"
    out.print(f"{machine()}; {gpu}")
    if options.device == "cpu":
        torch.set_num_threads(1)
    for compare in (compare_rows, compare_copies, compare_waiting, compare_streams):
        compare(options, out)


if __name__ == "__main__":
    main()
