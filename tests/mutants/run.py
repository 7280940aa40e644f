"""Plant one bug after the other on a copy of the tree, and see that the tests named in it fail.

A mutant is a patch beside this file whose first line says which tests kill it, as pytest is given
them::

    # killed by: tests/test_sharing.py tests/properties -x -q
    --- a/seqdata/sharing.py
    +++ b/seqdata/sharing.py
    ...

A mutant is killed where pytest ends with failed tests (status 1). No test collected, a patch that
does not apply, or tests that fail without any patch count as survival. Usage::

    python tests/mutants/run.py [--jobs N] [--timeout SECONDS] [--json FILE] [NAME ...]
"""

import argparse
import json
import os
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

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KILLERS = "# killed by:"
FAILED = 1  # pytest: tests ran and some failed
UNBROKEN = "passes unbroken"
STATUS = {0: "survived", FAILED: "killed", 2: "broken: not collected", 5: "broken: no test ran"}


@dataclass(frozen=True)
class Mutant:
    name: str
    patch: Path
    killers: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    mutant: str
    verdict: str
    seconds: float
    tail: str = ""


def read_mutant(patch: Path) -> Mutant:
    first = patch.read_text("utf-8").split("\n", 1)[0]
    killers = tuple(shlex.split(first.removeprefix(KILLERS))) if first.startswith(KILLERS) else ()
    if not killers:
        raise SystemExit(
            f"mutants: {patch.name}: first line must be '{KILLERS} <pytest arguments>'"
        )
    return Mutant(patch.stem, patch, killers)


def copy_tree(target: Path) -> None:
    """Copy what git tracks or would track, as it lies here, and the compiled kernel."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    names = [name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]
    names += [str(path.relative_to(ROOT)) for path in (ROOT / "seqdata" / "kernel").glob("*.so")]
    for name in names:
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place)


def surroundings(tree: Path) -> dict[str, str]:
    """The copy goes before the installed package; nothing is kept between mutants."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    paths = [tree, tree / "models", *sorted((tree / "plugins").glob("*/"))]
    return {
        **known,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",  # several mutants run beside each other
    }


def run_tests(tree: Path, killers: tuple[str, ...], timeout: float) -> tuple[str, str]:
    """Give the verdict, and the end of pytest's output."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *killers]
    try:
        done = subprocess.run(
            command, cwd=tree, env=surroundings(tree), capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"broken: more than {timeout:.0f} s", ""
    verdict = STATUS.get(done.returncode, f"broken: pytest status {done.returncode}")
    return verdict, "\n".join((done.stdout + done.stderr).splitlines()[-25:])


def plant(tree: Path, patch: Path) -> str:
    """Apply a patch; give what went wrong, or an empty text."""
    apply = ["git", "apply", "--whitespace=nowarn", str(patch)]
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    done = subprocess.run(
        apply, cwd=tree, env=alone, check=False, capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        return done.stderr.strip()
    if ".c\n" in "".join(line for line in patch.open(encoding="utf-8") if line.startswith("+++ ")):
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        done = subprocess.run(
            build, cwd=tree, check=False, capture_output=True, text=True, timeout=300
        )
    return done.stderr.strip() if done.returncode else ""


def try_mutant(mutant: Mutant, timeout: float) -> Outcome:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as spot:
        tree = Path(spot)
        copy_tree(tree)
        trouble = plant(tree, mutant.patch)
        if trouble:
            return Outcome(mutant.name, "does not apply", time.monotonic() - begin, trouble)
        verdict, tail = run_tests(tree, mutant.killers, timeout)
    return Outcome(mutant.name, verdict, time.monotonic() - begin, tail)


def check_unbroken(killers: tuple[str, ...], timeout: float) -> Outcome:
    """The tests must pass where no bug was planted, or they would kill anything."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as spot:
        tree = Path(spot)
        copy_tree(tree)
        verdict, tail = run_tests(tree, killers, timeout)
    unbroken = UNBROKEN if verdict == "survived" else f"fails unbroken ({verdict})"
    return Outcome(shlex.join(killers), unbroken, time.monotonic() - begin, tail)


def commit() -> str:
    """Give the commit, with ``+`` where files differ from it."""
    told = ["describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
    done = subprocess.run(
        ["git", *told], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


def try_group(mutants: list[Mutant], timeout: float) -> Iterator[Outcome]:
    """Try mutants that the same tests kill, once these pass where no bug was planted."""
    unbroken = check_unbroken(mutants[0].killers, timeout)
    if unbroken.verdict != UNBROKEN:
        yield from (replace(unbroken, mutant=mutant.name) for mutant in mutants)
        return
    for mutant in mutants:
        yield try_mutant(mutant, timeout)


def groups_of(mutants: list[Mutant]) -> list[list[Mutant]]:
    """Put mutants together that the same tests kill."""
    found: dict[tuple[str, ...], list[Mutant]] = {}
    for mutant in mutants:
        found.setdefault(mutant.killers, []).append(mutant)
    return list(found.values())


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
    given.add_argument("names", nargs="*", help="names of patches without .patch; default: all")
    given.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    given.add_argument("--timeout", type=float, default=300.0, help="seconds per mutant")
    given.add_argument("--json", type=Path, help="where the verdicts go, too")
    options = given.parse_args()
    patches = sorted(HERE.glob("*.patch"))
    mutants = [read_mutant(p) for p in patches if not options.names or p.stem in options.names]
    missing = set(options.names) - {mutant.name for mutant in mutants}
    if missing or not mutants:
        raise SystemExit(f"mutants: no patch {', '.join(sorted(missing)) or '*.patch'} in {HERE}")
    began = {"commit": commit(), "began": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}
    about: dict[str, object] = {**began, "planned": len(mutants)}
    outcomes: list[Outcome] = []
    lock = Lock()

    def work(group: list[Mutant]) -> None:
        for outcome in try_group(group, options.timeout):
            with lock:
                show(outcome)
                outcomes.append(outcome)
                keep(options.json, about, outcomes)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, groups_of(mutants)))
    killed = sum(outcome.verdict == "killed" for outcome in outcomes)
    print(f"\n{killed} of {len(outcomes)} mutants killed")
    return 0 if killed == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
