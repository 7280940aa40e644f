"""All faults, and the class of a case of their matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seqdata_testing.faults.outcome import Expectation, Outcome

Try = Callable[[], Sequence[Outcome]]

FAULTS = {
    "D1": "a bit of a value flips",
    "D2": "a bit of metadata, lengths, a manifest or a kept file flips",
    "D3": "a file is cut off",
    "D4": "a file is cut off at a multiple of 512 bytes",
    "D5": "a file has no bytes",
    "D6": "a page of 4 KiB is zeroed",
    "D7": "a file is gone",
    "D8": "two shards are in each other's place",
    "D9": "a manifest or index is of an older write, or other data lies under the old path",
    "D10": "a file is cut off while it is read",
    "W1": "a worker is killed",
    "W2": "a worker crashes",
    "W3": "a worker runs out of memory",
    "W4": "a worker leaves by sys.exit",
    "W5": "a worker is stuck",
    "R1": "one rank's data cannot be read, or its transform or worker fails",
    "R2": "one rank is killed",
    "R3": "one rank is stopped",
    "S1": "a server answers 503",
    "S2": "a connection is reset in the middle of a body",
    "S3": "a body is shorter than it should be",
    "S4": "a body crawls",
    "S5": "a remote file is replaced while it is read",
    "S6": "a body never ends",
    "S7": "a few bytes unpack to very many",
    "S8": "a server sends requests on to another one",
    "C1": "the disk of the cache is full",
    "C2": "two processes fill one cache that is too small",
    "C3": "a process is killed while it fills the cache",
    "C4": "a file in the cache is damaged",
    "C5": "the folder of the cache is removed while it is read",
    "C6": "a batch needs more shards than the cache has room for",
    "C7": "the folder of the cache holds files of the user's",
    "C8": "the file system of the cache has no locks",
    "V1": "a writer is killed",
    "V2": "a writer finds the disk full",
    "V3": "a writer is asked to end",
    "V4": "a writer's file system has no locks",
    "V5": "the power fails while a writer is at work",
    "X1": "all processes are asked to end",
    "X2": "descriptors, mappings or shared memory run out",
}
"""Fault -> event, as on the documentation page about faults."""


POLICIES = ("raise", "replace", "mask")
"""Treatments of a sequence that cannot be read: values of ``on_error`` of the loader."""

NOTHING = Expectation(kinds=())


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCase:
    """A fault, tried in one way.

    Attributes:
        fault: Name of the fault in ``FAULTS``.
        way: Dataset, ``verify``, workers, …, which distinguish this case from others.
        tries: Function that returns the outcomes, called in a child process. None: cannot apply.
        reason: Why it cannot apply, or a remark.
        must: Requirement for every outcome.
        bound: Time limit of the whole case in seconds.
        quick: Whether it runs at every change; other cases only run at night.
        named: Fraction of the errors that must name the sequence.
        form: Location and format of the data: ``arrow``, ``arrow remote``, …
        policy: The loader's ``on_error``.
    """

    fault: str
    way: str
    tries: Try | None = None
    reason: str = ""
    must: Expectation = NOTHING
    bound: float = 60.0
    quick: bool = False
    named: float = 0.0
    form: str = ""
    policy: str = "raise"
