"""The same small set, and the same harm, in the hands of every library.

    python benchmarks/torture.py [--only READER ...] [--cases WORD ...] [--page PATH] [--json PATH]

Every library writes the same 1,009 sequences with its own writer, and reads them as its guide says.
Then the files are harmed, writers and workers killed, epochs shared and stopped; one judge, which
knows every value, says what came of it. The others live in an environment of their own (`make
torture` makes it from benchmarks/peers.txt); what is not there is named and left out. Ends within
20 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from common import machine
from rich.console import Console
from torture_set.cases import CASES, Bench, Tries
from torture_set.columns import COLUMNS, Column
from torture_set.judge import RIGHT, SILENT, Outcome
from torture_set.page import Found, as_json, count_kinds, from_json, into_page, merge, table_of
from torture_set.server import Missing, Server

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent / ".venv-bench" / "bin" / "python"
PATIENCE = 25.0  # seconds that a case may take before it counts as hanging; or, if that is more,
SLOWEST = 4.0  # times what the unharmed set took with 2 workers
START = 120.0  # seconds for that, and for writing


def run_cases(
    column: Column, python: Path, root: Path, chosen: list[str], say: Callable[[str], None]
) -> Found:
    """Do all cases of one library.

    Raises:
        Missing: If it is not there.
    """
    root.mkdir(parents=True)
    server = Server(python, column.reader, root / "server")
    try:
        bench = Bench(column, server, root, START, np.random.default_rng(11))
        (written,) = server.run("write", seconds=START, folder=str(bench.whole))
        if not written.ended:
            raise Missing(f"cannot write: {written.error or written.status}")
        began = time.monotonic()
        bench.read(bench.whole, workers=2)
        bench.seconds = max(PATIENCE, SLOWEST * (time.monotonic() - began))
        found: dict[str, Tries] = {}
        for name in chosen:
            began = time.monotonic()
            try:
                found[name] = CASES[name](bench)
            except OSError as error:  # of the harm itself: our own fault, and shown as such
                found[name] = [Outcome("(the script failed)", str(error))]
            kinds = count_kinds(found[name])
            say(f"{column.title}: {name}: {kinds}, {time.monotonic() - began:.0f} s")
        return Found(server.versions, found)
    finally:
        server.close()


def run_libraries(
    columns: list[Column], peers: Path, root: Path, chosen: list[str], say: Callable[[str], None]
) -> dict[str, Found]:
    """Do all cases of all libraries, two libraries at a time."""
    found: dict[str, Found] = {}
    with ThreadPoolExecutor(2) as pool:
        running = {
            column.title: pool.submit(
                run_cases, column, Path(sys.executable) if column.is_ours else peers,
                root / column.reader, chosen, say,
            )
            for column in columns
        }  # fmt: skip
        for title, future in running.items():
            try:
                found[title] = future.result()  # ends: every case of it has its time
            except Missing as error:
                say(f"left out: {title}: {error}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = [column.reader for column in COLUMNS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="some libraries")
    parser.add_argument("--cases", nargs="+", default=[], help="cases whose names hold these words")
    parser.add_argument("--peers", type=Path, default=PEERS, help="Python of the others")
    parser.add_argument("--page", type=Path, help="page whose table is written anew")
    parser.add_argument("--json", type=Path, help="file for every try, with what was said")
    parser.add_argument("--earlier", type=Path, help="such a file, for what is not tried anew")
    parser.add_argument("--keep", type=Path, help="an empty folder for all that is written")
    options = parser.parse_args()
    console = Console(width=250, soft_wrap=True)
    words = options.cases or [""]
    chosen = [name for name in CASES if any(word in name for word in words)]
    columns = [column for column in COLUMNS if column.reader in options.only]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        root = options.keep or Path(folder)
        found = run_libraries(columns, options.peers, root, chosen, console.print)
    console.print(table_of(found))
    about = f"{machine()}; {(time.monotonic() - began) / 60:.0f} minutes"
    console.print(about)
    if options.earlier:
        found = merge(from_json(options.earlier.read_text()), found)
    if options.json:
        options.json.write_text(as_json(found))
    if options.page:
        into_page(options.page, found, about)
    for line in (wrong := list(not_as_must_be(columns, found))):
        console.print(line)
    sys.exit(bool(wrong))


def not_as_must_be(columns: list[Column], found: Mapping[str, Found]) -> Iterator[str]:
    """Yield what is wrong with us, or with this script: unharmed, everybody reads right."""
    for column in columns:
        cases = found[column.title].cases if column.title in found else {}
        for name, tries in cases.items():
            for outcome in tries:
                unharmed = name.startswith("nothing") and outcome.kind != RIGHT
                if unharmed or (column.is_ours and outcome.kind in SILENT):
                    where = f"{column.title}: {name}"
                    yield f"NOT AS IT MUST BE: {where}: {outcome.kind}: {outcome.detail}"


if __name__ == "__main__":
    main()
