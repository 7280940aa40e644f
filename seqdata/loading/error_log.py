"""The log of errors in the data that a run skips: they are counted, listed and limited.

The list is a file with one line of JSON per error, so that it survives a resume.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

from seqdata.errors import ConfigError, SeqDataError, as_integer, must_be
from seqdata.loading.step_requests import StepRequest
from seqdata.storage.writing.table_files import check_suffix

MAX_ERRORS = 100
"""Maximum number of errors in the data that a run skips, by default."""

LOG = logging.getLogger("seqdata")
_MAX_TEXT = 2_000  # characters of a message in the list


class ErrorLog:
    """Counts skipped errors, and raises when there are too many.

    An error that occurs again at the same place (in a validation that runs every epoch, or in a
    batch that is rebuilt after a resume) is counted and listed once.

    Args:
        max_errors: Maximum number of errors of a run.
        path: File that lists them; None: no list.
        count_listed: Whether errors that an earlier process listed in the file count.

    Raises:
        ConfigError: If ``max_errors`` is not an integer from 0, or ``path`` is not a path or has
            the suffix of another kind of table.
        OSError: If the list cannot be read.
    """

    def __init__(
        self,
        max_errors: int = MAX_ERRORS,
        path: str | os.PathLike[str] | None = None,
        *,
        count_listed: bool = True,
    ) -> None:
        most = as_integer(max_errors)
        if most is None or most < 0:
            raise ConfigError(
                must_be("loader: `max_errors`", "an integer from 0", repr(max_errors))
            )
        if not (path is None or isinstance(path, str | os.PathLike)):
            raise ConfigError(must_be("loader: `error_log`", "a path or None", repr(path)))
        if path is not None:
            check_suffix("loader: `error_log`", path, ".jsonl")
        self.path = path = None if path is None else Path(path)
        self._max_errors = most
        self._lock = threading.Lock()
        self._entries: list[dict[str, Any]] = [] if path is None else read_error_list(path)
        self._known = {_entry_key(line) for line in self._entries}
        self._counted = set(self._known) if count_listed else set()
        self._elsewhere = 0
        self._unwritten: list[dict[str, Any]] = []  # lines that could not be written yet
        self._has_warned = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which has a lock of its own."""
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._counted) + self._elsewhere

    @property
    def max_errors(self) -> int:
        """Maximum number of errors of a run."""
        return self._max_errors

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The errors in order, after those that the file listed before.

        Dicts with ``error`` (its class), ``message``, ``loader``, ``sequence``, ``epoch`` and
        ``batch``, and ``part`` of a mixture, whose sequences are numbered over all parts; errors of
        seqdata have further details about the place.
        """
        return list(self._entries)

    def restart(self, elsewhere: int) -> None:
        """Reset the count; the list continues.

        Args:
            elsewhere: Number of earlier errors: those of the resumed run.
        """
        with self._lock:
            self._counted.clear()
            self._elsewhere = elsewhere

    def set_elsewhere(self, elsewhere: int) -> None:
        """Set the number of errors of other processes that count."""
        self._elsewhere = elsewhere

    def count_before(self, loader: str, epoch: int, batch: int) -> int:
        """Return the number of this process's errors before a batch of a loader's plans."""
        with self._lock:
            keys = list(self._counted)
        return sum(name == loader and position < (epoch, batch) for name, position, _ in keys)

    def add(
        self, error: Exception, request: StepRequest, span: int, *, loader: str, epoch: int,
        batch: int, part: str | None = None,
    ) -> None:  # fmt: skip
        """Count an error, and add its line to the list.

        Args:
            error: The error.
            request: The requested spans.
            span: Index of the span that failed.
            loader: Name of the loader.
            epoch: Epoch of the plan; the request has that of the part, for random numbers.
            batch: Index of the batch in the plan.
            part: Name of the sequence's part of a mixture.

        Raises:
            Exception: The error itself, if there are too many.
        """
        entry = {
            "error": type(error).__name__,
            "message": str(error)[:_MAX_TEXT],
            **(error.details if isinstance(error, SeqDataError) else {}),  # below: replaces these
            "loader": loader,
            **({} if part is None else {"part": part}),
            "sequence": int(request.ids[span]),
            "epoch": epoch,
            "batch": batch,
        }
        key = _entry_key(entry)
        with self._lock:
            if key not in self._known:
                self._known.add(key)
                self._entries.append(entry)
                self._unwritten.append(entry)
                self._write_lines()
            is_repeated = key in self._counted
            self._counted.add(key)
            count = len(self)
        if is_repeated:
            return
        if count > self._max_errors:
            error.add_note(
                f"loader: {count} errors in the data, more than `max_errors` allows "
                f"({self._max_errors}). Repair the data, or raise `max_errors`"
            )
            raise error
        LOG.warning("loader: skipped error %d of at most %d: %s", count, self._max_errors, error)

    def report_missing(self) -> None:
        """Try again to write missing lines, and warn if some are still missing."""
        with self._lock:
            self._write_lines()
            missing, self._has_warned = len(self._unwritten), False
        if missing:
            LOG.warning(
                "loader: %s: %d of %d errors are not in the list, which could not be written",
                self.path, missing, len(self._entries),
            )  # fmt: skip

    def _write_lines(self) -> None:
        """Write the entries that are not in the file yet; a failure does not end the run."""
        path = self.path
        if path is None:
            self._unwritten.clear()
            return
        try:
            while self._unwritten:
                _append_line(path, self._unwritten[0])
                del self._unwritten[0]
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                LOG.warning(
                    "loader: %s: the list of errors cannot be written (%s). The run continues and "
                    "counts them; lines are written as soon as that is possible",
                    path, error.strerror or error,
                )  # fmt: skip


def _entry_key(entry: dict[str, Any]) -> tuple[str, tuple[int, int], int]:
    """Return the key that identifies an error."""
    epoch, batch, sequence = (entry.get(name) for name in ("epoch", "batch", "sequence"))
    return (
        str(entry.get("loader", "")),
        (_to_number(epoch), _to_number(batch)),
        _to_number(sequence),
    )


def _to_number(value: Any) -> int:
    return value if isinstance(value, int) else -1


def _append_line(path: Path, entry: dict[str, Any]) -> None:
    """Append a line in a single write, so that lines of several processes do not mix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        line = b"\n" * is_torn + json.dumps(entry).encode() + b"\n"
        if os.write(descriptor, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def read_error_list(path: Path) -> list[dict[str, Any]]:
    """Return the errors that a file lists, in order; see ``ErrorLog.entries``."""
    if not path.exists():
        return []
    entries = []
    for line in path.read_text("utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # a line that its process did not complete
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries
