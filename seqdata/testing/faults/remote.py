"""Tries what happens to remote data: the network fails, the cache is full, raced for or left half.

The data set is served by a web server of this process, whose answers can be made to fail. Place in
the flow: the matrix's rows S1 to S5 and C1 to C3, and D1 to D9 of remote data. Reads: data sets in
the present folder. Makes: outcomes.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from seqdata.opening.stores import open_store
from seqdata.protocols import Store
from seqdata.storage.remote.options import Remote
from seqdata.testing.faults import limits, network, processes
from seqdata.testing.faults import outcome as outcomes
from seqdata.testing.faults.damaged import loader_of
from seqdata.testing.faults.outcome import Outcome
from seqdata.testing.faults.reading import play_through, read_through
from seqdata.testing.faults.subject import OWN, Subject

RETRY = 2.0  # seconds that a read is tried
STALL = 1.5  # seconds of one try
_PATIENCE = 60.0  # seconds that a process may take
_LITTLE = 20_000  # bytes: less than the largest shard
_ENOUGH = 64 << 20


def remote_subject(how: str) -> Subject:
    """Give stores of ours behind a web server, each time with an empty cache."""
    return replace(OWN, name=f"arrow remote, {how}", open=partial(_open_served, how))


def _open_served(how: str, folder: Path, verify: str) -> Store:
    with ExitStack() as stack:
        cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="cache-", dir="."))
        made = stack.enter_context(network.served(network.folder_of(folder)))
        store = open_store(made.url, verify=verify, remote=_remote(how, Path(cache).resolve()))
        weakref.finalize(store, stack.pop_all().close)
    return store


def _remote(how: str, cache: Path, most: int = _ENOUGH) -> Remote:
    """Give options with time enough for a busy machine."""
    return Remote(how=how, cache_dir=cache, cache_bytes=most)


def failing(
    how: str, workers: int, fault: Callable[[], network.Fault], passes: bool
) -> list[Outcome]:
    """Play a remote store whose shards meet a fault of the network after it was opened.

    Args:
        how: ``cache`` or ``ranges``.
        workers: Processes of the loader.
        fault: Makes the fault.
        passes: Whether it passes if one waits; else reads are given up soon.
    """
    given, root = OWN.dataset(), Path("data").resolve()
    OWN.write(root, given)
    with network.served(network.folder_of(root)) as made:
        remote = _remote(how, Path("cache").resolve())
        open_store(made.url, remote=remote)  # what is small is in the cache from here on
        if not passes:
            remote = replace(remote, retry_seconds=RETRY, stall_seconds=STALL)
        store = open_store(made.url, remote=remote)
        made.fault, made.hits = fault(), ".arrow"
        return [play_through(partial(loader_of, lambda: store, workers), given)]


def without_room(disk: bool) -> list[Outcome]:
    """Read through a cache that has no room on its disk; then through one that has.

    Args:
        disk: Whether the disk is full, or only a file as large as it may be.
    """
    given, root = OWN.dataset(), Path("data").resolve()
    OWN.write(root, given)
    cache = Path("cache").resolve()
    cache.mkdir()
    with network.served(network.folder_of(root)) as made:
        open_it = partial(open_store, made.url, remote=_remote("cache", cache))
        try:
            size = _LITTLE
            room = limits.full_disk(cache, size) if disk else limits.small_files(size)
        except limits.Unavailable as error:
            return [Outcome(what=outcomes.UNAVAILABLE, text=str(error))]
        refused = read_through(open_it, given)
        if refused.what == outcomes.WHOLE:
            refused = replace(refused, what=outcomes.BROKEN, text="there was room for all")
        _undo(room)
        return [refused, read_through(open_it, given)]


def _undo(room: Callable[..., None]) -> None:
    try:
        room(_ENOUGH)
    except TypeError:  # what a limit gives takes nothing
        room()


def raced(rounds: int) -> list[Outcome]:
    """Let two processes read a store through one empty cache that holds only a part of it."""
    given, root = OWN.dataset(), Path("data").resolve()
    OWN.write(root, given)
    sizes = [shard.stat().st_size for shard in root.iterdir()]
    most = max(sizes) * 2 + sum(sizes) // 3
    found = []
    with network.served(network.folder_of(root)) as made:
        for number in range(rounds):
            cache = Path(f"cache-{number}").resolve()
            both = [_reader(made.url, cache, most) for _ in range(2)]
            found += [_ended(*one) for one in both]
    return found


def killed(runs: int) -> list[Outcome]:
    """Kill a process at a random instant while it fills a cache; read through what it left."""
    given, root = OWN.dataset(), Path("data").resolve()
    OWN.write(root, given)
    random, found = Random(0), []
    with network.served(network.folder_of(root)) as made:
        for number in range(runs):
            cache = Path(f"cache-{number}").resolve()
            filler, _ = _reader(made.url, cache, _ENOUGH)
            deadline = time.monotonic() + _PATIENCE
            while not cache.exists() and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(random.random() * 0.3)
            processes.kill(filler.pid or 0)
            filler.join(timeout=_PATIENCE)
            open_it = partial(open_store, made.url, remote=_remote("cache", cache))
            found.append(read_through(open_it, given))
            half = [path.name for path in cache.iterdir() if path.name.endswith(".part")]
            if half and found[-1].what == outcomes.WHOLE:
                found.append(Outcome(what=outcomes.BROKEN, text=f"left behind: {half}"))
    return found


def _reader(url: str, cache: Path, most: int) -> tuple[Any, Any]:
    context = multiprocessing.get_context("fork")
    mine, its = context.Pipe(duplex=False)
    process = context.Process(target=_read, args=(its, url, cache, most))
    process.start()
    its.close()
    return process, mine


def _read(connection: Any, url: str, cache: Path, most: int) -> None:
    given: Sequence[Mapping[str, Any]] = OWN.dataset()
    open_it = partial(open_store, url, remote=_remote("cache", cache, most))
    connection.send(read_through(open_it, given))


def _ended(process: Any, connection: Any) -> Outcome:
    answer = Outcome(what=outcomes.STUCK, text="a reader", seconds=_PATIENCE)
    if connection.poll(_PATIENCE):
        answer = connection.recv()
    process.join(timeout=_PATIENCE)
    return answer
