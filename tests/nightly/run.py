"""Run everything, at full counts: the short parts first, and each part whatever became of others.

A part is a run of pytest whose report goes to ``.nightly/PART.xml``, what it printed to
``.nightly/PART.log``; ``.nightly/PART.json`` says when, of which commit, on what.
``make reliability`` makes the figures of docs/reliability.md from these. Usage::

    python tests/nightly/run.py [PART ...]
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / ".nightly"
HERE = ROOT / ".venv" / "bin" / "python"
OLDEST = ROOT / ".venv-oldest" / "bin" / "python"
PACKAGES = ("torch", "lightning", "numpy", "pyarrow", "rich", "hypothesis")
NIGHTLY = "nightly and not hypothesis and not shows"
LONGEST = 4 * 3600  # seconds of a part


@dataclass(frozen=True)
class Part:
    """One run of pytest.

    Attributes:
        name: Of its files.
        what: Said of it.
        select: Marks, as ``-m`` takes them.
        python: The environment.
        more: Further arguments.
        environment: Further variables.
    """

    name: str
    what: str
    select: str
    python: Path = HERE
    more: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


PARTS = (
    Part(
        "oldest",
        "conformance, on the oldest Lightning and the lower bounds of what else is needed",
        "not nightly and not hypothesis and not slow",
        python=OLDEST,
        more=(
            *("tests/lightning", "tests/distributed", "tests/table"),
            *("tests/cli", "tests/storage", "models/tests"),
        ),
    ),
    Part(
        "short",
        "all that runs at every change, but properties",
        "not nightly and not hypothesis and not shows",
    ),
    Part("faults", "every fault in every way", NIGHTLY, more=("tests/faults",)),
    Part(
        "long",
        "what else runs at night only, but properties",
        NIGHTLY,
        more=("--ignore=tests/faults",),
    ),
    Part(
        "properties",
        "properties, at full counts",
        "hypothesis or shows",
        more=("--dist", "worksteal"),
        environment={"HYPOTHESIS_PROFILE": "nightly"},
    ),
)


def run_part(part: Part) -> str:
    """Run one part; gives a line of what came of it."""
    if not part.python.exists():
        return f"{part.name}: no {part.python.relative_to(ROOT)}; make test-nightly makes it"
    report = FOUND / f"{part.name}.xml"
    report.unlink(missing_ok=True)
    command = [
        part.python, "-m", "pytest", "-q", "-n", "auto", "--maxprocesses=4", "--dist", "loadfile",
        "-p", "no:cacheprovider", "-m", part.select, f"--junitxml={report}", *part.more,
    ]  # fmt: skip
    about = {"what": part.what, "began": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), **commit()}
    began = time.monotonic()
    with (FOUND / f"{part.name}.log").open("w") as log:
        try:
            code = subprocess.run(
                command, cwd=ROOT, env={**os.environ, **part.environment}, timeout=LONGEST,
                stdout=log, stderr=subprocess.STDOUT, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = None
    about |= {
        "status": code,
        "seconds": round(time.monotonic() - began),
        **circumstances(part.python),
    }
    (FOUND / f"{part.name}.json").write_text(json.dumps(about, indent=1) + "\n")
    return f"{part.name}: {said(report)}, {about['seconds'] / 60:.1f} minutes" + (
        "" if code == 0 else f"; pytest's status {code}, see .nightly/{part.name}.log"
    )


def said(report: Path) -> str:
    """Count a report's tests in words."""
    if not report.exists():
        return "no report"
    counts = counted(report)
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def counted(report: Path) -> dict[str, int]:
    """Count a report's tests."""
    suites = list(ElementTree.parse(report).iter("testsuite"))
    told = {
        name: sum(int(one.get(name, 0)) for one in suites)
        for name in ("tests", "failures", "errors", "skipped")
    }
    bad = told["failures"] + told["errors"]
    return {
        "passed": told["tests"] - bad - told["skipped"],
        "failed": bad,
        "skipped": told["skipped"],
    }


def commit() -> dict[str, str]:
    """Give the commit, with ``+`` where files differ from it."""
    told = ["git", "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
    done = subprocess.run(told, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return {"commit": done.stdout.strip()}


def circumstances(python: Path | None = None) -> dict[str, object]:
    """Give versions and the machine."""
    if python is None or python == Path(sys.executable):
        versions = {"python": platform.python_version(), **{one: version(one) for one in PACKAGES}}
    else:
        code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import run, json; "
        done = subprocess.run(
            [python, "-c", code + "print(json.dumps(run.circumstances()))"],
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        return json.loads(done.stdout)
    return {"versions": versions, "machine": f"{platform.machine()}, {os.cpu_count()} processors"}


def main() -> int:
    """Run the parts that are named, or all."""
    given = argparse.ArgumentParser(description="Run everything, at full counts.")
    given.add_argument("parts", nargs="*", metavar="PART", help="; ".join(p.name for p in PARTS))
    names = given.parse_args().parts
    unknown = set(names) - {part.name for part in PARTS}
    if unknown:
        given.error(f"no part {', '.join(sorted(unknown))}; there are {[p.name for p in PARTS]}")
    FOUND.mkdir(exist_ok=True)
    chosen = [part for part in PARTS if not names or part.name in names]
    for part in chosen:
        print(f"== {part.name}: {part.what}", flush=True)
        print(f"   {run_part(part)}", flush=True)
    good = all(json.loads((FOUND / f"{p.name}.json").read_text())["status"] == 0 for p in chosen)
    print("== all good" if good else "== not all good")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
