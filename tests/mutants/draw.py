"""Draw mutants of a room at random, and list those that no test kills.

cosmic-ray names and applies the mutations (``.venv-mutants``); this module draws some of them, the
kinds of operators evenly, and runs the room's tests on a copy of the tree. What these do not kill
is tried by all quick tests. Usage::

    python -m tests.mutants.draw ROOM [--count 40] [--seed 0] [--jobs 1] [--json FILE]
                                 [--coverage FILE] [--room-only | --reaching-only]

A data file of ``pytest --cov --cov-context=test`` says which tests run a line: these come first,
which takes a tenth of the time. On a slow machine ``--room-only`` leaves the last try out, and
``--reaching-only`` all but the first, where some test runs the line.
"""

import argparse
import ast
import contextlib
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from tests.mutants.run import ENVIRONMENT, ROOT, copy_tree, run_tests
from tests.preloaded import serving

TOOL = ROOT / ".venv-mutants" / "bin" / "cosmic-ray"
QUICK = ("-x", "-q", "-m", "not nightly and not slow and not distributed")
ALL_QUICK = (*QUICK, "-n", "2", "--dist", "loadfile")
NEVER_HARMFUL = ("ExceptionReplacer", "RemoveDecorator")  # a name that is not there; frozen, cached
ROOMS = {
    "planning": ("seqdata/planning", "tests/planning tests/policies tests/test_plan.py"),
    "policies": ("seqdata/policies", "tests/policies tests/planning"),
    "fitting": ("seqdata/fitting", "tests/fitting"),
    "lightning": ("seqdata/lightning", "tests/lightning"),
    "runs": ("seqdata/runs", "tests/runs tests/cli"),
    "loading": ("seqdata/loading", "tests/loading"),
    "workers": ("seqdata/loading/workers", "tests/loading"),
    "storage": ("seqdata/storage", "tests/storage tests/test_api.py"),
    "remote": ("seqdata/storage/remote", "tests/storage/remote"),
    "readers": ("seqdata/readers", "tests/readers tests/cli tests/storage/foreign"),
    "recurrent": ("seqdata/recurrent models/seqdata_models", "tests/recurrent models/tests"),
    "plugins": (
        "plugins/seqdata-arrays/seqdata_arrays plugins/seqdata-audio/seqdata_audio "
        "plugins/seqdata-biosignals/seqdata_biosignals plugins/seqdata-frames/seqdata_frames "
        "plugins/seqdata-text/seqdata_text plugins/seqdata-tokens/seqdata_tokens "
        "plugins/seqdata-webdataset/seqdata_webdataset",
        "plugins/seqdata-arrays/tests plugins/seqdata-audio/tests "
        "plugins/seqdata-biosignals/tests plugins/seqdata-frames/tests "
        "plugins/seqdata-text/tests plugins/seqdata-tokens/tests "
        "plugins/seqdata-webdataset/tests",
    ),
}
MOST_FIRST = 40  # tests that come first
NOT_THERE = "broken: pytest status 4"  # a test's name has what the mutation changes, or the like
ENDED = ("broken: not collected", "broken: more than")
CONFIGURATION = """\
[cosmic-ray]
module-path = {modules}
timeout = 1.0
excluded-modules = []
test-command = "true"
[cosmic-ray.distributor]
name = "local"
"""


@dataclass(frozen=True)
class Mutation:
    """One operator at one place of a file."""

    file: str
    operator: str
    occurrence: int
    line: int
    column: int

    @property
    def kind(self) -> str:
        """Return the operator's family: all replacements of comparisons are one."""
        return self.operator.removeprefix("core/").split("_")[0]

    @property
    def name(self) -> str:
        """Return what a reader sees of it."""
        return f"{self.file}:{self.line}:{self.column} {self.operator.removeprefix('core/')}"


