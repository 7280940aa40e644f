"""What a run of pytest left, line by line as it went: also if it was killed in the middle.

``pytest --report-log`` writes a line per phase of a test. A test is over with its teardown; what a
dead process of xdist had in hand has a line of its own. Of several lines about one test, as when a
part went on where it had stopped, the last one counts; a file that could not be read was read
again. Usage: by ``run`` and ``figures``.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HASH = re.compile(r"[0-9a-f]{7,40}\+?")  # as git gives it; with +: files differed from it
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
_OVER = ("teardown", "???")  # the latter: the process that ran it died


@dataclass(frozen=True)
class Case:
    """A test that is over.

    Attributes:
        name: As pytest has it, with its file.
        state: ``passed``, ``failed`` or ``skipped``.
        facts: What it has told of itself.
    """

    name: str
    state: str
    facts: dict[str, Any] = field(default_factory=dict)


def commit_of(about: dict[str, Any]) -> str:
    """Return the commit that something ran at.

    Raises:
        SystemExit: If it is not one commit: figures are of one command at one commit.
    """
    commit = str(about.get("commit"))
    if HASH.fullmatch(commit) is None:
        raise SystemExit(
            f"figures: `commit` must be the hash of one commit, but is {commit!r}. Run it again: "
            "make test-nightly mutants"
        )
    return commit


def before(report: Path) -> Path:
    """Return the path of the earlier lines of a part that was continued."""
    return report.with_suffix(".before.jsonl")


def cases(report: Path) -> list[Case]:
    """Return the tests that are over, earlier lines included; none where there is no report."""
    found: dict[str, Case] = {}
    for path in (before(report), report):
        if path.exists():
            found = {name: case for name, case in found.items() if "::" in name}
            found.update((case.name, case) for case in _cases(path))
    return list(found.values())


def states(report: Path) -> dict[str, int]:
    """Count a report's tests."""
    counts = Counter(case.state for case in cases(report))
    return {state: counts[state] for state in (PASSED, FAILED, SKIPPED)}


def runs(report: Path) -> list[float]:
    """Return how many seconds each run of pytest for a part took, to the last phase it has told.

    Several: it was stopped and continued. What was done between them is not counted.
    """
    found: list[list[float]] = []
    for path in (before(report), report):
        for line in _whole(path) if path.exists() else ():
            told = json.loads(line)
            if told["$report_type"] == "SessionStart":
                found.append([])
            elif told["$report_type"] == "TestReport":
                found[-1] += [told["start"], told["stop"]]
    return [max(times) - min(times) for times in found if times]


def keep(report: Path) -> None:
    """Put a report's lines behind the earlier ones, so that a run may write it anew."""
    if report.exists():
        with before(report).open("a", encoding="utf-8") as kept:
            kept.writelines(f"{line}\n" for line in _whole(report))
        report.unlink()


def forget(report: Path) -> None:
    """Remove a report."""
    report.unlink(missing_ok=True)
    before(report).unlink(missing_ok=True)


def _whole(path: Path) -> Iterator[str]:
    """Yield the lines that were written to their end."""
    for line in path.read_text("utf-8").split("\n")[:-1]:
        if line:
            yield line


def _cases(path: Path) -> Iterator[Case]:
    phases: dict[str, set[str]] = {}
    for line in _whole(path):
        told = json.loads(line)
        if told["$report_type"] == "CollectReport" and told["outcome"] == FAILED:
            yield Case(told["nodeid"], FAILED)
        if told["$report_type"] != "TestReport":
            continue
        outcomes = phases.setdefault(told["nodeid"], set())
        outcomes.add(told["outcome"])
        if told["when"] in _OVER:
            state = next((one for one in (FAILED, SKIPPED) if one in outcomes), PASSED)
            yield Case(told["nodeid"], state, dict(told["user_properties"]))
            del phases[told["nodeid"]]
