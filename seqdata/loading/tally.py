"""Errors in the data that a run goes on from: counted, listed by id, and no more than a cap.

The list is a file of one line of JSON per error, so that it survives a resume and says of each
sequence what was wrong with it. Place in the flow: beside mending. Makes: lines.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

from seqdata.errors import ConfigError, Fact, SeqDataError

MAX_ERRORS = 100
"""Errors in the data that a run may go on from, by default."""

LOG = logging.getLogger("seqdata")
_MOST_TEXT = 2_000  # characters of a message in the list


class Tally:
    """Counts errors, and ends a run that has too many.

    Args:
        most: How many a run may have.
        path: Where they are listed; those of an earlier process count. None: nowhere.

    Raises:
        ConfigError: If ``most`` is no count.
        OSError: If the list cannot be read.
    """

    def __init__(self, most: int = MAX_ERRORS, path: Path | None = None) -> None:
        if not isinstance(most, int) or most < 0:
            raise ConfigError(f"loader: `max_errors` is {most!r}, must be a whole number from 0")
        self._most = most
        self._path = path
        self._lock = threading.Lock()
        self._found: list[dict[str, Any]] = [] if path is None else _listed(path)

    def __len__(self) -> int:
        return len(self._found)

    @property
    def found(self) -> list[dict[str, Any]]:
        """What was wrong, in order: ``error``, ``message`` and the facts of the place."""
        return list(self._found)

    def add(self, error: Exception, **facts: Fact) -> None:
        """Count one.

        Args:
            error: What was wrong.
            facts: Of the place, beside those that it has.

        Raises:
            Exception: The error itself, where it is one too many.
        """
        known = {**error.facts, **facts} if isinstance(error, SeqDataError) else dict(facts)
        line = {"error": type(error).__name__, "message": str(error)[:_MOST_TEXT], **known}
        with self._lock:
            self._found.append(line)
            if self._path is not None:
                _append(self._path, line)
            count = len(self._found)
        LOG.warning("loader: went on from error %d of at most %d: %s", count, self._most, error)
        if count > self._most:
            error.add_note(
                f"loader: {count} errors in the data, `max_errors` is {self._most}; repair the "
                "data, or raise it"
            )
            raise error


def _append(path: Path, line: dict[str, Any]) -> None:
    """Add a line in one write, so that lines of several processes do not mix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)


def _listed(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    found = []
    for line in path.read_text("utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:  # a line that was cut off by the end of its process
            continue
    return found
