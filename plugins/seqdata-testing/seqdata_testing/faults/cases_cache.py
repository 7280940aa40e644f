"""Cases C2 to C8: faults of the cache of remote files; each must prove that it happened."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from seqdata.errors import ConfigError
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Fixed
from seqdata.protocols import Store
from seqdata.storage.remote.options import Remote
from seqdata_testing.faults import network, processes
from seqdata_testing.faults import outcome as outcomes
from seqdata_testing.faults.children import capture_stderr
from seqdata_testing.faults.fault_case import FaultCase, Try
from seqdata_testing.faults.outcome import WHOLE, Expectation, Outcome
from seqdata_testing.faults.reading import play_through, read_through
from seqdata_testing.faults.targets import FaultTarget
from seqdata_testing.faults.try_damage import loader_of
from seqdata_testing.faults.try_remote import open_url, write_dataset
from seqdata_testing.waiting import patient, until

EVICTED, HALF, REMOVED = "file evicted", "kill in the middle of a file", "folder removed"
DROPPED, BY_RANGES, LOCKLESS = "copy dropped", "no room, read by ranges", "lock refused"
"""Events that show that a fault happened."""
_LOG_WORDS = {
    EVICTED: "removed from the cache", DROPPED: "is damaged and was dropped",
    BY_RANGES: "The others are read by ranges",
}  # fmt: skip
_PATIENCE = 60.0  # seconds that a process may take
_ENOUGH = 64 << 20
_CRAWL = 10_000  # bytes per second: a shard takes longer than the wait before the kill
_MANY = 8  # sequences of a batch
_MAPS = Path("/proc/self/maps")


class _EventCounter(logging.Handler):
    """Log handler that counts the events of ``_LOG_WORDS``."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.seen: dict[str, int] = dict.fromkeys(_LOG_WORDS, 0)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        for event, words in _LOG_WORDS.items():
            self.seen[event] += words in text


@contextmanager
def _count_events() -> Iterator[dict[str, int]]:
    """Yield event -> count; events in the log of this process are counted within the block."""
    log, handler = logging.getLogger("seqdata.remote"), _EventCounter()
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield handler.seen
    finally:
        log.removeHandler(handler)


def race_for_cache(target: FaultTarget, rounds: int) -> list[Outcome]:
    """Play a store in two processes through one empty cache that is too small for it.

    A file that was removed while it was read is found as a mapping of a deleted file.
    """
    _, root = write_dataset(target)
    most = _compute_room(target, root)
    found = []
    with network.served(network.folder_of(root)) as server:
        for number in range(rounds):
            cache = Path(f"cache-{number}").resolve()
            both = [_start_player(target, server.url, cache, most) for _ in range(2)]
            found += [_receive_outcome(*run) for run in both]
    return found


def kill_while_filling(target: FaultTarget, runs: int) -> list[Outcome]:
    """Kill a process while it writes a file to the cache; then read through this cache."""
    sequences, root = write_dataset(target)
    random, found = Random(0), []
    with network.served(network.folder_of(root)) as server:
        for number in range(runs):
            remote = _remote(Path(f"cache-{number}").resolve())
            server.fault, server.hits = network.slow(_CRAWL), target.hits
            filler, _ = _start_player(
                target, server.url, Path(f"cache-{number}").resolve(), _ENOUGH
            )
            instant = random.random() * 0.1
            until(partial(_is_stopped_in_a_file, filler.pid or 0, remote.folder, instant))
            processes.kill(filler.pid or 0)
            filler.join(timeout=patient(_PATIENCE))
            half = len(_list_half_files(remote.folder))
            server.fault = None
            came = read_through(partial(open_url, target, server.url, remote), sequences)
            left = tuple(f"{name} in the cache" for name in _list_half_files(remote.folder))
            found.append(replace(came, happened={HALF: half}, left=(*came.left, *left)))
    return found


def _is_stopped_in_a_file(pid: int, folder: Path, seconds: float) -> bool:
    """Stop a process ``seconds`` after a file began; continue it if that file has ended by then."""
    if not _has_half_files(folder):
        return False
    time.sleep(seconds)
    processes.kill(pid, signal.SIGSTOP)
    stopped = until(lambda: processes.is_stopped(pid)) and _has_half_files(folder)
    if not stopped:
        processes.kill(pid, signal.SIGCONT)
    return stopped


