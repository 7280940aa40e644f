"""Observation of the system calls by which a writer changes a folder.

``announce_calls`` reports each call before it is made. ``Disk`` records which bytes and names have
been flushed, and so survive a loss of power.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CALLS = ("fsync", "replace", "rename", "unlink")
OnCall = Callable[[int, str, tuple[Any, ...]], None]
"""``on_call(number, name, arguments)`` is called before each call; numbers count from 0."""
State = Mapping[str, bytes | None]
"""Content of a disk: relative path -> content; None: a folder."""


@contextmanager
def announce_calls(on_call: OnCall) -> Iterator[None]:
    """Within the block, report every call of this process that changes a folder."""
    numbers, before = itertools.count(), {name: getattr(os, name) for name in CALLS}
    for name, function in before.items():
        setattr(os, name, functools.partial(_announce_call, function, name, numbers, on_call))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(os, name, function)


def _announce_call(
    function: Callable[..., Any], name: str, numbers: Iterator[int], on_call: OnCall,
    *arguments: Any, **options: Any,
) -> Any:  # fmt: skip
    on_call(next(numbers), name, arguments)
    return function(*arguments, **options)


@dataclass(slots=True)
class Disk:
    """Part of a folder that has been flushed, and so survives a loss of power.

    Bytes survive as of the last ``fsync`` of their file, names as of the last ``fsync`` of their
    folder. A file system may keep more: ``find_remains`` returns both extremes.

    Attributes:
        base: The folder, which is empty at first, and whose own name survives.
    """

    base: Path
    _bytes: dict[int, bytes] = field(default_factory=dict)
    _names: dict[int, dict[str, int]] = field(default_factory=dict)
    _folders: set[int] = field(default_factory=set)
    _descriptors: list[int] = field(default_factory=list)  # so that no number is used again

    def note(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Record a call; an ``fsync`` makes bytes or names survive."""
        if name != "fsync":
            return
        about = os.fstat(arguments[0])
        opened = Path(f"/proc/self/fd/{arguments[0]}")  # for reading, too
        self._descriptors.append(os.open(opened, os.O_RDONLY | os.O_CLOEXEC))
        if not stat.S_ISDIR(about.st_mode):
            self._bytes[about.st_ino] = opened.read_bytes()
            return
        self._folders.add(about.st_ino)
        self._names[about.st_ino] = {
            entry.name: self._number(entry) for entry in os.scandir(opened)
        }

    def _number(self, entry: os.DirEntry[str]) -> int:
        if entry.is_dir(follow_symlinks=False):
            self._folders.add(entry.inode())
        return entry.inode()

    def find_remains(self) -> list[State]:
        """Return possible states after a loss of power: with all names, or only flushed names."""
        named: dict[str, bytes | None] = {}
        for path in sorted(self.base.rglob("*")):
            with contextlib.suppress(FileNotFoundError):  # another thread writes, too
                content = None if path.is_dir() else self._bytes.get(path.stat().st_ino, b"")
                named[str(path.relative_to(self.base))] = content
        return [named, dict(self._safe(self.base.stat().st_ino, ""))]

    def _safe(self, folder: int, above: str) -> Iterator[tuple[str, bytes | None]]:
        for name, number in self._names.get(folder, {}).items():
            path = f"{above}{name}"
            if number in self._folders:
                yield path, None
                yield from self._safe(number, f"{path}/")
            else:
                yield path, self._bytes.get(number, b"")

    def close(self) -> None:
        """Close the files that were kept open."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def lay_out(state: State, folder: Path) -> None:
    """Write the files of a state into a folder."""
    for name, content in state.items():
        path = folder / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
