"""Padding of batches of 64, beside how well they are mixed: by lengths alone, no data is read.

Mixing is how often two sequences of a batch share one again in the next epoch, as a multiple of
what random batches do: 1 is random, exact sorting is about the number of batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from peers.asking import BATCH, Pooled

from bench_set.lengths import SETS
from bench_set.rows import OURS, Aim, Answer, Bench

POOLS = (5, 10, 20, 35, 50, 75, 100, 150, 200, 300)
Batches = list[np.ndarray]


def random(lengths: np.ndarray, epoch: int) -> Batches:
    order = np.random.default_rng(epoch).permutation(len(lengths))
    return [order[first : first + BATCH] for first in range(0, len(order), BATCH)]


def pooled(pool: int) -> Callable[[np.ndarray, int], Batches]:
    def draw(lengths: np.ndarray, epoch: int) -> Batches:
        sampler = Pooled(lengths, pool, np.random.default_rng(epoch))
        return [np.array(batch) for batch in sampler]

    return draw


def sorted_(lengths: np.ndarray, epoch: int) -> Batches:
    del epoch  # the same in every one
    order = np.argsort(lengths, kind="stable")
    return [order[first : first + BATCH] for first in range(0, len(order), BATCH)]


def quantiles(lengths: np.ndarray, epoch: int) -> Batches:
    """Ten buckets of equally many sequences, as lhotse and ``tf.data`` take, batches within."""
    order = np.argsort(lengths, kind="stable")
    drawn = np.random.default_rng(epoch)
    parts = [drawn.permutation(part) for part in np.array_split(order, 10)]
    return [part[at : at + BATCH] for part in parts for at in range(0, len(part), BATCH)]


def ours(lengths: np.ndarray, epoch: int) -> Batches:
    from seqdata import Bucketed, SequenceIndex

    plan = Bucketed(BATCH).plan(SequenceIndex.from_lengths(lengths), seed=0, epoch=epoch)
    return [plan.batch(number).spans[:, 0] for number in range(len(plan))]


RULES: dict[str, Callable[[np.ndarray, int], Batches]] = {
    OURS: ours,
    "random": random,
    "10 buckets": quantiles,
    "pool of 50 (transformers)": pooled(50),
    "pool of 100 (torchtext)": pooled(100),
    "sorted (no shuffling)": sorted_,
}


def waste(lengths: np.ndarray, batches: Batches) -> float:
    """Return the padding, percent of all timesteps of the batches."""
    padded = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    return 100 * (1 - int(lengths.sum()) / padded)


def again(first: Batches, second: Batches, count: int) -> float:
    """Return how often batch mates meet again, over how often random ones do."""
    places = []
    for batches in (first, second):
        place = np.empty(count, dtype=np.int64)
        for number, batch in enumerate(batches):
            place[batch] = number
        places.append(place)
    _, both = np.unique(places[0] * (len(second) + 1) + places[1], return_counts=True)
    sizes = np.array([len(batch) for batch in first])
    met = float((both * (both - 1)).sum()) / float((sizes * (sizes - 1)).sum())
    expected = float(np.mean([len(batch) - 1 for batch in second])) / (count - 1)
    return met / expected


def _find_equal(lengths: np.ndarray, most: float) -> Iterator[tuple[float, int]]:
    """Yield padding and size of the pools that mix at least as well."""
    for pool in POOLS:
        draw = pooled(pool)
        batches = draw(lengths, 0)
        if again(batches, draw(lengths, 1), len(lengths)) <= most:
            yield waste(lengths, batches), pool


def measure(bench: Bench) -> Answer:
    """Cut two epochs of each set by each rule."""
    answer, better, count = Answer("% padding"), 0, 5_000 if bench.quick else 20_000
    for lengths_of in SETS:
        bench.say(f"padding: {lengths_of.name}")
        lengths = lengths_of.draw(count)
        mine, mixed = 0.0, 0.0
        for name, rule in RULES.items():
            batches = rule(lengths, 0)
            row = answer.row(lengths_of.name, name)
            row.values.append(waste(lengths, batches))
            met = again(batches, rule(lengths, 1), len(lengths))
            row.note = f"met again {met:.1f}x"
            if name == OURS:
                mine, mixed = row.median, met
        found = min(_find_equal(lengths, mixed), default=None)
        row = answer.row(lengths_of.name, "best pool that mixes as well")
        if found is None:
            row.note = "no pool mixes as well"
            better += 1
        else:
            row.values.append(found[0])
            row.note = f"pool of {found[1]} batches"
            better += found[0] >= mine
    text = "not more padding than the best pool that mixes at least as well"
    answer.aims.append(Aim(text, f"{better} of {len(SETS)} sets", better == len(SETS)))
    answer.notes += [f"{lengths_of.name}: {lengths_of.source}." for lengths_of in SETS]
    return answer
