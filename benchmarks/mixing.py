"""Mixtures: how far shares drift, what a batch of one costs, and how soon the first one comes.

    python benchmarks/mixing.py [--quick]

Drift is the most batches that any prefix is off its weights, over 100,000 draws: of ours, and of
independent draws from a random generator (what most libraries do). A table compares ours with
``grain``, ``datasets``, ``lhotse`` and ``litdata``, where they are installed: ours draws a batch of
64 of a part, with all its spans, theirs an item (``litdata`` reads it, too); a resume begins in the
middle. Cost is CPU time of a
batch's spans and rows in a mixture, less the same of a part alone. First batch is CPU time from
lengths to the first batch, of 100 parts of 10^6 sequences each; so is a resume in the middle of an
epoch.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count as count_from
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from seqdata.index import SequenceIndex
from seqdata.policies.fixed import Bucketed
from seqdata.policies.mix import Mix
from seqdata.sharing import World, share

DRAWS, BATCHES = 100_000, 20_000
MAX_ROWS = 1 << 13  # of the steps that a loader describes at once


def make_weights(kind: str) -> NDArray[np.float64]:
    """Return the weights of a case, adding up to 1."""
    rng = np.random.default_rng(0)
    weights = {
        "2 parts, 7:3": np.array([0.7, 0.3]),
        "100 parts, 10^-4 to 1": 10.0 ** rng.uniform(-4, 0, 100),
        "one heavy, 99 of 10^-4": np.array([1 - 99e-4] + [1e-4] * 99),
    }[kind]
    scaled: NDArray[np.float64] = weights / weights.sum()
    return scaled


def measure_drift(parts: NDArray[np.int64], weights: NDArray[np.float64]) -> float:
    """Return the most draws that a prefix is off its weights."""
    places = np.arange(1, len(parts) + 1)
    return max(
        float(abs(np.cumsum(parts == part) - places * weight).max())
        for part, weight in enumerate(weights)
    )


def draw_ours(weights: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the parts of the batches of a mixture."""
    index = SequenceIndex.from_parts(
        {f"{part}": SequenceIndex.from_lengths([1, 1]) for part in range(len(weights))}
    )
    shares = {f"{part}": float(weight) for part, weight in enumerate(weights)}
    mix = Mix(shares, Bucketed(1), batches=count, keep="batch")
    labels = mix.plan(index, seed=0, epoch=0).label_parts(range(count)) or []
    return np.array([int(str(label.part)) for label in labels])


