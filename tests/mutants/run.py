"""Plant one bug after the other on a copy of the tree, and see that the tests named with it fail.

The bugs and their tests are in the table next to this file: ``*.toml``, read by ``table.py``. A
bug is killed where pytest ends with failed tests (status 1). No test collected, an entry that does
not fit the tree, or tests that fail without any bug count as survival. Usage::

    python -m tests.mutants.run [--file PATH] [--room NAME] [NAME ...]
                                [--jobs N] [--timeout SECONDS] [--json FILE]

Without names, files and rooms all bugs are planted; with several of them, those that any names.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from tests.mutants.table import HERE, Bug, TableError, plant, read_table
from tests.preloaded import python, serving

ROOT = HERE.parents[1]
FAILED = 1  # pytest: tests ran and some failed
UNBROKEN = "passes unbroken"
FAILURES = re.compile(r"^(?:=+ )?\d+ (?:failed|errors?)\b", re.MULTILINE)  # pytest's last line
ENVIRONMENT = {
    "PYTHONDONTWRITEBYTECODE": "1",  # nothing is kept between bugs
    "HYPOTHESIS_PROFILE": "mutants",
    "OMP_NUM_THREADS": "1",  # several bugs are tried beside each other
}
STATUS = {0: "survived", FAILED: "killed", 2: "broken: not collected", 5: "broken: no test ran"}


@dataclass(frozen=True)
class Outcome:
    mutant: str
    verdict: str
    seconds: float
    tail: str = ""


def copy_tree(target: Path) -> None:
    """Copy what git tracks or would track, as it lies here, and what is compiled of it.

    Bytecode counts where size and time of its source are as they were: not for what a bug changes.
    """
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    names = [name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]
    compiled = [(ROOT / "seqdata" / "kernel").glob("*.so")]
    compiled += [
        (ROOT / folder).glob("__pycache__/*.pyc")
        for folder in {os.path.dirname(name) for name in names if name.endswith(".py")}
    ]
    names += [str(path.relative_to(ROOT)) for paths in compiled for path in paths]
    for name in names:
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place)


def surroundings(tree: Path) -> dict[str, str]:
    """The copy goes before the installed package."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    paths = [tree, tree / "models", *sorted((tree / "plugins").glob("*/"))]
    return {**known, "PYTHONPATH": os.pathsep.join(map(str, paths))}


