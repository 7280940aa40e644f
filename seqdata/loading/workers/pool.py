"""The crew: worker processes of one loader, and the slots that batches come back in.

It owns all slots and sends one with each task; a worker holds no position. Answers are taken in the
order of the plan, whoever gave them. Place in the flow: requests -> columns, beside the training
process. Makes: columns.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import logging
import os
import pickle
import resource
import threading
import time
import weakref
from multiprocessing import util
from multiprocessing.connection import Connection, wait
from typing import Any

from seqdata.batch.axes import Axes
from seqdata.errors import ConfigError, IncompleteEpochError, LimitError, SeqDataError
from seqdata.kernel.dispatch import kernel
from seqdata.loading.fetcher import Work
from seqdata.loading.options import PlayOptions
from seqdata.loading.step_requests import Request
from seqdata.loading.workers import diagnosis
from seqdata.loading.workers import shared_slots as slots
from seqdata.loading.workers.handle import Member, Task, needs_script, started
from seqdata.loading.workers.messages import columns_of, put_requests
from seqdata.loading.workers.object_messages import object_of
from seqdata.loading.workers.overflow import received
from seqdata.loading.workers.shared_slots import Arena
from seqdata.loading.workers.worker import MESSAGE, OWN, STOP, Failure

LOG = logging.getLogger("seqdata")
SLOT_BYTES = 64 << 20  # of a slot, taken from the system where it is written
AHEAD = 2  # tasks that wait at a worker
_SPARE = 1  # tasks per worker that are answered and not taken
TASK_SECONDS = 0.05  # that a task may take, as far as earlier ones tell
_WARN = 10.0  # seconds without progress after which a line is logged
_WAKE_UP = 0.2  # seconds after which every wait looks again
_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)  # of what limits bound
_GLANCE = 1.0  # seconds without progress that one look can find: we may have been stopped ourselves
_PATIENCE = 1.0  # seconds that workers have to end by themselves


class Crew:
    """Worker processes; one epoch is played over them at a time.

    Args:
        fetching: What they do.
        options: How many they are, and how they are started.

    Raises:
        ConfigError: If they cannot be started, or what they need cannot be sent to them.
    """

    def __init__(self, fetching: Work, options: PlayOptions) -> None:
        self._fetching = fetching
        self._options = options
        self._pid = os.getpid()
        self._engine = kernel()
        self._members: list[Member] = []
        self._at_exit = functools.partial(_close_at_exit, weakref.ref(self))
        self._before_joining: util.Finalize | None = None
        self._lock = threading.RLock()  # whoever receives holds it; so does who closes
        self.cancelled = False
        self._looked = 0.0
        self.request_bytes, self.request_seconds = 0.0, 0.0
        count = options.num_workers
        try:
            self._arena = Arena.of(count, (AHEAD + _SPARE) * count + 1, SLOT_BYTES)
            self._free = list(range(self._arena.slots))
            script = needs_script(fetching, options)
            for number in range(count):
                self._members.append(started(number, self._arena, fetching, options, script=script))
        except OSError as error:
            self.close(kill=True)
            raise _no_more(error, count) from error
        except BaseException:
            self.close(kill=True)
            raise
        self._status = self._arena.status()
        self._arena.memory.close()
        atexit.register(self._at_exit)
        # multiprocessing joins the workers of its own children before anything of atexit
        self._before_joining = util.Finalize(None, self._at_exit, exitpriority=10)
        weakref.finalize(self, _end, self._members, self._pid, kill=True).atexit = False

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [member.pid for member in self._members]

    @property
    def broken(self) -> SeqDataError | None:
        """Why no more tasks are given out; None: they are."""
        return next((member.gone for member in self._members if member.gone is not None), None)

    @property
    def whole(self) -> bool:
        """Whether all its workers live, and are this process's."""
        return self._pid == os.getpid() and all(
            member.process.is_alive() for member in self._members
        )

    @property
    def has_room(self) -> bool:
        """Whether there is a slot, and a worker that is not busy enough."""
        if self.cancelled or not self._free or self.broken is not None:
            return False
        return len(self._idlest().tasks) < AHEAD

    def _idlest(self) -> Member:
        return min(self._members, key=lambda member: len(member.tasks))

    def send(self, requests: list[Request]) -> Task:
        """Give a task to the worker that has least to do."""
        member = self._idlest()
        slot = self._arena.slot(self._free[-1])
        put_requests(slot, requests)
        slots.done(slot)[0] = 0
        task = Task(self._free.pop(), slot, requests, member)
        if not member.tasks:
            member.quiet, member.warned = 0.0, False
        member.tasks.append(task)
        try:
            member.connection.send_bytes(MESSAGE.pack(len(member.tasks), task.slot, 0))
        except OSError:  # it is gone: found out when its answers are waited for
            LOG.debug("worker %d is gone", member.number)
        return task

    def answer(self, task: Task) -> tuple[Any, Axes]:
        """Take the next answer of a task: columns, or what a worker has collated.

        Raises:
            Exception: What the worker raised instead.
        """
        slot, (place, size, more) = task.content, task.places[task.taken]
        task.taken += 1
        if place < 0:
            if not task.own and task.lost is not None:
                raise task.lost
            place, slot = 0, memoryview(task.own.popleft().mapping)
        failed, size = size < 0, max(0, size)
        whole = slot[place : place + size + more]
        if failed:
            _raise(whole, task.member)
        known = self._fetching.reading.axes
        if self._fetching.collate is not None:
            return object_of(whole, whole[size:]), known
        columns, axes = columns_of(whole, whole[size:], self._engine)
        return columns, axes or known

    def release(self, task: Task) -> None:
        """Take a slot back; of a task that is not answered, when it is."""
        task.stale = True
        if task.finished:
            task.own.clear()
            self._free.append(task.slot)

    def receive(self) -> None:
        """Wait a moment for answers.

        Raises:
            IncompleteEpochError: If the crew is being closed.
        """
        with self._lock:
            if self.cancelled:
                raise IncompleteEpochError(
                    "loader: its worker processes were shut down while it played; play again"
                )
            known: dict[Any, Member] = {}
            for member in self._members:
                if member.gone is None:
                    known[member.connection] = known[member.process.sentinel] = member
            for one in wait(list(known), timeout=_WAKE_UP):
                member = known[one]
                if one is not member.connection or not self._read(member):
                    self._bury(member)
            self._watch()

    def _read(self, member: Member) -> bool:
        """Read one message; False: there will be none."""
        try:
            kind, _, value = MESSAGE.unpack(member.connection.recv_bytes())
            task = member.tasks[0]
            if kind == OWN:
                task.own.append(received(member.connection, value, within=_PATIENCE))
                return True
        except (EOFError, OSError):
            return False
        except LimitError as error:
            self._give_up(member, error)
            return True
        member.tasks.popleft()
        member.quiet, member.warned = 0.0, False
        self._finish(task)
        self._learn(task, value / 1e6)
        return True

    def _finish(self, task: Task, lost: SeqDataError | None = None) -> None:
        """Let what is done of a task be taken; the rest of it will not come."""
        done = int(slots.done(task.content)[0])
        task.places = slots.table(task.content)[:done].tolist()
        task.finished, task.lost = True, lost
        if task.stale:
            self.release(task)

    def _learn(self, task: Task, seconds: float) -> None:
        """Remember what a request costs, newer ones more."""
        count = len(task.requests)
        bytes_ = sum(size + more for _, size, more in task.places) / count
        known = self.request_seconds > 0
        seconds = max(1e-6, seconds / count)
        self.request_bytes += (bytes_ - self.request_bytes) * (0.25 if known else 1)
        self.request_seconds += (seconds - self.request_seconds) * (0.25 if known else 1)

    def _bury(self, member: Member) -> None:
        """Take what a worker that is gone has finished; the rest of its tasks is lost."""
        if member.gone is not None:
            return
        while _has_more(member.connection) and self._read(member):
            pass
        member.process.join(timeout=_PATIENCE)
        stack = diagnosis.read_stack(member.stacks)
        store = self._fetching.reading.store
        self._give_up(
            member, diagnosis.died(self._last(member), member.process.exitcode, stack, store)
        )

    def _give_up(self, member: Member, error: SeqDataError) -> None:
        """Let what a worker has not finished be lost; what it has finished can be taken."""
        member.gone = error
        while member.tasks:
            self._finish(member.tasks.popleft(), error)

    def _watch(self) -> None:
        """Look which workers make progress."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, _GLANCE), now
        for member in self._members:
            if member.tasks:
                self._look_at(member, passed)

    def _look_at(self, member: Member, passed: float) -> None:
        seen = int(self._status[member.number, slots.PROGRESS])
        if seen != member.seen:
            member.seen, member.quiet, member.warned = seen, 0.0, False
            return
        member.quiet += passed
        seconds, limit = member.quiet, self._options.stall_timeout
        store = self._fetching.reading.store
        if seconds >= limit:
            stack = diagnosis.stack_of(member.pid, member.stacks)
            self._give_up(member, diagnosis.stalled(self._last(member), seconds, stack, store))
        elif seconds >= min(_WARN, limit / 2) and not member.warned:
            member.warned = True
            LOG.warning("loader: %s", diagnosis.slow(self._last(member), seconds, store))

    def _last(self, member: Member) -> diagnosis.Last:
        """Say what is known of a worker's last work."""
        line = self._status[member.number].tolist()
        ready, among = line[slots.PROGRESS] > 0, tuple[int, ...]()
        if ready and member.tasks:
            task = member.tasks[0]
            at = int(slots.done(task.content)[0])
            if at < len(task.requests):
                among = tuple(task.requests[at].ids.tolist())
        sequence = line[slots.SEQUENCE] if line[slots.SEQUENCE] in among else None
        return diagnosis.Last(
            worker=member.number, pid=member.pid, ready=ready, sequence=sequence,
            among=among, memory=line[slots.MEMORY],
        )  # fmt: skip

    def close(self, *, kill: bool = False) -> None:
        """End the processes; those that do not end by themselves in a second are killed."""
        self.cancelled = True
        if os.getpid() != self._pid:  # a forked process of somebody else: they are not its own
            return
        with self._lock:
            _end(self._members, self._pid, kill=kill)
        atexit.unregister(self._at_exit)
        if self._before_joining is not None:
            self._before_joining.cancel()


