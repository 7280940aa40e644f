"""How much data may ask for: what is beyond is refused before memory is taken for it.

Files say how large they are; a few bytes can say anything. Place in the flow: the readers of other
people's files ask here. Reads: declared sizes. Makes: errors.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from seqdata.errors import LimitError
from seqdata.storage.data_location import Place

MAX_ROWS = 1 << 48
"""Rows of a file or of one of its units."""
MAX_METADATA = 1 << 24
"""Bytes of what Arrow says about one record batch, or of the schema."""
MAX_FOOTER = 1 << 26
"""Bytes of a file's footer."""
MAX_DEPTH = 8
"""Types inside of one another: lists, extensions, dictionaries, and the number at the end."""
MAX_RATIO = 200
"""Bytes in memory for each byte in the file, beyond ``FREE_BYTES``."""
FREE_BYTES = 256 << 20
"""Bytes of one column of one unit that may come from any few bytes."""


def check_rows(place: Place, rows: int) -> None:
    """Refuse more rows than there can be.

    Raises:
        LimitError: If there are more than ``MAX_ROWS``.
    """
    if rows > MAX_ROWS:
        refuse(place, f"declares {rows} rows", f"have at most {MAX_ROWS}", rows, MAX_ROWS)


def check_depth(place: Place, depth: int) -> None:
    """Refuse a column whose type is nested too deeply.

    Raises:
        LimitError: If it is deeper than ``MAX_DEPTH``.
    """
    if depth > MAX_DEPTH:
        what = f"has a type of {depth} types inside of one another"
        refuse(place, what, f"have at most {MAX_DEPTH}", depth, MAX_DEPTH)


def check_size(place: Place, stored: int, needed: int) -> None:
    """Refuse data that is very much larger in memory than in the file.

    Args:
        place: What is to be decoded.
        stored: Its bytes in the file.
        needed: Bytes that it would take in memory.

    Raises:
        LimitError: If that is more than ``FREE_BYTES`` and ``MAX_RATIO`` times as much.
    """
    most = max(FREE_BYTES, MAX_RATIO * stored)
    if needed > most:
        refuse(
            place, f"has {stored} bytes that become {needed} in memory",
            f"become at most {most}", needed, most,
        )  # fmt: skip


def refuse(place: Place, found: str, must: str, asked: int, most: int) -> NoReturn:
    """Say that a cap was reached.

    Raises:
        LimitError: Always.
    """
    raise place.error(
        LimitError,
        f"{found}, must {must}; where you trust the file, write it again in smaller units",
        found=asked, expected=most,
    )  # fmt: skip


def free_memory() -> int | None:
    """Return the bytes that this process may still take; None: that is not known."""
    found = [_available()]
    most, used = map(read_number, ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"))
    if most is not None:
        found.append(max(0, most - (used or 0)))
    known = [one for one in found if one is not None]
    return min(known) if known else None


def read_number(path: str) -> int | None:
    """Read a number of the system; None where there is none, or it is ``max``."""
    try:
        return int(Path(path).read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        found = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(found.split()[1]) << 10
    except (OSError, ValueError, StopIteration):
        return None
