"""How much data may ask for: what is beyond is refused before memory is taken for it.

Files say how large they are; a few bytes can say anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from seqdata.errors import LimitError
from seqdata.storage.data_location import DataLocation

MAX_ROWS = 1 << 48
"""Rows of a file or of one of its units."""
MAX_METADATA = 1 << 24
"""Bytes of what Arrow says about one record batch, or of the schema."""
MAX_FOOTER = 1 << 26
"""Bytes of a file's footer."""
MAX_DEPTH = 8
"""Types inside of one another: lists, extensions, dictionaries, and the number at the end."""
MAX_RATIO = 200
"""Bytes in memory for each byte in the file, beyond ``UNCHECKED_BYTES``."""
UNCHECKED_BYTES = 256 << 20
"""Bytes of one column of one unit that may come from any few bytes."""


def check_rows(location: DataLocation, rows: int) -> None:
    """Refuse more rows than there can be.

    Raises:
        LimitError: If there are more than ``MAX_ROWS``.
    """
    if rows > MAX_ROWS:
        raise_limit_error(
            location, f"declares {rows} rows", f"have at most {MAX_ROWS}", rows, MAX_ROWS
        )


def check_depth(location: DataLocation, depth: int) -> None:
    """Refuse a column whose type is nested too deeply.

    Raises:
        LimitError: If it is deeper than ``MAX_DEPTH``.
    """
    if depth > MAX_DEPTH:
        problem = f"has a type of {depth} types inside of one another"
        raise_limit_error(location, problem, f"have at most {MAX_DEPTH}", depth, MAX_DEPTH)


def check_size(location: DataLocation, stored: int, needed: int) -> None:
    """Refuse data that is very much larger in memory than in the file.

    Args:
        location: What is to be decoded.
        stored: Its bytes in the file.
        needed: Bytes that it would take in memory.

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
    """Say that a cap was reached.

    Raises:
        LimitError: Always.
    """
    raise location.make_error(
        LimitError,
        f"{found}, must {required}; where you trust the file, write it again in smaller units",
        found=requested, expected=maximum,
    )  # fmt: skip


def free_memory() -> int | None:
    """Return the bytes that this process may still take; None: that is not known."""
    found = [_read_available_memory()]
    maximum, used = map(read_number, ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"))
    if maximum is not None:
        found.append(max(0, maximum - (used or 0)))
    known = [one for one in found if one is not None]
    return min(known) if known else None


def read_number(path: str) -> int | None:
    """Read a number of the system; None where there is none, or it is ``max``."""
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
