"""Progress of long operations on standard error: a bar, and lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def is_shown(progress: bool | None) -> bool:
    """Return ``progress``; if it is None, whether standard error is a terminal."""
    return sys.stderr.isatty() if progress is None else progress


@contextmanager
def show_bar(
    progress: bool | None, description: str, total: int
) -> Iterator[Callable[[int], None] | None]:
    """Show a bar on standard error within the block.

    Yields:
        A function that takes the number of rows done so far; None: no bar is shown.
    """
    if not is_shown(progress):
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.update(task, completed=done)


def say(progress: bool | None, text: str) -> None:
    """Write a line to standard error, if progress is shown."""
    if is_shown(progress):
        sys.stderr.write(f"{text}\n")
