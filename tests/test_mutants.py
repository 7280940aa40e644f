"""The planted bugs of tests/mutants fit the present code; `make mutants` shows them found."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from seqdata.testing.waiting import patient

ROOT = Path(__file__).resolve().parents[1]
PATCHES = sorted((ROOT / "tests" / "mutants").glob("*.patch"))


def test_every_planted_bug_names_tests_that_there_are():
    wrong = []
    for patch in PATCHES:
        first = patch.read_text("utf-8").split("\n", 1)[0]
        killers = [word for word in first.removeprefix("# killed by:").split() if word[0] != "-"]
        there = all((ROOT / killer.split("::")[0]).exists() for killer in killers if "/" in killer)
        if not first.startswith("# killed by: ") or not there:
            wrong.append(f"{patch.name}: {first}")
    assert not wrong


def test_every_planted_bug_applies():
    with ThreadPoolExecutor(4) as pool:
        told = pool.map(applied, PATCHES)
    assert not [f"{patch.name}: {one}" for patch, one in zip(PATCHES, told, strict=True) if one]


def applied(patch):
    """Return what git says against a patch; "" if it applies."""
    done = subprocess.run(
        ["git", "apply", "--check", str(patch)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patient(),
        check=False,
    )
    return done.stderr
