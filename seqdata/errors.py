"""The errors of seqdata, on one page.

Every message reads "where: x must be a, but is b. Advice." An error about data names its place in
``details``, which survive pickling and re-raising from the text alone.

::

    SeqDataError
    ├── ConfigError            an invalid argument
    │   └── UnknownNameError   a field, axis or part that does not exist; also a KeyError
    ├── PlanError              lengths, policy and position do not fit together
    ├── PluginError            a plugin is missing, broken, or in conflict with another
    ├── ResumeError            a saved state that does not fit
    ├── IncompleteEpochError   fewer batches were delivered than planned
    ├── WorkerDiedError        a worker process ended, or was killed, while it had work
    ├── StallError             a worker process makes no progress
    ├── LimitError             data asks for more than a limit allows
    ├── RemoteReadError        a remote file could not be read, even after retries
    ├── CacheError             the cache of remote files is full, or cannot be used
    ├── UnsafeContentError     data that would run code, or write outside its folder
    ├── RanksDifferError       ranks hold different models
    ├── PeerFailedError        another rank is gone: killed, stopped or failed
    ├── PreemptedError         the run received a signal to stop; every rank stops at the same batch
    └── DataError              something is wrong with stored data
        ├── IncompleteDatasetError   never finished writing
        ├── MissingShardError
        ├── CorruptShardError
        ├── CorruptSampleError
        ├── DecodeError
        └── FingerprintMismatch
"""

from __future__ import annotations

import functools
import inspect
import json
import operator
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, Self

from seqdata.name_conflict import require_own_init

require_own_init()

_NOTE = "seqdata: "
REMEDY = "\n  Verify: "  # the last line of a message about data that a command can look at
REPLAY_PREFIX = "See it: "  # before the command that replays an error's batch
Detail = str | int | float | bool | None


class SeqDataError(Exception):
    """Base class of the errors that seqdata raises.

    Args:
        message: The text. A line ``seqdata: {json}`` in it is read as details and removed. ``at``,
            pickling and workers of a torch DataLoader, which pass errors on as text, add this line.

    Attributes:
        details: Values that name the place: ``shard``, ``sequence``, ``field``, ``offset``, …;
            docs/guides/trouble/error-details.md lists them all.
    """

    def __init__(self, message: str = "") -> None:
        text, details = _parse_message(message)
        super().__init__(text)
        self.details: dict[str, Detail] = details
        if details and _is_in_torch_worker():
            self.add_note(_NOTE + json.dumps(details))

    @classmethod
    def at(cls, message: str, **details: Detail) -> Self:
        """Return the error with details about the place where it happened."""
        known = {name: value for name, value in details.items() if value is not None}
        return cls(f"{message}\n{_NOTE}{json.dumps(known)}" if known else message)

    def with_place(self, line: str, **details: Detail) -> Self:
        """Return a copy of the error with one more line that names its place, and with details.

        Args:
            line: Line added below the message; a command to run stays last.
            details: Details, which replace existing ones of the same name.
        """
        text, remedy, command = str(self).rpartition(REMEDY)
        text = f"{text}\n  {line}. {remedy.strip()} {command}" if remedy else f"{self}\n  {line}"
        return self._copy_notes(self.at(text, **{**self.details, **details}))

    def with_details(self, **details: Detail) -> Self:
        """Return a copy with more details, which replace existing ones of the same name."""
        return self._copy_notes(self.at(str(self), **{**self.details, **details}))

    def shown_by(self, command: str) -> Self:
        """Return a copy of the error, followed by the command that replays its batch."""
        text = str(self).removesuffix(".")
        return self._copy_notes(self.at(f"{text}. {REPLAY_PREFIX}{command}", **self.details))

    def _copy_notes(self, error: Self) -> Self:
        """Return another error with the notes of this one."""
        for note in getattr(self, "__notes__", ()):
            if not note.startswith(_NOTE):
                error.add_note(note)
        return error

    def __reduce__(self) -> tuple[type[Self], tuple[str], dict[str, Any]]:
        text = str(self.args[0])
        text_with_details = f"{text}\n{_NOTE}{json.dumps(self.details)}" if self.details else text
        return (
            type(self),
            (text_with_details,),
            dict(self.__dict__),
        )  # notes, and fields of subclasses


def format_step(
    *, epoch: int, batch: int, step: int, rank: int, size: int, worker: int | None = None
) -> str:
    """Return the text that names a batch of a run, for ``with_place`` or the note of an exception.

    Args:
        epoch: Epoch of the plan.
        batch: Index of the batch in the plan.
        step: Step of the rank.
        rank: The rank.
        size: Number of ranks.
        worker: Index of the worker process that made it; None: the training process.

    Examples:
        >>> format_step(epoch=2, batch=4711, step=1177, rank=3, size=4, worker=1)
        'epoch 2, batch 4711 (step 1177, rank 3 of 4, worker 1)'
    """
    process = "" if worker is None else f", worker {worker}"
    return f"epoch {epoch}, batch {batch} (step {step}, rank {rank} of {size}{process})"