def list_mutations(modules: list[str]) -> list[Mutation]:
    """Return all mutations that cosmic-ray knows, but those of annotations and decorators."""
    with tempfile.TemporaryDirectory(prefix="draw-") as spot:
        config, session = Path(spot, "config.toml"), Path(spot, "session.sqlite")
        config.write_text(CONFIGURATION.format(modules=json.dumps(modules)))
        for command in (["init", config, session], ["dump", session]):
            done = subprocess.run(
                [TOOL, *command], cwd=ROOT, check=True, capture_output=True, text=True, timeout=1200
            )
    found = []
    annotated = {}
    for row in done.stdout.splitlines():
        (one,) = json.loads(row)[0]["mutations"]
        file, (line, column) = one["module_path"], one["start_pos"]
        kind = one["operator_name"].removeprefix("core/").split("_")[0]
        if file not in annotated:
            annotated[file] = find_annotations((ROOT / file).read_text("utf-8"))
        is_annotation = any(low <= (line, column) <= high for low, high in annotated[file])
        if kind not in NEVER_HARMFUL and not is_annotation:
            found.append(Mutation(file, one["operator_name"], one["occurrence"], line, column))
    return found


def find_annotations(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return where annotations and decorators begin and end, as (line, column)."""
    found = []
    for node in ast.walk(ast.parse(source)):
        named = [getattr(node, name, None) for name in ("annotation", "returns")]
        named += getattr(node, "decorator_list", [])
        for part in (part for part in named if part is not None):
            end = (part.end_lineno or part.lineno, part.end_col_offset or 0)
            found.append(((part.lineno, part.col_offset), end))
    return found


def draw(mutations: list[Mutation], count: int, seed: int) -> list[Mutation]:
    """Return some of the mutations: kinds in turn, and no place of a kind twice."""
    rng = random.Random(seed)
    by_kind: dict[str, list[Mutation]] = {}
    for one in sorted(mutations, key=lambda one: (one.file, one.line, one.column, one.operator)):
        by_kind.setdefault(one.kind, []).append(one)
    for kind in by_kind:
        rng.shuffle(by_kind[kind])
    chosen: list[Mutation] = []
    seen = set()
    while len(chosen) < count and any(by_kind.values()):
        for ones in by_kind.values():
            while ones and (ones[-1].file, ones[-1].line, ones[-1].column) in seen:
                ones.pop()
            if ones and len(chosen) < count:
                chosen.append(ones.pop())
                seen.add((chosen[-1].file, chosen[-1].line, chosen[-1].column))
    return chosen


def read_coverage(path: Path, files: Iterable[str]) -> dict[tuple[str, int], list[str]]:
    """Return the ids of the tests that run each line of the files.

    The schema is coverage.py's: https://coverage.readthedocs.io/en/latest/dbschema.html
    """
    reached: dict[tuple[str, int], set[str]] = {}
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as data:
        for file in files:
            rows = data.execute(
                "SELECT context.context, line_bits.numbits FROM line_bits "
                "JOIN context ON context.id = line_bits.context_id "
                "JOIN file ON file.id = line_bits.file_id "
                "WHERE file.path LIKE ? AND context.context != ''",
                (f"%/{file}",),
            )
            for context, bits in rows:
                for index, byte in enumerate(bits):
                    for bit in range(8):
                        if byte >> bit & 1:
                            test = context.rpartition("|")[0]
                            reached.setdefault((file, 8 * index + bit), set()).add(test)
    return {place: sorted(tests) for place, tests in reached.items()}


def choose_first(
    mutation: Mutation, reached: dict[tuple[str, int], list[str]], rng: random.Random
) -> list[str]:
    """Return some of the tests that run the mutation's line, or the nearest line above it.

    Those of its module's own test file come before others. Coverage records a statement of several
    lines by the first of them.
    """
    for line in range(mutation.line, max(mutation.line - 4, 0), -1):
        tests = reached.get((mutation.file, line), [])
        if tests:
            own = [test for test in tests if f"/test_{Path(mutation.file).stem}" in test]
            others = sorted(set(tests) - set(own))
            chosen = rng.sample(own, min(len(own), MOST_FIRST))
            chosen += rng.sample(others, min(len(others), MOST_FIRST - len(chosen)))
            return sorted(chosen)
    return []


def try_mutation(
    tree: Path, mutation: Mutation, tries: list[tuple[str, ...]], timeout: float
) -> str:
    """Apply a mutation to a copy of the tree, run the tests, take it back; return the verdict."""
    target = tree / mutation.file
    before = target.read_text("utf-8")
    command = [TOOL, "apply", mutation.file, mutation.operator, str(mutation.occurrence)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True, timeout=120)
    try:
        if target.read_text("utf-8") == before:
            return "changes nothing"
        verdict = "survived"
        for tests in tries:
            if verdict in ("survived", NOT_THERE):
                limit = 4 * timeout if tests is ALL_QUICK else timeout
                verdict, _ = run_tests(tree, tests, limit)
        return "killed" if verdict.startswith(ENDED) else verdict
    finally:
        target.write_text(before, "utf-8")


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    given = argparse.ArgumentParser(description="Draw mutants of a room; list those that survive.")
    given.add_argument("room", choices=ROOMS)
    given.add_argument("--count", type=int, default=40)
    given.add_argument("--seed", type=int, default=0)
    given.add_argument("--jobs", type=int, default=1)
    given.add_argument("--timeout", type=float, default=600.0, help="seconds of the room's tests")
    given.add_argument("--coverage", type=Path, help="data of pytest --cov-context=test")
    given.add_argument("--room-only", action="store_true", help="leave out all quick tests")
    given.add_argument(
        "--reaching-only", action="store_true", help="where tests run the line, try no others"
    )
    given.add_argument("--json", type=Path, help="where the verdicts go; it is continued")
    return given.parse_args()


def main() -> int:
    options = parse_options()
    modules, tests = (word.split() for word in ROOMS[options.room])
    drawn = draw(list_mutations(modules), options.count, options.seed)
    rng = random.Random(options.seed)
    reached = {}
    if options.coverage is not None:
        reached = read_coverage(options.coverage, {one.file for one in drawn})
    verdicts: dict[str, str] = {}
    if options.json is not None and options.json.is_file():  # an earlier run was interrupted
        verdicts = json.loads(options.json.read_text("utf-8"))
    lock = Lock()
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="mutants-") as spot, serving():
        trees: SimpleQueue[Path] = SimpleQueue()
        for job in range(options.jobs):
            copy_tree(Path(spot, str(job)))
            trees.put(Path(spot, str(job)))
        sound = sorted({one for mutation in drawn for one in choose_first(mutation, reached, rng)})
        sound = rng.sample(sound, min(len(sound), MOST_FIRST)) or tests
        verdict, tail = run_tests(Path(spot, "0"), (*QUICK, *sound), options.timeout)
        if verdict != "survived":
            raise SystemExit(f"mutants: the tests fail without any mutant: {verdict}\n{tail}")

        def work(mutation: Mutation) -> None:
            tree = trees.get()  # ends: there are as many trees as jobs
            begin = time.monotonic()
            first = choose_first(mutation, reached, rng)
            tries = [(*QUICK, *first)] if first else []
            if not (first and options.reaching_only):
                tries.append((*QUICK, *tests))
            if not (options.room_only or options.reaching_only):
                tries.append(ALL_QUICK)
            verdict = try_mutation(tree, mutation, tries, options.timeout)
            if verdict == NOT_THERE:
                verdict = try_mutation(tree, mutation, [(*QUICK, *tests)], options.timeout)
            trees.put(tree)
            with lock:
                verdicts[mutation.name] = verdict
                print(
                    f"{verdict:15} {time.monotonic() - begin:6.1f} s  {mutation.name}", flush=True
                )
                if options.json is not None:
                    options.json.write_text(json.dumps(verdicts, indent=1) + "\n")

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(work, [one for one in drawn if one.name not in verdicts]))
    killed = sum(verdict == "killed" for verdict in verdicts.values())
    print(f"\n{options.room}: {len(drawn)} drawn, {killed} killed")
    return 0 if killed == len(drawn) else 1


if __name__ == "__main__":
    sys.exit(main())
