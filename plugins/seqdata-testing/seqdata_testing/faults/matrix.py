"""Running of fault cases, with a report of wrong outcomes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from seqdata_testing.faults.children import run_in_child
from seqdata_testing.faults.fault_case import FaultCase
from seqdata_testing.faults.outcome import (
    ERROR,
    NOT_RUN,
    SILENT,
    STUCK,
    UNAVAILABLE,
    Outcome,
    complaints,
    explain_missing,
)

_SHOWN = 3  # complaints of one case


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a case.

    Attributes:
        case: Case that was tried.
        names: Class of error, or other outcome -> count; only ``not run`` if the fault did not
            happen.
        slowest: Seconds of the slowest outcome.
        silent: Number of wrong outcomes without an error.
        stuck: Number of outcomes that did not come in time.
        complaints: Differences from the expected outcome.
        not_run: Why the case proves nothing: the fault did not happen, or cannot on this system.
        cannot: Whether the fault cannot happen on this system.
        seconds: Duration of the case.
    """

    case: FaultCase
    names: dict[str, int]
    slowest: float = 0.0
    silent: int = 0
    stuck: int = 0
    complaints: tuple[str, ...] = ()
    not_run: str = ""
    cannot: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the fault happened, and all outcomes are as expected."""
        return not self.complaints and not self.not_run


def run(cases: Iterable[FaultCase]) -> Iterator[Result]:
    """Run cases one after the other, each in a child process; yield their results."""
    for case in cases:
        yield run_case(case)


def run_case(case: FaultCase) -> Result:
    """Run one case, and return its result, which is without outcomes if it cannot apply."""
    if case.tries is None:
        return Result(case=case, names={})
    began = time.monotonic()
    found = run_in_child(case.tries, bound=case.bound)
    wrong, not_run = _complaints(case, found), explain_missing(found, case.must)
    is_not_run = not_run and not wrong  # what went wrong is told as what it is
    return Result(
        case=case,
        names={NOT_RUN: len(found)}
        if is_not_run
        else dict(Counter(outcome.name for outcome in found)),
        slowest=max(outcome.seconds for outcome in found),
        silent=sum(outcome.what in SILENT for outcome in found),
        stuck=sum(outcome.what == STUCK for outcome in found),
        complaints=tuple(wrong),
        not_run=not_run,
        cannot=any(outcome.what == UNAVAILABLE for outcome in found),
        seconds=time.monotonic() - began,
    )


def _complaints(case: FaultCase, found: Sequence[Outcome]) -> list[str]:
    wrong = [text for outcome in found for text in complaints(outcome, case.must)]
    more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
    errors = [outcome for outcome in found if outcome.what == ERROR]
    named = sum("sequence" in outcome.details for outcome in errors)
    if errors and named < case.named * len(errors):
        more.append(f"{named} of {len(errors)} errors name the sequence, but {case.named:.0%} must")
    return wrong[:_SHOWN] + more


def summary(results: Sequence[Result]) -> str:
    """Return a line with the totals of results."""
    tried = [result for result in results if result.case.tries is not None]
    outcomes = sum(sum(result.names.values()) for result in tried)
    return (
        f"{len(results)} cases, {len(results) - len(tried)} of them cannot apply; "
        f"{outcomes} outcomes, {sum(result.silent for result in tried)} silent, "
        f"{sum(result.stuck for result in tried)} unbounded waits; "
        f"{sum(bool(result.complaints) for result in tried)} cases failed, "
        f"{sum(bool(result.not_run) for result in tried)} not run"
    )
