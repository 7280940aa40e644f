"""Time to the first batch in a fresh process: with the imports after torch's, and without.

    python benchmarks/first_batch.py [--quick] [--rounds N]

Opening, planning or shuffling 10^6 sequences, starting the worker if there is one, one padded batch
of 64. "after torch" counts from the end of ``import torch``, which every training script pays, and
of one garbage collection: torch leaves one over all its objects due, for whoever allocates next;
"constructed" from where the loader is made.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import Data, machine, make_s, spread
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
METHODS = ("fork", "forkserver", "spawn")
FLOOR = 0.1  # seconds that the first batch may come later than the DataLoader's
OURS = """
import gc, json, time, torch
gc.collect()
began = time.perf_counter()
from seqdata.loading.loader import Loader
from seqdata.policies.{module} import {policy}
imported = time.perf_counter()
loader = Loader({store!r}, {policy}(64), **{options!r})
next(iter(loader))
done = time.perf_counter()
print(json.dumps([done - began, done - imported]))
loader.shutdown()
"""
PEER = """
import gc, json, time, torch
gc.collect()
began = time.perf_counter()
from pathlib import Path
from by_hand import loader
from samples import Data
imported = time.perf_counter()
peer = loader(Data({name!r}, Path({root!r}), {dtype!r}, {width}, {count}), **{options!r})
next(iter(peer))
done = time.perf_counter()
print(json.dumps([done - began, done - imported]))
"""
BY_HAND = "memmap DataLoader"
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"  # would let every process compile what has changed


def programs(data: Data) -> dict[str, str]:
    """The programs that are timed, by name."""
    peer = {
        "name": data.name, "root": str(data.root), "dtype": data.dtype, "width": data.width,
        "count": data.count,
    }  # fmt: skip
    texts = {f"seqdata, {policy}(64)": _ours(data, policy, {}) for policy in ("Fixed", "Bucketed")}
    texts[BY_HAND] = PEER.format(**peer, options={})
    for method in METHODS:
        options: dict[str, Any] = {"num_workers": 1, "start_method": method}
        texts[f"seqdata, {_worker(method)}"] = _ours(data, "Fixed", options)
        options = {"workers": 1, "method": method}
        texts[f"{BY_HAND}, {_worker(method)}"] = PEER.format(**peer, options=options)
    return texts


def _worker(method: str) -> str:
    return f"1 worker by {method}"


def _ours(data: Data, policy: str, options: dict[str, Any]) -> str:
    return OURS.format(module=policy.lower(), policy=policy, store=data.store, options=options)


def once(program: str) -> tuple[float, float]:
    """Run a program in a fresh process; give the milliseconds that it prints."""
    known = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=HERE, env=known, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the program ended with {done.returncode}:\n{done.stderr}")
    after, constructed = json.loads(done.stdout)
    return after * 1e3, constructed * 1e3


def verdicts(times: dict[str, list[tuple[float, float]]]) -> list[str]:
    """Say how much later than the DataLoader's the first batch comes, like beside like."""
    pairs = [("seqdata, Fixed(64)", BY_HAND)]
    pairs += [
        (f"seqdata, {_worker(method)}", f"{BY_HAND}, {_worker(method)}") for method in METHODS
    ]
    texts = []
    for mine, peer in pairs:
        later = _median(times[mine]) - _median(times[peer])
        texts.append(
            f"{mine}: floor {FLOOR * 1e3:.0f} ms after {peer}, found {later:+.0f} ms after torch "
            f"{'(met)' if later <= FLOOR * 1e3 else '(MISSED)'}"
        )
    return texts


def _median(taken: list[tuple[float, float]]) -> float:
    return statistics.median(after for after, _ in taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (5)")
    options = parser.parse_args()
    console = Console(width=120, soft_wrap=True)
    count = 100_000 if options.quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        console.print(machine())
        console.print(f"writing {count} sequences …")
        named = programs(make_s(Path(folder), count))
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in named}
        for number in range(options.rounds + 1):
            for name, program in named.items():
                taken = once(program)
                if number:  # the first round compiles modules and fills the page cache
                    times[name].append(taken)
    table = Table(title=f"{count} sequences, fresh processes; ms to the first batch")
    for number, column in enumerate(("loader", "after torch", "constructed")):
        table.add_column(column, justify="left" if number < 1 else "right")
    for name, found in times.items():
        table.add_row(name, *(spread(list(column)) for column in zip(*found, strict=True)))
    console.print(table)
    for line in verdicts(times):
        console.print(line)
    console.print(machine())


if __name__ == "__main__":
    main()
