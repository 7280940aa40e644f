"""Write the tables of docs/about/reliability.md and when-something-breaks.md from ``.nightly/``.

``gather`` reads the reports of ``make test-nightly`` and ``make mutants`` into reliability.json.
``page`` formats its figures as tables, and ``matrix`` formats the faults for the second page.
Nothing is counted by hand. The tables mark parts that did not run, and figures of several commits.
A figure that is entered into reliability.json by hand has a line of text under ``by_hand``, which
the page shows; ``gather`` never writes such lines. Usage::

    python -m tests.nightly.figures            # .nightly/ -> reliability.json and both pages
    python -m tests.nightly.figures --loaded   # the same, but only for the runs next to busy loops
    python -m tests.nightly.figures --page     # reliability.json -> both pages
"""

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seqdata_testing.faults.cases import all_cases, find_target
from seqdata_testing.faults.fault_case import FaultCase
from seqdata_testing.faults.matrix import Result
from seqdata_testing.faults.outcome import NOT_RUN
from seqdata_testing.faults.page import as_grid
from tests.nightly import reports

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / ".nightly"
STORED = ROOT / "docs" / "about" / "reliability.json"
PAGE = ROOT / "docs" / "about" / "reliability.md"
BREAKS = ROOT / "docs" / "about" / "when-something-breaks.md"
BEGIN, END = "<!-- figures: make reliability -->", "<!-- end of figures -->"
NEVER = "did not run"
# Exit statuses of pytest after all tests have run.
ENDED = (0, 1)
PARTS = ("oldest", "short", "faults", "long", "properties")
LOADED = tuple(f"loaded-{number}" for number in range(1, 6))
SAID_OF_CELLS = ("fault", "way", "form", "policy")
LEVELS = {
    "plans": "plans, without processes",
    "loaders": "loaders, in one process",
    "processes": "worker processes, ranks",
}
PROMISES = {
    "I1": "each sequence exactly once, or as the plan's report says",
    "I2": "the same number of steps on all ranks, equal to `len`",
    "I3": "the same order for any number of workers, prefetch and start method",
    "I4": "a resume at any step continues with the remaining batches, bit by bit",
    "I5": "no sequence is lost or repeated on another number of ranks",
    "I6": "lanes continue in order; states are reset only at the start of a sequence",
    "I7": "an epoch ends only after all planned batches were returned",
}
REQUIRED = {
    ("I1", "plans"): 50_000,
    ("I2", "plans"): 50_000,
    ("I3", "plans"): 20_000,
    ("I3", "processes"): 400,
    ("I4", "plans"): 20_000,
    ("I4", "processes"): 300,
    ("I5", "plans"): 20_000,
    ("I5", "processes"): 150,
    ("I6", "plans"): 50_000,
}
"""Promise and level of the tests -> minimum number of cases of a nightly run."""


def gather(folder: Path) -> dict[str, Any]:
    """Return all figures of a folder of reports."""
    parts, promises, faults, fuzz = {}, defaultdict(Counter), {}, None
    for name in (*PARTS, *LOADED):
        about, report = folder / f"{name}.json", folder / f"{name}.jsonl"
        if not about.exists():
            continue
        runs = reports.runs(report)
        told = {**json.loads(about.read_text("utf-8")), "seconds": sum(runs), "runs": len(runs)}
        parts[name] = {**told, **reports.states(report)}
        reports.commit_of(parts[name])
        # The cases of these parts are also cases of the other parts.
        if name == "oldest" or name in LOADED:
            continue
        for case in reports.cases(report):
            facts, failed = case.facts, case.state == reports.FAILED
            if "cell" in facts:
                cell = {**json.loads(facts["cell"]), "ok": case.state == reports.PASSED}
                faults.setdefault((cell["fault"], cell["way"]), cell)
            if "fuzz" in facts:
                told = {**json.loads(facts["fuzz"]), "ok": case.state == reports.PASSED}
                fuzz = told if fuzz is None else _together(fuzz, told)
            if "shows" in facts:
                level, *shown = facts["shows"].split()
                for one in shown:
                    found = promises[f"{one} {level}"]
                    found["cases"] += int(facts.get("cases", 0))
                    found["failed"] += failed
    path = folder / "mutants.json"
    mutants = json.loads(path.read_text("utf-8")) if path.exists() else None
    if mutants is not None:
        reports.commit_of(mutants)
    return {
        "parts": parts,
        "promises": {name: dict(found) for name, found in sorted(promises.items())},
        "faults": list(faults.values()),
        "fuzz": fuzz,
        "mutants": mutants,
    }


