"""Serves the cases of one library: imports it once, then forks a process for every case.

    python benchmarks/torture_child.py READER

Reads a case per line (JSON) and answers each with a line: exit status, and whether it had to be
ended. What a case delivers it writes to its record, batch by batch. Runs in the library's own
environment.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torture_set.asking import Ask, Hostile, Library, NotOffered, Payload, Rows
from torture_set.truth import COUNT, rows

KILL_AFTER = 3  # batches
NOT_OFFERED = 77  # exit status
_PAYLOADS = 10  # sequences of a hostile set


def serve(library: Library, answers: int) -> None:
    """Do cases until there are no more."""
    library.load()
    about = {name: version(name) for name in library.packages}
    os.write(answers, json.dumps({"versions": about}).encode() + b"\n")
    for line in sys.stdin:
        case = json.loads(line)
        pids = [_fork(library, case, rank) for rank in range(case.get("world", 1))]
        found = json.dumps(_wait_for_all(pids, case["seconds"]))
        os.write(answers, found.encode() + b"\n")


def _fork(library: Library, case: dict[str, Any], rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    log = os.open(f"{case['record']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    record = Record(Path(f"{case['record']}.{rank}"), time.monotonic())
    try:
        _ACTS[case["act"]](library, case, rank, record)
    except NotOffered as error:
        record.say(error=str(error))
        sys.exit(NOT_OFFERED)
    except Exception as error:
        record.say(error=" | ".join(_chain(error)))
        traceback.print_exc()
        sys.exit(1)
    sys.exit(0)  # as programs end: what was opened is closed


def _chain(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield f"{type(error).__name__}: {error} {' '.join(getattr(error, '__notes__', ()))}".strip()
        error = error.__cause__ or error.__context__


def _wait_for_all(pids: list[int], seconds: float) -> dict[str, Any]:
    """Wait for the processes of a case, and end all of it when its time is over."""
    until = time.monotonic() + seconds
    statuses: dict[int, int] = {}
    while len(statuses) < len(pids) and time.monotonic() < until:
        for pid in set(pids) - statuses.keys():
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                statuses[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    late = [pid not in statuses for pid in pids]
    for pid in pids:
        _end_group(pid)
        if pid not in statuses:
            statuses[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"status": [statuses[pid] for pid in pids], "late": late}


def _end_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # nothing is left of it
        return


@dataclass
class Record:
    """The file that a case writes about itself."""

    path: Path
    since: float

    def say(self, **facts: Any) -> None:
        facts["seconds"] = time.monotonic() - self.since
        with self.path.open("a") as file:
            file.write(json.dumps(facts) + "\n")


def _write(library: Library, case: dict[str, Any], _: int, record: Record) -> None:
    samples = rows(case.get("count", COUNT))
    library.write(Path(case["folder"]), _until(samples, case.get("kill_after", 0)))
    record.say(ended=True)


def _until(samples: Rows, most: int) -> Rows:
    """Yield rows; where there is an end, kill this process and what it has started there."""
    for number, row in enumerate(samples):
        if most and number == most:
            os.killpg(0, signal.SIGKILL)
        yield row


def _read(library: Library, case: dict[str, Any], rank: int, record: Record) -> None:
    ask = _parse_ask(case, rank)
    if ask.world > 1:
        _join(case, rank)
    reading = library.read(ask)
    if (ask.state_after or ask.state is not None) and reading.state is None:
        raise NotOffered("no state to go on from")
    for number, batch in enumerate(reading.batches, start=1):
        record.say(batch=[batch])
        if number == ask.state_after and reading.state is not None:
            Path(case["save"]).write_bytes(pickle.dumps(reading.state()))
            break
        if case.get("kill_worker") and number == KILL_AFTER:
            found = reading.workers() if reading.workers else []
            pids = found or [child.pid or 0 for child in multiprocessing.active_children()]
            os.kill(pids[0], signal.SIGKILL)
            record.since = time.monotonic()
    record.say(ended=True)
    if ask.state_after:
        os._exit(0)  # what was told to stop is gone: workers too


def _parse_ask(case: dict[str, Any], rank: int) -> Ask:
    loaded = case.get("load")
    cache = Path(case["cache"])
    cache.mkdir(parents=True, exist_ok=True)
    return Ask(
        folder=Path(case["folder"]), cache=cache, workers=case.get("workers", 0),
        shuffle=case.get("shuffle", False), rank=rank, world=case.get("world", 1),
        state=pickle.loads(Path(loaded).read_bytes()) if loaded else None,
        state_after=case.get("state_after", 0),
    )  # fmt: skip


def _join(case: dict[str, Any], rank: int) -> None:
    """Be a rank, as a launcher makes one."""
    import torch.distributed as dist

    size = str(case["world"])
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=size, LOCAL_WORLD_SIZE=size,
        MASTER_ADDR="127.0.0.1", MASTER_PORT="29500",
    )  # fmt: skip
    where = f"file://{case['record']}.group"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=case["world"])


def _hostile(library: Library) -> Hostile:
    if library.hostile is None:
        raise NotOffered("no type whose reading runs code")
    return library.hostile


def _write_hostile(library: Library, case: dict[str, Any], _: int, record: Record) -> None:
    payload = Payload(Path(case["marker"]))
    _hostile(library).write(Path(case["folder"]), rows(_PAYLOADS), case["ending"], payload)
    record.say(ended=True)


def _read_hostile(library: Library, case: dict[str, Any], _: int, record: Record) -> None:
    _hostile(library).read(Path(case["folder"]))
    record.say(ended=True)


_ACTS = {
    "write": _write,
    "read": _read,
    "write_hostile": _write_hostile,
    "read_hostile": _read_hostile,
}


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    serve(importlib.import_module(f"torture_set.readers.{sys.argv[1]}").LIBRARY, answers)


if __name__ == "__main__":
    main()
