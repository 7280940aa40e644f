"""The choice of the kernel of this process: the compiled one, or the one in NumPy.

The environment variable ``SEQDATA_KERNEL=numpy`` chooses the latter; nothing is read at import.
Place in the flow: stores ask once, when they make a source; ``doctor`` and benchmarks ask for the
name.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any, NewType, Protocol, cast

from seqdata.errors import ConfigError, must_be
from seqdata.kernel import numpy_kernel
from seqdata.kernel.pack_rows import FieldBuffer, PackResult

KernelSource = NewType("KernelSource", object)
"""Result of ``source`` and argument of ``fill``; its content is private to the kernel."""


ChecksumBuffers = tuple[
    str, int, tuple[Any, ...], tuple[Any | None, ...], Any | None, tuple[int, ...], Any | None
]
"""Checksums by which a source is verified.

Algorithm; bytes of a block; per shard uint32 checksums; per shard int64 (sequences+1,) sequence ->
first checksum, or None if each has one; writable bits of verified blocks, or None; per shard the
first bit; and uint32 or uint64 lengths of all sequences, or None.
"""


class Kernel(Protocol):
    """The functions of a kernel. ``Any`` below is an object with the buffer protocol."""

    def source(
        self,
        values: tuple[Any, ...],
        extents: tuple[tuple[Any, Any], ...] | None,
        starts: Any,
        width: int,
        checks: ChecksumBuffers | None = None,
        unit: int = ...,
        /,
    ) -> KernelSource:
        """Return a source over the buffers of one field.

        Args:
            values: Per shard, a buffer with all its timesteps.
            extents: Per shard (begins, ends), int64 (sequences,) each: positions of the values of a
                sequence in the buffer; None: one timestep each, in order.
            starts: int64 (shards+1,): shard -> first sequence, from 0.
            width: Number of bytes per timestep.
            checks: The checksums that ``fill`` verifies; None: no checksums.
            unit: Number of bytes in which extents count; by default ``width``.

        Raises:
            ValueError: If a buffer is shorter than its number of sequences asks for.
        """
        ...

    def fill(
        self, source: KernelSource, spans: Any, bounds: Any, out: Any, padding: bytes | None, /
    ) -> int:
        """Copy spans and pad; return -1, or the index of the first span that does not exist.

        If a span is bad, nothing is written. If the checksum of one differs, the result is ``-2 -
        index``, and the output must not be used. Buffers are not trusted: for any content, nothing
        outside of them is read or written.

        Args:
            source: Source of the field.
            spans: int64 (n, 3), C-contiguous: sequence, start, stop in timesteps.
            bounds: int64 (n+1,), non-decreasing: span i goes to timestep ``bounds[i]`` of ``out``,
                and the rest up to ``bounds[i+1]`` is padding.
            out: Writable, C-contiguous.
            padding: The bytes of one element; None for zeros.

        Raises:
            ValueError: If bounds do not fit ``out`` and the spans, or ``width`` is not a multiple
                of the size of ``padding``.
        """
        ...

    def verify(self, source: KernelSource, spans: Any, /) -> int:
        """Check spans as ``fill`` does and return what it returns, without copying."""
        ...

    def algorithms(self) -> tuple[str, ...]:
        """Return the names of the checksums that can be computed."""
        ...

    def checksums(self, data: Any, bounds: Any, out: Any, algorithm: str, /) -> None:
        """Write the checksum of every piece of a buffer.

        Args:
            data: The bytes.
            bounds: int64 (n+1,), non-decreasing: piece i is ``data[bounds[i]:bounds[i+1]]``.
            out: uint32 (n,), writable.
            algorithm: One of ``algorithms``.

        Raises:
            ValueError: If bounds do not fit, or the algorithm cannot be computed.
        """
        ...

    def pack(
        self,
        rows: Iterator[Any],
        buffers: tuple[FieldBuffer, ...],
        array: type[Any],
        max_rows: int,
        stop: int,
        /,
    ) -> PackResult:
        """Copy rows into buffers as long as they are plain, and return the row that is not.

        A plain row is a dict of exactly the fields, whose values are C-contiguous arrays of the
        field's dtype and shape, numbers, ``str`` or ``bytes``. Another row, or one that does not
        fit, is returned, and nothing of it is copied.

        Args:
            rows: Iterator over rows, of which no more are taken than are packed or returned.
            buffers: Buffer of each field.
            array: The type of arrays.
            max_rows: Maximum number of rows.
            stop: Number of bytes after which no more rows are taken, those of values plus 8 for
                each entry of ``ends``.

        Returns:
            Number of copied rows; number of their bytes; bytes used per field; and ``(row,)`` for a
            row that was not copied, ``()`` if there may be more rows, None if there are none.

        Raises:
            ValueError: If a buffer is too short.
        """
        ...

    def map_file(self, descriptor: int, size: int, /) -> Any:
        """Map the first ``size`` bytes of a file for reading; its descriptor may then be closed."""
        ...

    def populate(self, mapping: Any, first: int, stop: int, /) -> bool:
        """Read bytes ``first:stop`` of a mapping ahead into memory; return whether that worked."""
        ...


def get_kernel() -> Kernel:
    """Return the compiled kernel, or the one in NumPy if it is missing or not wanted.

    Raises:
        ConfigError: If ``SEQDATA_KERNEL`` is not ``c`` or ``numpy``, or is ``c`` and the compiled
            kernel cannot be imported.
    """
    requested = os.environ.get("SEQDATA_KERNEL", "")
    if requested not in ("", "c", "numpy"):
        raise ConfigError(
            must_be("kernel: `SEQDATA_KERNEL`", "'c' or 'numpy'", f"{requested!r}", "Unset it")
        )
    fallback = cast("Kernel", numpy_kernel)
    if requested == "numpy":
        return fallback
    try:
        return cast("Kernel", importlib.import_module("seqdata.kernel._fill"))
    except ImportError as error:
        if requested == "c":
            raise ConfigError(
                "kernel: `SEQDATA_KERNEL` is 'c' but the compiled kernel cannot be imported "
                f"({error}); unset it, or build the kernel in a checkout with `python setup.py "
                "build_ext --inplace`"
            ) from error
        return fallback


def get_kernel_name() -> str:
    """Return the name of the kernel in use: ``"c"``, or ``"numpy"``, which is slower."""
    return "numpy" if get_kernel() is cast("Kernel", numpy_kernel) else "c"
