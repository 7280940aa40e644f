"""Errors in the data that a run goes on from: counted, listed by id, and no more than a cap.

The list is a file of one line of JSON per error, so that it survives a resume and says of each
sequence what was wrong with it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

from seqdata.errors import ConfigError, Fact

MAX_ERRORS = 100
"""Errors in the data that a run may go on from, by default."""

LOG = logging.getLogger("seqdata")
_MAX_TEXT = 2_000  # characters of a message in the list


class ErrorLog:
    """Counts errors, and ends a run that has too many.

    An error that is met again at the same place (a validation that runs every epoch, a batch that
    is made again after a resume) counts and is listed once.

    Args:
        max_errors: How many a run may have.
        path: Where they are listed. None: nowhere.
        count_listed: Whether those that an earlier process has listed there count.

    Raises:
        ConfigError: If ``max_errors`` is no count.
        OSError: If the list cannot be read.
    """

    def __init__(
        self, max_errors: int = MAX_ERRORS, path: Path | None = None, *, count_listed: bool = True
    ) -> None:
        if not isinstance(max_errors, int) or max_errors < 0:
            raise ConfigError(
                f"loader: `max_errors` is {max_errors!r}, must be a whole number from 0"
            )
        self.path = path
        self._max_errors = max_errors
        self._lock = threading.Lock()
        self._entries: list[dict[str, Any]] = [] if path is None else _read_entries(path)
        self._known = {_entry_key(line) for line in self._entries}
        self._counted = set(self._known) if count_listed else set()
        self._elsewhere = 0

    def __len__(self) -> int:
        return len(self._counted) + self._elsewhere

    @property
    def entries(self) -> list[dict[str, Any]]:
        """What was wrong, in order: ``error``, ``message`` and the facts of the place."""
        return list(self._entries)

    def restart(self, elsewhere: int) -> None:
        """Begin to count anew; the list goes on.

        Args:
            elsewhere: Errors that count already: of the run that is resumed.
        """
        with self._lock:
            self._counted.clear()
            self._elsewhere = elsewhere

    def set_elsewhere(self, elsewhere: int) -> None:
        """Take note of how many errors count that are not this process's own."""
        self._elsewhere = elsewhere

    def count_before(self, loader: str, epoch: int, batch: int) -> int:
        """Return how many of this process's errors lie before a batch of a loader's plans."""
        with self._lock:
            keys = list(self._counted)
        return sum(name == loader and position < (epoch, batch) for name, position, _ in keys)

    def add(self, error: Exception, **facts: Fact) -> None:
        """Count one.

        Args:
            error: What was wrong.
            facts: Of the place, beside those that it has: ``loader``, ``epoch``, ``batch`` and
                ``sequence`` tell errors apart.

        Raises:
            Exception: The error itself, where it is one too many.
        """
        all_facts = {**getattr(error, "facts", {}), **facts}
        entry = {"error": type(error).__name__, "message": str(error)[:_MAX_TEXT], **all_facts}
        key = _entry_key(entry)
        with self._lock:
            if key not in self._known:
                self._known.add(key)
                self._entries.append(entry)
                if self.path is not None:
                    _append_line(self.path, entry)
            is_repeated = key in self._counted
            self._counted.add(key)
            count = len(self)
        if is_repeated:
            return
        LOG.warning(
            "loader: went on from error %d of at most %d: %s", count, self._max_errors, error
        )
        if count > self._max_errors:
            error.add_note(
                f"loader: {count} errors in the data, `max_errors` is {self._max_errors}; repair "
                "the "
                "data, or raise it"
            )
            raise error


def _entry_key(entry: dict[str, Any]) -> tuple[str, tuple[int, int], int]:
    """Return what tells errors apart."""
    epoch, batch, sequence = (entry.get(name) for name in ("epoch", "batch", "sequence"))
    return (
        str(entry.get("loader", "")),
        (_to_number(epoch), _to_number(batch)),
        _to_number(sequence),
    )


def _to_number(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _append_line(path: Path, entry: dict[str, Any]) -> None:
    """Add a line in one write, so that lines of several processes do not mix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, b"\n" * is_torn + json.dumps(entry).encode() + b"\n")
    finally:
        os.close(descriptor)


def _read_entries(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    entries = []
    for line in path.read_text("utf-8").splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:  # a line that was cut off by the end of its process
            continue
    return entries
