"""Chunks of a stream in lanes, for truncated backpropagation: time of a batch beside copying it.

    python benchmarks/lanes.py [--quick] [--rounds N] [--peers PYTHON]

64 lanes of 512 tokens (int64, 256 KiB a batch) from a memory-mapped store of documents of about
1,000 tokens, which every epoch lays end to end in another order. Beside it: ``memcpy`` of as many
bytes in one piece, and row by row, both from a mapped file; the batches of an iterator that holds
all tokens in memory, 64 columns of them, as copies and as views (torchtext's BPTTIterator, the
iterator of Transformer-XL), which carry no lengths, ids or resets, and never shuffle; and random
blocks of 512 from HF datasets, with nothing carried over. Each runs in a process of its own, in
turn with the others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import PATIENCE, Cost, machine, running, spread
from rich.console import Console
from rich.table import Table
from samples import CHUNK, LANES, documents

from seqdata.errors import ConfigError
from seqdata.kernel.choose import kernel_name
from seqdata.opening import write_store
from seqdata.policies.tbptt import TBPTT

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent / ".venv-bench" / "bin" / "python"
OURS, SHIFTED = "seqdata", "seqdata, with targets"
PIECE, ROWS = "memcpy, one piece", "memcpy, row by row"
COPIES, VIEWS = "in memory, copies", "in memory, views"
BLOCKS = "HF datasets, blocks"
FLOORS = {PIECE: 0.5, COPIES: 1.0, BLOCKS: 20.0}
"""Times as fast as these."""


class Tokens(NamedTuple):
    """The same tokens, written twice: as a store of documents, and as one run of int64."""

    store: str
    values: str


def make(root: Path, count: int) -> Tokens:
    """Write ``count`` tokens."""
    samples = documents(count)
    made = Tokens(str(root / "L"), str(root / "L.values"))
    write_store(made.store, samples.dicts(), progress=False)
    samples.values.tofile(made.values)
    return made


def ours(data: Tokens, shift: int) -> Generator[Any, None, None]:
    """Batches of seqdata, epoch after epoch."""
    from seqdata.loader import Loader

    loader = Loader(data.store, TBPTT(LANES, CHUNK, continuous=True), shift=shift, prefetch=0)
    while True:
        yield from loader


def in_memory(data: Tokens, copied: bool) -> Generator[Any, None, None]:
    """Chunks of columns that are held in memory."""
    import torch

    values = np.fromfile(data.values, dtype=np.int64)
    columns = torch.from_numpy(values).view(LANES, -1)
    while True:
        for first in range(0, columns.shape[1], CHUNK):
            chunk = columns[:, first : first + CHUNK]
            yield chunk.contiguous() if copied else chunk


def copied(data: Tokens, by_rows: bool) -> Generator[Any, None, None]:
    """As many bytes as a batch has, from a mapped file into new memory."""
    shape = (LANES, -1) if by_rows else (-1, LANES, CHUNK)
    mapped = np.asarray(np.memmap(data.values, dtype=np.int64, mode="r")).reshape(shape)
    count = mapped.size // (LANES * CHUNK)
    while True:
        for number in range(count):
            part = slice(number * CHUNK, (number + 1) * CHUNK)
            out = np.empty((LANES, CHUNK), dtype=np.int64)
            np.copyto(out, mapped[:, part] if by_rows else mapped[number])
            yield out


def makers(data: Tokens) -> dict[str, Callable[[], Generator[Any, None, None]]]:
    """Give a maker of batches by name."""
    return {
        OURS: partial(ours, data, 0),
        SHIFTED: partial(ours, data, 1),
        PIECE: partial(copied, data, False),
        ROWS: partial(copied, data, True),
        COPIES: partial(in_memory, data, True),
        VIEWS: partial(in_memory, data, False),
    }


def measure(data: Tokens, rounds: int, batches: int) -> dict[str, list[Cost]]:
    """Draw ``batches`` from each in turn, ``rounds`` times and once before."""
    with running(makers(data)) as runners:
        times: dict[str, list[Cost]] = {name: [] for name in runners}
        for number in range(rounds + 1):
            for name, runner in runners.items():
                cost = runner.draw(batches)
                if number:  # the first time maps the files
                    times[name].append(cost)
    return times


def blocks(data: Tokens, python: Path, rounds: int) -> Iterator[Cost | str]:
    """Draw blocks with HF datasets in an environment of its own; else say why not."""
    command = [str(python), str(HERE / "blocks.py"), data.values, str(rounds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except FileNotFoundError as error:
        yield f"no {error.filename}; `make bench` makes it"
        return
    if done.returncode:
        yield (done.stderr.strip().splitlines() or ["it ended"])[-1]
        return
    for wall, cpu in json.loads(done.stdout.splitlines()[-1]):
        yield Cost(wall, cpu)


def report(times: dict[str, list[Cost]]) -> Table:
    """Lay the times out."""
    table = Table(title=f"{LANES} lanes of {CHUNK} int64 tokens")
    for number, column in enumerate(("what", "us/batch", "CPU us/batch", "seqdata is")):
        table.add_column(column, justify="left" if number < 1 else "right")
    for name, taken in times.items():
        walls = [cost.wall for cost in taken]
        cpu = spread([cost.cpu for cost in taken], "{:.1f}")
        table.add_row(name, spread(walls, "{:.1f}"), cpu, f"{ratio(times, name):.2f}x")
    return table


def ratio(times: dict[str, list[Cost]], name: str) -> float:
    """Give how many times as fast seqdata is, by wall time."""
    mine, other = (statistics.median(cost.wall for cost in times[one]) for one in (OURS, name))
    return other / mine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="an eighth of the tokens")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    parser.add_argument("--peers", type=Path, default=PEERS, help="Python that has HF datasets")
    options = parser.parse_args()
    console = Console(width=120, soft_wrap=True)
    if kernel_name() != "c":
        raise ConfigError("benchmark: no C kernel here; build it with `make env` and a C compiler")
    count = 1 << (23 if options.quick else 26)
    with tempfile.TemporaryDirectory() as folder:
        console.print(machine())
        console.print(f"writing {count} tokens …")
        data = make(Path(folder), count)
        times = measure(data, options.rounds, count // (LANES * CHUNK))
        found = list(blocks(data, options.peers, options.rounds))
        if all(isinstance(one, Cost) for one in found):
            times[BLOCKS] = [one for one in found if isinstance(one, Cost)]
        else:
            console.print(f"left out: {BLOCKS}: {found[0]}")
    console.print(report(times))
    for name, floor in FLOORS.items():
        if name in times:
            met = "met" if ratio(times, name) >= floor else "MISSED"
            console.print(f"floor {floor:g}x {name}: found {ratio(times, name):.2f}x ({met})")
    console.print(machine())


if __name__ == "__main__":
    main()