def damage_cache(target: FaultTarget, workers: int) -> list[Outcome]:
    """Read a store through a cache, damage a cached copy, play the store, and read it again."""
    sequences, root = write_dataset(target)
    remote = _remote(Path("cache").resolve())
    with network.served(network.folder_of(root)) as server:
        open_it = partial(open_url, target, server.url, remote)
        before = read_through(open_it, sequences)
        sizes = {(root / name).stat().st_size for name in target.shards(root)}
        path = next(path for path in remote.folder.iterdir() if path.stat().st_size in sizes)
        path.write_bytes(bytes(255 - byte for byte in path.read_bytes()))
        with capture_stderr(Path("printed")) as file:
            found = play_through(partial(loader_of, open_it, workers), sequences)
        dropped = file.read_text().count(_LOG_WORDS[DROPPED])
        after = read_through(open_it, sequences)
        left = () if after.what == WHOLE else ("damage that the next opening meets, too",)
        return [before, replace(found, happened={DROPPED: dropped}), replace(after, left=left)]


def remove_cache(target: FaultTarget, workers: int) -> list[Outcome]:
    """Play a store, and remove the folder of the cache after each batch."""
    sequences, root = write_dataset(target)
    remote = _remote(Path("cache").resolve())
    gone = []

    def remove(_: int) -> None:
        gone.append(remote.folder.exists())
        shutil.rmtree(remote.folder, ignore_errors=True)

    with network.served(network.folder_of(root)) as server:
        open_it = partial(open_url, target, server.url, remote)
        found = play_through(partial(loader_of, open_it, workers), sequences, each=remove)
    return [replace(found, happened={REMOVED: sum(gone)})]


