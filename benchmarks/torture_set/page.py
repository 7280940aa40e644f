"""The table of the torture set, for the terminal and for a page of the docs."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from torture_set.cases import CASES, Tries
from torture_set.columns import COLUMNS
from torture_set.judge import SILENT, Outcome

BEGIN, END = "<!-- torture: begin -->", "<!-- torture: end -->"


@dataclass(frozen=True)
class Found:
    """Results of one library: versions of its packages, and the outcomes of each case."""

    versions: Mapping[str, str]
    cases: Mapping[str, Tries]


def as_json(found: Mapping[str, Found]) -> str:
    """Return every try, with what was said."""
    return json.dumps({title: asdict(result) for title, result in found.items()}, indent=1) + "\n"


def from_json(text: str) -> dict[str, Found]:
    """Return what ``as_json`` wrote."""
    return {
        title: Found(
            entry["versions"],
            {
                name: [Outcome(**record) for record in tries]
                for name, tries in entry["cases"].items()
            },
        )
        for title, entry in json.loads(text).items()
    }


def merge(earlier: Mapping[str, Found], now: Mapping[str, Found]) -> dict[str, Found]:
    """Return what was found earlier, but for what was tried anew."""
    found = {}
    for title in [column.title for column in COLUMNS]:
        runs = [run[title] for run in (earlier, now) if title in run]
        cases = {name: tries for run in runs for name, tries in run.cases.items()}
        if runs:
            found[title] = Found(runs[-1].versions, {n: cases[n] for n in CASES if n in cases})
    return found


def count_kinds(tries: Tries) -> str:
    """Return the kinds of outcome of a case, with counts where it was tried more than once."""
    kinds = Counter(outcome.kind for outcome in tries)
    texts = [f"{kind} {count}" if len(tries) > 1 else kind for kind, count in kinds.most_common()]
    details = {
        outcome.detail for outcome in tries if "even" in outcome.kind.lower() and outcome.detail
    }
    return ", ".join(texts) + (f" ({', '.join(sorted(details))})" if details else "")


def table_of(found: Mapping[str, Found]) -> Table:
    """Lay the outcomes out for a terminal."""
    table = Table("case", *found, title="the torture set", show_lines=True)
    for name in _cases(found):
        table.add_row(name, *(count_kinds(column.cases[name]) for column in found.values()))
    return table


def as_markdown(found: Mapping[str, Found], about: str) -> str:
    """Return the same as lines of Markdown."""
    return "\n".join(_lines(found, about)) + "\n"


def _lines(found: Mapping[str, Found], about: str) -> Iterator[str]:
    yield "| | " + " | ".join(found) + " |"
    yield "|---" * (len(found) + 1) + "|"
    for name in _cases(found):
        cells = [_mark_silent(column.cases[name]) for column in found.values()]
        yield f"| {name} | " + " | ".join(cells) + " |"
    versions = {
        name: number for column in found.values() for name, number in column.versions.items()
    }
    tries = sum(len(tries) for column in found.values() for tries in column.cases.values())
    yield ""
    yield "Versions: " + ", ".join(f"{name} {number}" for name, number in versions.items()) + "."
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    yield f"{tries} tries on {day}, commit {_commit()}: {about}."


def _mark_silent(tries: Tries) -> str:
    """Return a cell; what nobody would have noticed stands out."""
    text = count_kinds(tries)
    for kind in {outcome.kind for outcome in tries}:
        if kind in SILENT or kind.startswith("UNEVEN") or "LOST" in kind:
            text = text.replace(kind, f"**{kind.lower()}**")
    return text


def _cases(found: Mapping[str, Found]) -> list[str]:
    return list(dict.fromkeys(name for column in found.values() for name in column.cases))


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.CalledProcessError):  # a copy without history
        return "unknown"
    return done.stdout.strip()


def into_page(path: Path, found: Mapping[str, Found], about: str) -> None:
    """Put the table between the marks of a page.

    Raises:
        ValueError: If the page has no marks.
    """
    before, begin, rest = path.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{path}: has no marks, must have {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n\n{as_markdown(found, about)}\n{END}{after}")
