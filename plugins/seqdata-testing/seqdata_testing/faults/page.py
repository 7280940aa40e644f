"""Tables of faults for a page: expected results, actual results, and omitted cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from seqdata_testing.faults.fault_case import FAULTS, POLICIES, FaultCase
from seqdata_testing.faults.matrix import Result
from seqdata_testing.faults.outcome import BROKEN, DIED, MENDED, NOT_RUN, SHORT, STUCK, WHOLE, WRONG

_NAMES = {
    WHOLE: "no harm",
    DIED: "the process ends",
    MENDED: "continued",
    WRONG: "WRONG",
    SHORT: "SHORT",
    STUCK: "STUCK",
    BROKEN: "BROKEN",
    NOT_RUN: "NOT RUN",
}


def as_page(cases: Sequence[FaultCase]) -> str:
    """Return the table of expected results, with a row per fault.

    Args:
        cases: Cases that are tried at every change.
    """
    rows = ["| | what happens | result | within |", "|---|---|---|---|"]
    for fault, event in FAULTS.items():
        musts = [case.must for case in cases if case.fault == fault]
        kinds = list(dict.fromkeys(kind for must in musts for kind in must.kinds))
        seconds = max((must.seconds for must in musts), default=0.0)
        rows.append(
            f"| {fault} | {event} | {', '.join(map(_format_kind, kinds))} | {seconds:g} s |"
        )
    return "\n".join(rows) + "\n"


def as_grid(results: Sequence[Result]) -> str:
    """Return the table of actual results: a row per fault and policy, a column per form.

    Args:
        results: Results of all cases.
    """
    forms = _forms([result.case for result in results])
    found: dict[tuple[str, str, str], Counter[str]] = {}
    for result in results:
        key = (result.case.fault, result.case.policy, result.case.form)
        found.setdefault(key, Counter()).update(result.names)
    head = ["", "`on_error`", *forms]
    rows = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for fault in FAULTS:
        for policy in POLICIES:
            counters = [found.get((fault, policy, form), Counter()) for form in forms]
            if any(counters):
                shown = " | ".join(_format_counts(counts) for counts in counters)
                rows.append(f"| {fault} | {policy} | {shown} |")
    return "\n".join(rows) + "\n"


def as_reasons(cases: Sequence[FaultCase]) -> str:
    """Return the table of omitted cases: faults, policies, forms and reasons.

    Args:
        cases: All cases.
    """
    tried = {(case.fault, case.policy, case.form) for case in cases if case.tries is not None}
    forms = _forms(cases)
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for case in cases:
        key = (case.fault, case.policy, case.form)
        if case.tries is None and case.form in forms and key not in tried:
            found.setdefault((case.reason, case.fault), []).append((case.policy, case.form))
    alike: dict[tuple[str, str, str], list[str]] = {}
    for (reason, fault), keys in found.items():
        policies, kinds = (", ".join(sorted({key[i] for key in keys}, key=order.index))
                           for i, order in enumerate((POLICIES, forms)))  # fmt: skip
        alike.setdefault((reason, policies, kinds), []).append(fault)
    rows = ["| | `on_error` | of | why there is no such case |", "|---|---|---|---|"]
    for (reason, policies, kinds), faults in alike.items():
        rows.append(f"| {', '.join(faults)} | {policies} | {kinds} | {reason} |")
    return "\n".join(rows) + "\n"


def _forms(cases: Sequence[FaultCase]) -> list[str]:
    """Return the forms that are tried under every policy: the columns of the matrix."""
    return sorted({case.form for case in cases if case.policy != "raise"})


def _format_counts(names: Counter[str]) -> str:
    parts = [f"{count:,} {_format_kind(name)}" for name, count in names.most_common()]
    return ", ".join(parts) or "n/a"


def _format_kind(kind: str) -> str:
    return _NAMES.get(kind, f"`{kind}`")