def must_be(name: str, needed: str, found: str, remedy: str = "") -> str:
    """Return the message ``{name} must be {needed}, but is {found}. {remedy}.``.

    Args:
        name: Name of the wrong value, with its place: ``loader: `prefetch```.
        needed: Description of valid values.
        found: The wrong value, such as its ``repr``.
        remedy: Advice in whole sentences, without the last full stop; empty: none.
    """
    message = f"{name} must be {needed}, but is {found}"
    end = "" if remedy.endswith("?") else "."
    return f"{message}. {remedy}{end}" if remedy else message


def advise_on_copy(value: object) -> str:
    """Return the advice about a dict in place of an object; empty for any other value.

    Hydra replaces an object within a dict or list by a dict of its fields.
    """
    if not isinstance(value, Mapping):
        return ""
    return "If Hydra made it, add `_convert_: all` to the config of the DataModule"


class StopIterationGuard:
    """Context manager that turns a ``StopIteration`` of a user's function into a ConfigError.

    Otherwise it would end a loop or an epoch of the caller as if it were complete.

    Args:
        where: Place of the call, for messages: ``dataset: `lengths```.
        function: The function, whose name is in the message.
    """

    __slots__ = ("_function", "_where")

    def __init__(self, where: str, function: object) -> None:
        self._where = where
        self._function = function

    def __enter__(self) -> None: ...

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, StopIteration):
            name = getattr(self._function, "__qualname__", type(self._function).__qualname__)
            stop_error = ConfigError(describe_stop(f"{self._where} ({name})"))
            for note in getattr(error, "__notes__", ()):
                stop_error.add_note(note)
            raise stop_error from error


def describe_stop(name: str) -> str:
    """Return the message about a function that raised ``StopIteration``."""
    return f"{name} must return a value, but raised StopIteration. Pass a default to its next()."


def find_interruption(error: BaseException) -> BaseException | None:
    """Return the exception that interrupted the failed work; None if the work itself failed.

    It is the exception of a signal handler, or ``KeyboardInterrupt`` and the like, possibly wrapped
    in other errors on the way. Exceptions that the caller was handling before are not meant.

    Args:
        error: The error, in the ``except`` block that caught it.
    """
    if not isinstance(error, Exception):
        return error
    if threading.current_thread() is not threading.main_thread():  # which has no signal handlers
        return None
    trace = error.__traceback__
    outside = set() if trace is None else set(_iterate_callers(trace.tb_frame))
    handlers = {_find_code(signal.getsignal(number)) for number in signal.valid_signals()}
    waiting: list[BaseException] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        seen.add(id(one))
        if isinstance(one, KeyboardInterrupt):
            return one
        if any(_is_of_handler(frame, handlers) for frame in _iterate_frames(one)):
            return one
        for other in (one.__cause__, None if one.__suppress_context__ else one.__context__):
            if other is None or id(other) in seen:
                continue
            trace = other.__traceback__
            if trace is None or trace.tb_frame not in outside:
                waiting.append(other)
    return None


def _iterate_frames(error: BaseException) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _iterate_callers(frame: FrameType) -> Iterator[FrameType]:
    caller = frame.f_back
    while caller is not None:
        yield caller
        caller = caller.f_back


def _is_of_handler(frame: FrameType, handlers: set[CodeType | None]) -> bool:
    """Return whether a frame is that of a signal handler, which receives the interrupted frame."""
    if frame.f_code in handlers:
        return True
    if frame.f_back is None:
        return False
    names, rest, _, values = inspect.getargvalues(frame)
    given = [values.get(name) for name in names] + list(values.get(rest, ()) if rest else ())
    return any(
        isinstance(number, int) and interrupted is frame.f_back
        for number, interrupted in pairwise(given)
    )


def _find_code(handler: Any) -> CodeType | None:
    """Return the code of a signal handler; None if it is not written in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not hasattr(handler, "__code__"):  # of a function, or of a method, which hands it on
        handler = type(handler).__call__ if callable(handler) else None
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None


def check_flags(owner: str, **flags: object) -> None:
    """Raise if arguments are neither True nor False: a string such as "false" would mean True.

    Args:
        owner: Name of the receiver of the arguments, for messages.
        flags: Name -> value.

    Raises:
        ConfigError: If a value is not a bool.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(must_be(f"{owner}: `{name}`", "True or False", repr(value)))


def as_integer(value: object) -> int | None:
    """Return an integer of Python or NumPy as a Python integer; None for other values."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        return operator.index(value)
    except TypeError:  # an array of several
        return None


def check_count(owner: str, least: int = 1, **counts: object) -> None:
    """Raise a ConfigError unless every named argument is an integer of at least ``least``."""
    for name, value in counts.items():
        number = as_integer(value)
        if number is None or number < least:
            needed = f"an integer of at least {least}"
            raise ConfigError(must_be(f"{owner}: `{name}`", needed, repr(value)))


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return "did you mean ...?" with the most similar name; empty if none is similar.

    Examples:
        >>> did_you_mean("lable", ["label", "x"])
        "did you mean 'label'?"
        >>> did_you_mean("fp1", ["Fp1", "Fp2"])
        "did you mean 'Fp1'?"
    """
    import difflib  # needed for errors only

    known = list(names)
    matches = [each for each in known if each.casefold() == str(name).casefold()]
    matches = matches or difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {matches[0]!r}?" if matches else ""


