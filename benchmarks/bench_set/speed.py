"""Microseconds of a padded batch of 64, in the training process and with a worker."""

from __future__ import annotations

import time
from typing import Any

from peers.asking import Ask, Reading
from samples import BATCH

from bench_set.rows import OURS, Aim, Answer, Bench, mean_length
from bench_set.server import LeftOut, Room

SETTINGS = (
    ("S", "random", 0), ("S", "bucketed", 0), ("M", "random", 0), ("M", "bucketed", 0),
    ("S", "random", 1), ("M", "random", 1),
)  # fmt: skip
UNTHREADED = "seqdata, prefetch=0"
PLAIN, TUNED = "memmap DataLoader", "memmap DataLoader, tuned"
LEAST = {"S": 10.0, "M": 1.8}  # times as fast as the plain one


def draw(room: Room, key: Any, seconds: float) -> float:
    """Draw batches for so long; return the microseconds of one."""
    _, batches = room.open[key]
    count, began = 0, time.perf_counter()
    stop = began + seconds
    while time.perf_counter() < stop or not count:
        next(batches)
        count += 1
    return (time.perf_counter() - began) / count * 1e6


def read_without_thread(ask: Ask) -> Reading:
    """seqdata without the thread that makes batches while a model computes."""
    from seqdata import Bucketed, Fixed, Loader

    policy = Bucketed(BATCH) if ask.order == "bucketed" else Fixed(BATCH)
    options = {"seed": ask.seed, "as_tuple": ["x", "lengths"], "prefetch": 0}
    loader = Loader(str(ask.folder), policy, **options)
    return Reading(loader, None, loader.shutdown)


def measure(bench: Bench) -> Answer:
    """Draw from each loader in turn."""
    answer = Answer("µs per batch")
    for name, order, workers in SETTINGS:
        setting = name_of(name, order, workers)
        bench.say(setting)
        opened = {}
        for module, server in bench.prepare(name).items():
            if order not in server.peer.orders or (workers and module == "spdl_pipeline"):
                continue
            ask = bench.ask_for(name, module, order=order, workers=workers)
            ways = {server.peer.title: None}
            if module == "ours" and not workers:
                ways[UNTHREADED] = read_without_thread
            for title, way in ways.items():
                try:
                    server.ask(Room.start, (setting, title), ask, way)
                    server.ask(draw, (setting, title), 0.2 if bench.quick else 1.0)  # maps
                    opened[title] = server
                except LeftOut as error:
                    answer.left_out[f"{title}: {setting}"] = str(error)
        for _ in range(bench.rounds):
            for title, server in list(opened.items()):
                try:
                    taken = server.ask(draw, (setting, title), 0.1 if bench.quick else 0.6)
                    answer.row(setting, title).values.append(taken)
                except LeftOut as error:
                    answer.left_out[f"{title}: {setting}"] = str(error)
                    del opened[title]
        for title, server in opened.items():
            server.stop((setting, title))
    _compare(bench, answer)
    return answer


def name_of(name: str, order: str, workers: int) -> str:
    kind = {"S": "short tokens", "M": "frames"}[name]
    return f"{kind}, {order}, {'1 worker' if workers else 'in process'}"


def _compare(bench: Bench, answer: Answer) -> None:
    for name, least in LEAST.items():
        for order in ("random", "bucketed"):
            setting = name_of(name, order, 0)
            mine = answer.find(setting, OURS)
            plain, tuned = answer.find(setting, PLAIN), answer.find(setting, TUNED)
            if mine and plain and tuned:
                text = f"{setting}: at least {least:g}x as fast as a hand-written memmap DataLoader"
                found = f"{plain / mine:.1f}x; {tuned / mine:.1f}x as fast as the tuned one"
                answer.aims.append(Aim(text, found, plain / mine >= least))
    for name in LEAST:
        setting, length = name_of(name, "random", 0), mean_length(bench.samples(name))
        for row in answer.rows:
            if row.setting == setting and row.values:
                rate = BATCH * length / row.median  # timesteps per microsecond
                row.note = f"{1e6 / row.median:,.0f} batches/s, {rate:.2f} M timesteps/s"
