"""Limits on sizes that files declare, checked before memory is allocated, and errors of damage.

A few bytes of a damaged or hostile file can declare any size.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from seqdata.errors import CorruptShardError, LimitError
from seqdata.storage.data_location import DataLocation

MAX_ROWS = 1 << 48
"""Rows of a file or of one of its units."""
MAX_METADATA = 1 << 24
"""Bytes of Arrow's metadata of one record batch, or of the schema."""
MAX_FOOTER = 1 << 26
"""Bytes of a file's footer."""
MAX_DEPTH = 8
"""Depth of nested types: lists, extensions, dictionaries, and the number at the end."""
MAX_RATIO = 200
"""Bytes in memory for each byte in the file, beyond ``UNCHECKED_BYTES``."""
UNCHECKED_BYTES = 256 << 20
"""Decoded bytes of one column of one unit that are allowed whatever its stored size."""


def check_rows(location: DataLocation, rows: int) -> None:
    """Raise if a file declares too many rows.

    Raises:
        LimitError: If there are more than ``MAX_ROWS``.
    """
    if rows > MAX_ROWS:
        raise_limit_error(
            location, f"declares {rows} rows", f"have at most {MAX_ROWS}", rows, MAX_ROWS
        )


def check_depth(location: DataLocation, depth: int) -> None:
    """Raise if a column's type is nested too deeply.

    Raises:
        LimitError: If it is deeper than ``MAX_DEPTH``.
    """
    if depth > MAX_DEPTH:
        problem = f"has a type of {depth} nested types"
        raise_limit_error(location, problem, f"have at most {MAX_DEPTH}", depth, MAX_DEPTH)


def check_size(location: DataLocation, stored: int, needed: int) -> None:
    """Raise if data is very much larger in memory than in the file.

    Args:
        location: The data to decode.
        stored: Size in the file, in bytes.
        needed: Size in memory, in bytes.

    Raises:
        LimitError: If that is more than ``UNCHECKED_BYTES`` and ``MAX_RATIO`` times as much.
    """
    most = max(UNCHECKED_BYTES, MAX_RATIO * stored)
    if needed > most:
        raise_limit_error(
            location, f"has {stored} bytes that become {needed} in memory",
            f"become at most {most}", needed, most,
        )  # fmt: skip


def raise_limit_error(
    location: DataLocation, found: str, required: str, requested: int, maximum: int
) -> NoReturn:
    """Raise the error about an exceeded limit.

    Raises:
        LimitError: Always.
    """
    raise location.make_error(
        LimitError,
        f"must {required}, but {found}. If you trust the file, write it again within this limit",
        found=requested, expected=maximum,
    )  # fmt: skip


def make_damage_error(location: DataLocation, found: str) -> CorruptShardError:
    """Return the error of a file whose bytes contradict one another.

    Args:
        location: The damaged part.
        found: The finding, after "but has".
    """
    return location.make_error(
        CorruptShardError,
        f"must be unchanged since it was written, but has {found}. Restore the file",
    )


def make_no_footer_error(location: DataLocation) -> CorruptShardError:
    """Return the error of a file without a footer."""
    return location.make_error(
        CorruptShardError,
        "must end with a footer, but does not: it was cut off or not finished. Restore it",
    )


def free_memory() -> int | None:
    """Return the bytes that this process may still allocate; None if that is not known."""
    found = [_read_available_memory()]
    maximum, used = map(read_number, ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"))
    if maximum is not None:
        found.append(max(0, maximum - (used or 0)))
    return min((limit for limit in found if limit is not None), default=None)


def read_number(path: str) -> int | None:
    """Read a number from a system file; None if there is none, or it is ``max``."""
    try:
        return int(Path(path).read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _read_available_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        found = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(found.split()[1]) << 10
    except (OSError, ValueError, StopIteration):
        return None
