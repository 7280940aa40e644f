"""Trials of faults of remote data: of the network, and of the disk of the cache.

The dataset is served by a web server of this process, whose answers can be made to fail.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from seqdata.errors import ConfigError
from seqdata.loading.options import OnError
from seqdata.protocols import Store
from seqdata.storage.remote.options import Remote
from seqdata_testing.faults import damage, limits, network
from seqdata_testing.faults import outcome as outcomes
from seqdata_testing.faults.children import capture_stderr
from seqdata_testing.faults.on_error import play_on_error
from seqdata_testing.faults.outcome import Outcome
from seqdata_testing.faults.reading import play_through, read_through
from seqdata_testing.faults.targets import FaultTarget
from seqdata_testing.faults.try_damage import loader_of

TRIED = 2.0  # seconds that a read is tried
STALL = 1.5  # seconds of one try
RETRY, CHANGED, FULL = "logged retry", "body of other bytes", "refusal for want of room"
"""Events that show that a fault happened."""
_AGAIN = re.compile(rb"attempt \d+ failed, retry in")
_PATIENCE = 60.0  # seconds that a process may take
_LITTLE = 20_000  # bytes: less than the largest shard
_ENOUGH = 64 << 20


def served_target(target: FaultTarget, mode: str) -> FaultTarget:
    """Return a target that opens a dataset behind a web server, each time with an empty cache."""
    open_it = partial(_open_served, target, mode)
    return replace(target, name=f"{target.name} remote, {mode}", open=open_it)


def open_url(target: FaultTarget, url: str, remote: Remote, verify: str = "first_read") -> Store:
    """Open a dataset that is served.

    Raises:
        ConfigError: If the target is only local.
    """
    if target.served is None:
        raise ConfigError(f"faults: {target.name!r} must have `served`, which opens a URL, but has "
                          "none. "
        "Define it")  # fmt: skip
    return target.served(url, verify, remote)


def _open_served(target: FaultTarget, mode: str, folder: Path, verify: str) -> Store:
    with ExitStack() as stack:
        cache = stack.enter_context(tempfile.TemporaryDirectory(prefix="cache-", dir="."))
        server = stack.enter_context(network.served(network.folder_of(folder)))
        store = open_url(target, server.url, _remote(mode, Path(cache).resolve()), verify)
        weakref.finalize(store, stack.pop_all().close)
    return store


def _remote(mode: str, cache: Path, most: int = _ENOUGH) -> Remote:
    """Return the options for a cache."""
    return Remote(how=mode, cache_dir=cache, cache_bytes=most)


def play_failing(
    target: FaultTarget, mode: str, workers: int, fault: Callable[[], network.Fault], passes: bool
) -> list[Outcome]:
    """Play a remote store whose shards meet a fault of the network after it was opened.

    Args:
        target: Dataset to play.
        mode: ``cache`` or ``ranges``.
        workers: Number of workers of the loader.
        fault: Function that returns the fault.
        passes: Whether the fault passes after some time; otherwise reads are only retried for a
            short time.
    """
    with open_served(target, mode, passes=passes) as (sequences, _, server, store):
        server.fault, server.hits = fault(), target.hits
        with capture_stderr(Path("printed")) as file:
            found = play_through(partial(loader_of, lambda: store, workers), sequences)
        retries = len(_AGAIN.findall(file.read_bytes()))
        return [replace(found, happened={RETRY: retries})]


def play_replaced(target: FaultTarget, mode: str, workers: int, policy: OnError) -> list[Outcome]:
    """Play a remote store whose shards are replaced by others of equal size when they are read.

    Args:
        target: Dataset to play.
        mode: ``cache`` or ``ranges``.
        workers: Number of workers of the loader.
        policy: The loader's ``on_error``.
    """
    with open_served(target, mode) as (sequences, root, server, store):
        copy = shutil.copytree(root, "other")
        for name, at, size in target.values(root):
            damage.invert(Path(copy, name), at, size)
        fault = network.Replaced(network.folder_of(Path(copy).resolve()))
        server.fault, server.hits = fault, target.hits
        play = play_through if policy == "raise" else play_on_error
        found = play(partial(loader_of, lambda: store, workers, policy), sequences)
        return [replace(found, happened={CHANGED: fault.changed})]


@contextmanager
def open_served(
    target: FaultTarget, mode: str, *, passes: bool = True
) -> Iterator[tuple[list[dict[str, Any]], Path, network.Served, Store]]:
    """Write a dataset into the current folder, and serve it until the end of the block.

    The dataset has been opened once, so that its small files are in the cache.

    Args:
        target: Dataset to write.
        mode: ``cache`` or ``ranges``.
        passes: Whether reads are retried for the default time; otherwise for a short time.

    Yields:
        The sequences, the folder of the dataset, the server, and the opened store.
    """
    sequences, root = write_dataset(target)
    with network.served(network.folder_of(root)) as server:
        remote = _remote(mode, Path("cache").resolve())
        open_url(target, server.url, remote)
        if not passes:
            remote = replace(remote, retry_seconds=TRIED, stall_seconds=STALL)
        yield sequences, root, server, open_url(target, server.url, remote)


def write_dataset(target: FaultTarget) -> tuple[list[dict[str, Any]], Path]:
    """Write the dataset into the current folder; return its sequences and its folder."""
    root, sequences = Path("data").resolve(), target.dataset()
    target.write(root, sequences)
    return sequences, root


def read_without_room(target: FaultTarget, disk: bool) -> list[Outcome]:
    """Read through a cache without room on its disk, then make room and read again.

    Args:
        target: Dataset to read.
        disk: Whether the disk is full; otherwise the size of files is limited.
    """
    sequences, root = write_dataset(target)
    cache = Path("cache").resolve()
    cache.mkdir()
    with network.served(network.folder_of(root)) as server:
        open_it = partial(open_url, target, server.url, _remote("cache", cache))
        try:
            size = _LITTLE
            room = limits.full_disk(cache, size) if disk else limits.small_files(size)
        except limits.Unavailable as error:
            return [Outcome(what=outcomes.UNAVAILABLE, text=str(error))]
        refused = read_through(open_it, sequences)
        refused = replace(refused, happened={FULL: int(refused.what == outcomes.ERROR)})
        _undo(room)
        return [refused, read_through(open_it, sequences)]


def _undo(room: Callable[..., None]) -> None:
    try:
        room(_ENOUGH)
    except TypeError:  # what a limit gives takes nothing
        room()
