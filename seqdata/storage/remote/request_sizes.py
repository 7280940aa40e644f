"""The number of bytes that one request asks for: fewer after a request reached its timeout.

All requests of a process share its link, so that a large range may need longer than
``Remote.stall_seconds`` although bytes arrive all the time. After a timeout, ranges are read in
small pieces, which grow again as long as they arrive quickly. Each piece that arrives is progress.
"""

from __future__ import annotations

SMALLEST_REQUEST = 64 << 10
"""Bytes of a request after a timeout: fewer in ``stall_seconds`` count as no progress."""
_UNLIMITED = 1 << 62
_QUICK = 0.25  # share of the timeout: twice the bytes then need half of it, if nothing changes


class RequestSizes:
    """The size of the next requests to a server; threads share it.

    Args:
        timeout: Timeout of a request in seconds.
    """

    __slots__ = ("_timeout", "max_bytes")

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self.max_bytes = _UNLIMITED

    def shrink(self) -> None:
        """Make requests small after a timeout."""
        self.max_bytes = SMALLEST_REQUEST

    def grow(self, size: int, seconds: float) -> None:
        """Make requests larger after a quick one.

        Args:
            size: Its bytes.
            seconds: Its seconds.
        """
        if seconds <= self._timeout * _QUICK:
            self.max_bytes = max(self.max_bytes, 2 * size)