def overfill_cache(target: FaultTarget, shards: int, workers: int) -> list[Outcome]:
    """Iterate over shuffled batches that need more shards than the cache holds; return outcomes."""
    sequences, root = write_dataset(target)
    sizes = sorted((root / name).stat().st_size for name in target.shards(root))
    others = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) - sum(sizes)
    remote = _remote(Path("cache").resolve(), others + shards * sizes[len(sizes) // 2])
    with network.served(network.folder_of(root)) as server, capture_stderr(Path("printed")) as file:
        open_it = partial(open_url, target, server.url, remote)
        found = play_through(partial(_make_shuffled_loader, open_it, workers), sequences)
        read_by_ranges = file.read_text().count(_LOG_WORDS[BY_RANGES])
    return [replace(found, happened={BY_RANGES: read_by_ranges})]


def share_folder(target: FaultTarget) -> list[Outcome]:
    """Play a store through a small cache in a folder with older files of the user."""
    sequences, root = write_dataset(target)
    mine = Path("mine").resolve()
    mine.mkdir()
    for name in ("thesis.txt", "0" * 64, "part-00000.arrow"):
        (mine / name).write_bytes(name.encode() * 1000)
        os.utime(mine / name, ns=(0, 0))
    before = {path.name: path.read_bytes() for path in mine.iterdir()}
    remote = _remote(mine, _compute_room(target, root))
    with network.served(network.folder_of(root)) as server, _count_events() as seen:
        open_it = partial(open_url, target, server.url, remote)
        found = play_through(partial(loader_of, open_it, 0), sequences)
    after = {path.name: path.read_bytes() for path in mine.iterdir() if path.is_file()}
    wrong = tuple(name for name in before if after.get(name) != before[name])
    left = tuple(f"{name} of the user's changed or gone" for name in wrong)
    return [replace(found, happened=dict(seen), left=(*found.left, *left))]


def read_without_locks(target: FaultTarget) -> list[Outcome]:
    """Read through a cache on a file system without locks, once for each error number."""
    sequences, root = write_dataset(target)
    found = []
    with network.served(network.folder_of(root)) as server:
        open_it = partial(open_url, target, server.url, _remote(Path("cache").resolve()))
        for number in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            with refuse_locks(number) as refused:
                came = read_through(open_it, sequences)
            found.append(replace(came, happened={LOCKLESS: len(refused)}))
    return found


def write_without_locks(target: FaultTarget) -> list[Outcome]:
    """Write on a file system without locks, after a writer was killed in the same folder."""
    sequences, root = target.dataset(), Path("data").resolve()
    found = []
    for number in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
        shutil.rmtree(root, ignore_errors=True)
        with refuse_locks(number) as refused:
            context = multiprocessing.get_context("fork")
            writer = context.Process(target=target.write, args=(root, sequences))
            writer.start()
            until(root.exists)
            processes.kill(writer.pid or 0)
            writer.join(timeout=patient(_PATIENCE))
            came = read_through(partial(_write_again, target, root, sequences), sequences)
        found.append(replace(came, happened={LOCKLESS: len(refused)}))
    return found


def _write_again(target: FaultTarget, root: Path, sequences: Sequence[Mapping[str, Any]]) -> Store:
    with suppress(ConfigError):  # the one that was ended had come to its end
        target.write(root, sequences)
    return target.open(root, target.verify[-1])


@contextmanager
def refuse_locks(number: int) -> Iterator[list[int]]:
    """Make every file lock fail within the block, as on a file system without locks.

    Args:
        number: Error number of the failure.

    Yields:
        Kinds of the locks that were refused so far.
    """
    refused: list[int] = []

    def flock(descriptor: int, kind: int) -> None:
        refused.append(kind + 0 * descriptor)
        raise OSError(number, os.strerror(number))

    with mock.patch("fcntl.flock", flock):
        yield refused


def _remote(cache: Path, most: int = _ENOUGH) -> Remote:
    return Remote(cache_dir=cache, cache_bytes=most)


def _compute_room(target: FaultTarget, root: Path) -> int:
    """Return the size in bytes of all other files, the largest shard, and a third of the rest."""
    largest = max((root / name).stat().st_size for name in target.shards(root))
    shards = sum((root / name).stat().st_size for name in target.shards(root))
    files = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    return files - shards + largest + (shards - largest) // 3


def _make_shuffled_loader(open_it: Callable[[], Store], workers: int) -> Loader:
    return Loader(open_it(), Fixed(_MANY), seed=0, num_workers=workers)


def _has_half_files(folder: Path) -> bool:
    return bool(_list_half_files(folder))


def _list_half_files(folder: Path) -> Sequence[str]:
    return [path.name for path in folder.glob("*.part")]


def _start_player(target: FaultTarget, url: str, cache: Path, most: int) -> tuple[Any, Any]:
    context = multiprocessing.get_context("fork")
    mine, its = context.Pipe(duplex=False)
    process = context.Process(target=_play, args=(its, target, url, cache, most))
    process.start()
    its.close()
    return process, mine


def _play(connection: Any, target: FaultTarget, url: str, cache: Path, most: int) -> None:
    remote = _remote(cache, most)
    lost: list[str] = []

    def look(_: int) -> None:
        if _MAPS.exists():
            lines = _MAPS.read_text().splitlines()
            lost.extend(
                line for line in lines
                if str(remote.folder) in line and line.endswith("(deleted)")
            )  # fmt: skip

    with _count_events() as seen:
        open_it = partial(open_url, target, url, remote)
        found = play_through(partial(loader_of, open_it, 0), target.dataset(), each=look)
    left = ("a file that was removed while it was read",) if lost else ()
    connection.send(replace(found, happened=dict(seen), left=(*found.left, *left)))


def _receive_outcome(process: Any, connection: Any) -> Outcome:
    answer = Outcome(what=outcomes.STUCK, text="a reader", seconds=_PATIENCE)
    if connection.poll(patient(_PATIENCE)):
        answer = connection.recv()
    process.join(timeout=patient(_PATIENCE))
    return answer


_NO_HARM = Expectation(kinds=(WHOLE,), seconds=30.0)
_DROPPED = Expectation(
    kinds=(WHOLE, "CorruptSampleError"), texts=("a copy in the cache", "Open the store again"),
    seconds=30.0, happened={DROPPED: 1},
)  # fmt: skip
_LOCKLESS = Expectation(
    kinds=("CacheError",), details=("file",), texts=("has no locks", "Remote(cache_dir=...)"),
    happened={LOCKLESS: 1},
)  # fmt: skip


def cases(target: FaultTarget, runs: int) -> list[FaultCase]:
    """Return the cases of the cache.

    Args:
        target: Dataset to serve.
        runs: Number of random instants at which a process is killed.
    """
    pairs = max(1, runs // 2)
    found = [
        _case("C2", target, f"two processes, {pairs} times", EVICTED, pairs,
              partial(race_for_cache, target, pairs), runs),
        _case("C3", target, f"killed at {runs} instants", HALF, runs,
              partial(kill_while_filling, target, runs), runs),
    ]  # fmt: skip
    for workers in (0, 2):
        way = f"workers {workers}"
        tries = partial(damage_cache, target, workers)
        found.append(replace(_case("C4", target, way, DROPPED, 1, tries), must=_DROPPED))
        tries = partial(remove_cache, target, workers)
        found.append(_case("C5", target, way, REMOVED, 2, tries))
        for shards in (1, 3):
            room_way = f"{way}, room for {shards} of 8"
            tries = partial(overfill_cache, target, shards, workers)
            found.append(_case("C6", target, room_way, BY_RANGES, 1, tries))
    found.append(_case("C7", target, "a folder", EVICTED, 2, partial(share_folder, target)))
    lockless = _case(
        "C8",
        target,
        "no flock",
        LOCKLESS,
        1,
        partial(read_without_locks, target),
    )
    return [*found, replace(lockless, must=_LOCKLESS)]


def _case(
    fault: str, target: FaultTarget, way: str, event: str, least: int, tries: Try, runs: int = 0
) -> FaultCase:
    slow = "workers 2" in way or "room for 3" in way
    return FaultCase(
        fault=fault, way=f"{target.name} remote, {way}", tries=tries,
        must=replace(_NO_HARM, happened={event: least}), quick=not slow,
        bound=min(560.0, 60.0 + 3 * runs),
    )  # fmt: skip