def with_loaded(stored: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return nightly figures, with the runs next to busy loops replaced by those of ``found``."""
    night = {name: part for name, part in stored["parts"].items() if name not in LOADED}
    loaded = {name: part for name, part in found["parts"].items() if name in LOADED}
    return {**stored, "parts": {**night, **loaded}}


def _together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Add the figures of mutated files of two backends."""
    sums = {name: one[name] + other[name] for name in ("files", "failures")}
    kinds = Counter(one["kinds"]) + Counter(other["kinds"])
    return {**sums, "kinds": dict(kinds), "ok": one["ok"] and other["ok"]}


def page(found: dict[str, Any]) -> str:
    """Return the tables of docs/about/reliability.md."""
    sections = (_runs, _promises, _ranks, _faults, _rest)
    return "\n\n".join(["\n".join(section(found)) for section in sections])


def matrix(found: dict[str, Any], cells: Sequence[FaultCase] = ()) -> str:
    """Return the table of outcomes of all faults, by fault, policy and form of data.

    Args:
        found: Result of ``gather``.
        cells: All current cases; cases that the figures do not have are shown as not run.
    """
    told, part = found["faults"], found["parts"].get("faults")
    if part is None:
        return f"These {NEVER}."
    results = [
        Result(case=FaultCase(**{name: one[name] for name in SAID_OF_CELLS}), names=one["names"])
        for one in told
    ]
    tried = {(one.case.fault, one.case.policy, one.case.form) for one in results}
    results += [
        Result(case=cell, names={NOT_RUN: 1})
        for cell in cells
        if cell.tries is not None and (cell.fault, cell.policy, cell.form) not in tried
    ]
    outcomes = sum(sum(one["names"].values()) for one in told)
    silent, stuck = (sum(one[kind] for one in told) for kind in ("silent", "stuck"))
    late = "; ".join(f"{one['fault']} of {one['way']}" for one in told if not one["ok"])
    when, commit = part["began"].split()[0], reports.commit_of(part)
    lines = (
        f"{outcomes:,} outcomes of {len(told)} cases, on {when} at `{commit}`: {silent} unnoticed, "
        f"{stuck} unbounded waits. Failed cases: {late or 'none'}.",
        "",
        as_grid(results).rstrip(),
    )
    return "\n".join(lines)


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]


def _runs(found: dict[str, Any]) -> list[str]:
    """Return the table of parts: results, times, commits and versions."""
    rows = []
    for name in (*PARTS, *LOADED):
        part = found["parts"].get(name)
        if part is None:
            rows.append((name, NEVER, "", "", "", ""))
            continue
        minutes = f"{part['seconds'] / 60:.1f} min"
        tests = sum(part[state] for state in (reports.PASSED, reports.FAILED, reports.SKIPPED))
        whole = "" if part["status"] in ENDED else f" (stopped after {tests:,} tests)"
        figures = (f"{part['passed']:,}{whole}", part["failed"], part["skipped"], minutes)
        when = f"{part['began']}, `{reports.commit_of(part)}`"
        rows.append((f"*{name}*: {part['what']}", when, *figures))
    mutants = found["mutants"]
    if mutants is not None:
        states = Counter(mutants["verdicts"].values())
        when = f"{mutants['began']}, `{reports.commit_of(mutants)}`"
        killed, tried = states["killed"], sum(states.values())
        planned = mutants.get("planned", tried)
        whole = "" if tried >= planned else f" (stopped after {tried} of {planned})"
        told = (f"{killed} found{whole}", tried - killed, 0, "")
        rows.append(("`make mutants`: planted bugs", when, *told))
    else:
        rows.append(("`make mutants`: planted bugs", NEVER, "", "", "", ""))
    lines = ["## What ran", ""]
    lines += _table(("part", "when (UTC), commit", "passed", "failed", "skipped", "took"), rows)
    lines += _not_of_one_run(found)
    for name in ("oldest", "properties", "short"):
        part = found["parts"].get(name)
        if part is not None:
            told = ", ".join(f"{one} {number}" for one, number in part["versions"].items())
            lines += ["", f"*{name}* on {part['machine']}: {told}."]
    return lines


def _not_of_one_run(found: dict[str, Any]) -> list[str]:
    """Return a paragraph with the reasons why the figures are not of a single run; else nothing."""
    ran = [*found["parts"].values(), *([] if found["mutants"] is None else [found["mutants"]])]
    commits = {reports.commit_of(one).removesuffix("+") for one in ran}
    told = list(found.get("by_hand", ()))
    if len(commits) > 1:
        told.insert(0, f"the parts ran at {len(commits)} commits")
    for name, part in found["parts"].items():
        if part.get("runs", 1) > 1:
            told.append(f"*{name}* was stopped and continued (`--again`)")
    return ["", f"Not from a single run: {'; '.join(told)}."] if told else []


