"""Microseconds to write a sequence with each library's own writer, and bytes on disk."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from samples import tokens

from bench_set.rows import Answer, Bench
from bench_set.server import LeftOut, Room


def write(room: Room, folder: Path, samples: Any) -> tuple[float, int]:
    """Return the seconds, and the bytes of the files."""
    os.sync()
    began = time.perf_counter()
    if room.peer.write is None:
        raise LeftOut(f"reads the files of {room.peer.reads}")
    room.peer.write(folder, samples)
    taken = time.perf_counter() - began
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    shutil.rmtree(folder)
    return taken, size


def measure(bench: Bench) -> Answer:
    """Write short tokens with each writer in turn."""
    answer = Answer("µs per sequence")
    count = 3_000 if bench.quick else 30_000
    samples = tokens(count)
    raw = samples.values.nbytes
    for number in range(min(bench.rounds, 3)):
        for module, server in bench.servers.items():
            if server.peer.write is None or "S" not in server.peer.sets:
                continue
            bench.say(f"writing, round {number + 1}: {server.peer.title}")
            try:
                taken, size = server.ask(write, bench.root / f"written-{module}", samples)
            except LeftOut as error:
                answer.left_out[server.peer.title] = str(error)
                continue
            row = answer.row("short tokens", server.peer.title)
            row.values.append(taken / count * 1e6)
            row.note = f"{size / raw:.2f}x the bytes of the values"
    answer.notes.append(
        "The memmap DataLoader writes two arrays with `tofile`, `datasets` gets an Arrow table. "
        "seqdata computes a checksum of each sequence and a SHA-256 of each file, and waits until "
        "the disk has them; the others do not."
    )
    return answer