def _end(members: list[Member], pid: int, *, kill: bool) -> None:
    """End the workers of a crew, which forgets them."""
    if os.getpid() != pid:
        return
    ending = members[:]
    members.clear()
    for member in ending:
        if kill:
            member.process.kill()
        with contextlib.suppress(OSError):  # it is gone already
            member.connection.send_bytes(MESSAGE.pack(STOP, 0, 0))
        member.connection.close()
    until = time.monotonic() + _PATIENCE
    for member in ending:
        member.process.join(timeout=max(0.0, until - time.monotonic()))
        if member.process.is_alive():
            member.process.kill()
            member.process.join(timeout=_PATIENCE)
        member.stacks.close()
        if member.process.exitcode is not None:
            member.process.close()


def _no_more(error: OSError, count: int) -> ConfigError:
    if error.errno not in _OUT_OF:
        return ConfigError(
            f"loader: {count} worker processes cannot be started ({error.strerror or error}), must "
            "be; change what it names, or use num_workers=0"
        )
    files, processes = (
        resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
    )
    return ConfigError(
        f"loader: {count} worker processes cannot be started ({error.strerror}), must be; raise "
        f"`ulimit -n` (now {files}) or `ulimit -u` (now {processes}), or use fewer `num_workers`"
    )


def _has_more(connection: Connection) -> bool:
    try:
        return connection.poll(0)
    except OSError:
        return False


def _raise(head: memoryview, member: Member) -> None:
    """Raise what a worker raised, with its traceback as the cause."""
    sent, words, text = pickle.loads(head)  # our own worker wrote it
    error = _unpacked(sent, *words)
    if isinstance(error, SeqDataError):
        facts = {**error.facts, "worker": member.number}
        raise error.with_facts(**facts) from Failure(text)
    error.add_note(f"in worker {member.number} (pid {member.pid})")
    raise error from Failure(text)


def _unpacked(sent: bytes, words: str, notes: list[str]) -> Exception:
    """Give an exception as itself where it can be made here, else in words."""
    if sent:
        try:
            made: Exception = pickle.loads(sent)
        except Exception as other:  # unpickling runs anybody's code
            words = f"{words} (it cannot be made again here: {other})"
        else:
            return made
    instead = RuntimeError(words)
    for note in notes:
        instead.add_note(note)
    return instead


def _close_at_exit(crew: weakref.ref[Crew]) -> None:
    found = crew()
    if found is not None:
        found.close(kill=True)
