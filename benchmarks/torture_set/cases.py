"""Cases of the torture set: rows of the table, and the outcome of every try."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from seqdata_testing.faults import damage
from torture_set.columns import TAR_BLOCK, Column
from torture_set.judge import Outcome, Seen, judge, judge_order, judge_ranks, judge_resumption
from torture_set.server import Server
from torture_set.truth import COUNT, MANY, rows, truth

NOT_OFFERED = 77
NONE = "not offered"
ENDINGS = ("pyd", "pickle", "pkl", "pth")
STOP = 20  # batches before a state is taken
Tries = list[Outcome]


@dataclass
class Bench:
    """One library at work: its server, its whole set, and how long a case may take."""

    column: Column
    server: Server
    root: Path
    seconds: float
    draw: np.random.Generator
    known: dict[str, str] = field(default_factory=lambda: dict(truth()))
    copies: int = 0

    @property
    def whole(self) -> Path:
        return self.root / "whole"

    def copy(self) -> Path:
        self.copies += 1
        return Path(shutil.copytree(self.whole, self.root / f"copy-{self.copies:03d}"))

    def read(self, folder: Path, **case: object) -> Seen:
        return self.server.run("read", seconds=self.seconds, folder=str(folder), **case)[0]


Harm = Callable[[Bench, Path], Path]  # harms a copy of the set; gives the file that was harmed


def read_harmed(bench: Bench, harm: Harm, workers: tuple[int, ...]) -> Iterator[Outcome]:
    """Harm a copy of the set and read it; once per worker count, another place each time."""
    for count in workers:
        folder = bench.copy()
        path = harm(bench, folder)
        yield judge(bench.read(folder, workers=count), bench.known, [path.name])
        shutil.rmtree(folder)


def flip_value(bench: Bench, folder: Path) -> Path:
    """Flip one bit in the values of a sequence; anywhere in a shard where they are not plain."""
    shards = bench.column.shards_of(folder)
    number = int(bench.draw.integers(COUNT))
    values = next(row["x"] for row in rows() if row["id"] == f"utt-{number:05d}")
    for path in shards:
        if (found := path.read_bytes().find(values.tobytes())) >= 0:
            damage.flip_bit(path, 8 * found + int(bench.draw.integers(8 * values.nbytes)))
            return path
    path = shards[int(bench.draw.integers(len(shards)))]
    middle = path.stat().st_size // 2
    damage.flip_bit(path, 8 * middle + int(bench.draw.integers(8 * (middle // 2))))
    return path


def flip_metadata(bench: Bench, folder: Path) -> Path:
    """Flip one bit in what says where values lie; one kind of place after the other."""
    kinds = bench.column.metadata(folder)
    spans = kinds[bench.copies % len(kinds)]
    path, first, last = spans[int(bench.draw.integers(len(spans)))]
    damage.flip_bit(path, 8 * first + int(bench.draw.integers(8 * (last - first))))
    return path


def _some_shard(bench: Bench, folder: Path) -> Path:
    shards = bench.column.shards_of(folder)
    return shards[1 + int(bench.draw.integers(len(shards) - 2))]


def cut_at_block(bench: Bench, folder: Path) -> Path:
    path = _some_shard(bench, folder)
    blocks = path.stat().st_size // TAR_BLOCK
    damage.cut(path, TAR_BLOCK * int(bench.draw.integers(blocks // 4, 3 * blocks // 4)))
    return path


def cut_between_members(bench: Bench, folder: Path) -> Path:
    """Cut a tar file where a sample begins; others at a multiple of 512."""
    import tarfile

    path = _some_shard(bench, folder)
    if path.suffix != ".tar":
        return cut_at_block(bench, folder)
    with tarfile.open(path) as file:
        members = file.getmembers()
    damage.cut(path, members[len(members) // 4 * 2].offset)
    return path


def cut_anywhere(bench: Bench, folder: Path) -> Path:
    path = _some_shard(bench, folder)
    size = path.stat().st_size
    damage.cut(path, int(bench.draw.integers(size // 4, 3 * size // 4)) | 1)
    return path


def empty(bench: Bench, folder: Path) -> Path:
    path = _some_shard(bench, folder)
    damage.empty(path)
    return path


def remove(bench: Bench, folder: Path) -> Path:
    path = _some_shard(bench, folder)
    damage.remove(path)
    return path


def zero_page(bench: Bench, folder: Path) -> Path:
    path = _some_shard(bench, folder)
    pages = path.stat().st_size // damage.PAGE
    damage.zero_page(path, int(bench.draw.integers(1, pages - 1)))
    return path


def swap(bench: Bench, folder: Path) -> Path:
    shards = bench.column.shards_of(folder)
    damage.swap(shards[2], shards[4])
    return shards[2]


def leave_untouched(bench: Bench, folder: Path) -> Path:
    return bench.column.shards_of(folder)[0]


def kill_writer(bench: Bench) -> Tries:
    """Kill a writer at some instants; then read what is there."""
    found = []
    for kill_after in (COUNT - 1, *bench.draw.integers(COUNT // 3, COUNT, 5).tolist()):
        folder = bench.root / f"half-{kill_after}"
        case = {"folder": str(folder), "kill_after": kill_after}
        bench.server.run("write", seconds=60, **case)
        found.append(judge(bench.read(folder), bench.known, [folder.name]))
    return found


def payloads(bench: Bench) -> Tries:
    """Read a set that somebody hostile wrote, with the library's own means."""
    found = []
    endings = ENDINGS if ".tar" in bench.column.shards else ENDINGS[:1]
    for ending in endings:
        folder, marker = bench.root / f"hostile-{ending}", bench.root / f"ran-{ending}"
        case = {"folder": str(folder), "ending": ending, "marker": marker}
        for act in ("write_hostile", "read_hostile"):
            (seen,) = bench.server.run(act, seconds=bench.seconds, **case)
            if seen.status == NOT_OFFERED:
                return [Outcome(NONE, seen.error)]
            if act == "write_hostile" and (seen.ran_code or not seen.ended):
                raise OSError(f"the hostile set could not be written: {seen.error}")
        shards = [path.name for path in bench.column.shards_of(folder)]
        found.append(judge(seen, {}, shards))
    return found