def draw_independently(weights: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return parts drawn one by one."""
    return np.random.default_rng(0).choice(len(weights), size=count, p=weights)


def iterate_ours(weights: NDArray[np.float64], first: int) -> Iterator[int]:
    """Yield the parts of a mixture's batches, from a batch on, with the spans of each."""
    lengths = np.random.default_rng(0).integers(1, 500, size=64 * 512)
    own = SequenceIndex.from_lengths(lengths)
    index = SequenceIndex.from_parts({f"{part}": own for part in range(len(weights))})
    shares = {f"{part}": float(weight) for part, weight in enumerate(weights)}
    plan = Mix(shares, Bucketed(64), batches=DRAWS, keep="batch").plan(index, seed=0, epoch=0)
    while first < len(plan):
        numbers = share(plan, World(), first=first).steps_from(first, MAX_ROWS).numbers
        for label in plan.label_parts(numbers) or []:
            yield int(str(label.part))
        first += len(numbers)


def iterate_grain(weights: NDArray[np.float64], first: int) -> Iterator[int]:
    """Yield what ``grain`` mixes: a function of the number, too."""
    import grain

    parts = [grain.MapDataset.source([part]).repeat() for part in range(len(weights))]
    mixed = grain.MapDataset.mix(parts, weights=weights.tolist())
    for number in count_from(first):
        yield mixed[number]


def iterate_datasets(weights: NDArray[np.float64], first: int) -> Iterator[int]:
    """Yield what ``datasets`` interleaves; ``skip`` continues it."""
    from datasets import IterableDataset, interleave_datasets

    def generate(part: int) -> Iterator[dict[str, int]]:
        while True:
            yield {"part": part}

    parts = [
        IterableDataset.from_generator(generate, gen_kwargs={"part": part})
        for part in range(len(weights))
    ]
    mixed = interleave_datasets(parts, probabilities=weights.tolist(), seed=0)
    for row in mixed.skip(first) if first else mixed:
        yield row["part"]


def iterate_lhotse(weights: NDArray[np.float64], first: int) -> Iterator[int]:
    """Yield what ``lhotse`` draws with ``mux``; it continues by drawing again what was drawn."""
    from lhotse import CutSet, MonoCut

    parts = [
        CutSet.from_cuts([MonoCut(id=f"{part}", start=0, duration=1, channel=0)]).repeat(
            preserve_id=True
        )
        for part in range(len(weights))
    ]
    mixed = CutSet.mux(*parts, weights=weights.tolist(), seed=0)
    for cut in islice(mixed, first, None):
        yield int(cut.id)


def write_litdata(folder: Path, weights: NDArray[np.float64], draws: int) -> None:
    """Write parts that last for so many draws: ``litdata`` ends with the first that has ended."""
    from litdata.streaming.writer import BinaryWriter

    for part, weight in enumerate(weights):
        writer = BinaryWriter(str(folder / str(part)), chunk_size=10_000)
        for number in range(int(draws * weight + 6 * (draws * weight) ** 0.5) + 100):
            writer[number] = part
        writer.done()
        writer.merge(1)


def iterate_litdata(folder: Path, weights: NDArray[np.float64], first: int) -> Iterator[int]:
    """Yield what ``litdata`` combines, from files; it continues by drawing again."""
    from litdata import CombinedStreamingDataset, StreamingDataset

    parts = [StreamingDataset(str(folder / str(part))) for part in range(len(weights))]
    mixed = CombinedStreamingDataset(
        parts, weights=weights.tolist(), seed=0, iterate_over_all=False
    )
    yield from islice(mixed, first, None)


PEERS = {"grain": iterate_grain, "datasets": iterate_datasets, "lhotse": iterate_lhotse}
LIBRARIES = {"seqdata": iterate_ours, **PEERS}


def compare_peers(out: Console, draws: int, folder: Path) -> None:
    """Print drift and CPU time next to those of other libraries, in one run."""
    weights = make_weights("100 parts, 10^-4 to 1")
    columns = ("library", "drift", "us a sequence", "ratio", "first draw, ms", "resume, ms")
    table = Table(*columns, title=f"{draws:,} draws of 100 parts; ratio: of medians to ours")
    own, peers = 0.0, dict(PEERS)
    if importlib.util.find_spec("litdata") is not None:
        write_litdata(folder, weights, draws)
    peers["litdata"] = partial(iterate_litdata, folder)
    for name, iterate in {"seqdata": iterate_ours, **peers}.items():
        if name != "seqdata" and importlib.util.find_spec(name) is None:
            table.add_row(name, *["not installed"] * 5)
            continue
        next(iterate(weights, 0))  # imports
        first, parts, each = [], np.empty(0, dtype=np.int64), []
        for _ in range(3):
            first.append(spend(lambda run=iterate: next(run(weights, 0))))
            start = time.process_time()
            parts = np.fromiter(islice(iterate(weights, 0), draws), dtype=np.int64, count=draws)
            sequences = draws * (64 if name == "seqdata" else 1)
            each.append((time.process_time() - start) / sequences)
        resume = spend(lambda run=iterate: next(run(weights, draws // 2)))
        median = statistics.median(each)
        own = own or median
        figures = (measure_drift(parts, weights), 1e6 * median, median / own)
        cells = [f"{figure:.2f}" for figure in figures]
        cells += [f"{1e3 * statistics.median(first):.1f}", f"{1e3 * resume:.1f}"]
        table.add_row(name, *cells)
    out.print(table)


def spend(work: Callable[[], object]) -> float:
    """Return the CPU seconds of some work."""
    start = time.process_time()
    work()
    return time.process_time() - start


def describe_all(policy: Bucketed | Mix, index: SequenceIndex, count: int) -> float:
    """Return the CPU microseconds per batch of a rank's steps, once blocks are made."""
    plan = policy.plan(index, seed=0, epoch=0)
    steps = share(plan, World())
    stop = min(count, len(plan))

    def play() -> None:
        number = 0
        while number < stop:
            number += len(steps.steps_from(number, MAX_ROWS).numbers)

    play()
    return min(spend(play) for _ in range(3)) / stop * 1e6


def measure_cost(parts: int, keep: str, count: int) -> tuple[float, float]:
    """Return the microseconds per batch of parts alone, and of their mixture."""
    rng = np.random.default_rng(0)
    own_batches = 2 * count // parts  # no part begins again
    lengths = [rng.integers(1, 500, size=64 * own_batches) for _ in range(parts)]
    indexes = {str(part): SequenceIndex.from_lengths(own) for part, own in enumerate(lengths)}
    alone = describe_all(Bucketed(64), indexes["0"], count)
    mix = Mix(dict.fromkeys(indexes, 1.0), Bucketed(64), batches=count, keep=keep)  # type: ignore[arg-type]
    return alone, describe_all(mix, SequenceIndex.from_parts(indexes), count)


def measure_first(parts: int, count: int, position: int) -> float:
    """Return the CPU seconds from lengths to a batch of a mixture of many large parts."""
    rng = np.random.default_rng(0)
    lengths = [rng.integers(1, 2_000, size=count).astype(np.uint32) for _ in range(parts)]
    indexes = {str(part): SequenceIndex.from_lengths(own) for part, own in enumerate(lengths)}
    mix = Mix(dict.fromkeys(indexes, 1.0), Bucketed(64), by="timesteps", batches=1_000_000)

    def begin() -> None:
        plan = mix.plan(SequenceIndex.from_parts(indexes), seed=0, epoch=0)
        share(plan, World(), first=position)[position]

    return spend(begin)


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer draws and smaller parts")
    quick = parser.parse_args().quick
    out, draws = Console(), DRAWS // (10 if quick else 1)
    ways = {"seqdata": draw_ours, "independent draws": draw_independently}
    table = Table("weights", *ways, title=f"Drift over {draws:,} batches")
    for kind in ("2 parts, 7:3", "100 parts, 10^-4 to 1", "one heavy, 99 of 10^-4"):
        weights = make_weights(kind)
        drifts = [measure_drift(draw(weights, draws), weights) for draw in ways.values()]
        table.add_row(kind, *(f"{drift:.1f}" for drift in drifts))
    out.print(table)
    with tempfile.TemporaryDirectory() as folder:
        compare_peers(out, draws, Path(folder))
    table = Table("parts", "keep", "parts alone", "mixture", "more", title="CPU us per batch")
    for parts in (2, 100):
        for keep in ("update", "batch"):
            alone, mixed = measure_cost(parts, keep, BATCHES // (10 if quick else 1))
            figures = (alone, mixed, mixed - alone)
            table.add_row(str(parts), keep, *(f"{figure:.2f}" for figure in figures))
    out.print(table)
    count = 10_000 if quick else 1_000_000
    for name, position in (("first batch", 0), ("resume at batch 500,000", 500_000)):
        seconds = measure_first(100, count, position)
        out.print(f"{name} of 100 parts of {count:,} sequences: {seconds:.2f} s of CPU")


if __name__ == "__main__":
    main()
