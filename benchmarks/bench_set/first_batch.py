"""Milliseconds from the end of ``import torch`` to the first batch, in processes that know no more.

A process that has imported torch and nothing else forks for each measurement.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from bench_set.rows import Answer, Bench

HERE = Path(__file__).resolve().parent.parent
PROGRAM = """
import gc, json, os, signal, sys, time, torch
from pathlib import Path
out = os.dup(1)
os.dup2(2, 1)
torch.set_num_threads(1)
gc.collect()

def measure(module, folder, name, order):
    began = time.perf_counter()
    import importlib
    from peers.asking import Ask
    peer = importlib.import_module("peers." + module).PEER
    reading = peer.read(Ask(Path(folder), name, order=order))
    next(iter(reading.loader))
    return time.perf_counter() - began

for line in sys.stdin:
    pid = os.fork()
    if not pid:
        signal.alarm(120)
        os.write(out, json.dumps(measure(*json.loads(line))).encode() + b"\\n")
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        os.write(out, b"null\\n")
"""


def variables() -> dict[str, str]:
    """Return the environment of a program that finds the adapters, and keeps bytecode."""
    known = {name: it for name, it in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    known["PYTHONPATH"] = os.pathsep.join([str(HERE), known.get("PYTHONPATH", "")])
    return known


def measure(bench: Bench) -> Answer:
    """Start each loader in turn; the first round compiles and caches, and does not count."""
    answer = Answer("ms to the first batch")
    bench.prepare("S")
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=variables(), text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        if process.stdin is None or process.stdout is None:
            raise OSError("first batch: the process must have pipes, but has none")
        for number in range(bench.rounds + 1):
            bench.say(f"first batch, round {number}")
            _measure_round(bench, answer, process.stdin, process.stdout)
            if not number:
                answer.rows.clear()
        process.stdin.close()
    answer.notes.append("Imports of the loader's own library count, that of torch does not.")
    return answer


def _measure_round(bench: Bench, answer: Answer, asks: IO[str], answers: IO[str]) -> None:
    for module, server in bench.prepare("S").items():
        title, folder = server.peer.title, str(bench.folder("S", module))
        if title in answer.left_out:
            continue
        asks.write(json.dumps([module, folder, "S", server.peer.orders[0]]) + "\n")
        asks.flush()
        taken = json.loads(answers.readline() or "null")  # ends: the alarm ends a measurement
        if taken is None:
            answer.left_out[title] = "no batch within 120 s"
        else:
            answer.row("short tokens", title).values.append(taken * 1e3)
