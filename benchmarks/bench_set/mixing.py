"""Drift of a mixture of 100 datasets: the most draws that any beginning is off its weights."""

from __future__ import annotations

from itertools import islice
from typing import Any

import mixing as mixtures
import numpy as np

from bench_set.rows import OURS, Aim, Answer, Bench
from bench_set.server import LeftOut, Room

KIND = "100 parts, 10^-4 to 1"
LOADERS = {"ours": "seqdata", "grain_map": "grain", "hf": "datasets", "lhotse_shar": "lhotse"}


def draw(_: Room, library: str, draws: int) -> tuple[float, float]:
    """Return the drift, and microseconds of CPU time of a draw."""
    weights = mixtures.make_weights(KIND)
    iterate: Any = mixtures.LIBRARIES[library]
    next(iterate(weights, 0))  # imports
    parts = np.empty(0, dtype=np.int64)

    def play() -> None:
        nonlocal parts
        parts = np.fromiter(islice(iterate(weights, 0), draws), dtype=np.int64, count=draws)

    taken = mixtures.spend(play)
    return mixtures.measure_drift(parts, weights), taken / draws * 1e6


def measure(bench: Bench) -> Answer:
    """Draw with each library that mixes by weights."""
    answer, draws = Answer("most draws off"), 10_000 if bench.quick else 100_000
    setting = f"{KIND}, {draws:,} draws"
    for module, library in LOADERS.items():
        if module not in bench.servers:
            continue
        server = bench.servers[module]
        bench.say(f"mixture: {server.peer.title}")
        try:
            drift, cost = server.ask(draw, library, draws)
        except LeftOut as error:
            answer.left_out[server.peer.title] = str(error)
            continue
        row = answer.row(setting, server.peer.title)
        row.values.append(drift)
        row.note = f"{cost:.2f} µs of CPU time a draw"
    weights = mixtures.make_weights(KIND)
    independent = mixtures.draw_independently(weights, draws)
    row = answer.row(setting, "independent draws")
    row.values.append(mixtures.measure_drift(independent, weights))
    mine = answer.find(setting, OURS)
    if mine is not None:
        text = "shares within 3 batches of the weights at any point"
        answer.aims.append(Aim(text, f"{mine:.2f}", mine <= 3))
    return answer
