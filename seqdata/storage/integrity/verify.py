"""When checksums are looked at, what they are compared with, and the error where one is another."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, CorruptSampleError, SeqDataWarning
from seqdata.kernel.dispatch import ChecksumBuffers as KernelChecks
from seqdata.kernel.dispatch import Kernel, get_kernel
from seqdata.storage.data_location import DataLocation
from seqdata.storage.integrity.checksums import ChecksumSpec

VERIFY_MODES = ("off", "first_read", "always")
_logger = logging.getLogger("seqdata.storage")


def resolve_verify_mode(verify: str | None, spec: ChecksumSpec | None, dataset: str) -> str:
    """Return the mode of a store: off, first_read or always.

    Args:
        verify: What was asked for; None: first_read where it can be done.
        spec: How the store's checksums were made; None: it has none.
        dataset: The store, for messages.

    Raises:
        ConfigError: If it is unknown, or was asked for and cannot be done.
    """
    check_verify_mode(verify, dataset)
    if verify == "off":
        return "off"
    if spec is None:
        return accept_unverified(verify, dataset, "it has no checksums", "write the store again")
    if spec.algorithm in get_kernel().algorithms():
        return verify or "first_read"
    reason = f"its checksums are {spec.algorithm!r}, which cannot be computed here"
    remedy = "pip install lightning-seqdata[checksums], or a C compiler and build it again"
    if verify is not None:
        return accept_unverified(verify, dataset, reason, remedy)
    warnings.warn(
        f"{dataset}: is read unverified, must be verified to be sure of it: {reason}; {remedy}",
        SeqDataWarning,
        stacklevel=2,
    )
    return "off"


def accept_unverified(verify: str | None, dataset: str, reason: str, remedy: str) -> str:
    """Return the mode of a store that cannot be verified, saying once that it is not.

    Args:
        verify: What was asked for, not ``"off"``; None: nothing.
        dataset: The store.
        reason: Why it cannot be.
        remedy: What would help.

    Raises:
        ConfigError: If it was asked for.
    """
    if verify is not None:
        raise ConfigError(
            f"{dataset}: `verify` is {verify!r}, must be 'off': {reason}; leave it out, or {remedy}"
        )
    _logger.info("%s: unverified: %s; sizes and footers are checked", dataset, reason)
    return "off"


def check_verify_mode(verify: str | None, dataset: str) -> None:
    """Refuse a mode that there is not.

    Raises:
        ConfigError: If it is unknown.
    """
    if verify is not None and verify not in VERIFY_MODES:
        raise ConfigError(
            f"{dataset}: `verify` is {verify!r}, must be one of {', '.join(VERIFY_MODES)}; leave "
            "it out"
        )


@dataclass(frozen=True, slots=True, eq=False)
class FieldChecksums:
    """What the sequences of one field are verified by.

    Attributes:
        algorithm: That made the checksums.
        bytes_per_checksum: A sequence with more bytes has a checksum for each so many of them.
        values: Per shard, uint32.
        offsets: Per shard, int64 (sequences+1,): sequence -> its first checksum; None: one each.
        files: Per shard, the name of the file where they lie.
        bits: Those that are set for what was found right; None: it is looked at each time.
        bit_offsets: Per shard, the bit of its first checksum.
        lengths: Timesteps of each sequence of the store; None: the field has no axis.
    """

    algorithm: str
    bytes_per_checksum: int
    values: tuple[NDArray[np.uint32], ...]
    offsets: tuple[NDArray[np.int64] | None, ...]
    files: tuple[str, ...]
    bits: Any | None
    bit_offsets: tuple[int, ...]
    lengths: NDArray[Any] | None

    @property
    def kernel_arguments(self) -> KernelChecks:
        """What the kernel takes."""
        return (
            self.algorithm,
            self.bytes_per_checksum,
            self.values,
            self.offsets,
            self.bits,
            self.bit_offsets,
            self.lengths,
        )


@dataclass(frozen=True, slots=True, eq=False)
class ChecksumMismatch:
    """A sequence that the kernel found to be not as it was written.

    Attributes:
        shard: Where it lies.
        index_in_shard: Its number there.
        number: Its number in the store.
        content: All its bytes, uint8.
        width: Bytes per timestep.
        start: First byte that was asked for.
        stop: One past the last.
        locate: Gives the place of some of its bytes: first, one past the last.
    """

    shard: int
    index_in_shard: int
    number: int
    content: NDArray[np.uint8]
    width: int
    start: int
    stop: int
    locate: Callable[[int, int], DataLocation]


def make_mismatch_error(
    checksums: FieldChecksums | None, engine: Kernel, mismatched: ChecksumMismatch
) -> CorruptSampleError:
    """Make the error about a sequence whose checksum is another, or its recorded length."""
    if checksums is None:  # the kernel was given none, so it cannot have found any
        raise ValueError("mismatch: `checksums` is None, must be what the kernel verified by")
    first, count = _checksum_range(checksums, mismatched)
    size = len(mismatched.content)
    if count != max(1, -(-size // checksums.bytes_per_checksum)):
        return mismatched.locate(0, size).make_error(
            CorruptSampleError,
            f"has {size} bytes and {count} checksums in {checksums.files[mismatched.shard]!r}, "
            "must "
            f"have one for each {checksums.bytes_per_checksum} bytes; one of both files is "
            "damaged, restore it or "
            "write the store again",
        )
    for i in _requested_checksums(checksums, mismatched):
        start, stop = (
            i * checksums.bytes_per_checksum,
            min(size, (i + 1) * checksums.bytes_per_checksum),
        )
        found = np.empty(1, dtype=np.uint32)
        engine.checksums(mismatched.content, np.array([start, stop]), found, checksums.algorithm)
        expected = checksums.values[mismatched.shard][first + i]
        if found[0] != expected:
            return mismatched.locate(start, stop).make_error(
                CorruptSampleError,
                f"has {checksums.algorithm} {int(found[0]):08x}, must have {int(expected):08x} by "
                f"{checksums.files[mismatched.shard]!r}; the shard is damaged, or that file, "
                "restore it "
                "or write the store again",
                expected=f"{int(expected):08x}", found=f"{int(found[0]):08x}",
            )  # fmt: skip
    timesteps = size // mismatched.width
    length = None if checksums.lengths is None else int(checksums.lengths[mismatched.number])
    if length is not None and length != timesteps:
        return mismatched.locate(0, size).make_error(
            CorruptSampleError,
            f"has {timesteps} timesteps in the shard, must have {length} as in the file of "
            "lengths; one of both is damaged, restore it or write the store again",
            expected=length, found=timesteps,
        )  # fmt: skip
    return mismatched.locate(mismatched.start, mismatched.stop).make_error(
        CorruptSampleError,
        "was not right when it was read and is when it is read again, must be each time; the "
        "file is being written to, or memory or disk fail: check them",
    )


def _checksum_range(checksums: FieldChecksums, mismatched: ChecksumMismatch) -> tuple[int, int]:
    """Return number of a sequence's first checksum, and how many it has; 0 if that cannot be."""
    offsets = checksums.offsets[mismatched.shard]
    if offsets is None:
        return mismatched.index_in_shard, 1
    first, last = offsets[mismatched.index_in_shard : mismatched.index_in_shard + 2].tolist()
    if not 0 <= first <= last <= len(checksums.values[mismatched.shard]):
        return 0, 0
    return first, last - first


def _requested_checksums(checksums: FieldChecksums, mismatched: ChecksumMismatch) -> range:
    """Return the blocks that were asked for."""
    if not len(mismatched.content):
        return range(1)
    return range(
        mismatched.start // checksums.bytes_per_checksum,
        -(-mismatched.stop // checksums.bytes_per_checksum),
    )
