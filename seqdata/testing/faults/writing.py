"""Tries what happens to a writer: it is stopped, what it left is read, and another one goes on.

Place in the flow: the matrix's rows V1 to V3. Writes: data sets in the present folder. Makes:
outcomes.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from seqdata.testing.faults import limits, processes
from seqdata.testing.faults import outcome as outcomes
from seqdata.testing.faults.outcome import Outcome, of_error
from seqdata.testing.faults.reading import read_through
from seqdata.testing.faults.subject import Subject
from seqdata.testing.waiting import patient

_PATIENCE = 30.0  # seconds that a writer may take
_LITTLE = 100_000  # bytes: less than the largest shard
_ENOUGH = 64 << 20


def stopped(subject: Subject, number: int, instants: int) -> list[Outcome]:
    """Stop a writer by a signal at random instants; after each, read, write again, and compare.

    Args:
        subject: What is written.
        number: The signal.
        instants: How often.
    """
    given = subject.dataset()
    began = time.monotonic()
    due = _written(subject, Path("due"), given)
    seconds = time.monotonic() - began
    context = multiprocessing.get_context("fork")
    random = Random(number)
    found = []
    for i in range(instants):
        root = Path(str(i)).resolve()
        writer = context.Process(target=subject.write, args=(root, given))
        writer.start()
        time.sleep(random.random() * seconds)
        processes.kill(writer.pid or 0, number)
        writer.join(timeout=patient(_PATIENCE))
        found += _gone_on(subject, root, given, due)
    return found


def without_room(subject: Subject, disk: bool) -> list[Outcome]:
    """Write until there is no room; read, make room, write again, and compare.

    Args:
        subject: What is written.
        disk: Whether a disk is full, or only a file as large as it may be.
    """
    given = subject.dataset()
    due = _written(subject, Path("due"), given)
    folder = Path("disk")
    folder.mkdir()
    try:
        room = _small(folder) if disk else limits.small_files(_LITTLE)
    except limits.Unavailable as error:
        return [Outcome(what=outcomes.UNAVAILABLE, text=str(error))]
    root = (folder / "data").resolve()
    began = time.monotonic()
    try:
        subject.write(root, given)
        refused = Outcome(what=outcomes.WRONG, text="there was room for all")
    except Exception as error:
        refused = of_error(error, seconds=time.monotonic() - began)
    room()
    return [refused, *_gone_on(subject, root, given, due)]


def _small(folder: Path) -> Callable[[], None]:
    return partial(limits.full_disk(folder, _LITTLE), _ENOUGH)


def _gone_on(
    subject: Subject, root: Path, given: Sequence[Mapping[str, Any]], due: dict[str, bytes]
) -> list[Outcome]:
    """Read what a writer left, write again, and say whether all is as it would have been."""
    found = []
    if root.exists() and any(root.iterdir()):
        found.append(read_through(partial(subject.open, root, subject.verify[-1]), given))
    try:
        if not found or found[0].what != outcomes.WHOLE:
            subject.write(root, given)
    except Exception as error:
        return [*found, of_error(error, seconds=0.0)]
    different = _different(due, _content(root))
    what = outcomes.WRONG if different else outcomes.WHOLE
    return [*found, Outcome(what=what, text=different)]


def _written(subject: Subject, root: Path, given: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    subject.write(root.resolve(), given)
    return _content(root)


def _content(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}


def _different(due: dict[str, bytes], found: dict[str, bytes]) -> str:
    names = sorted(name for name in due.keys() | found.keys() if due.get(name) != found.get(name))
    return f"not as if nothing had happened: {', '.join(names)}" if names else ""
