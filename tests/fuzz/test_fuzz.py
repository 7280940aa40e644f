"""Mutated files, opened and read by a child process: data or one of our errors, and nothing else.

No signal, no hang, no memory beyond the cap; and what the own format gives is what was written. A
case that fails is run again by its number: ``python tests/fuzz/child.py SEEDS SCRATCH 17 18 CAP``.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from seqdata_testing.waiting import patient, within

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
HERE = Path(__file__).parent
CAP = 1 << 30  # bytes over those of a process that has read well files
LONGEST = 5.0  # seconds for one file
LONGEST_ASLEEP = 600.0  # seconds for one file on a machine that has others to do
START = 60.0  # seconds for the child's imports and first reads
BOMB_CAP = 512 << 20
SOME = 50  # files in CI; the others are of the night
ENOUGH = 100  # files of a kind, for a share of them to tell something
ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # others reserve room ahead, which is no use
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass
class Tally:
    """What happened to a range of cases."""

    outcomes: list[dict] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def script(log, name, *arguments):
    """Start a program of this folder. It logs into a file: a full pipe would stop it."""
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, str(HERE / name), *map(str, arguments)],
            env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, stderr=file,
        )  # fmt: skip


def lines_of(process, first_wait, wait):
    """Yield the lines of a child as they come; None where none came in time."""
    rest, allowed, worked, waited = b"", first_wait, worked_by(process), 0.0
    while True:
        ready, _, _ = select.select([process.stdout], [], [], allowed)
        if not ready:
            waited += allowed
            if worked_by(process) - worked < allowed / 2 and waited < LONGEST_ASLEEP:
                continue  # others have the processor
            yield None
            return
        worked, waited = worked_by(process), 0.0
        more = os.read(process.stdout.fileno(), 1 << 16)
        if not more:
            return
        *lines, rest = (rest + more).split(b"\n")
        if lines:
            allowed = wait
        yield from map(json.loads, lines)


def worked_by(process):
    """Return the seconds of processor that a child has had."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ended(process, log):
    """Return how a child ended, and what it logged last; one that still runs is killed."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=patient(2))
    if process.poll() is None:
        process.kill()
    code = process.wait(timeout=patient())
    process.stdout.close()
    return f"{signal.Signals(-code).name if code < 0 else f'status {code}'}: {end_of(log)}"


def end_of(log):
    return log.read_text("utf-8", errors="replace")[-500:]


def run_cases(seeds, scratch, first, last):
    """Run cases in one child after the other: a death or a hang costs one case."""
    tally, log = Tally(), scratch / "log"
    scratch.mkdir()
    while first < last:
        process = script(log, "child.py", seeds, scratch, first, last, CAP)
        for line in lines_of(process, START, LONGEST):
            if line is None:
                tally.failures.append(f"case {first}: no answer in {LONGEST} s")
                process.kill()
                break
            first = line["case"] + 1
            tally.outcomes.append(line)
        how = ended(process, log)
        if first < last:
            tally.failures.append(f"case {first}: the process ended, {how}")
            first += 1
    for line in tally.outcomes:
        if line["outcome"] == "bad" or line["rss"] > CAP:
            tally.failures.append(json.dumps(line, indent=1).replace("\\n", "\n"))
    return tally


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz") / "seeds"
    code = f"import cases, pathlib; cases.make_seeds(pathlib.Path({str(folder)!r}))"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=HERE, check=True, timeout=patient()
    )
    return folder


def check(tally, count):
    assert not tally.failures, f"{len(tally.failures)} failures\n" + "\n".join(tally.failures[:5])
    assert len(tally.outcomes) == count
    for kind in {line["kind"] for line in tally.outcomes}:  # mutations reach behind the door
        found = [line["outcome"] for line in tally.outcomes if line["kind"] == kind]
        assert len(found) < ENOUGH or 0.02 < found.count("data") / len(found) < 0.6


@pytest.mark.slow
def test_some_mutated_files_are_data_or_an_error_of_ours(seeds, tmp_path):
    check(run_cases(seeds, tmp_path / "scratch", 0, SOME), SOME)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_mutated_files_are_data_or_an_error_of_ours(
    seeds, tmp_path, record_property
):
    edges = range(SOME, SOME + 100_000, 5_000)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = [
            pool.submit(run_cases, seeds, tmp_path / str(first), first, first + 5_000)
            for first in edges
        ]
        whole = Tally()
        for one in made:
            tally = one.result(timeout=3600)
            whole.outcomes += tally.outcomes
            whole.failures += tally.failures
    found = Counter(line["kind"] for line in whole.outcomes)
    told = {"files": len(whole.outcomes), "failures": len(whole.failures), "kinds": found}
    record_property("fuzz", json.dumps(told))
    check(whole, 100_000)


@pytest.mark.nightly  # at every change: tests/storage/test_limits.py
def test_files_that_ask_for_much_memory_are_refused_before_it_is_taken(tmp_path):
    log = tmp_path / "log"
    made = script(log, "bombs.py", "make", tmp_path)
    made.communicate(timeout=patient(120))
    assert made.returncode == 0, end_of(log)
    with within(60):
        process = script(log, "bombs.py", "open", tmp_path)
        lines = list(lines_of(process, START, 20.0))
        how = ended(process, log)
    assert None not in lines, how
    assert len(lines) == 12, how
    for line in lines:
        assert line["outcome"] == "LimitError", line
        assert line["grown"] < BOMB_CAP, line
        assert "If you trust the file, write it again within this limit" in line["told"]
