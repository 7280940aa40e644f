"""Run everything, at full counts: the short parts first, and each part whatever became of others.

A part is a run of pytest whose report goes to ``.nightly/PART.jsonl``, test by test, what it
printed to ``.nightly/PART.log``; ``.nightly/PART.json`` says when, of which commit, on what.
``make reliability`` makes the figures of docs/about/reliability.md from these. Usage::

    python -m tests.nightly.run [--again] [PART ...]

The parts ``loaded-1`` and so on run only when they are named (``make test-loaded`` does): what
every change runs, beside processes that do nothing but keep the processors busy.

With ``--again`` it goes on: what has passed at this very commit is not run another time.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from tests.nightly import reports

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / ".nightly"
HERE = ROOT / ".venv" / "bin" / "python"
OLDEST = ROOT / ".venv-oldest" / "bin" / "python"
PACKAGES = ("torch", "lightning", "numpy", "pyarrow", "rich", "hypothesis")
NIGHTLY = "nightly and not hypothesis and not shows"
LONGEST = 4 * 3600  # seconds of a part
PROCESSES = 7  # on two cores, too: tests wait for a third of their time
STUCK = 900  # seconds of a test that does not say itself how long it may take
_TO_END = 60  # seconds for pytest to end its processes
_NOTHING = 5  # pytest's status where no test is left


@dataclass(frozen=True)
class Part:
    """One run of pytest.

    Attributes:
        name: Of its files.
        what: Said of it.
        select: Marks, as ``-m`` takes them.
        python: The environment.
        folders: What to run; the whole suite unless given.
        without: Folders that another part runs.
        dist: How pytest deals tests to processes: by file, or ``worksteal`` where a few files
            hold most of a part.
        environment: Further variables.
        busy: How many processes keep the processors busy beside it.
    """

    name: str
    what: str
    select: str
    python: Path = HERE
    folders: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    dist: str = "loadfile"
    environment: dict[str, str] = field(default_factory=dict)
    busy: int = 0


PARTS = (
    Part(
        "oldest",
        "conformance, on the oldest Lightning and the lower bounds of what else is needed",
        "not nightly and not hypothesis",
        python=OLDEST,
        folders=(
            *("tests/lightning", "tests/distributed", "tests/table"),
            *("tests/cli", "tests/runs", "tests/storage", "models/tests"),
        ),
    ),
    Part(
        "short",
        "all that runs at every change, but properties",
        "not nightly and not hypothesis and not shows",
    ),
    Part(
        "faults",
        "every fault in every way",
        NIGHTLY,
        folders=("tests/faults",),
        dist="worksteal",
    ),
    Part(
        "long",
        "what else runs at night only, but properties",
        NIGHTLY,
        without=("tests/faults",),
        dist="worksteal",
    ),
    Part(
        "properties",
        "properties, at full counts",
        "hypothesis or shows",
        dist="worksteal",
        environment={"HYPOTHESIS_PROFILE": "nightly"},
    ),
)

BUSY = 4
LOADED = tuple(
    Part(f"loaded-{number}", f"`make test`, beside {BUSY} busy loops", "not nightly", busy=BUSY)
    for number in range(1, 6)
)


def run_part(part: Part, *, again: bool = False) -> str:
    """Run one part; gives a line of what came of it."""
    if not part.python.exists():
        return f"{part.name}: no {part.python.relative_to(ROOT)}; make test-nightly makes it"
    about = {"what": part.what, "began": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), **commit()}
    about |= {"status": None, **circumstances(part.python)}
    report = FOUND / f"{part.name}.jsonl"
    earlier = stopped(part, about["commit"]) if again else None
    if earlier is None:
        reports.forget(report)
    else:
        reports.keep(report)
        about["began"] = earlier["began"]
    passed = [case.name for case in reports.cases(report) if case.state == reports.PASSED]
    (FOUND / f"{part.name}.passed").write_text("".join(f"{name}\n" for name in passed), "utf-8")
    write(part, about)  # what is killed has it, too
    with (FOUND / f"{part.name}.log").open("w") as log, busy_loops(part.busy):
        code = run_tests(part, report, log)
    about["status"] = 0 if passed and code == _NOTHING else code
    write(part, about)
    return f"{part.name}: {said(report)}, {sum(reports.runs(report)) / 60:.1f} minutes" + (
        "" if about["status"] == 0 else f"; pytest's status {code}, see .nightly/{part.name}.log"
    )


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep processors busy with as many processes; they end with this one, too."""
    code = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
    loops = [subprocess.Popen([sys.executable, "-c", code, str(os.getpid())]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait(timeout=_TO_END)


def run_tests(part: Part, report: Path, log: TextIO) -> int | None:
    """Run pytest; gives its status, None if it had to be ended."""
    command = [
        part.python, "-m", "pytest", "-q", "-n", str(PROCESSES), "--dist", part.dist,
        "-p", "no:cacheprovider", "-p", "tests.nightly.again", "-m", part.select,
        f"--report-log={report}", f"--timeout={STUCK}",
        *part.folders, *(f"--ignore={folder}" for folder in part.without),
    ]  # fmt: skip
    left_out = {"LEFT_OUT": str(FOUND / f"{part.name}.passed")}
    running = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **part.environment, **left_out},
        stdout=log, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        return running.wait(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGINT)  # so that it ends its own processes
        try:
            running.wait(timeout=_TO_END)
        except subprocess.TimeoutExpired:
            running.kill()
        return None


def stopped(part: Part, at: str) -> dict[str, Any] | None:
    """Return what is known of an earlier run of the same files; None: there was none."""
    path = FOUND / f"{part.name}.json"
    if at.endswith("+") or not path.exists():
        return None
    about: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return about if about["commit"] == at else None


def write(part: Part, about: dict[str, Any]) -> None:
    """Keep what is known of a part."""
    (FOUND / f"{part.name}.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")


def said(report: Path) -> str:
    """Count a report's tests in words."""
    told = ", ".join(f"{count} {name}" for name, count in reports.states(report).items() if count)
    return told or "no test"


def commit() -> dict[str, str]:
    """Return the commit, with ``+`` where files differ from it."""
    told = ["git", "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
    done = subprocess.run(told, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return {"commit": done.stdout.strip()}


def circumstances(python: Path | None = None) -> dict[str, object]:
    """Return versions and the machine."""
    if python is None or python == Path(sys.executable):
        versions = {"python": platform.python_version(), **{one: version(one) for one in PACKAGES}}
    else:
        code = "from tests.nightly import run; import json; print(json.dumps(run.circumstances()))"
        done = subprocess.run(
            [python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
        )
        return json.loads(done.stdout)
    return {"versions": versions, "machine": f"{platform.machine()}, {os.cpu_count()} processors"}


def main() -> int:
    """Run the parts that are named, or those of a night."""
    given = argparse.ArgumentParser(description="Run everything, at full counts.")
    given.add_argument("parts", nargs="*", metavar="PART", help="; ".join(p.name for p in PARTS))
    given.add_argument("--again", action="store_true", help="go on, where the commit is the same")
    told = given.parse_args()
    names = told.parts
    known = [part.name for part in (*PARTS, *LOADED)]
    unknown = set(names) - set(known)
    if unknown:
        given.error(f"no part {', '.join(sorted(unknown))}; there are {known}")
    FOUND.mkdir(exist_ok=True)
    chosen = [part for part in (*PARTS, *LOADED) if part.name in names] or PARTS
    for part in chosen:
        print(f"== {part.name}: {part.what}", flush=True)
        print(f"   {run_part(part, again=told.again)}", flush=True)
    left = [FOUND / f"{part.name}.json" for part in chosen]
    good = all(one.exists() and json.loads(one.read_text())["status"] == 0 for one in left)
    print("== all good" if good else "== not all good")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