def run_tests(tree: Path, tests: tuple[str, ...], timeout: float) -> tuple[str, str]:
    """Return the verdict, and the end of pytest's output."""
    command = [python(), "-m", "pytest", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=tree, env=surroundings(tree), capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"broken: more than {timeout:.0f} s", ""
    said = done.stdout + done.stderr
    verdict = STATUS.get(done.returncode, f"broken: pytest status {done.returncode}")
    if done.returncode == FAILED and not FAILURES.search(said):
        verdict = "broken: no test failed"  # pytest itself, or the process, ended so
    return verdict, "\n".join(said.splitlines()[-25:])


def write_bug(tree: Path, bug: Bug) -> str:
    """Plant a bug in a copy of the tree; return what went wrong, or an empty text."""
    try:
        texts = plant(bug, tree)
    except TableError as error:
        return str(error)
    for file, text in texts.items():
        (tree / file).write_bytes(text.encode("utf-8"))
    if not any(file.endswith(".c") for file in texts):
        return ""
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(build, cwd=tree, check=False, capture_output=True, text=True, timeout=300)
    return done.stderr.strip() if done.returncode else ""


def try_bug(bug: Bug, timeout: float) -> Outcome:
    """Plant a bug and return what its tests make of it."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as spot:
        tree = Path(spot)
        copy_tree(tree)
        trouble = write_bug(tree, bug)
        if trouble:
            return Outcome(bug.name, "does not apply", time.monotonic() - begin, trouble)
        verdict, tail = run_tests(tree, bug.tests, timeout)
    return Outcome(bug.name, verdict, time.monotonic() - begin, tail)


def check_unbroken(tests: tuple[str, ...], timeout: float) -> Outcome:
    """The tests must pass where no bug was planted, or they would kill anything."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as spot:
        tree = Path(spot)
        copy_tree(tree)
        verdict, tail = run_tests(tree, tests, timeout)
    unbroken = UNBROKEN if verdict == "survived" else f"fails unbroken ({verdict})"
    return Outcome(shlex.join(tests), unbroken, time.monotonic() - begin, tail)


def commit() -> str:
    """Return the commit, with ``+`` where files differ from it."""
    told = ["describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
    done = subprocess.run(
        ["git", *told], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


def try_group(bugs: list[Bug], timeout: float) -> Iterator[Outcome]:
    """Try bugs that the same tests find, once these pass where no bug was planted."""
    unbroken = check_unbroken(bugs[0].tests, timeout)
    if unbroken.verdict != UNBROKEN:
        yield from (replace(unbroken, mutant=bug.name) for bug in bugs)
        return
    for bug in bugs:
        yield try_bug(bug, timeout)


def group_by_tests(bugs: list[Bug]) -> list[list[Bug]]:
    """Return the bugs in groups that the same tests find."""
    found: dict[tuple[str, ...], list[Bug]] = {}
    for bug in bugs:
        found.setdefault(bug.tests, []).append(bug)
    return list(found.values())


def choose(bugs: list[Bug], names: list[str], files: list[str], rooms: list[str]) -> list[Bug]:
    """Return the bugs that are named, or planted in a named file or room; all if none is named."""
    kinds = (
        ("bug", names, {bug.name for bug in bugs}),
        ("bug in file", files, {file for bug in bugs for file in bug.files}),
        ("room", rooms, {bug.room for bug in bugs}),
    )
    for kind, given, known in kinds:
        missing = sorted(set(given) - known)
        if missing:
            raise SystemExit(f"mutants: no {kind} {', '.join(missing)} in {HERE}")
    if not (names or files or rooms):
        return bugs
    return [
        bug
        for bug in bugs
        if bug.name in names or bug.room in rooms or not set(files).isdisjoint(bug.files)
    ]


def show(outcome: Outcome) -> None:
    """Print a line, and why the mutant was not killed."""
    print(f"{outcome.mutant:50}  {outcome.seconds:6.1f} s  {outcome.verdict}", flush=True)
    if outcome.verdict != "killed":
        print(f"{outcome.tail}\n", flush=True)


def keep(path: Path | None, about: dict[str, object], outcomes: list[Outcome]) -> None:
    """Write what is known so far."""
    if path is not None:
        path.parent.mkdir(exist_ok=True)
        verdicts = {outcome.mutant: outcome.verdict for outcome in outcomes}
        path.write_text(json.dumps({**about, "verdicts": verdicts}, indent=1) + "\n")


def main() -> int:
    given = argparse.ArgumentParser(description="Show that planted bugs are found by the tests.")
    given.add_argument("names", nargs="*", help="names of bugs; default: all")
    given.add_argument("--file", action="append", default=[], help="all bugs of a file")
    given.add_argument("--room", action="append", default=[], help="all bugs of a room's table")
    given.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    given.add_argument("--timeout", type=float, default=300.0, help="seconds per mutant")
    given.add_argument("--json", type=Path, help="where the verdicts go, too")
    options = given.parse_args()
    try:
        bugs = choose(read_table(), options.names, options.file, options.room)
    except TableError as error:
        raise SystemExit(f"mutants: {error}") from None
    began = {"commit": commit(), "began": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}
    about: dict[str, object] = {**began, "planned": len(bugs)}
    outcomes: list[Outcome] = []
    lock = Lock()

    def work(group: list[Bug]) -> None:
        for outcome in try_group(group, options.timeout):
            with lock:
                show(outcome)
                outcomes.append(outcome)
                keep(options.json, about, outcomes)

    os.environ.update(ENVIRONMENT)
    with serving(), ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, group_by_tests(bugs)))
    killed = sum(outcome.verdict == "killed" for outcome in outcomes)
    print(f"\n{killed} of {len(outcomes)} mutants killed")
    return 0 if killed == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
