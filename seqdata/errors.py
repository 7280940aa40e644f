"""The errors of seqdata, on one page.

Every message reads "where: what is, what must be; what to do". An error about data carries what is
known of the place as attributes; they survive pickling and being re-raised from its text alone.

::

    SeqDataError
    ├── ConfigError            an argument that cannot be meant
    │   └── UnknownNameError   a field, axis or part that is not there; a KeyError, too
    ├── PlanError              lengths, policy and position do not make a plan
    ├── PluginError            a plugin is missing, broken, or clashes with another
    ├── ResumeError            a saved state that does not fit
    ├── IncompleteEpochError   fewer batches were delivered than planned
    ├── WorkerDiedError        a worker process ended, or was ended, while it had work
    ├── StallError             a worker process makes no progress
    ├── LimitError             data asks for more than a cap allows
    ├── RemoteReadError        another machine does not give the bytes, however often it is asked
    ├── CacheError             the cache of remote files has no room, or cannot be used
    ├── UnsafeContentError     data that would run code, or lead elsewhere
    ├── RanksDifferError       ranks hold different models
    ├── PeerFailedError        another rank is gone: killed, stopped, or ended by itself
    ├── Preempted              the run was told to stop; every rank stops at the same batch
    └── DataError              something is wrong with stored data
        ├── IncompleteDatasetError   never finished writing
        ├── MissingShardError
        ├── CorruptShardError
        ├── CorruptSampleError
        ├── DecodeError
        └── FingerprintMismatch

Place in the flow: below everything.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, Self

from seqdata.name_conflict import require_own_init

require_own_init()

_NOTE = "seqdata: "
REMEDY = "\n  Verify: "  # the last line of a message about data that a command can look at
REPLAY_PREFIX = "See it: "  # before what shows the batch that an error happened in
Fact = str | int | float | bool | None


class SeqDataError(Exception):
    """Base of every error that seqdata raises on purpose.

    Args:
        message: One text. Where it holds a trailer line ``seqdata: {json}`` (a note that is added
            in the workers of a torch DataLoader alone, which pass errors on as text), the facts are
            read back from it.

    Attributes:
        facts: What is known of the place: ``shard``, ``sequence``, ``field``, ``offset``,
            ``rank``, …; docs/reference/errors.md lists them all.
    """

    def __init__(self, message: str = "") -> None:
        text, facts = _parse_message(message)
        super().__init__(text)
        self.facts: dict[str, Fact] = facts
        if facts and _is_in_torch_worker():
            self.add_note(_NOTE + json.dumps(facts))

    @classmethod
    def at(cls, message: str, **facts: Fact) -> Self:
        """Make the error with facts about the place it happened at."""
        known = {name: fact for name, fact in facts.items() if fact is not None}
        return cls(f"{message}\n{_NOTE}{json.dumps(known)}" if known else message)

    def with_place(self, line: str, **facts: Fact) -> Self:
        """Make the same error with one more line of where it happened, and its facts.

        Args:
            line: Comes under the message; the command that helps stays the last.
            facts: Win over those that are there.
        """
        text, remedy, command = str(self).rpartition(REMEDY)
        text = f"{text}\n  {line}. {remedy.strip()} {command}" if remedy else f"{self}\n  {line}"
        return self._copy_notes(self.at(text, **{**self.facts, **facts}))

    def with_facts(self, **facts: Fact) -> Self:
        """Make the same error with more facts; they win over those that are there."""
        return self._copy_notes(self.at(str(self), **{**self.facts, **facts}))

    def shown_by(self, command: str) -> Self:
        """Make the same error with, at its end, what shows the batch that it happened in."""
        text = str(self).removesuffix(".")
        return self._copy_notes(self.at(f"{text}. {REPLAY_PREFIX}{command}", **self.facts))

    def _copy_notes(self, error: Self) -> Self:
        """Return another error the notes of this one."""
        for note in getattr(self, "__notes__", ()):
            if not note.startswith(_NOTE):
                error.add_note(note)
        return error

    def __reduce__(self) -> tuple[type[Self], tuple[str], dict[str, Any]]:
        text = str(self.args[0])
        text_with_facts = f"{text}\n{_NOTE}{json.dumps(self.facts)}" if self.facts else text
        return (
            type(self),
            (text_with_facts,),
            dict(self.__dict__),
        )  # notes, and fields of subclasses


def format_step(
    *, epoch: int, batch: int, step: int, rank: int, size: int, worker: int | None = None
) -> str:
    """Say which batch of a run is meant, for ``with_place`` or the note of an exception.

    Args:
        epoch: Of the plan.
        batch: Its number in the plan.
        step: The rank's.
        rank: The rank.
        size: How many there are.
        worker: The process that made it; None: the training process.

    Examples:
        >>> format_step(epoch=2, batch=4711, step=1177, rank=3, size=4, worker=1)
        'epoch 2, batch 4711 (step 1177, rank 3 of 4, worker 1)'
    """
    by = "" if worker is None else f", worker {worker}"
    return f"epoch {epoch}, batch {batch} (step {step}, rank {rank} of {size}{by})"


def must_be(name: str, needed: str, found: str, remedy: str = "") -> str:
    """Return a message: what must be, what is, what to do.

    Args:
        name: What is wrong, with its place: ``loader: `prefetch```.
        needed: What it must be, as it follows "must be".
        found: What it is, as it follows "but is": ``repr`` of a value.
        remedy: What to do: whole sentences without the last full stop; "" if there is nothing.
    """
    message = f"{name} must be {needed}, but is {found}"
    return f"{message}. {remedy}." if remedy else message


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return the question whether the most similar name was meant; empty if none is similar.

    Example:
        >>> did_you_mean("lable", ["label", "x"])
        "did you mean 'label'?"
    """
    import difflib  # needed for errors only

    matches = difflib.get_close_matches(str(name), list(names), n=1)
    return f"did you mean {matches[0]!r}?" if matches else ""


