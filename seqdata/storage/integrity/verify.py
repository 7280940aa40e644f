"""When checksums are looked at, what they are compared with, and the error where one is another.

Place in the flow: opening chooses, sources hand their checks to the kernel and ask here for words.
Reads: checksums, the bytes of a sequence. Makes: errors.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, CorruptSampleError, SeqDataWarning
from seqdata.kernel.dispatch import Checks as KernelChecks
from seqdata.kernel.dispatch import Kernel, kernel
from seqdata.storage.arrow.manifest import Checking
from seqdata.storage.data_location import Place

MODES = ("off", "first_read", "always")
_logger = logging.getLogger("seqdata.storage")


def mode_of(verify: str | None, how: Checking | None, where: str) -> str:
    """Give the mode of a store: off, first_read or always.

    Args:
        verify: What was asked for; None: first_read where it can be done.
        how: How the store's checksums were made; None: it has none.
        where: The store, for messages.

    Raises:
        ConfigError: If it is unknown, or was asked for and cannot be done.
    """
    check_mode(verify, where)
    if verify == "off":
        return "off"
    if how is None:
        return unverified(verify, where, "it has no checksums", "write the store again")
    if how.algorithm in kernel().algorithms():
        return verify or "first_read"
    why = f"its checksums are {how.algorithm!r}, which cannot be computed here"
    remedy = "pip install lightning-seqdata[checksums], or a C compiler and build it again"
    if verify is not None:
        return unverified(verify, where, why, remedy)
    warnings.warn(
        f"{where}: is read unverified, must be verified to be sure of it: {why}; {remedy}",
        SeqDataWarning,
        stacklevel=2,
    )
    return "off"


def unverified(verify: str | None, where: str, why: str, remedy: str) -> str:
    """Give the mode of a store that cannot be verified, saying once that it is not.

    Args:
        verify: What was asked for, not ``"off"``; None: nothing.
        where: The store.
        why: Why it cannot be.
        remedy: What would help.

    Raises:
        ConfigError: If it was asked for.
    """
    if verify is not None:
        raise ConfigError(
            f"{where}: `verify` is {verify!r}, must be 'off': {why}; leave it out, or {remedy}"
        )
    _logger.info("%s: unverified: %s; sizes and footers are checked", where, why)
    return "off"


def check_mode(verify: str | None, where: str) -> None:
    """Refuse a mode that there is not.

    Raises:
        ConfigError: If it is unknown.
    """
    if verify is not None and verify not in MODES:
        raise ConfigError(
            f"{where}: `verify` is {verify!r}, must be one of {', '.join(MODES)}; leave it out"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Checks:
    """What the sequences of one field are verified by.

    Attributes:
        algorithm: That made the checksums.
        block: A sequence with more bytes has a checksum for each so many of them.
        sums: Per shard, uint32.
        firsts: Per shard, int64 (sequences+1,): sequence -> its first checksum; None: one each.
        files: Per shard, the name of the file where they lie.
        bits: Those that are set for what was found right; None: it is looked at each time.
        begins: Per shard, the bit of its first checksum.
        lengths: Timesteps of each sequence of the store; None: the field has no axis.
    """

    algorithm: str
    block: int
    sums: tuple[NDArray[np.uint32], ...]
    firsts: tuple[NDArray[np.int64] | None, ...]
    files: tuple[str, ...]
    bits: Any | None
    begins: tuple[int, ...]
    lengths: NDArray[Any] | None

    @property
    def arguments(self) -> KernelChecks:
        """What the kernel takes."""
        return (
            self.algorithm, self.block, self.sums, self.firsts, self.bits, self.begins, self.lengths
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Suspect:
    """A sequence that the kernel found to be not as it was written.

    Attributes:
        shard: Where it lies.
        at: Its number there.
        number: Its number in the store.
        content: All its bytes, uint8.
        width: Bytes per timestep.
        begin: First byte that was asked for.
        stop: One past the last.
        place: Gives the place of some of its bytes: first, one past the last.
    """

    shard: int
    at: int
    number: int
    content: NDArray[np.uint8]
    width: int
    begin: int
    stop: int
    place: Callable[[int, int], Place]


def mismatch(checks: Checks | None, engine: Kernel, suspect: Suspect) -> CorruptSampleError:
    """Make the error about a sequence whose checksum is another, or its recorded length."""
    if checks is None:  # the kernel was given none, so it cannot have found any
        raise ValueError("mismatch: `checks` is None, must be what the kernel verified by")
    first, blocks = _numbers(checks, suspect)
    whole = len(suspect.content)
    if blocks != max(1, -(-whole // checks.block)):
        return suspect.place(0, whole).error(
            CorruptSampleError,
            f"has {whole} bytes and {blocks} checksums in {checks.files[suspect.shard]!r}, must "
            f"have one for each {checks.block} bytes; one of both files is damaged, restore it or "
            "write the store again",
        )
    for block in _touched(checks, suspect):
        begin, stop = block * checks.block, min(whole, (block + 1) * checks.block)
        found = np.empty(1, dtype=np.uint32)
        engine.checksums(suspect.content, np.array([begin, stop]), found, checks.algorithm)
        must = checks.sums[suspect.shard][first + block]
        if found[0] != must:
            return suspect.place(begin, stop).error(
                CorruptSampleError,
                f"has {checks.algorithm} {int(found[0]):08x}, must have {int(must):08x} by "
                f"{checks.files[suspect.shard]!r}; the shard is damaged, or that file, restore it "
                "or write the store again",
                expected=f"{int(must):08x}", found=f"{int(found[0]):08x}",
            )  # fmt: skip
    timesteps = whole // suspect.width
    length = None if checks.lengths is None else int(checks.lengths[suspect.number])
    if length is not None and length != timesteps:
        return suspect.place(0, whole).error(
            CorruptSampleError,
            f"has {timesteps} timesteps in the shard, must have {length} as in the file of "
            "lengths; one of both is damaged, restore it or write the store again",
            expected=length, found=timesteps,
        )  # fmt: skip
    return suspect.place(suspect.begin, suspect.stop).error(
        CorruptSampleError,
        "was not right when it was read and is when it is read again, must be each time; the "
        "file is being written to, or memory or disk fail: check them",
    )


def _numbers(checks: Checks, suspect: Suspect) -> tuple[int, int]:
    """Give the number of a sequence's first checksum, and how many it has; 0 if that cannot be."""
    firsts = checks.firsts[suspect.shard]
    if firsts is None:
        return suspect.at, 1
    first, last = firsts[suspect.at : suspect.at + 2].tolist()
    if not 0 <= first <= last <= len(checks.sums[suspect.shard]):
        return 0, 0
    return first, last - first


def _touched(checks: Checks, suspect: Suspect) -> range:
    """Give the blocks that were asked for."""
    if not len(suspect.content):
        return range(1)
    return range(suspect.begin // checks.block, -(-suspect.stop // checks.block))