def describe_unknown_name(
    kind: str, name: object, names: Iterable[str], *, most: int | None = None
) -> str:
    """Return the text about an unknown name, with the most similar and all known names.

    Args:
        kind: Kind of object that the name stands for, such as ``field``.
        name: The unknown name.
        names: The known names.
        most: If there are more names than this, and one is similar, only that one is in the text.

    Examples:
        >>> describe_unknown_name("field", "lable", ["label", "x"])
        "no field 'lable'; did you mean 'label'? Choose one of label, x"
        >>> describe_unknown_name("field", "lable", ["label", "x"], most=1)
        "no field 'lable'; did you mean 'label'?"
    """
    known = list(names)
    hint = did_you_mean(name, known)
    if hint and most is not None and len(known) > most:
        return f"no {kind} {name!r}; {hint}"
    choice = f"Choose one of {', '.join(known)}" if known else "There is none"
    return f"no {kind} {name!r}{f'; {hint}' if hint else '.'} {choice}"


def _is_in_torch_worker() -> bool:
    """Return whether this is a worker of a torch DataLoader, which passes errors on as text."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(worker, "_worker_info", None) is not None


def _parse_message(message: str) -> tuple[str, dict[str, Detail]]:
    lines = message.split("\n")
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].startswith(_NOTE + "{"):
            try:
                details = json.loads(lines[number].removeprefix(_NOTE))
            except ValueError:
                continue
            return "\n".join(lines[:number] + lines[number + 1 :]), details
    return message, {}


class ConfigError(SeqDataError, ValueError):
    """An argument is invalid."""


class UnknownNameError(ConfigError, KeyError):
    """A name was not found; the message has the most similar known name, if there is one."""

    def __str__(self) -> str:
        """Return the message unquoted, unlike KeyError."""
        return str(self.args[0])


class PlanError(SeqDataError):
    """Lengths, policy and position do not fit together."""


class PluginError(SeqDataError):
    """A plugin is missing, broken, or in conflict with another."""


class ResumeError(SeqDataError):
    """A saved state does not fit the data, the policy, the seed or the Trainer."""


class IncompleteEpochError(SeqDataError):
    """An epoch ended before all planned batches were delivered."""


class WorkerDiedError(SeqDataError):
    """A worker process ended while it had work; ``details`` has its pid, signal and last place."""


class StallError(SeqDataError):
    """A worker process makes no progress; the message has its stack, ``details`` pid and place."""


class LimitError(SeqDataError):
    """Data asks for more memory, depth or members than a limit allows."""


class UnsafeContentError(SeqDataError):
    """Data or a location would run code or point outside its folder; nothing was run."""


class RemoteReadError(SeqDataError):
    """A remote file cannot be read, written or removed; ``details`` has file and ``attempts``."""


class CacheError(SeqDataError):
    """The cache of remote files is full, or cannot be used."""


class RanksDifferError(SeqDataError):
    """Ranks that must hold the same parameters, buffers or weights do not."""


class PeerFailedError(SeqDataError):
    """Another rank has ended; ``details`` has its rank, if it is known, and the cause."""


class PreemptedError(SeqDataError):
    """The run received a signal to stop, before the same batch on every rank; it can be resumed."""


Preempted = PreemptedError  # its shorter name


class DataError(SeqDataError):
    """Something is wrong with stored data; ``details`` names the place."""


class IncompleteDatasetError(DataError):
    """A dataset was not written or copied completely, such as one without its manifest."""


class MissingShardError(DataError):
    """A file of the data is missing: a shard, its index, or all that a path names."""


class CorruptShardError(DataError):
    """A shard or an index is damaged: its size, footer or layout is not that of a written one."""


class CorruptSampleError(DataError):
    """A sequence's recorded offsets or checksum are wrong."""


class DecodeError(DataError):
    """Stored or passed values cannot be converted to the declared field."""


class FingerprintMismatch(DataError):
    """The data is not the data that was expected."""


class SeqDataWarning(UserWarning):
    """A warning that data or a setting may give other results or speed than expected."""


_PASSED_OVER = {
    "concurrent", "contextlib", "functools", "lightning", "lightning_fabric", "pluggy",
    "pytorch_lightning", "threading", "torch",
}  # fmt: skip


def warn(message: str) -> None:
    """Issue a SeqDataWarning at the line of the user's program that led to it.

    Frames of seqdata and its plugins are passed over, and those of libraries that call them, such
    as a Trainer's. Without any other frame, in a thread, it is issued at the caller's line.
    """
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and _is_passed_over(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, SeqDataWarning, stacklevel=2 if frame is None else level)


def _is_passed_over(frame: FrameType) -> bool:
    package, _, _ = str(frame.f_globals.get("__name__", "")).partition(".")
    return package in _PASSED_OVER or package == "seqdata" or package.startswith("seqdata_")
