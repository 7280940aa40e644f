"""The progress bar of the library: sequences, bytes, rate and the time left, in one line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

ProgressFn = Callable[[int, int], None]
"""Called with (sequences, bytes) that are written."""

FIRST_STEP, SECOND_STEP = "pass 1 of 2", "pass 2 of 2"
"""Steps of writing in a random order: in the order given, then in the random order."""


class ProgressBar:
    """A progress bar in one line. Created by ``show_progress_bar``.

    Args:
        rich_progress: The rich progress that draws it.
        description: The first words of the bar.
        total: The total for ``done`` of ``update``; None if it is not known.
        unit: Unit that is counted in place of sequences.
    """

    __slots__ = (
        "_description", "_rich_progress", "_start_done", "_start_sequences", "_start_time", "_task",
        "_total", "_unit",
    )  # fmt: skip

    def __init__(
        self,
        rich_progress: Progress,
        description: str,
        total: float | None,
        unit: str = "sequences",
    ) -> None:
        self._rich_progress = rich_progress
        self._unit = unit
        self._description = description
        self._total = total
        self._task = rich_progress.add_task(description, total=total, text="")
        self.restart(0, 0)

    def restart(self, sequences: int, done: float) -> None:
        """Restart the rate: earlier work does not count."""
        self._start_time = time.monotonic()
        self._start_sequences = sequences
        self._start_done = done

    def begin(self, step: str, total: float | None) -> None:
        """Show the next of several steps, with its progress at 0.

        Args:
            step: The name of the step, shown after the first words of the bar.
            total: The total for ``done`` of ``update``; None if it is not known.
        """
        self._total = total
        description = f"{self._description}, {step}"
        self._rich_progress.reset(self._task, total=total, description=description, text="")
        self.restart(0, 0)

    def update(self, sequences: int, size: int | None = None, done: float | None = None) -> None:
        """Show the progress.

        Args:
            sequences: Number of finished sequences.
            size: Size of them in bytes; None if it is not shown.
            done: The finished part of the total; None: ``sequences``.
        """
        done = sequences if done is None else done
        seconds = max(time.monotonic() - self._start_time, 1e-3)
        rate = (sequences - self._start_sequences) / seconds
        advanced = done - self._start_done
        seconds_left = None
        if self._total is not None and advanced > 0 and done < self._total:
            seconds_left = (self._total - done) * seconds / advanced
        text = format_progress(sequences, size, rate, seconds_left, self._unit)
        self._rich_progress.update(self._task, completed=done, text=text)


def format_progress(
    sequences: int,
    size: int | None,
    rate: float,
    seconds_left: float | None,
    unit: str = "sequences",
) -> str:
    """Return a line of counts.

    Args:
        sequences: Number of finished sequences.
        size: Size of them in bytes; None if it is not shown.
        rate: Sequences per second.
        seconds_left: None if they are not known.
        unit: Unit that is counted in place of sequences.

    Examples:
        >>> format_progress(1200, 345_000, 800.4, 75.0)
        '1,200 sequences, 345.0 kB, 800 per second, 0:01:15 left'
    """
    from rich.filesize import decimal

    size_text = "" if size is None else f", {decimal(size)}"
    text = f"{sequences:,} {unit}{size_text}, {rate:,.0f} per second"
    if seconds_left is None:
        return text
    minutes, seconds = divmod(round(seconds_left), 60)
    return f"{text}, {minutes // 60}:{minutes % 60:02d}:{seconds:02d} left"


@contextmanager
def show_progress_bar(
    description: str, total: float | None, unit: str = "sequences"
) -> Iterator[ProgressBar]:
    """Show a bar on standard error within the block.

    Args:
        description: The first words of the bar.
        total: The total for ``done`` of ``update``; None if it is not known.
        unit: Unit that is counted in place of sequences.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=Console(stderr=True)) as rich_progress:
        yield ProgressBar(rich_progress, description, total, unit)


@contextmanager
def progress_bar(
    progress: bool | ProgressFn | None,
    description: str,
    total: int | None,
    unit: str = "sequences",
) -> Iterator[ProgressBar | None]:
    """Yield a bar if one is asked for, or if nothing is said and standard error is a terminal.

    Args:
        progress: The user's argument; a function gets no bar.
        description: The first words of the bar.
        total: The total for ``done`` of ``update``; None if it is not known.
        unit: Unit that is counted in place of sequences.
    """
    is_wanted = sys.stderr.isatty() if progress is None else progress is True
    if not is_wanted:
        yield None
        return
    with show_progress_bar(description, total, unit) as bar:
        yield bar
