"""Tables E and F: where a sequence comes in one epoch, in the next one, and in fifty."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shuffling_set.cases import make_case
from shuffling_set.orders import Order, permute
from shuffling_set.rows import Row

COMPARED, PAIRED_EPOCHS = 300_000, 20
SIZES, EPOCHS = (3_000, 300_000, 1_000_000), 50
LAST = 0.05  # of an epoch
BLOCK = 1 << 18
MOST_DEVIATIONS = 4.5  # of a mean place from the middle: a thousand of them are looked at


def compare_epochs(name: str, count: int = COMPARED) -> list[Row]:
    """Compare the places of sequences in an epoch with those in the next; mean of some pairs."""
    case, rng = make_case(name, count, 128), np.random.default_rng(0)
    found, before = [], None
    for epoch in range(2, 2 + PAIRED_EPOCHS):
        order = case.order(epoch)
        now = [_find_places(one, count) for one in (order, permute(order, rng))]
        if before is not None:
            found.append([_compare(*pair) for pair in zip(before, now, strict=True)])
        before = now
    (here_last, here_r), (plain_last, plain_r) = np.mean(found, axis=0).tolist()
    figure = "of the last 5 %, again among the last 5 %, %"
    return [
        Row("E", name, figure, 100 * here_last, 100 * plain_last).near(2),
        Row("E", name, "correlation of places in two epochs", here_r, plain_r).near(0.02),
    ]


def _find_places(order: Order, count: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the mean place of each sequence, nan: it did not come; and whether it came last."""
    times = np.bincount(order.numbers, minlength=count)
    sums = np.bincount(order.numbers, weights=order.places, minlength=count)
    is_last = np.zeros(count, dtype=np.bool_)
    is_last[order.numbers[order.places > 1 - LAST]] = True
    return np.where(times > 0, sums / np.maximum(times, 1), np.nan), is_last


def _compare(
    before: tuple[NDArray[np.float64], NDArray[np.bool_]],
    now: tuple[NDArray[np.float64], NDArray[np.bool_]],
) -> tuple[float, float]:
    """Return the share of the last ones that were last before, and the correlation of places."""
    is_there = ~np.isnan(before[0] + now[0])
    correlation = np.corrcoef(before[0][is_there], now[0][is_there])[0, 1]
    return float((before[1] & now[1]).sum() / before[1].sum()), float(correlation)


def find_mean_places(name: str, count: int, epochs: int = EPOCHS) -> list[Row]:
    """Compare the mean place of each tenth of the sequences with the middle of the epoch.

    By chance a tenth lies off the middle as its batches do, which come in random order: what a
    batch has of it is known, and so is the deviation of the mean.
    """
    case, rng = make_case(name, count, 64), np.random.default_rng(0)
    ranks = np.empty(count, dtype=np.int64)
    ranks[np.argsort(case.lengths, kind="stable")] = np.arange(count)
    numbers = np.arange(count)
    keys = {
        "number": numbers * 10 // count, "length": ranks * 10 // count, "block": numbers // BLOCK
    }  # fmt: skip
    found = {key: np.zeros((4, int(of.max()) + 1)) for key, of in keys.items()}
    for epoch in range(epochs):
        order = case.order(epoch)
        plain = permute(order, rng)
        for key, of in keys.items():
            _add_places(found[key], order, plain, of)
    return [_tell(f"{name}, n = {count:,}", key, epochs, sums) for key, sums in found.items()]


def _add_places(
    sums: NDArray[np.float64], order: Order, plain: Order, kinds: NDArray[np.int64]
) -> None:
    """Add an epoch's mean place of each kind, of the permutation, its variance, and one epoch."""
    own, count = kinds[order.numbers], sums.shape[1]
    times = np.bincount(own, minlength=count)
    is_there = times > 0
    batches = len(order.sizes)
    shares = np.bincount(order.batch_numbers * count + own, minlength=batches * count)
    shares = shares.reshape(batches, count) / np.maximum(times, 1)
    excess = np.maximum((shares**2).sum(axis=0) - 1 / batches, 0) * batches / max(batches - 1, 1)
    places = order.places
    for which, kind in enumerate((own, kinds[plain.numbers])):
        total = np.bincount(kind, weights=places, minlength=count)
        sums[which] += np.where(is_there, total / np.maximum(times, 1), 0)
    sums[2] += np.where(is_there, excess / 12, 0)
    sums[3] += is_there


def _tell(case: str, key: str, epochs: int, sums: NDArray[np.float64]) -> Row:
    """Return the mean place that is furthest from the middle, by what chance lets it be."""
    times = np.maximum(sums[3], 1)
    off = np.abs(sums[:2] / times - 0.5)
    deviation = np.sqrt(sums[2]) / times + 1e-9
    worst = int(np.argmax(off[0] / deviation))
    limit = MOST_DEVIATIONS * deviation[worst]
    kind = "block of 2^18 numbers" if key == "block" else f"tenth by {key}"
    figure = f"furthest mean place of a {kind} over {epochs} epochs, % off the middle"
    here, plain = 100 * float(off[0, worst]), 100 * float(off[1].max())
    aim = f"<= {100 * limit:.2f} ({MOST_DEVIATIONS} deviations)"
    return Row("F", case, figure, here, plain, aim, bool(off[0, worst] <= limit))