def kill_worker(bench: Bench) -> Tries:
    """Kill one of two workers after three batches, of a set that is twelve times as long."""
    folder, known = bench.root / "many", truth(MANY)
    bench.server.run("write", seconds=120, folder=str(folder), count=MANY)
    seen = bench.read(folder, workers=2, kill_worker=True)
    found = judge(seen, known)
    timed = f"{found.kind}, {seen.seconds:.1f} s" if seen.error else found.kind
    return [Outcome(timed, found.detail)]


def ranks(bench: Bench, size: int) -> Tries:
    """Share an epoch among processes."""
    case = {"folder": str(bench.whole), "world": size, "shuffle": True}
    return [judge_ranks(bench.server.run("read", seconds=bench.seconds, **case), bench.known)]


def stop_and_resume(bench: Bench, workers: int, then: int) -> Tries:
    """Stop after some batches, and go on in a new process."""
    state = bench.root / f"state-{workers}-{then}"
    case = {"workers": workers, "shuffle": True, "state_after": STOP, "save": str(state)}
    before = bench.read(bench.whole, **case)
    if before.status == NOT_OFFERED:
        return [Outcome(NONE, before.error)]
    after = bench.read(bench.whole, workers=then, shuffle=True, load=str(state))
    return [judge_resumption(before, after, bench.known)]


def orders(bench: Bench) -> Tries:
    """Read a shuffled epoch with 0, 1 and 2 workers."""
    seen = [bench.read(bench.whole, workers=count, shuffle=True) for count in (0, 1, 2)]
    return [judge_order(seen[0], seen[1:], bench.known)]


def _harm(harm: Harm, *workers: int) -> Callable[[Bench], Tries]:
    return lambda bench: list(read_harmed(bench, harm, workers))


CASES: dict[str, Callable[[Bench], Tries]] = {
    "nothing (0 and 2 workers)": _harm(leave_untouched, 0, 2),
    "one bit of a value flips": _harm(flip_value, *[0] * 8, 2, 2),
    "one bit of a header or index flips": _harm(flip_metadata, *[0] * 10, 2, 2),
    "a shard is cut at a multiple of 512": _harm(cut_at_block, 0, 0, 2),
    "a shard is cut between two samples (tar)": _harm(cut_between_members, 0, 2),
    "a shard is cut anywhere": _harm(cut_anywhere, 0, 0, 2),
    "a shard has 0 bytes": _harm(empty, 0, 2),
    "a shard is missing": _harm(remove, 0, 2),
    "4 KiB of a shard are zero": _harm(zero_page, 0, 0, 2),
    "two shards are in each other's place": _harm(swap, 0, 2),
    "the writer was killed half-way": kill_writer,
    "the data holds a pickle that runs code": payloads,
    "one of 2 workers is killed": kill_worker,
    "2 ranks: steps": lambda bench: ranks(bench, 2),
    "3 ranks: steps": lambda bench: ranks(bench, 3),
    "stop and go on, 0 workers": lambda bench: stop_and_resume(bench, 0, 0),
    "stop and go on, 2 workers": lambda bench: stop_and_resume(bench, 2, 2),
    "stop with 2 workers, go on with 1": lambda bench: stop_and_resume(bench, 2, 1),
    "0, 1 and 2 workers": orders,
}
