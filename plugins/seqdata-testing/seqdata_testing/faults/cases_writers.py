"""Cases V1 to V5 and X2: interrupted writers, and limits of the system."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from seqdata_testing.faults import cases_cache, limits, processes
from seqdata_testing.faults import outcome as outcomes
from seqdata_testing.faults.calls import Disk, State, announce_calls, lay_out
from seqdata_testing.faults.fault_case import FaultCase
from seqdata_testing.faults.outcome import WHOLE, Expectation, Outcome, of_error
from seqdata_testing.faults.reading import play_through, read_through
from seqdata_testing.faults.targets import FaultTarget
from seqdata_testing.faults.try_damage import loader_of
from seqdata_testing.waiting import patient

Limit = Callable[[int], Callable[[], None]]


def play_limited(
    target: FaultTarget, workers: int, limit: Limit, values: Sequence[int]
) -> list[Outcome]:
    """Open and play under one limit after the other.

    Args:
        target: Dataset to play.
        workers: Number of workers of the loader.
        limit: Sets the limit, and returns the function that removes it.
        values: Values of the limit.
    """
    open_it, sequences = _write_dataset(target, workers)
    found = [play_through(open_it, sequences)]  # whatever is needed once is there
    for value in values:
        undo = limit(value)
        try:
            played = play_through(open_it, sequences)
        finally:
            undo()
        late = [f"an error after {played.delivered} batches"] if played.delivered else []
        left = late if played.what == outcomes.ERROR else []
        found.append(replace(played, left=(*played.left, *left)))
    return found


def play_with_little_shared(target: FaultTarget, workers: int, size: int) -> list[Outcome]:
    """Play with a small /dev/shm.

    Args:
        target: Dataset to play.
        workers: Number of workers of the loader.
        size: Its size in bytes.
    """
    try:
        limits.small_shared(size)
    except limits.Unavailable as error:
        return [Outcome(what=outcomes.UNAVAILABLE, text=str(error))]
    open_it, sequences = _write_dataset(target, workers)
    return [play_through(open_it, sequences)]


def _write_dataset(
    target: FaultTarget, workers: int
) -> tuple[Callable[[], Any], list[dict[str, Any]]]:
    root, sequences = Path("data").resolve(), target.dataset()
    target.write(root, sequences)
    return partial(loader_of, partial(target.open, root, target.verify[-1]), workers), sequences


_PATIENCE = 30.0  # seconds that a writer may take
STOPPED = "kill between two calls of a writer"
NOTHING = "nothing is there"
LOST = "loss of power before or after a call"
_LITTLE = 100_000  # bytes: less than the largest shard
_ENOUGH = 64 << 20


def stop_writer(target: FaultTarget, number: int, instants: int) -> list[Outcome]:
    """Stop a writer with a signal between two calls, at random points.

    After each stop the dataset is read, written again and compared.

    Args:
        target: Dataset to write.
        number: Number of the signal.
        instants: Number of points at which to stop.
    """
    sequences = target.dataset()
    calls = [0]
    with announce_calls(lambda at, *_: calls.append(at)):
        due = _write(target, Path("due"), sequences)
    context = multiprocessing.get_context("fork")
    chosen = Random(number).sample(range(max(calls) + 1), min(instants, max(calls) + 1))
    found: list[Outcome] = []
    for at in sorted(chosen):
        root = Path(str(at)).resolve()
        writer = context.Process(target=_write_until, args=(target, root, sequences, at, number))
        writer.start()
        writer.join(timeout=patient(_PATIENCE))
        first, *rest = _read_and_write_again(target, root, sequences, due)
        found += [replace(first, happened={STOPPED: int(writer.exitcode == -number)}), *rest]
    return found


def _write_until(
    target: FaultTarget, root: Path, sequences: Sequence[Mapping[str, Any]], last: int, number: int
) -> None:
    """Write, and send this process a signal before one of the calls."""

    def stop_at_last(at: int, *_: Any) -> None:
        if at == last:
            processes.kill(os.getpid(), number)

    with announce_calls(stop_at_last):
        target.write(root, sequences)


def lose_power(target: FaultTarget, instants: int) -> list[Outcome]:
    """Simulate a loss of power before each call of a writer, and at its end; read the remains.

    Args:
        target: Dataset to write.
        instants: Number of remains that another writer resumes.
    """
    sequences = target.dataset()
    base = Path("power").resolve()
    base.mkdir()
    disk, states, lock = Disk(base), list[State](), threading.Lock()

    def note_call(_: int, name: str, arguments: tuple[Any, ...]) -> None:
        with lock:  # shards are written in threads
            states.extend(disk.find_remains())
            disk.note(name, arguments)

    with announce_calls(note_call):
        due = _write(target, base / "data", sequences)
    last = disk.find_remains()
    disk.close()
    some = [state for i, state in enumerate(states) if state not in (*states[:i], *last)]
    again = Random(0).sample(range(len(some)), min(instants, len(some)))
    read_state = partial(_read_after_power_loss, target, sequences, due)
    found = [read_state(state, again=i in again) for i, state in enumerate(some)]
    for state in last:
        outcome = read_state(state, again=False)
        if outcome.what != outcomes.WHOLE or outcome.text == NOTHING:
            text = f"what was written to its end is not there any more: {outcome.text}"
            outcome = replace(outcome, what=outcomes.WRONG, kinds=(), text=text)
        found.append(outcome)
    return found


def _read_after_power_loss(
    target: FaultTarget, sequences: Sequence[Mapping[str, Any]], due: dict[str, bytes],
    state: State, *, again: bool,
) -> Outcome:  # fmt: skip
    """Read the remains of a loss of power; with ``again``, write again as well."""
    folder = Path(tempfile.mkdtemp(dir=Path.cwd()))
    lay_out(state, folder)
    root, lost = folder / "data", {LOST: 1}
    if again:
        *_, last = found = _read_and_write_again(target, root, sequences, due)
        worst = next((outcome for outcome in found if outcome.what in outcomes.SILENT), last)
        return replace(worst, happened=lost)
    if not root.exists() or not any(root.iterdir()):
        return Outcome(what=outcomes.WHOLE, text=NOTHING, happened=lost)
    read = read_through(partial(target.open, root, target.verify[-1]), sequences)
    return replace(read, happened=lost)


def write_without_room(target: FaultTarget, disk: bool) -> list[Outcome]:
    """Write until there is no room; read, make room, write again, and compare.

    Args:
        target: Dataset to write.
        disk: Whether the disk is full; otherwise the size of files is limited.
    """
    sequences = target.dataset()
    due = _write(target, Path("due"), sequences)
    folder = Path("disk")
    folder.mkdir()
    try:
        room = _limit_disk(folder) if disk else limits.small_files(_LITTLE)
    except limits.Unavailable as error:
        return [Outcome(what=outcomes.UNAVAILABLE, text=str(error))]
    root = (folder / "data").resolve()
    began = time.monotonic()
    try:
        target.write(root, sequences)
        refused = Outcome(what=outcomes.WRONG, text="there was room for all")
    except Exception as error:
        refused = of_error(error, seconds=time.monotonic() - began)
    room()
    return [refused, *_read_and_write_again(target, root, sequences, due)]


def _limit_disk(folder: Path) -> Callable[[], None]:
    return partial(limits.full_disk(folder, _LITTLE), _ENOUGH)


def _read_and_write_again(
    target: FaultTarget, root: Path, sequences: Sequence[Mapping[str, Any]], due: dict[str, bytes]
) -> list[Outcome]:
    """Read the remains of a writer, write again, and compare with an uninterrupted write."""
    found = []
    if root.exists() and any(root.iterdir()):
        found.append(read_through(partial(target.open, root, target.verify[-1]), sequences))
    try:
        if not found or found[0].what != outcomes.WHOLE:
            target.write(root, sequences)
    except Exception as error:
        return [*found, of_error(error, seconds=0.0)]
    different = _describe_difference(due, _read_contents(root))
    verdict = outcomes.WRONG if different else outcomes.WHOLE
    return [*found, Outcome(what=verdict, text=different)]


def _write(
    target: FaultTarget, root: Path, sequences: Sequence[Mapping[str, Any]]
) -> dict[str, bytes]:
    target.write(root.resolve(), sequences)
    return _read_contents(root)


def _read_contents(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}


def _describe_difference(due: dict[str, bytes], found: dict[str, bytes]) -> str:
    names = sorted(name for name in due.keys() | found.keys() if due.get(name) != found.get(name))
    return f"not as if nothing had happened: {', '.join(names)}" if names else ""


INSTANTS = 20
_QUICK_INSTANTS = 6
_GONE_ON = Expectation(kinds=("IncompleteDatasetError", WHOLE), details=("dataset", "file"))
_NO_ROOM = Expectation(kinds=("IncompleteDatasetError", WHOLE), details=("file",))
_SMALL = 64 << 10  # bytes of shared memory: less than a batch of the longest sequence
_FEW = Expectation(kinds=("DataError", "ConfigError", WHOLE), texts=("ulimit -n",))
_UNMAPPED = Expectation(kinds=("DataError", "ConfigError", WHOLE), texts=("now ",))


def cases(target: FaultTarget, *, quick: bool = False) -> list[FaultCase]:
    """Return the cases of V1 to V5 and X2.

    Args:
        target: Dataset to write.
        quick: Whether each case makes few trials.
    """
    instants = _QUICK_INSTANTS if quick else INSTANTS
    found = [
        FaultCase(
            fault=fault, way=f"{target.name}, by {number.name} at {instants} instants",
            tries=partial(stop_writer, target, number, instants), quick=True,
            must=replace(_GONE_ON, happened={STOPPED: instants}),
        )
        for fault, number in (("V1", signal.SIGKILL), ("V3", signal.SIGTERM))
    ]  # fmt: skip
    found.append(
        FaultCase(
            fault="V5", way=f"{target.name}, before each of its calls, continued {instants} times",
            tries=partial(lose_power, target, instants), quick=True, bound=120,
            must=replace(_GONE_ON, happened={LOST: instants}),
        )
    )  # fmt: skip
    for disk in (False, True):
        way = "a full disk" if disk else "a file that may not grow"
        tries = partial(write_without_room, target, disk)
        found.append(
            FaultCase(
                fault="V2", way=f"{target.name}, {way}", tries=tries, must=_NO_ROOM, quick=not disk
            )
        )
    found.append(
        FaultCase(
            fault="V4", way=f"{target.name}, no flock, on what an ended writer left", quick=True,
            tries=partial(cases_cache.write_without_locks, target),
            must=Expectation(kinds=(WHOLE,), happened={cases_cache.LOCKLESS: 3}),
        )
    )  # fmt: skip
    return found + _make_limit_cases(target)


def make_little_shared_cases(target: FaultTarget) -> list[FaultCase]:
    """Return the cases of X2 that do not limit the process that serves remote data."""
    return [_make_little_shared_case(target, workers) for workers in (0, 2)]


def _make_little_shared_case(target: FaultTarget, workers: int) -> FaultCase:
    return FaultCase(
        fault="X2", way=f"{target.name}, workers {workers}, /dev/shm of {_SMALL >> 10} KiB",
        tries=partial(play_with_little_shared, target, workers, _SMALL),
        must=Expectation(kinds=(WHOLE,)),
    )  # fmt: skip


def _make_limit_cases(target: FaultTarget) -> list[FaultCase]:
    found = []
    for workers in (0, 2):
        way = f"{target.name}, workers {workers}"
        some = range(0, 24, 1 if workers == 0 else 3)
        tries = partial(play_limited, target, workers, limits.few_descriptors, some)
        few = FaultCase(
            fault="X2", way=f"{way}, few descriptors", tries=tries, must=_FEW, quick=workers == 0
        )
        tries = partial(play_limited, target, workers, limits.few_mappings, some)
        little = FaultCase(fault="X2", way=f"{way}, few mappings", tries=tries, must=_UNMAPPED)
        found += [few, little, _make_little_shared_case(target, workers)]
    return found
