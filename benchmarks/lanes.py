"""Chunks of a stream in lanes, for truncated backpropagation: time of a batch beside copying it.

    python benchmarks/lanes.py [--quick] [--rounds N] [--peers PYTHON]

64 lanes of 512 tokens (int64, 256 KiB a batch) from a memory-mapped store of documents of about
1,000 tokens, which every epoch lays end to end in another order. Beside it: ``memcpy`` of as many
bytes in one piece, in the fastest form there is here, and row by row, both from a mapped file; the
batches of an iterator that holds all tokens in memory, 64 columns of them, as copies and as views
(torchtext's BPTTIterator, the iterator of Transformer-XL), which carry no lengths, ids or resets,
and never shuffle; and random blocks of 512 from HF datasets, with nothing carried over. The same
from a store of as many long documents as there are lanes, and from stores of uint16 tokens (64 KiB
a batch) and of 8 float32 a timestep (1 MiB), each beside ``memcpy`` of its bytes. Each runs in a
process of its own, in turn with the others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from timeit import timeit
from typing import Any, NamedTuple

import numpy as np
from common import PATIENCE, Cost, machine, running, spread
from rich.console import Console
from rich.table import Table
from samples import CHUNK, LANES, Samples, documents

from seqdata.api import write_store
from seqdata.errors import ConfigError
from seqdata.kernel.dispatch import get_kernel_name
from seqdata.policies.tbptt import TBPTT

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent / ".venv-bench" / "bin" / "python"
OURS, SHIFTED = "seqdata", "seqdata, with targets"
PIECE, ROWS = "memcpy, one piece", "memcpy, row by row"
COPIES, VIEWS = "in memory, copies", "in memory, views"
BLOCKS = "HF datasets, blocks"
LONG = "long documents"
FLOORS = {
    PIECE: 0.5, ROWS: 0.5, f"{PIECE}, {LONG}": 0.5, f"{ROWS}, {LONG}": 0.5, COPIES: 1.0,
    BLOCKS: 20.0,
}  # fmt: skip
"""Times as fast as these."""


WIDE = 8  # float32 of a timestep
ENOUGH = 1024  # batches that are drawn in a turn, at least: who waited for one begins slowly


class Tokens(NamedTuple):
    """The same timesteps, written twice: as a store of documents, and as one run."""

    store: str
    values: str
    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def mapped(self) -> np.ndarray:
        """The run, (timesteps, *shape)."""
        return np.asarray(np.memmap(self.values, dtype=self.dtype, mode="r")).reshape(
            -1, *self.shape
        )


def make(root: Path, count: int) -> dict[str, Tokens]:
    """Write ``count`` tokens, and the other items; by name, none for what counts."""
    tokens, fewer = documents(count), documents(count // 4)  # as many bytes
    frames = np.random.default_rng(2).random((len(fewer.values), WIDE), dtype=np.float32)
    items = {
        "": tokens,
        LONG: Samples(tokens.values, np.arange(LANES + 1) * (len(tokens.values) // LANES)),
        "uint16": Samples(tokens.values.astype(np.uint16), tokens.offsets),
        "float32 x 8": Samples(frames, fewer.offsets),
    }
    stores = {}
    for number, (name, samples) in enumerate(items.items()):
        values = samples.values
        store, run = str(root / f"L{number}"), str(root / f"L{number}.values")
        stores[name] = Tokens(store, run, values.dtype.name, values.shape[1:])
        write_store(store, samples.dicts(), progress=False)
        values.tofile(run)
    return stores


def ours(data: Tokens, shift: int) -> Generator[Any, None, None]:
    """Batches of seqdata, epoch after epoch."""
    from seqdata.loading.loader import Loader

    loader = Loader(data.store, TBPTT(LANES, CHUNK, continuous=True), shift=shift, prefetch=0)
    while True:
        yield from loader


def in_memory(data: Tokens, is_copied: bool) -> Generator[Any, None, None]:
    """Chunks of columns that are held in memory."""
    import torch

    values = np.fromfile(data.values, dtype=np.int64)
    columns = torch.from_numpy(values).view(LANES, -1)
    while True:
        for first in range(0, columns.shape[1], CHUNK):
            chunk = columns[:, first : first + CHUNK]
            yield chunk.contiguous() if is_copied else chunk


def copy_batches(data: Tokens, by_rows: bool) -> Generator[Any, None, None]:
    """Copy as many bytes as a batch has from a mapped file into new memory."""
    mapped = data.mapped
    if by_rows:
        columns = mapped.reshape(LANES, -1, CHUNK, *data.shape)
        pieces = [columns[:, number] for number in range(columns.shape[1])]
        copy = np.copyto
    else:
        pieces = list(mapped.reshape(-1, LANES, CHUNK, *data.shape))
        copy = fastest(pieces)
    for piece in cycle(pieces):
        out = np.empty(piece.shape, dtype=piece.dtype)
        copy(out, piece)
        yield out


def fastest(pieces: list[np.ndarray]) -> Callable[[np.ndarray, np.ndarray], object]:
    """Return the faster way to copy such pieces: memcpy may be slow, by processor and libc."""
    import torch

    def by_torch(out: np.ndarray, piece: np.ndarray) -> object:
        return torch.from_numpy(out).copy_(torch.from_numpy(piece))

    def measure_copy(copy: Callable[[np.ndarray, np.ndarray], object]) -> float:
        outs = [np.empty_like(pieces[0]) for _ in range(2)]
        return min(
            timeit(lambda: [copy(*pair) for pair in zip(cycle(outs), pieces)], number=1)
            for _ in range(5)
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch: what is mapped is not for writing
        return min(np.copyto, by_torch, key=measure_copy)


def makers(stores: dict[str, Tokens]) -> dict[str, Callable[[], Generator[Any, None, None]]]:
    """Return a maker of batches by name."""
    data = stores[""]
    found: dict[str, Callable[[], Generator[Any, None, None]]] = {
        OURS: partial(ours, data, 0),
        SHIFTED: partial(ours, data, 1),
        PIECE: partial(copy_batches, data, False),
        ROWS: partial(copy_batches, data, True),
        COPIES: partial(in_memory, data, True),
        VIEWS: partial(in_memory, data, False),
    }
    for name in filter(None, stores):
        found[f"{OURS}, {name}"] = partial(ours, stores[name], 0)
        found[f"{PIECE}, {name}"] = partial(copy_batches, stores[name], False)
        found[f"{ROWS}, {name}"] = partial(copy_batches, stores[name], True)
    return found


def measure(data: dict[str, Tokens], rounds: int, batches: int) -> dict[str, list[Cost]]:
    """Draw so many from each in turn, ``rounds`` times and once before."""
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


def beside(name: str) -> str:
    """Return the row of ours that another is compared to."""
    for kind in (PIECE, ROWS):
        item = name.removeprefix(f"{kind}, ")
        if item != name:
            return f"{OURS}, {item}"
    return OURS


def report(times: dict[str, list[Cost]]) -> Table:
    """Lay the times out."""
    table = Table(title=f"{LANES} lanes of {CHUNK}: int64 tokens where not said")
    for number, column in enumerate(("what", "us/batch", "CPU us/batch", "seqdata is")):
        table.add_column(column, justify="left" if number < 1 else "right")
    for name, taken in times.items():
        walls = [cost.wall for cost in taken]
        cpu = spread([cost.cpu for cost in taken], "{:.1f}")
        shown = "" if name.startswith(OURS) else f"{ratio(times, name):.2f}x"
        table.add_row(name, spread(walls, "{:.1f}"), cpu, shown)
    return table


def ratio(times: dict[str, list[Cost]], name: str) -> float:
    """Return how many times as fast seqdata is, by wall time."""
    both = (beside(name), name)
    mine, theirs = (statistics.median(cost.wall for cost in times[way]) for way in both)
    return theirs / mine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="an eighth of the tokens")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    parser.add_argument("--peers", type=Path, default=PEERS, help="Python that has HF datasets")
    options = parser.parse_args()
    console = Console(width=120, soft_wrap=True)
    if get_kernel_name() != "c":
        raise ConfigError("benchmark: no C kernel here; build it with `make env` and a C compiler")
    count = 1 << (23 if options.quick else 26)
    with tempfile.TemporaryDirectory() as folder:
        console.print(machine())
        console.print(f"writing {count} tokens …")
        data = make(Path(folder), count)
        times = measure(data, options.rounds, max(ENOUGH, count // (LANES * CHUNK)))
        found = list(blocks(data[""], options.peers, options.rounds))
        if all(isinstance(cost, Cost) for cost in found):
            times[BLOCKS] = [cost for cost in found if isinstance(cost, Cost)]
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
