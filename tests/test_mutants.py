"""The planted bugs of tests/mutants fit the present code; `make mutants` shows them found."""

import subprocess
from pathlib import Path

import pytest

from seqdata.testing.waiting import patient

ROOT = Path(__file__).resolve().parents[1]
PATCHES = sorted((ROOT / "tests" / "mutants").glob("*.patch"))


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_planted_bug_applies_and_names_its_tests(patch):
    first = patch.read_text("utf-8").split("\n", 1)[0]
    killers = [word for word in first.removeprefix("# killed by:").split() if word[0] != "-"]
    assert first.startswith("# killed by: ")
    assert all((ROOT / killer.split("::")[0]).exists() for killer in killers if "/" in killer)
    done = subprocess.run(
        ["git", "apply", "--check", str(patch)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patient(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
