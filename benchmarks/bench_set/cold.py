"""Sequences a second from files that are not in memory: dropped from the cache before each round.

What is read once and never again meets no cache, as in data larger than memory.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from pathlib import Path
from typing import Any

from peers.asking import BATCH, Ask, Reading

from bench_set.rows import OURS, Aim, Answer, Bench
from bench_set.server import LeftOut, Room, Server

PLAIN = "memmap DataLoader"
LEAST = 5.0


def drop(folder: Path) -> None:
    """Drop all files of a folder from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_blocks(ask: Ask) -> Reading:
    """seqdata with what its guide says for data larger than memory."""
    from seqdata import Fixed, Loader

    policy = Fixed(BATCH, shuffle="blocks")
    loader = Loader(str(ask.folder), policy, seed=ask.seed, as_tuple=["x", "lengths"])
    return Reading(loader, None, loader.shutdown)


def read_cold(room: Room, ask: Ask, seconds: float, way: Any = None) -> tuple[float, int]:
    """Drop the files, then read for so long or an epoch; return sequences a second, and bytes.

    Raises:
        LeftOut: If the files were not dropped: mapped ones are not.
    """
    gc.collect()
    drop(ask.folder)
    before, began, count = _bytes_read(), time.perf_counter(), 0
    reading = (way or room.peer.read)(ask)
    for _ in reading.loader:
        count += BATCH
        if time.perf_counter() - began > seconds:
            break
    taken, size = time.perf_counter() - began, _bytes_read() - before
    reading.close()
    del reading
    gc.collect()
    if size < 1024 * count:
        raise LeftOut("the files stayed in memory")
    return count / taken, size // count


def _bytes_read() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


def _restart_all(bench: Bench, servers: dict[str, Server]) -> None:
    """Begin with processes that map no file and have imported what they need."""
    for server in servers.values():
        server.restart()
    for module, server in servers.items():
        order = server.peer.orders[0]
        with contextlib.suppress(LeftOut):  # is left out with its reason when it is measured
            server.ask(Room.start, "first", bench.ask_for("M", module, order=order))
        server.stop("first")


def measure(bench: Bench) -> Answer:
    """Read frames cold with each loader in turn."""
    answer = Answer("sequences per second", more_is_better=True)
    servers, seconds = bench.prepare("M"), 1.0 if bench.quick else 4.0
    os.sync()
    _restart_all(bench, servers)
    for number in range(min(bench.rounds, 3)):
        bench.say(f"cold, round {number + 1}")
        for module, server in servers.items():
            if server.peer.title in answer.left_out:
                continue
            order = server.peer.orders[0]
            ways = {server.peer.title: None}
            if module == "ours":
                ways['seqdata, shuffle="blocks"'] = read_blocks
            for title, way in ways.items():
                ask = bench.ask_for("M", module, order=order, seed=number)
                try:
                    rate, size = server.ask(read_cold, ask, seconds, way)
                except LeftOut as error:
                    answer.left_out[title] = str(error)
                    continue
                row = answer.row("frames, cold", title)
                row.values.append(rate)
                row.note = f"{size / 1024:,.0f} KiB read from disk per sequence"
    mine, plain = answer.find("frames, cold", OURS), answer.find("frames, cold", PLAIN)
    if mine and plain:
        text = f"cold: at least {LEAST:g}x a memmap DataLoader in random order"
        answer.aims.append(Aim(text, f"{mine / plain:.1f}x", mine / plain >= LEAST))
    return answer