def _is_in_torch_worker() -> bool:
    """Return whether this is a worker of a torch DataLoader, which passes errors on as text."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(worker, "_worker_info", None) is not None


def _parse_message(message: str) -> tuple[str, dict[str, Fact]]:
    lines = message.split("\n")
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].startswith(_NOTE + "{"):
            try:
                facts = json.loads(lines[number].removeprefix(_NOTE))
            except ValueError:
                continue
            return "\n".join(lines[:number] + lines[number + 1 :]), facts
    return message, {}


class ConfigError(SeqDataError, ValueError):
    """An argument cannot be meant."""


class UnknownNameError(ConfigError, KeyError):
    """A name that was looked up is not there; the message has the nearest one that is."""

    def __str__(self) -> str:
        """Return the message as it is: a KeyError would quote it."""
        return str(self.args[0])


class PlanError(SeqDataError):
    """Lengths, policy and position do not make a plan."""


class PluginError(SeqDataError):
    """A plugin is missing, broken, or clashes with another."""


class ResumeError(SeqDataError):
    """A saved state does not fit the data, the policy, the seed or the Trainer."""


class IncompleteEpochError(SeqDataError):
    """An epoch ended before all planned batches were delivered."""


class WorkerDiedError(SeqDataError):
    """A worker process ended while it had work; ``facts`` has pid, signal and the last place."""


class StallError(SeqDataError):
    """A worker process makes no progress; ``facts`` has pid and place, the message its stack."""


class LimitError(SeqDataError):
    """Data asks for more memory, depth or members than a cap allows; nothing was allocated."""


class UnsafeContentError(SeqDataError):
    """Data or a location would run code or lead elsewhere; nothing was run."""


class RemoteReadError(SeqDataError):
    """A remote file cannot be read; ``facts`` has file, bytes and ``attempts``."""


class CacheError(SeqDataError):
    """The cache of remote files has no room, or cannot be used."""


class RanksDifferError(SeqDataError):
    """Ranks that must hold the same parameters and buffers do not; ``facts`` has one such rank."""


class PeerFailedError(SeqDataError):
    """Another rank is gone; ``facts`` has its rank, where it can be told, and the cause."""


class Preempted(SeqDataError):
    """The run was told to stop, on every rank before the same batch; it can go on from there."""


class DataError(SeqDataError):
    """Something is wrong with stored data; ``facts`` names the place."""


class IncompleteDatasetError(DataError):
    """A dataset has no manifest: its writing was never finished."""


class MissingShardError(DataError):
    """A shard that the manifest names is not there."""


class CorruptShardError(DataError):
    """A shard's size, footer or layout is not what was written."""


class CorruptSampleError(DataError):
    """A sequence's recorded place or checksum is wrong."""


class DecodeError(DataError):
    """Stored or given values cannot be turned into the declared field."""


class FingerprintMismatch(DataError):
    """The data is not the data that was meant."""


class SeqDataWarning(UserWarning):
    """Something changes results, and is said once."""