def _promises(found: dict[str, Any]) -> list[str]:
    """Return the table of promises, with the minimum and actual number of cases."""
    rows: list[tuple[Any, ...]] = []
    for name, what in PROMISES.items():
        levels = [
            level
            for level in LEVELS
            if (name, level) in REQUIRED or f"{name} {level}" in found["promises"]
        ]
        for i, level in enumerate(levels):
            told = found["promises"].get(f"{name} {level}", {"cases": None, "failed": ""})
            tried = NEVER if told["cases"] is None else f"{told['cases']:,}"
            due = f"{REQUIRED[name, level]:,}" if (name, level) in REQUIRED else ""
            begun = ("", "") if i else (name, what)
            rows.append((*begun, LEVELS[level], due, tried, told["failed"]))
    faults = found["faults"]
    tried = sum(sum(one["names"].values()) for one in faults)
    silent = sum(one["silent"] for one in faults)
    rows.append(
        ("I7", PROMISES["I7"], "faults, below", "", f"{tried:,}" if faults else NEVER, silent)
    )
    head = ("", "promise", "tested with", "minimum", "cases", "failed")
    return ["## Promises", "", *_table(head, rows)]


def _ranks(found: dict[str, Any]) -> list[str]:
    """Return the table of times that ranks took to end after one of them failed."""
    cells = [one for one in found["faults"] if one["fault"].startswith("R")]
    rows = [
        (one["fault"], one["way"], _names(one), f"{one['slowest']:.2f} s", f"{one['bound']:g} s",
         "passed" if one["ok"] else "FAILED")
        for one in sorted(cells, key=lambda one: (one["fault"], one["way"]))
    ]  # fmt: skip
    head = ("", "ranks", "outcomes", "slowest", "limit", "result")
    return ["## Ranks that fail", "", *(_table(head, rows) if rows else [f"These {NEVER}."])]


def _names(cell: dict[str, Any]) -> str:
    return ", ".join(f"{count} `{name}`" for name, count in sorted(cell["names"].items()))


def _faults(found: dict[str, Any]) -> list[str]:
    """Return the table of outcomes by fault."""
    by_fault: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for cell in found["faults"]:
        by_fault[cell["fault"]].append(cell)
    rows = []
    for fault in sorted(by_fault, key=lambda name: (name[0], int(name[1:]))):
        cells = by_fault[fault]
        tried = sum(sum(one["names"].values()) for one in cells)
        silent, stuck = (sum(one[kind] for one in cells) for kind in ("silent", "stuck"))
        failed = sum(not one["ok"] for one in cells)
        slowest = max(one["slowest"] for one in cells)
        rows.append((fault, len(cells), f"{tried:,}", silent, stuck, f"{slowest:.2f} s", failed))
    head = ("", "cells", "outcomes", "silent", "unbounded waits", "slowest", "failed")
    return ["## Faults", "", *(_table(head, rows) if rows else [f"These {NEVER}."])]


def _rest(found: dict[str, Any]) -> list[str]:
    """Return the list of results for mutated files and planted bugs."""
    lines = ["## Mutated files and planted bugs", ""]
    fuzz, mutants = found["fuzz"], found["mutants"]
    if fuzz is None:
        lines.append(f"- Mutated files: {NEVER}.")
    else:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(fuzz["kinds"].items()))
        ended = "each gave its data or an error of seqdata" if fuzz["ok"] else "NOT all as required"
        lines.append(
            f"- Mutated files: {fuzz['files']:,} ({kinds}), {ended}; {fuzz['failures']} failures."
        )
    if mutants is None:
        lines.append(f"- Planted bugs: {NEVER}.")
    else:
        verdicts = mutants["verdicts"]
        left = [f"`{name}` ({how})" for name, how in verdicts.items() if how != "killed"]
        told = f"; not found: {', '.join(left)}" if left else ""
        killed = len(verdicts) - len(left)
        left_out = mutants["planned"] - len(verdicts)
        more = f"; {left_out} were not tried" if left_out else ""
        lines.append(f"- Planted bugs: {killed} of {len(verdicts)} found by the tests{told}{more}.")
    return lines


def of_forms() -> list[FaultCase]:
    """Return the cases of all forms of data that have a column in the matrix."""
    cells = all_cases([find_target("seqdata_webdataset.faults:TAR")])
    forms = {cell.form for cell in cells if cell.policy != "raise"}
    return [cell for cell in cells if cell.form in forms]


def put(text: str, figures: str) -> str:
    """Return a page with its figures replaced."""
    found = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    new, count = found.subn(lambda _: f"{BEGIN}\n\n{figures}\n\n{END}", text)
    if count != 1:
        raise SystemExit(f"figures: a page has {count} places for figures, must have one")
    return new


def main() -> int:
    """Write the JSON file and both pages, or only the pages."""
    if "--page" not in sys.argv[1:]:
        if not FOUND.exists():
            raise SystemExit("figures: no .nightly/, must be; run: make test-nightly mutants")
        found = gather(FOUND)
        if "--loaded" in sys.argv[1:]:
            found = with_loaded(json.loads(STORED.read_text("utf-8")), found)
        STORED.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    found = json.loads(STORED.read_text("utf-8"))
    for path, figures in ((PAGE, page(found)), (BREAKS, matrix(found, of_forms()))):
        path.write_text(put(path.read_text("utf-8"), figures), "utf-8")
    written = ", ".join(str(path.relative_to(ROOT)) for path in (STORED, PAGE, BREAKS))
    print(f"{written} are written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
