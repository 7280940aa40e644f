"""Writes stores in child processes and kills them, as a program; ``test_write_resume`` talks to it.

A line on its standard input asks for one child: ``{"folder", "how", "after", "call"}``. It gets
SIGKILL (or another ``signal``) after so many seconds, or right before the ``call``-th time that it
flushes, renames or removes a file. The answer is ``{"died", "calls", "seconds"}``.
"""

import functools
import json
import os
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # children are forked: there must be no other threads

import numpy as np
import pyarrow as pa

from seqdata.storage.arrow.write import write_arrow
from seqdata_testing.faults.calls import announce_calls

SHARD_BYTES = 2000
EXECUTORS = {"threads": ThreadPoolExecutor, "processes": ProcessPoolExecutor}


def sequences(name="", many=100):
    drawn = np.random.default_rng(0)
    for i in range(many):
        size = int(drawn.integers(0, 30))
        yield {"id": f"{name}{i}", "x": drawn.integers(0, 9, size, dtype=np.int32), "y": i / 2}


def write(folder, how, **options):
    """Write the store; ``how``: ``thread``, ``threads``, ``processes``, ``parts``, ``shuffled``."""
    if how == "shuffled":  # in two passes
        return write_arrow(folder, sequences(), shard_bytes=SHARD_BYTES, shuffle=7, **options)
    if how == "parts":
        given = [functools.partial(sequences, f"{part}-", 20 * part) for part in range(4)]
        return write_arrow(folder, given, shard_bytes=SHARD_BYTES, **options)
    make = EXECUTORS.get(how)
    if make is None:
        return write_arrow(folder, sequences(), shard_bytes=SHARD_BYTES, **options)
    with make(2) as pool:
        return write_arrow(folder, sequences(), shard_bytes=SHARD_BYTES, executor=pool, **options)


def child(order, pipe):
    """Count the calls that change a folder, and die before one of them."""
    os.setsid()
    seen = [0]

    def told(number, *_):
        seen[0] = number + 1
        if number == order.get("call"):
            os.kill(os.getpid(), signal.SIGKILL)

    with announce_calls(told):
        write(order["folder"], order["how"], overwrite=order.get("overwrite", False))
    os.write(pipe, str(seen[0]).encode())


def kill_one(order):
    """Start one child, kill it if it has not ended, and tell what became of it."""
    theirs, ours = os.pipe()
    begin = time.monotonic()
    pid = os.fork()
    if not pid:
        child(order, ours)
        os._exit(0)
    os.close(ours)
    if "after" in order:
        time.sleep(order["after"])
        os.kill(pid, signal.Signals[order.get("signal", "SIGKILL")])
    _, status = os.waitpid(pid, 0)
    seconds = time.monotonic() - begin
    calls = int(os.read(theirs, 20)) if status == 0 else 0
    os.close(theirs)
    return {"died": os.WIFSIGNALED(status), "calls": calls, "seconds": seconds, "pid": pid}


def main():
    pa.array([1])  # pyarrow is there before the first child
    pids = []
    for line in sys.stdin:
        done = kill_one(json.loads(line))
        pids.append(done["pid"])
        print(json.dumps(done), flush=True)
    for pid in pids:  # what a pool's parent left
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
