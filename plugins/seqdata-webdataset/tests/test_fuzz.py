"""Mutated shards and indexes, read by a child process: data or an error of ours, nothing else.

No signal, no hang, no memory beyond the cap; and what was indexed before gives what was written. A
case that fails is run again by its number: ``python fuzzing.py SCRATCH 17 18 CAP``.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from seqdata_testing.waiting import patient

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
SCRIPT = Path(__file__).parent / "fuzzing.py"
CAP = 1 << 30  # bytes over those of a process that has read well shards
LONGEST = 60.0  # seconds for one case, on a machine that has others to do
SOME = 100  # cases in CI; the others are of the night
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@pytest.fixture
def scratch():
    """A folder in memory, where there is one: cases are many small files."""
    there = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=there) as folder:
        yield Path(folder)


def run(scratch, first, last):
    """Return the outcome of each case; a death or a hang costs one."""
    outcomes, failures = [], []
    while first < last:
        with tempfile.TemporaryFile() as log, subprocess.Popen(  # a full pipe would stop it
            [sys.executable, str(SCRIPT), str(scratch), str(first), str(last), str(CAP)],
            env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, stderr=log,
        ) as child:  # fmt: skip
            for line in lines_of(child):
                outcomes.append(line)
                first = line["case"] + 1
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=patient())
            child.kill()
            child.wait(timeout=patient())
            log.seek(0)
            said = log.read().decode(errors="replace")[-500:]
        if first < last:
            failures.append(f"case {first}: the process ended, {child.returncode}: {said}")
            first += 1
    bad = [line for line in outcomes if line["outcome"] == "bad" or line["rss"] > CAP]
    return outcomes, [*failures, *(json.dumps(line, indent=1) for line in bad)]


def lines_of(child):
    """Yield the lines of a child as they come, until it ends or says nothing for too long."""
    rest = b""
    while select.select([child.stdout], [], [], patient(LONGEST))[0]:
        more = os.read(child.stdout.fileno(), 1 << 16)
        if not more:
            return
        *lines, rest = (rest + more).split(b"\n")
        yield from map(json.loads, lines)


def check(outcomes, failures, count):
    assert not failures, f"{len(failures)} failures\n" + "\n".join(failures[:5])
    assert len(outcomes) == count
    found = [line["outcome"] for line in outcomes]
    assert 0.05 < found.count("data") / count < 0.6  # mutations reach behind the door
    kinds = {line["kind"] for line in outcomes if line["outcome"] == "data"}
    assert kinds >= {"shard", "shard-indexed", "index-resealed"}


@pytest.mark.slow
def test_some_mutated_shards_are_data_or_an_error_of_ours(scratch):
    check(*run(scratch, 0, SOME), SOME)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_mutated_shards_are_data_or_an_error_of_ours(scratch, record_property):
    outcomes, failures = run(scratch, SOME, SOME + 100_000)
    kinds = Counter(f"tar {line['kind']}" for line in outcomes)
    told = {"files": len(outcomes), "failures": len(failures), "kinds": kinds}
    record_property("fuzz", json.dumps(told))
    check(outcomes, failures, 100_000)
