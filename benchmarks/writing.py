"""Time to write a data set beside the writers of other formats, and beside ``cp``.

    python benchmarks/writing.py [--quick] [--rounds N] [--labelled] [--peers PYTHON]

S (10^6 token sequences) from the same iterable of dicts: every writer in a fresh process, in turn,
imports not counted. The others live in an environment of their own (`make bench` makes it from
benchmarks/peers.txt); what is not there is named and left out. M (2 GB of frames) from arrays in
memory: ``write_store`` beside ``cp`` and ``sha256sum`` of the files that it wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import PATIENCE, machine, spread
from rich.console import Console
from rich.table import Table
from samples import frames, frames_count, touch
from writers import OURS, WRITERS

from seqdata.api import write_store

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent / ".venv-bench" / "bin" / "python"
FLOOR_S = 10.0  # times as fast as the fastest of the others
FLOOR_M = 2.0  # times what cp and sha256sum take
Times = dict[str, list[float]]


class Missing(Exception):
    """A writer that cannot run here."""


def once(python: Path, name: str, count: int, labelled: bool, root: Path) -> dict[str, Any]:
    """Run a writer in a fresh process; give what it printed.

    Raises:
        Missing: If it did not end well; with its last line.
    """
    command = [str(python), str(HERE / "writers.py"), name]
    with tempfile.TemporaryDirectory(dir=root) as folder:
        arguments = [*command, folder, str(count), *(["--labelled"] if labelled else [])]
        os.sync()  # what others wrote before is not written in this one's time
        try:
            done = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE)
        except FileNotFoundError as error:
            raise Missing(f"no {error.filename}; `make bench` makes it") from error
    if done.returncode:
        log_lines = done.stderr.strip().splitlines()
        raise Missing(log_lines[-1] if log_lines else f"ended with status {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def write_s(
    count: int, rounds: int, labelled: bool, peers: Path, root: Path, say: Callable[[str], None]
) -> tuple[Times, dict[str, dict[str, Any]]]:
    """Write S with each writer in turn; give seconds, and what each printed last."""
    times: Times = {name: [] for name in WRITERS}
    facts: dict[str, dict[str, Any]] = {}
    for number in range(rounds):
        for name in list(times):
            python = Path(sys.executable) if name == OURS else peers
            try:
                facts[name] = once(python, name, count, labelled, root)
            except Missing as error:
                if name == OURS:
                    raise
                say(f"left out: {name}: {error}")
                del times[name]
                continue
            times[name].append(facts[name]["seconds"])
        say(f"S: round {number + 1} of {rounds}")
    return times, facts


def write_m(size: int, rounds: int, root: Path) -> Times:
    """Write M, copy the files, hash the copies, flush them; ``rounds`` times, in seconds.

    One more round comes first and does not count.
    """
    samples = frames(frames_count(size))
    times: Times = {name: [] for name in ("write_store", "cp", "sha256sum", "sync")}
    for _ in range(rounds + 1):
        store, copy = root / "M", root / "copy"
        os.sync()
        touch(2 * samples.values.nbytes)
        with _Timer(times["write_store"]):
            write_store(store, samples.dicts(), progress=False)
        os.sync()
        touch(2 * samples.values.nbytes)
        with _Timer(times["cp"]):
            _run("cp", "-r", str(store), str(copy))
        with _Timer(times["sha256sum"]):
            _run("sha256sum", *map(str, sorted(copy.iterdir())))
        with _Timer(times["sync"]):
            os.sync()
        shutil.rmtree(store)
        shutil.rmtree(copy)
    return {name: taken[1:] for name, taken in times.items()}


class _Timer:
    """Append the seconds that a block took to a list."""

    def __init__(self, taken: list[float]) -> None:
        self._taken = taken
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._taken.append(time.perf_counter() - self._began)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE)


def table_s(times: Times, facts: dict[str, dict[str, Any]], count: int) -> Table:
    """Lay the times of S out."""
    table = Table(title=f"S: {count} sequences from an iterable of dicts, one process")
    columns = ("writer", "version", "s", "us/sequence", "ratio", "MB on disk")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 else "right")
    ours = statistics.median(times[OURS])
    for name, taken in times.items():
        median = statistics.median(taken)
        table.add_row(
            name, facts[name]["version"], spread(taken, "{:.2f}"), f"{median / count * 1e6:.2f}",
            f"{median / ours:.1f}x", f"{facts[name]['bytes'] / 1e6:.0f}",
        )  # fmt: skip
    return table


def verdict_s(times: Times) -> str:
    """Say how the fastest of the others compares."""
    others = {name: statistics.median(seconds) for name, seconds in times.items() if name != OURS}
    if not others:
        return "S: nobody to compare with; `make bench` installs the others"
    fastest = min(others, key=others.__getitem__)
    ratio = others[fastest] / statistics.median(times[OURS])
    return (
        f"S: floor {FLOOR_S:g}x as fast as the fastest of the others ({fastest}), found "
        f"{ratio:.1f}x {'(met)' if ratio >= FLOOR_S else '(MISSED)'}"
    )


def table_m(times: Times, size: int) -> Table:
    """Lay the times of M out."""
    table = Table(title=f"M: {size / 1e9:.2f} GB of frames, from arrays in memory")
    for number, column in enumerate(("what", "s", "GB/s")):
        table.add_column(column, justify="left" if number < 1 else "right")
    for name, taken in times.items():
        rate = f"{size / 1e9 / statistics.median(taken):.2f}"
        table.add_row(name, spread(taken, "{:.2f}"), rate)
    return table


def verdict_m(times: Times) -> str:
    """Say how writing compares with copying and hashing, flushed to the disk or not."""
    both = [sum(pair) for pair in zip(times["cp"], times["sha256sum"], strict=True)]
    flushed = [sum(pair) for pair in zip(both, times["sync"], strict=True)]
    ours = statistics.median(times["write_store"])
    ratio = ours / statistics.median(both)
    return (
        f"M: floor within {FLOOR_M:g}x of cp and sha256sum, found {ratio:.2f}x "
        f"{'(met)' if ratio <= FLOOR_M else '(MISSED)'}; of cp, sha256sum and sync "
        f"{ours / statistics.median(flushed):.2f}x"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of S, an eighth of M")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (3)")
    parser.add_argument("--labelled", action="store_true", help="S with an id and a label")
    parser.add_argument("--peers", type=Path, default=PEERS, help="Python of the other writers")
    options = parser.parse_args()
    console = Console(width=120, soft_wrap=True)
    count = 100_000 if options.quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        console.print(machine())
        times, facts = write_s(
            count, options.rounds, options.labelled, options.peers, root, console.print
        )
        console.print(table_s(times, facts, count))
        console.print(verdict_s(times))
        size = (256 << 20) if options.quick else 2 * 10**9
        found = write_m(size, options.rounds, root)
        console.print(table_m(found, size))
        console.print(verdict_m(found))
    console.print(machine())


if __name__ == "__main__":
    main()
