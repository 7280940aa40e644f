"""Outcomes of faults, expected outcomes, and their differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from seqdata.errors import Detail, SeqDataError
from seqdata_testing.waiting import patient

WHOLE = "whole"
MENDED = "mended"
WRONG = "wrong"
SHORT = "short"
ERROR = "error"
DIED = "died"
STUCK = "stuck"
BROKEN = "broken"
UNAVAILABLE = "n/a"
NOT_RUN = "not run"
SILENT = (WRONG, SHORT)
"""Wrong outcomes without an error, which a user would not notice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of reading or playing a dataset.

    Attributes:
        what: ``whole`` (all that was planned came, and was right), ``mended`` (the same, except for
            sequences that were reported, and masked or replaced), ``wrong`` (a value was wrong),
            ``short`` (it ended early without an error), ``error``, ``died`` (the process ended),
            ``stuck``, ``broken`` (the test of the fault itself failed) or ``n/a`` (this system
            cannot do it).
        kinds: Names of the class of an error and of its base classes.
        text: Message of an error, or a description.
        details: Details of an error, or of the first sequence that was masked or replaced.
        delivered: Number of batches that came before it ended.
        planned: Number of batches that were planned.
        seconds: Time from the fault, or else from opening, to the end.
        left: Leftovers: processes, shared memory, files, descriptors.
        happened: Events that show that the fault happened, with how often each was seen: logged
            retries, evictions, kills in the middle of a write, ...
    """

    what: str
    kinds: tuple[str, ...] = ()
    text: str = ""
    details: Mapping[str, Detail] = field(default_factory=dict)
    delivered: int = 0
    planned: int = 0
    seconds: float = 0.0
    left: tuple[str, ...] = ()
    happened: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the class of the error, or ``what``."""
        return self.kinds[0] if self.kinds else self.what


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Expected outcome of a fault.

    Attributes:
        kinds: Allowed outcomes: names of error classes, or ``whole``, ``died``, ….
        details: Names of the details that an error must have.
        values: Details that it must have, with their values.
        least: Details that it must have, with their minimum values.
        texts: Strings that the message must contain.
        seconds: Time limit, on an idle machine.
        delivered: Number of batches that must have come before; None: any number.
        happened: Events that show that the fault happened, with the minimum count of each over all
            outcomes of a case. A case that lacks one was not run.
    """

    kinds: tuple[str, ...]
    details: tuple[str, ...] = ()
    values: Mapping[str, Detail] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    seconds: float = 10.0
    delivered: int | None = None
    happened: Mapping[str, int] = field(default_factory=dict)


def of_error(
    error: BaseException, *, seconds: float, delivered: int = 0, planned: int = 0
) -> Outcome:
    """Return the outcome of an exception."""
    classes = [kind.__name__ for kind in type(error).__mro__]
    details = error.details if isinstance(error, SeqDataError) else {}
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    cause = "" if error.__cause__ is None else f"\ncaused by: {error.__cause__}"
    return Outcome(
        what=ERROR, kinds=tuple(classes), text=f"{error}{notes}{cause}", details=details,
        seconds=seconds,
        delivered=delivered, planned=planned,
    )  # fmt: skip


def complaints(outcome: Outcome, must: Expectation) -> tuple[str, ...]:
    """Return the differences of an outcome from the expected one; empty if it is right."""
    return tuple(_complaints(outcome, must))


def explain_missing(found: Sequence[Outcome], must: Expectation) -> str:
    """Return the reason why outcomes do not show the fault of a case; empty if they do.

    Args:
        found: All outcomes of the case.
        must: Events that must have been seen.
    """
    for outcome in found:
        if outcome.what == UNAVAILABLE:
            return outcome.text or "this system cannot do it"
    seen: Counter[str] = Counter()
    for outcome in found:
        seen.update(outcome.happened)
    lacks = [
        f"{seen[name]} x {name}, but must be at least {least}"
        for name, least in must.happened.items()
        if seen[name] < least
    ]
    return f"the fault did not happen: {'; '.join(lacks)}" if lacks else ""


def _complaints(outcome: Outcome, must: Expectation) -> list[str]:
    if outcome.what == UNAVAILABLE:
        return []
    wrong = []
    got = outcome.kinds or (outcome.what,)
    if not set(got) & set(must.kinds):
        shown = f"{outcome.name} ({outcome.text})" if outcome.text else outcome.name
        wrong.append(f"is {shown}, but must be {' or '.join(must.kinds)}")
    elif outcome.what in (ERROR, MENDED):
        details = outcome.details
        lacks = [name for name in must.details if name not in details]
        lacks += [
            f"{name}={value!r}" for name, value in must.values.items() if details.get(name) != value
        ]
        for name, least in must.least.items():
            value = details.get(name)
            if not isinstance(value, int) or value < least:
                lacks.append(f"{name} of at least {least}")
        lacks += [repr(text) for text in must.texts if text not in outcome.text]
        if lacks:
            wrong.append(f"{outcome.name} lacks {', '.join(lacks)}: {outcome.text}")
    if outcome.seconds > must.seconds and outcome.seconds > (most := patient(must.seconds)):
        wrong.append(f"came after {outcome.seconds:.1f} s, but must come within {most:.1f} s")
    if must.delivered is not None and outcome.delivered != must.delivered:
        wrong.append(
            f"came after {outcome.delivered} batches, but must come after {must.delivered}"
        )
    wrong += [f"left behind: {name}" for name in outcome.left]
    return wrong
