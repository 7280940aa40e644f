"""Running of a function in a child process, with a time limit and a search for leftovers.

The child leads a session, so that all processes that it started can be found.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing import util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from seqdata_testing.faults import outcome as outcomes
from seqdata_testing.faults.leftovers import find_leftovers, look, processes_of
from seqdata_testing.faults.outcome import Outcome
from seqdata_testing.waiting import patient

GRACE = 5.0  # seconds that what was started may take to go away
_PRELOADED = ["seqdata_testing.faults.reading"]
_SOON = 10.0  # seconds that a process may take to end after it has answered

Work = Callable[..., Sequence[Outcome]]


def run_in_child(
    work: Work, *arguments: Any, bound: float, grace: float = GRACE
) -> tuple[Outcome, ...]:
    """Run a function in a child process, in an empty folder.

    Args:
        work: A function of a module, which returns outcomes.
        arguments: Arguments of the function.
        bound: Time limit in seconds of an idle machine; then the child is stuck, and is killed.
        grace: Seconds of an idle machine after which none of its processes and files may be left.

    Returns:
        Its outcomes; one that ``died`` or is ``stuck`` if it returned none. The last one lists the
        leftovers.
    """
    util.get_temp_dir()  # for the child's sockets, too: a killed one does not remove its folder
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    with (
        tempfile.TemporaryDirectory(prefix="seqdata-fault-") as folder,
        tempfile.TemporaryDirectory(prefix="seqdata-fault-tmp-") as temporary,
    ):
        before = look(Path(temporary))
        mine, its = context.Pipe(duplex=False)
        about = (its, folder, temporary, work, arguments)
        child = context.Process(target=_child, args=about)
        began = time.monotonic()
        child.start()
        its.close()
        found = _answer(mine, patient(bound))
        child.join(timeout=patient(_SOON) if found or mine.closed else 0)
        if found is None or child.is_alive():
            found = [_make_unanswered(child.exitcode, child.is_alive(), time.monotonic() - began)]
            child.kill()
            child.join(timeout=patient(_SOON))
        mine.close()
        session = child.pid or 0
        left = find_leftovers(before, session, within=patient(grace))
        end_session(session)
        return (*found[:-1], replace(found[-1], left=(*found[-1].left, *left)))


@contextlib.contextmanager
def capture_stderr(into: Path) -> Iterator[Path]:
    """Redirect standard error of this process and its children into a file, within the block.

    Yields:
        The file, which then has the log of all these processes.
    """
    original = os.dup(2)
    with into.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield into
    finally:
        os.dup2(original, 2)
        os.close(original)


def end_session(session: int) -> None:
    """Kill all processes of a session, so that a fault does not affect the next one."""
    for pid in processes_of(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _answer(connection: Connection, bound: float) -> Sequence[Outcome] | None:
    if not connection.poll(bound):
        return None
    try:
        answer: Sequence[Outcome] = connection.recv()
    except EOFError:  # it has ended, or will at once
        connection.close()
        return None
    return answer


def _make_unanswered(exitcode: int | None, alive: bool, seconds: float) -> Outcome:
    if alive:
        return Outcome(what=outcomes.STUCK, text=f"for {seconds:.0f} s", seconds=seconds)
    code = exitcode or 0
    text = f"of {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return Outcome(what=outcomes.DIED, text=text, seconds=seconds)


def _child(
    connection: Connection, folder: str, temporary: str, work: Work, arguments: tuple[Any, ...]
) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = temporary
    try:
        answer = work(*arguments)
    except Exception as error:  # of the work itself, which is no outcome of a fault
        text = "".join(traceback.format_exception(error))
        answer = [Outcome(what=outcomes.BROKEN, text=text)]
    with contextlib.suppress(BrokenPipeError):
        connection.send(answer)
    connection.close()
