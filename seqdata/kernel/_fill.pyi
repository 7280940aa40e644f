from collections.abc import Iterator
from typing import Any

from seqdata.kernel.dispatch import ChecksumBuffers, KernelSource
from seqdata.kernel.pack_rows import FieldBuffer, PackResult

def source(
    values: tuple[Any, ...],
    extents: tuple[tuple[Any, Any], ...] | None,
    starts: Any,
    width: int,
    checks: ChecksumBuffers | None = None,
    unit: int = ...,
    /,
) -> KernelSource: ...
def fill(
    source: KernelSource, spans: Any, bounds: Any, out: Any, padding: bytes | None, /
) -> int: ...
def verify(source: KernelSource, spans: Any, /) -> int: ...
def algorithms() -> tuple[str, ...]: ...
def checksums(data: Any, bounds: Any, out: Any, algorithm: str, /) -> None: ...
def pack(
    rows: Iterator[Any],
    buffers: tuple[FieldBuffer, ...],
    array: type[Any],
    max_rows: int,
    stop: int,
    /,
) -> PackResult: ...
def map_file(descriptor: int, size: int, /) -> Any: ...
def populate(mapping: Any, first: int, stop: int, /) -> bool: ...
