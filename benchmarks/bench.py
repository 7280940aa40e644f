"""The benchmark: seqdata beside other loaders; writes docs/benchmarks/index.md and its charts.

    python benchmarks/bench.py [--quick] [--rounds N] [--only QUESTION ...] [--docs FOLDER]

Every loader runs in a process of its own, in an environment that has all of them (`make bench`
makes it), and they take turns. What is not installed, or fails, is named on the page. With
``--only`` the answers to other questions stay as they are in the JSON file. ``--quick`` writes to
a folder of its own unless told otherwise: its figures are for a look.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from bench_set.page import write_page
from bench_set.results import Results, describe_machine
from bench_set.rows import Bench
from bench_set.server import LOADERS, LeftOut, Server

ROOT = Path(__file__).resolve().parent.parent
QUESTIONS = (
    "padding", "speed", "waiting", "windows", "first_batch", "resume", "memory", "writing",
    "mixing", "remote", "cold", "planning",
)  # fmt: skip


def start_servers(loaders: list[str], left_out: dict[str, str]) -> dict[str, Server]:
    """Start a process for each loader that is installed."""
    servers = {}
    for module in loaders:
        try:
            servers[module] = Server(module)
        except LeftOut as error:
            left_out[module] = str(error)
    return servers


def answer_all(
    bench: Bench, results: Results, questions: list[str], minutes: float, docs: Path
) -> None:
    """Ask the questions while there is time, and write what is known after each."""
    end = time.monotonic() + 60 * minutes
    for name in questions:
        if time.monotonic() > end:
            results.failed[name] = f"the {minutes:g} minutes of the run were over"
            continue
        module = importlib.import_module(f"bench_set.{name}")
        began, load = time.monotonic(), os.getloadavg()[0]
        try:
            answer = module.measure(bench)
        except Exception as error:
            traceback.print_exc()
            results.failed[name] = f"{type(error).__name__}: {error}"[:200]
            continue
        results.failed.pop(name, None)
        results.add(name, answer, time.monotonic() - began, load)
        results.left_out |= bench.left_out
        results.save(docs / "results.json")
        write_page(results, docs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small data, under 3 minutes")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (5; 2 if quick)")
    parser.add_argument("--only", nargs="+", choices=QUESTIONS, metavar="QUESTION")
    parser.add_argument("--loaders", nargs="+", choices=LOADERS, metavar="MODULE", help="of peers/")
    parser.add_argument("--data", type=Path, help="keep the data here, and use what is there")
    parser.add_argument("--page", action="store_true", help="write the page again, measure nothing")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin nothing later (60)")
    parser.add_argument("--docs", type=Path, help="folder of the page (docs/benchmarks)")
    options = parser.parse_args()
    docs = options.docs or ROOT / ("bench-quick" if options.quick else "docs/benchmarks")
    docs.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {text}", file=sys.stderr, flush=True)

    fresh = options.only is None and not options.page
    results = Results.load(docs / "results.json", options.quick, fresh=fresh)
    if options.page:
        write_page(results, docs)
        return
    results.machine = describe_machine()
    paths = [str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # for what a process preloads
    with tempfile.TemporaryDirectory() as folder:
        root = options.data or Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        say("starting the loaders")
        servers = start_servers(options.loaders or list(LOADERS), results.not_installed)
        rounds = options.rounds or (2 if options.quick else 5)
        bench = Bench(root, servers, options.quick, rounds, say)
        results.note_servers(servers)
        try:
            answer_all(bench, results, options.only or list(QUESTIONS), options.minutes, docs)
        finally:
            for server in servers.values():
                server.close()
    results.took = time.monotonic() - began
    results.save(docs / "results.json")
    write_page(results, docs)
    say(f"written: {docs / 'index.md'}")


if __name__ == "__main__":
    main()
