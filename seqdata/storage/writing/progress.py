"""How far writing is: sequences, bytes, rate and the time left, in one line.

Place in the flow: the writer and the command tell it. Reads: counts. Makes: a line on standard
error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Rich

Progress = Callable[[int, int], None]
"""Is told (sequences, bytes) that are written."""


class Bar:
    """A line that is drawn again whenever it is told something. Made by ``bar``.

    Args:
        drawn: What draws it.
        what: Its first words.
        total: Of what ``tell`` is given as done; None: nobody knows.
    """

    __slots__ = ("_begin", "_begin_done", "_begin_sequences", "_drawn", "_task", "_total")

    def __init__(self, drawn: Rich, what: str, total: float | None) -> None:
        self._drawn = drawn
        self._total = total
        self._task = drawn.add_task(what, total=total, said="")
        self.begin(0, 0)

    def begin(self, sequences: int, done: float) -> None:
        """Count the rate from here on: so many were written before."""
        self._begin = time.monotonic()
        self._begin_sequences = sequences
        self._begin_done = done

    def tell(self, sequences: int, size: int, done: float | None = None) -> None:
        """Show how far it is.

        Args:
            sequences: That are written.
            size: Their bytes.
            done: How much of the total that is; None: as many as sequences.
        """
        done = sequences if done is None else done
        seconds = max(time.monotonic() - self._begin, 1e-3)
        rate = (sequences - self._begin_sequences) / seconds
        gone = done - self._begin_done
        left = None
        if self._total is not None and gone > 0 and done < self._total:
            left = (self._total - done) * seconds / gone
        self._drawn.update(self._task, completed=done, said=said(sequences, size, rate, left))


def said(sequences: int, size: int, rate: float, left: float | None) -> str:
    """Write counts for people.

    Args:
        sequences: That are written.
        size: Their bytes.
        rate: Sequences per second.
        left: Seconds; None: nobody knows.

    Examples:
        >>> said(1200, 345_000, 800.4, 75.0)
        '1,200 sequences, 345.0 kB, 800 per second, 0:01:15 left'
    """
    from rich.filesize import decimal

    text = f"{sequences:,} sequences, {decimal(size)}, {rate:,.0f} per second"
    if left is None:
        return text
    minutes, seconds = divmod(round(left), 60)
    return f"{text}, {minutes // 60}:{minutes % 60:02d}:{seconds:02d} left"


@contextmanager
def bar(what: str, total: float | None) -> Iterator[Bar]:
    """Show a bar on standard error.

    Args:
        what: Its first words.
        total: Of what ``tell`` is given as done; None: nobody knows.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Rich

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"))
    with Rich(*columns, console=Console(stderr=True)) as drawn:
        yield Bar(drawn, what, total)


@contextmanager
def told(progress: bool | Progress | None, what: str, total: int | None) -> Iterator[Bar | None]:
    """Give the bar where one is to be shown: asked for, or nobody said and it would be seen."""
    wanted = sys.stderr.isatty() if progress is None else progress is True
    if not wanted:
        yield None
        return
    with bar(what, total) as shown:
        yield shown
