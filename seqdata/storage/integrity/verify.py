"""Verification of checksums: when they are compared, with what, and the error of a mismatch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.errors import ConfigError, CorruptSampleError, warn
from seqdata.kernel.dispatch import ChecksumBuffers as KernelChecks
from seqdata.kernel.dispatch import Kernel, get_kernel
from seqdata.storage.data_location import DataLocation
from seqdata.storage.integrity.checksums import ChecksumSpec

VERIFY_MODES = ("off", "first_read", "always")
_logger = logging.getLogger("seqdata.storage")


def resolve_verify_mode(verify: str | None, spec: ChecksumSpec | None, dataset: str) -> str:
    """Return the mode of a store: off, first_read or always.

    Args:
        verify: Requested mode; None: first_read if possible.
        spec: Algorithm and block size of the store's checksums; None if it has none.
        dataset: The store, for messages.

    Raises:
        ConfigError: If it is unknown, or was requested and is not possible.
    """
    check_verify_mode(verify, dataset)
    if verify == "off":
        return "off"
    if spec is None:
        return accept_unverified(verify, dataset, "it has no checksums", "write the store again")
    if spec.algorithm in get_kernel().algorithms():
        return verify or "first_read"
    reason = f"its checksums are {spec.algorithm!r}, which cannot be computed here"
    remedy = "install lightning-seqdata[checksums], or build it again with a C compiler"
    if verify is not None:
        return accept_unverified(verify, dataset, reason, remedy)
    warn(
        f"{dataset}: is read without comparing checksums: {reason}. To compare them, {remedy}",
    )
    return "off"


def accept_unverified(verify: str | None, dataset: str, reason: str, remedy: str) -> str:
    """Return the mode of a store that cannot be verified, ``off``, and log that it is not verified.

    Args:
        verify: The requested mode, not ``"off"``; None: no mode was requested.
        dataset: The store.
        reason: Reason why it cannot be verified.
        remedy: Way to make it verifiable.

    Raises:
        ConfigError: If ``verify`` is not None.
    """
    if verify is not None:
        raise ConfigError(
            f"{dataset}: `verify` must be 'off', but is {verify!r}: {reason}. Leave it out, or "
            f"{remedy}"
        )
    _logger.info("%s: unverified: %s; sizes and footers are checked", dataset, reason)
    return "off"


def check_verify_mode(verify: str | None, dataset: str) -> None:
    """Raise if a mode is unknown.

    Raises:
        ConfigError: If it is unknown.
    """
    if verify is not None and verify not in VERIFY_MODES:
        raise ConfigError(
            f"{dataset}: `verify` must be one of {', '.join(VERIFY_MODES)}, but is {verify!r}. "
            "Leave it out for the default"
        )


@dataclass(frozen=True, slots=True, eq=False)
class FieldChecksums:
    """The checksums of the sequences of one field.

    Attributes:
        algorithm: The algorithm of the checksums.
        bytes_per_checksum: Bytes of a block; a longer sequence has a checksum for each block.
        values: Per shard, uint32.
        offsets: Per shard, int64 (sequences+1,): sequence -> its first checksum; None: one each.
        files: Per shard, the name of the file of the checksums.
        bits: The bits of verified checksums; None: verify at each read.
        bit_offsets: Per shard, the bit of its first checksum.
        lengths: Number of timesteps of each sequence of the store; None: the field has no axis.
    """

    algorithm: str
    bytes_per_checksum: int
    values: tuple[NDArray[np.uint32], ...]
    offsets: tuple[NDArray[np.int64] | None, ...]
    files: tuple[str, ...]
    bits: Any | None
    bit_offsets: tuple[int, ...]
    lengths: NDArray[Any] | None

    def select(self, shards: range) -> FieldChecksums:
        """Return the checksums of some shards, of a field without ``lengths``."""
        chosen = slice(shards.start, shards.stop)
        return replace(
            self, values=self.values[chosen], offsets=self.offsets[chosen],
            files=self.files[chosen], bit_offsets=self.bit_offsets[chosen],
        )  # fmt: skip

    @property
    def kernel_arguments(self) -> KernelChecks:
        """The arguments of the kernel."""
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
    """A sequence for which the kernel found a wrong checksum.

    Attributes:
        shard: Index of the shard.
        index_in_shard: Index of the sequence in the shard.
        number: Index of the sequence in the store.
        content: All bytes of the sequence, uint8.
        width: Bytes per timestep.
        start: First requested byte.
        stop: One past the last.
        locate: Function from the first byte, and one past the last, to their location.
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
    """Return the error about a sequence with another checksum or another recorded length."""
    if checksums is None:  # the kernel had no checksums, so it cannot have found a mismatch
        raise ValueError(
            "mismatch: `checksums` must be the checksums that the kernel compared with, but is None"
        )
    first, count = _checksum_range(checksums, mismatched)
    size = len(mismatched.content)
    if count != max(1, -(-size // checksums.bytes_per_checksum)):
        return mismatched.locate(0, size).make_error(
            CorruptSampleError,
            f"must have one checksum for each {checksums.bytes_per_checksum} bytes, but has "
            f"{size} bytes and {count} checksums in {checksums.files[mismatched.shard]!r}: one of "
            "the two files is damaged. Restore it, or write the store again",
        )
    for i in _find_requested_blocks(checksums, mismatched):
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
                f"must have {checksums.algorithm} {int(expected):08x} as in "
                f"{checksums.files[mismatched.shard]!r}, but has {int(found[0]):08x}: the shard "
                "or that file is damaged. Restore it, or write the store again",
                expected=f"{int(expected):08x}", found=f"{int(found[0]):08x}",
            )  # fmt: skip
    timesteps = size // mismatched.width
    length = None if checksums.lengths is None else int(checksums.lengths[mismatched.number])
    if length is not None and length != timesteps:
        return mismatched.locate(0, size).make_error(
            CorruptSampleError,
            f"must have {length} timesteps as in the file of lengths, but has {timesteps} in the "
            "shard: one of the two is damaged. Restore it, or write the store again",
            expected=length, found=timesteps,
        )  # fmt: skip
    return mismatched.locate(mismatched.start, mismatched.stop).make_error(
        CorruptSampleError,
        "must be the same at each read, but was wrong at first and is right now: the file is "
        "being written to, or memory or disk fail. Check them",
    )


def _checksum_range(checksums: FieldChecksums, mismatched: ChecksumMismatch) -> tuple[int, int]:
    """Return the index of a sequence's first checksum, and their count; 0 if they are invalid."""
    offsets = checksums.offsets[mismatched.shard]
    if offsets is None:
        return mismatched.index_in_shard, 1
    first, last = offsets[mismatched.index_in_shard : mismatched.index_in_shard + 2].tolist()
    if not 0 <= first <= last <= len(checksums.values[mismatched.shard]):
        return 0, 0
    return first, last - first


def _find_requested_blocks(checksums: FieldChecksums, mismatched: ChecksumMismatch) -> range:
    if not len(mismatched.content):
        return range(1)
    return range(
        mismatched.start // checksums.bytes_per_checksum,
        -(-mismatched.stop // checksums.bytes_per_checksum),
    )
