"""What a measurement gives: rows of rounds, the same for every question."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from peers.asking import Ask
from samples import Samples, frames, frames_count, series, tokens

if TYPE_CHECKING:
    from bench_set.server import Server

OURS = "seqdata"
WRITING = 900.0  # seconds that a library may write a set


@dataclass
class Row:
    """Figures of a loader in a setting, one a round."""

    setting: str
    loader: str
    values: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True)
class Aim:
    """What we hold ourselves to, and what was found."""

    text: str
    found: str
    is_met: bool


@dataclass
class Answer:
    """What a question found.

    Args:
        unit: Of all values.
        rows: Figures.
        left_out: Loader -> why it is not there.
        aims: Compared with what was found.
        more_is_better: Whether larger values are better.
        notes: Sentences for the page.
    """

    unit: str
    rows: list[Row] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    aims: list[Aim] = field(default_factory=list)
    more_is_better: bool = False
    notes: list[str] = field(default_factory=list)

    def row(self, setting: str, loader: str) -> Row:
        """Return the row of a loader in a setting; a new one if there is none."""
        for row in self.rows:
            if (row.setting, row.loader) == (setting, loader):
                return row
        self.rows.append(Row(setting, loader))
        return self.rows[-1]

    def find(self, setting: str, loader: str) -> float | None:
        """Return the median of a loader in a setting, if it was measured."""
        for row in self.rows:
            if (row.setting, row.loader) == (setting, loader) and row.values:
                return row.median
        return None


@dataclass
class Bench:
    """What all questions share.

    Args:
        root: Folder of the data; what it has already is used.
        servers: Module of ``peers`` -> its process.
        quick: Whether everything is small.
        rounds: Interleaved rounds.
        say: Prints progress.
    """

    root: Path
    servers: dict[str, Server]
    quick: bool
    rounds: int
    say: Callable[[str], None]
    left_out: dict[str, str] = field(default_factory=dict)
    written: set[tuple[str, str]] = field(default_factory=set)

    def samples(self, name: str) -> Samples:
        """Return S, M or W."""
        if name == "W":
            return series(30 if self.quick else 300)
        if name == "S":
            return tokens(10_000 if self.quick else 100_000)
        return frames(frames_count(2 * 10**7 if self.quick else 3 * 10**8))

    def folder(self, name: str, module: str) -> Path:
        """Return where a loader's files of S or M lie."""
        peer = self.servers[module].peer
        return self.root / name / (module if peer.write else peer.reads)

    def prepare(self, name: str) -> dict[str, Server]:
        """Write S, M or W for each loader that is used for it, once; return those that read it."""
        from bench_set.server import LeftOut, write

        (self.root / name).mkdir(exist_ok=True)
        for module, server in list(self.servers.items()):
            if name in server.peer.sets and (name, module) not in self.written:
                mark = self.root / name / f"{module}-{'quick' if self.quick else 'full'}.written"
                if not mark.exists():
                    self.say(f"writing {name}: {server.peer.title}")
                    try:
                        folder = self.folder(name, module)
                        server.ask(write, folder, self._save(name), patience=WRITING)
                    except LeftOut as error:
                        self.left_out[server.peer.title] = f"cannot write {name}: {error}"
                        continue
                    mark.touch()
                self.written.add((name, module))
        return {
            module: server
            for module, server in self.servers.items()
            if (name, module) in self.written
        }

    def _save(self, name: str) -> Path:
        """Return the folder of two arrays of S, M or W, which the processes read."""
        folder = self.root / name / "arrays"
        if not folder.exists():
            samples = self.samples(name)
            folder.mkdir()
            np.save(folder / "values.npy", samples.values)
            np.save(folder / "offsets.npy", samples.offsets)
        return folder

    def ask_for(self, name: str, module: str, **options: Any) -> Ask:
        """Return a request for batches of S or M."""
        return Ask(self.folder(name, module), name, **options)


@contextmanager
def timed(values: list[float], scale: float = 1.0) -> Iterator[None]:
    """Append the time that a block takes, in seconds times ``scale``."""
    began = time.perf_counter()
    yield
    values.append((time.perf_counter() - began) * scale)


def mean_length(samples: Samples) -> float:
    return float(np.diff(samples.offsets).mean())
