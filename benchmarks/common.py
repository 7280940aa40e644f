"""Helpers of the benchmarks: data sets S and M on disk, processes that draw batches, tables.

A loader runs in a process of its own, which a ``Runner`` tells when to draw; so several take turns
and none sees what another did to its memory.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from samples import BATCH, FRAME, Data, Samples, frames, frames_count, tokens

from seqdata.api import write_store
from seqdata.policies.fixed import Bucketed, Fixed

POLICIES = {"random": Fixed(BATCH), "bucketed": Bucketed(BATCH)}
PATIENCE = 600.0  # seconds that any one measurement may take
Name = TypeVar("Name", bound=Hashable)


def make_s(root: Path, count: int) -> Data:
    """Write S."""
    return _write(Data("S", root, "int32", 0, count), tokens(count))


def make_m(root: Path, size: int) -> Data:
    """Write M, about ``size`` bytes."""
    count = frames_count(size)
    return _write(Data("M", root, "float32", FRAME, count), frames(count))


def _write(data: Data, samples: Samples) -> Data:
    write_store(data.store, samples.dicts(), progress=False)
    Path(data.values).parent.mkdir(exist_ok=True)
    samples.values.tofile(data.values)
    samples.offsets.tofile(data.offsets)
    return data


def ours(data: Data, order: str, **options: Any) -> Generator[Any, None, None]:
    """Batches of seqdata, epoch after epoch: a SequenceBatch with data, lengths, ids, weight."""
    from seqdata.loading.loader import Loader

    loader = Loader(data.store, POLICIES[order], **options)
    try:
        while True:
            yield from loader
    finally:
        loader.shutdown()


def by_hand(data: Data, change: Any = None, workers: int = 0) -> Generator[Any, None, None]:
    """Batches of the hand-written peer, in random order: padded values and lengths."""
    from peers.asking import Ask
    from peers.by_hand import read

    reading = read(Ask(Path(data.values).parent, data.name, workers=workers), change)
    while True:
        yield from reading.loader


Maker = Callable[[], Generator[Any, None, None]]


class Cost(NamedTuple):
    """Cost of one batch: wall time, and CPU time of all its processes; in microseconds."""

    wall: float
    cpu: float


class Runner:
    """A fresh process that holds one loader and draws batches when told to.

    Args:
        make: Gives the batches; called in the process, which must be able to import it.
    """

    def __init__(self, make: Maker) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make))
        self._process.start()
        theirs.close()
        self._answer()

    def draw(self, batches: int) -> Cost:
        """Draw so many batches."""
        self._pipe.send((batches, 0.0))
        return self._answer()

    def draw_for(self, seconds: float) -> Cost:
        """Draw batches for so long, after a quarter of it that does not count."""
        self._pipe.send((0, seconds))
        return self._answer()

    def close(self) -> None:
        self._pipe.close()  # the process ends when it finds nobody at the other end
        self._process.join(timeout=20)
        if self._process.is_alive():
            self._process.kill()

    def _answer(self) -> Cost:
        if not self._pipe.poll(PATIENCE):
            raise TimeoutError("a loader gave no batches in time")
        return Cost(*self._pipe.recv())


@contextmanager
def running(makers: Mapping[Name, Maker]) -> Iterator[dict[Name, Runner]]:
    """Yield a runner per name, and end them all."""
    runners: dict[Name, Runner] = {}
    try:
        for name, make in makers.items():
            runners[name] = Runner(make)
        yield runners
    finally:
        for runner in runners.values():
            runner.close()


def _serve(pipe: Connection, make: Maker) -> None:
    import torch

    torch.set_num_threads(1)
    batches = make()
    next(batches)
    pipe.send((0.0, 0.0))
    try:
        while pipe.poll(PATIENCE):
            count, seconds = pipe.recv()
            if seconds:
                _draw(batches, 0, seconds / 4)
            below, own, wall = cpu_below(), time.process_time(), time.perf_counter()
            count = _draw(batches, count, seconds)
            wall, cpu = time.perf_counter() - wall, time.process_time() - own
            cpu += cpu_below() - below  # asking takes milliseconds: it stays outside of both
            pipe.send((wall / count * 1e6, cpu / count * 1e6))
    except EOFError:  # the benchmark is done with it
        batches.close()


def _draw(batches: Iterator[Any], count: int, seconds: float) -> int:
    """Draw ``count`` batches, or as many as come in ``seconds``; gives their number."""
    if count:
        for _ in range(count):
            next(batches)
        return count
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or not count:
        next(batches)
        count += 1
    return count


def cpu_seconds() -> float:
    """Return the CPU time of this process, and on Linux of its descendants as they are now."""
    return time.process_time() + cpu_below()


def cpu_below() -> float:
    """Return the CPU time of the descendants of this process as they are now, on Linux; else 0."""
    spent = 0.0
    for pid in descendants(os.getpid()):
        try:
            spent += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
        except (OSError, IndexError):  # it ended meanwhile, or the kernel does not say
            continue
    return spent


def descendants(pid: int) -> list[int]:
    """Return the processes below one; on Linux, elsewhere none."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = path.read_text().rpartition(")")[2]
        except OSError:  # it ended meanwhile
            continue
        parents.setdefault(int(after_name.split()[1]), []).append(int(path.parent.name))
    found, waiting = [], [pid]
    while waiting:
        below = parents.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def spread(values: list[float], form: str = "{:.0f}") -> str:
    """Write the median [least..most] of interleaved rounds."""
    shown = [form.format(value) for value in (statistics.median(values), min(values), max(values))]
    return f"{shown[0]} [{shown[1]}..{shown[2]}]"


def machine() -> str:
    """Say what this was measured on, in one line."""
    import torch

    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    load = f", load {os.getloadavg()[0]:.1f}" if sys.platform != "win32" else ""
    return (
        f"{platform.machine()}, {cores} cores{load}; python {platform.python_version()}, torch "
        f"{torch.__version__}, numpy {np.__version__}"
    )
