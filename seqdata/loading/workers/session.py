"""One epoch over the crew: requests go out ahead, columns are taken in order.

Place in the flow: the assembly of batches takes columns here. Reads: answers. Makes: columns.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from seqdata.batch.axes import Axes
from seqdata.errors import IncompleteEpochError, LimitError
from seqdata.loading.prefetch import GROUP_BYTES
from seqdata.loading.step_requests import Request
from seqdata.loading.workers.handle import Task
from seqdata.loading.workers.messages import room_for
from seqdata.loading.workers.pool import SLOT_BYTES, TASK_SECONDS, Crew
from seqdata.loading.workers.shared_slots import GROUP, HEAD

_PATIENCE = 5.0  # seconds that the end waits for whoever takes


class Run:
    """Takes the columns of requests, one after the other.

    Args:
        crew: Who makes them; nobody else may use it until the end.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._requests: Iterator[Request] = iter(())
        self._taking = threading.Lock()
        self._ended = False
        self._torn = False  # what is known of the workers may be half of the truth
        self._tasks: deque[Task] = deque()
        self._held: Task | None = None  # its last answer is being looked at
        self._failure: Exception | None = None  # of asking for the next request, or sending it
        self._next: Request | None = None  # asked for, and not sent
        self._exhausted = False

    def begin(self, requests: Iterator[Request]) -> None:
        """Say what will be taken, in order; it is asked for as far ahead as there is room."""
        self._requests = requests

    def take(self) -> tuple[Any, Axes]:
        """Give the columns of the next request; they are there until the next one is taken.

        Raises:
            Exception: What a worker raised, after all that was made before was taken.
            WorkerDiedError: If it is gone.
            StallError: If it makes no progress.
            IncompleteEpochError: If the crew is shut down.
        """
        with self._taking:
            try:
                return self._taken()
            except Exception:
                raise
            except BaseException:  # Ctrl-C may have come between any two steps
                self._torn = True
                raise

    def end(self) -> bool:
        """Give all slots back; what was not taken is thrown away.

        Returns:
            Whether nobody takes any more, so that the crew can be used again.
        """
        self._ended = True
        self._requests, self._next = iter(()), None  # they hold the epoch's share, and this
        if self._torn or not self._taking.acquire(timeout=_PATIENCE):
            return False
        self._let_go()
        for task in self._tasks:
            self._crew.release(task)
        self._tasks.clear()
        self._taking.release()
        return True

    def _taken(self) -> tuple[Any, Axes]:
        if self._held is not None or not self._tasks:
            self._let_go()
            self._send()
        while not self._tasks or self._tasks[0].taken == len(self._tasks[0].places):
            self._wait()
        task = self._tasks[0]
        try:
            return self._crew.answer(task)
        finally:  # an error is an answer, too
            if task.taken == len(task.requests):
                self._held = self._tasks.popleft()

    def _wait(self) -> None:
        """Wait a moment for the oldest task, or raise why its next answer will not come."""
        if self._ended:  # the crew and its slots are somebody else's now
            raise IncompleteEpochError(
                "loader: the iteration was left while a batch was made; begin another one"
            )
        task = self._tasks[0] if self._tasks else None
        failure = (self._crew.broken or self._failure) if task is None else task.lost
        if failure is not None:
            raise failure
        if task is None and self._exhausted:
            raise IncompleteEpochError(
                "loader: no batch is left of those that workers were asked for; begin another "
                "iteration"
            )
        self._crew.receive()
        self._send()

    def _let_go(self) -> None:
        if self._held is not None:
            self._crew.release(self._held)
            self._held = None

    def _send(self) -> None:
        while not self._exhausted and self._crew.has_room:
            group = self._group()
            try:
                if group:
                    self._tasks.append(self._crew.send(group))
            except LimitError as error:  # raised when all before it is taken
                self._failure, self._exhausted = error, True

    def _group(self) -> list[Request]:
        """Give the requests of the next task: about 1 MiB, and not more than a moment's work."""
        crew, group = self._crew, list[Request]()
        most, room = 1, SLOT_BYTES - HEAD - 8
        if crew.request_seconds:
            by_bytes = GROUP_BYTES / max(1.0, crew.request_bytes)
            most = max(1, min(GROUP, int(by_bytes), int(TASK_SECONDS / crew.request_seconds)))
        while len(group) < most:
            request = self._asked()
            if request is None:
                break
            room -= room_for(request)
            if group and room < 0:
                self._next = request
                break
            group.append(request)
        return group

    def _asked(self) -> Request | None:
        request, self._next = self._next, None
        if request is not None or self._exhausted:
            return request
        try:
            request = next(self._requests, None)
        except Exception as error:  # raised when all before it is taken
            self._failure = error
        self._exhausted = request is None
        return request
