"""Batches of two checkouts in turns: is one slower than the other? Median of the ratios of pairs.

    python benchmarks/turns.py CHECKOUT [--quick] [--only loading lanes tar_shards workers]

CHECKOUT is another working tree of the repository, after `make env` there (`git worktree add` makes
one). Both write their own data, and draw from it in processes of their own, with the loaders of
`loading.py`, `lanes.py`, `tar_shards.py` and `workers.py`; a pair of turns follow each other at
once, and the one that begins changes. Several starts of both: where a process finds its memory
matters as much as what it does. "first" is the first epoch as a whole, which maps the files.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
ORDERS = ("random", "bucketed")
LANES = ("", "long documents", "uint16", "float32 x 8")
LEAST = 0.95
"""A ratio below it is marked."""


class Case(NamedTuple):
    """A benchmark, its data set, and its options."""

    kind: str
    data: str
    choice: str
    number: int = 0

    def __str__(self) -> str:
        number = f", {self.number}" if self.kind in ("lanes", "workers") else ""
        return f"{self.kind}: {self.data or 'tokens'}, {self.choice}{number}"


def find_cases(kinds: list[str]) -> Iterator[Case]:
    """Yield the cases of some benchmarks."""
    for kind in kinds:
        if kind in ("loading", "tar_shards"):
            yield from (Case(kind, data, order) for data in "SM" for order in ORDERS)
        elif kind == "lanes":
            yield from (Case(kind, data, "shift", shift) for data in LANES for shift in (0, 1))
        else:
            for setting in ("no transform", "columnar", "per sequence"):
                yield from (Case(kind, x, setting, n) for x in "SM" for n in (0, 1, 2))


def write_data(root: Path, kinds: list[str], quick: bool) -> dict[str, Any]:
    """Write what the cases of some benchmarks read; by kind, as text that can be sent."""
    import common
    import lanes
    import tar_shards
    from samples import frames, frames_count, tokens
    from seqdata_webdataset import index_shards

    count, size = (100_000, 2 * 10**8) if quick else (1_000_000, 10**9)
    written: dict[str, Any] = {}
    if kinds != ["lanes"]:
        for data, samples in (
            (common.make_s(root, count), tokens(count)),
            (common.make_m(root, size), frames(frames_count(size))),
        ):
            written[data.name] = astuple(data)
            if "tar_shards" in kinds:
                written[f"tar {data.name}"] = tar_shards.write_tar(data, samples)
                index_shards(written[f"tar {data.name}"], progress=False)
    if "lanes" in kinds:
        (root / "lanes").mkdir()
        found = lanes.make(root / "lanes", 4_000_000 if quick else 40_000_000)
        written["lanes"] = {name: [*data] for name, data in found.items()}
    return json.loads(json.dumps(written, default=str))


def make_batches(case: Case, written: dict[str, Any]) -> tuple[Callable[[], Any], int]:
    """Return what makes the batches of a case, and how many a first epoch has; 0: not asked."""
    import common
    import lanes
    import tar_shards
    from samples import BATCH, Data
    from transforms import SETTINGS

    if case.kind == "lanes":
        return partial(lanes.ours, lanes.Tokens(*written["lanes"][case.data]), case.number), 0
    name, root, *rest = written[case.data]
    data = Data(name, Path(root), *rest)
    epoch = -(-data.count // BATCH) - 1
    if case.kind == "tar_shards":
        return partial(tar_shards.from_tar, written[f"tar {case.data}"], case.choice), epoch
    if case.kind == "loading":
        return partial(common.ours, data, case.choice, prefetch=0), epoch
    workers = {"num_workers": case.number, **({} if case.number else {"prefetch": 0})}
    transform = SETTINGS[case.choice].get(case.data)
    return partial(common.ours, data, "random", transform=transform, **workers), 0


def serve(benchmarks: Path) -> None:
    """Answer orders on standard input, one a line, with the benchmarks of a checkout."""
    sys.path[0] = str(benchmarks)
    import common

    with os.fdopen(os.dup(1), "w") as answers, ExitStack() as stack:
        os.dup2(2, 1)  # what anything else prints is for those who look on
        runner: Any = None
        for line in sys.stdin:
            order, value = json.loads(line)
            answer: Any = None
            if order == "write":
                answer = write_data(Path(value[0]), value[1], value[2])
            elif order == "start":
                stack.close()
                make, answer = make_batches(Case(*value[0]), value[1])
                runner = stack.enter_context(common.running({"seqdata": make}))["seqdata"]
            elif order == "draw":
                answer = runner.draw(value)
            elif order == "draw_for":
                answer = runner.draw_for(value)
            print(json.dumps(answer), file=answers, flush=True)


class Side:
    """One checkout, and its process."""

    def __init__(self, checkout: Path, root: Path, kinds: list[str], quick: bool) -> None:
        python = checkout / ".venv" / "bin" / "python"
        self._process = subprocess.Popen(
            [str(python), str(HERE / "turns.py"), "--serve", str(checkout / "benchmarks")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,  # processes of multiprocessing import what lies in it first
        )
        self._name = checkout.name
        root.mkdir()
        self._written = self.ask("write", [str(root), kinds, quick])

    def start(self, case: Case) -> int:
        """Start a case; returns the number of batches of its first epoch."""
        return int(self.ask("start", [case, self._written]))

    def ask(self, order: str, value: Any) -> Any:
        """Return the answer to an order."""
        pipes = self._process
        print(json.dumps([order, value]), file=pipes.stdin, flush=True)
        answer = pipes.stdout.readline() if pipes.stdout else ""
        if not answer:
            raise RuntimeError(f"{self._name}: must answer {order!r}, but ended; see above")
        return json.loads(answer)

    def close(self) -> None:
        """End the process: it finds nobody at the other end."""
        self._process.communicate(timeout=60)


def measure(sides: list[Side], case: Case, starts: int, rounds: int, seconds: float) -> list[str]:
    """Return a line for each thing measured: ratios before / now of wall and of CPU time."""
    first: list[list[Any]] = []
    later: list[list[Any]] = []
    for start in range(starts):
        order = sides if start % 2 else sides[::-1]
        epochs = [side.start(case) for side in sides]
        if epochs[0]:
            first.append(_pair(sides, order, "draw", epochs[0]))
        for turn in range(rounds):
            order = sides if (start + turn) % 2 else sides[::-1]
            later.append(_pair(sides, order, "draw_for", seconds))
    return [
        _tell(f"{case}{name}", pairs) for name, pairs in ((", first", first), ("", later)) if pairs
    ]


def _pair(sides: list[Side], order: list[Side], request: str, value: float) -> list[Any]:
    found = {id(side): side.ask(request, value) for side in order}
    return [found[id(side)] for side in sides]


def _tell(name: str, pairs: list[list[Any]]) -> str:
    cells = [f"{name:<40}"]
    for which, unit in enumerate(("us", "us CPU")):
        now = statistics.median(own[which] for _, own in pairs)
        low, ratio, high = np.percentile(
            [before[which] / own[which] for before, own in pairs], [25, 50, 75]
        )
        mark = "" if ratio >= LEAST else " <"
        cells.append(f"{now:>9.1f} {unit} {ratio:>6.2f} [{low:.2f}..{high:.2f}]{mark:<2}")
    return "".join(cells).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", type=Path, help="another working tree, after `make env`")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    parser.add_argument("--starts", type=int, default=3, help="processes of each case (3)")
    parser.add_argument("--rounds", type=int, default=8, help="pairs of turns of each start (8)")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each turn (0.2)")
    names = ["loading", "lanes", "tar_shards", "workers"]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="benchmarks")
    options = parser.parse_args()
    if options.serve:
        return serve(options.checkout)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        sides = []
        for name, checkout in (("before", options.checkout.resolve()), ("now", HERE.parent)):
            print(f"{name}: writing data with {checkout.name} …", flush=True)
            sides.append(Side(checkout, Path(folder, name), options.only, options.quick))
            stack.callback(sides[-1].close)
        print(f"{'time before / time now, of pairs':<40}{'now, ratio [quartiles]':>34}")
        for case in find_cases(options.only):
            times = (options.starts, options.rounds, options.seconds)
            for line in measure(sides, case, *times):
                print(line, flush=True)


if __name__ == "__main__":
    main()
