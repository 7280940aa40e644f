"""All cases, for the stores of the core and the targets of plugins.

If a fault cannot be tried, the matrix has the reason in place of a case.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import replace

from seqdata.errors import ConfigError
from seqdata_testing.faults import (
    cases_damage,
    cases_ranks,
    cases_remote,
    cases_saved_files,
    cases_workers,
    cases_writers,
    try_remote,
)
from seqdata_testing.faults.fault_case import FAULTS, POLICIES, FaultCase
from seqdata_testing.faults.targets import FOREIGN, OWN, FaultTarget

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
    """Yield (fault, policy, reason) for faults that need not be tried.

    Args:
        remote: Whether the data is remote.
    """
    for fault in FAULTS:
        form_reason = _REMOTE.get(fault, "") if remote else _LOCAL.get(fault[0], "")
        for policy in POLICIES:
            reason = form_reason or (_MENDING.get(fault, "") if policy != "raise" else "")
            if reason:
                yield fault, policy, reason


_QUICK_OF_OTHERS = tuple(f"D{number}" for number in range(1, 11))
_SERVED_MODE = "cache"


def all_cases(others: Sequence[FaultTarget] = (), *, quick: bool = False) -> list[FaultCase]:
    """Return the cases of every fault, in the order of ``FAULTS``.

    Args:
        others: Targets of plugins, in addition to the core's own.
        quick: Whether each case makes few trials, for runs at every change.
    """
    found = cases_for(OWN, quick=quick)
    foreign = [
        *cases_damage.cases(FOREIGN, quick=quick),
        *cases_saved_files.cases(FOREIGN, quick=quick),
        *cases_saved_files.saved_cases(quick=quick),
    ]
    found += [replace(case, form=FOREIGN.name) for case in foreign]
    for target in others:
        found += [
            replace(case, quick=case.quick and case.fault in _QUICK_OF_OTHERS)
            for case in cases_for(target, quick=quick)
        ]
    order = list(FAULTS)
    return sorted(found, key=lambda case: order.index(case.fault))


def cases_for(target: FaultTarget, *, quick: bool = False) -> list[FaultCase]:
    """Return the cases of one kind of data, local and remote: each fault under each policy.

    Args:
        target: Target to write and open, with checksums.
        quick: Whether each case makes few trials.
    """
    local = [
        *cases_damage.cases(target, quick=quick),
        *cases_damage.mended_cases(target, cases_damage.REACHES, quick=quick),
        *cases_saved_files.cases(target, quick=quick),
        *cases_workers.cases(target),
        *cases_ranks.cases(target),
        *cases_writers.cases(target, quick=quick),
    ]
    found = _complete(target.name, local, remote=False)
    if target.served is not None:
        served = try_remote.served_target(target, _SERVED_MODE)
        far = [
            *cases_remote.cases(target, quick=quick),
            *cases_workers.cases(served, methods=cases_workers.all_methods()[:1], mapped=False),
            *cases_ranks.cases(served, worlds=cases_ranks.WORLDS[:1], mapped=False),
            *cases_writers.make_little_shared_cases(served),
        ]
        slow = [replace(case, quick=case.quick and case.fault[0] in "SC") for case in far]
        found += _complete(f"{target.name} remote", slow, remote=True)
    return found


def _complete(form: str, cases: Sequence[FaultCase], *, remote: bool) -> list[FaultCase]:
    """Return cases with their form, and for each missing case one with the reason."""
    placed = [replace(case, form=form) for case in cases]
    present = {(case.fault, case.policy) for case in placed}
    return placed + [
        FaultCase(
            fault=fault, way=f"{form}, on_error {policy}", form=form, policy=policy, reason=reason
        )
        for fault, policy, reason in why_not(remote=remote)
        if (fault, policy) not in present
    ]


def find_target(name: str) -> FaultTarget:
    """Import the target of a plugin.

    Args:
        name: Import path: ``package.module:NAME``.

    Raises:
        ConfigError: If it does not exist or is not a ``FaultTarget``.
    """
    try:
        found = pkgutil.resolve_name(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise ConfigError(
            f"faults: no target {name!r} ({error}). Pass package.module:NAME."
        ) from error
    if not isinstance(found, FaultTarget):
        raise ConfigError(
            f"faults: {name!r} must be a FaultTarget, but is a {type(found).__name__}. Name another"
        )
    return found
