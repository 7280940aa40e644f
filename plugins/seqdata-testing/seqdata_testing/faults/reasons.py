"""Why a fault cannot be tried on a form of data under a policy: shown in the matrix instead."""

from __future__ import annotations

from collections.abc import Iterator

from seqdata_testing.faults.fault_case import FAULTS, POLICIES

_SENT = (
    "it is written on this machine, as in the local columns, then sent, the manifest or list last; "
    "sending that fails has tests of its own"
)
_LOCAL = {
    "S": "there is no network between",
    "C": "local files are mapped where they are, without a cache",
}
_REMOTE = {
    "D10": "no remote file is mapped; a cached one that is cut off is as a local one",
    **dict.fromkeys(("V1", "V2", "V3", "V4", "V5"), _SENT),
}
_AT_OPENING = "opening reports it, before any sequence is read"
_PROCESS = "a process that ends or hangs is not the error of a sequence: as under raise"
_RANKS = "a rank that is gone is not the error of a sequence: as under raise"
_NETWORK = "what cannot be fetched is not the error of one sequence, but of all: as under raise"
_CACHE = "what happens to the cache is not the error of a sequence: as under raise"
_WRITER = "a writer has no `on_error`"
_SYSTEM = "what a system refuses or asks for is not the error of a sequence: as under raise"
_MENDING = {
    **dict.fromkeys(("D2", "D3", "D4", "D5", "D7", "D8", "D9"), _AT_OPENING),
    "D10": _PROCESS,
    **dict.fromkeys(("W1", "W2", "W3", "W4", "W5"), _PROCESS),
    **dict.fromkeys(("R2", "R3"), _RANKS),
    **dict.fromkeys(("S1", "S2", "S3", "S4", "S6", "S7", "S8"), _NETWORK),
    **dict.fromkeys((f"C{number}" for number in range(1, 9)), _CACHE),
    **dict.fromkeys(("V1", "V2", "V3", "V4", "V5"), _WRITER),
    **dict.fromkeys(("X1", "X2"), _SYSTEM),
}


def why_not(*, remote: bool) -> Iterator[tuple[str, str, str]]:
    """Return (fault, policy, reason) of all that may be left out.

    Args:
        remote: Whether the data lies on another machine.
    """
    for fault in FAULTS:
        form_reason = _REMOTE.get(fault, "") if remote else _LOCAL.get(fault[0], "")
        for policy in POLICIES:
            reason = form_reason or (_MENDING.get(fault, "") if policy != "raise" else "")
            if reason:
                yield fault, policy, reason
