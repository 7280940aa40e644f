"""Memory that a worker adds: anonymous memory of all processes below a fresh training process."""

from __future__ import annotations

import json
import subprocess
import sys

from bench_set.first_batch import variables
from bench_set.rows import Answer, Bench
from bench_set.server import LeftOut

PROGRAM = """
import importlib, json, os, sys
from itertools import islice
from pathlib import Path
out = os.dup(1)
os.dup2(2, 1)
import torch
torch.set_num_threads(1)
from common import descendants
from peers.asking import Ask
peer = importlib.import_module("peers." + sys.argv[1]).PEER
reading = peer.read(Ask(Path(sys.argv[2]), "S", workers=1))
batches = iter(reading.loader)
for _ in islice(batches, 100):
    pass
found = 0
for pid in descendants(os.getpid()):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    found += sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon"))
os.write(out, json.dumps([found / 1024]).encode())
reading.close()
del batches
"""


def run_alone(program: str, *arguments: str) -> list[float]:
    """Run a program in a fresh process of this environment; return the list that it prints.

    Raises:
        LeftOut: If it did not end well within two minutes.
    """
    command = [sys.executable, "-c", program, *arguments]
    try:
        done = subprocess.run(command, env=variables(), capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired as error:
        raise LeftOut("more than 120 s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        raise LeftOut(lines[-1][:200])
    found: list[float] = json.loads(done.stdout)
    return found


def measure(bench: Bench) -> Answer:
    """Weigh each loader with a worker."""
    answer = Answer("MiB")
    for module, server in bench.prepare("S").items():
        title, folder = server.peer.title, str(bench.folder("S", module))
        bench.say(f"memory: {title}")
        if module == "spdl_pipeline":
            answer.left_out[title] = "threads, no worker"
            continue
        try:
            taken = run_alone(PROGRAM, module, folder)
        except LeftOut as error:
            answer.left_out[title] = str(error)
            continue
        answer.row("short tokens, 1 worker", title).values += taken
    return answer
