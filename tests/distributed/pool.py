"""A process that has imported everything once and forks ranks on demand.

Run as a program: reads one job per line from stdin (task, world, specs, seconds, folder), forks
``world`` ranks that call ``tasks.TASKS[task](specs[rank])``, and answers one line with what became
of each. An empty line ends it: a process that a test has forked and left may hold the pipe open.
Importing torch and lightning takes seconds, forking milliseconds.
"""

import gc
import json
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

from seqdata_testing.waiting import patient
from tests.preloaded import use_huge_pages


def serve() -> None:
    """Answer jobs until an empty line, or the end of stdin."""
    from tests.distributed import tasks

    warm_up()
    for line in iter(sys.stdin.readline, ""):
        if not line.strip():
            return
        job = json.loads(line)
        answer = play(tasks.TASKS[job["task"]], job)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def warm_up() -> None:
    """Do once what every rank would do again: late imports, packages' metadata, first calls."""
    import torch
    from lightning.pytorch.trainer.connectors import callback_connector

    from tests.lightning.harness import data_of, fit

    torch.set_num_threads(1)  # no pool of threads: it would not be there in a fork
    callback_connector._load_external_callbacks = lambda group: []  # as in tests/conftest.py
    with tempfile.TemporaryDirectory() as folder:
        fit(data_of(), folder=Path(folder), max_epochs=1)
    if threading.active_count() > 1:
        raise RuntimeError(f"these would be missing in ranks: {threading.enumerate()}")
    gc.collect()
    gc.freeze()  # no rank looks through, and copies, what is there already
    use_huge_pages()


def play(task, job: dict) -> dict:
    """Fork the ranks, wait for them, and end those that overrun."""
    ranks = {fork(task, job, rank): rank for rank in range(job["world"])}
    ends: dict[int, int] = {}
    times: dict[int, float] = {}
    began = time.monotonic()
    while set(ranks.values()) - set(job.get("stopped", ())) and (
        time.monotonic() < began + patient(job["seconds"])
    ):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            rank = ranks.pop(pid)
            ends[rank], times[rank] = os.waitstatus_to_exitcode(status), time.time()
        else:
            time.sleep(0.005)
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return {"exits": ends, "times": times, "overran": sorted(ranks.values())}


def fork(task, job: dict, rank: int) -> int:
    """Start one rank; gives its process id, in the parent only."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        folder = Path(job["folder"])
        os.dup2(os.open(folder / f"log-{rank}.txt", os.O_CREAT | os.O_WRONLY), 2)
        os.dup2(2, 1)
        os.chdir(folder)  # where a Trainer without a logger writes
        enter(rank, job["world"], folder)
        made = task(job["specs"][rank])
        (folder / f"made-{rank}.pickle").write_bytes(pickle.dumps(made))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def enter(rank: int, world: int, folder: Path) -> None:
    """Make this process a rank: what a launcher sets, and a process group over a file."""
    import datetime

    import torch

    torch.set_num_threads(1)
    known = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0}
    sizes = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ.update({key: str(value) for key, value in {**known, **sizes}.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=patient(30)),
    )
    torch.distributed.barrier()  # who ends now would break off connections that others still make


if __name__ == "__main__":
    serve()
