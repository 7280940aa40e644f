"""Seconds from lengths to the first batch of a plan, and memory, at 10^6 to 10^9 sequences."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench_set.rows import Answer, Bench

HERE = Path(__file__).resolve().parent.parent
PROGRAM = """
import json, resource, sys, time
import numpy as np
count, way = int(sys.argv[1]), sys.argv[2]
few = np.clip(np.rint(60 * np.exp(0.8 * np.random.default_rng(0).standard_normal(10**6))), 5, 1024)
lengths = np.resize(few.astype(np.uint16), count)
if way == "numpy":
    rng = np.random.default_rng(0)
else:
    from seqdata import Bucketed, SequenceIndex
    from seqdata.sharing import World, share
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, began = peak(), time.perf_counter()
if way == "numpy":
    order = rng.permutation(count)
    order = order[np.argsort(lengths[order], kind="stable")]
    first = order[:64].tolist()
else:
    shuffle = {"blocks": "blocks"}.get(way, True)
    index = SequenceIndex.from_lengths(lengths)
    plan = Bucketed(64, shuffle=shuffle).plan(index, seed=0, epoch=0)
    first = share(plan, World(), first=0)[0]
print(json.dumps([time.perf_counter() - began, peak() - before]))
"""
WAYS = {
    "blocks": 'seqdata, shuffle="blocks"', "whole": "seqdata",
    "numpy": "NumPy: permutation and stable sort",
}  # fmt: skip
GIB = {"blocks": 12, "whole": 25, "numpy": 25}  # bytes a sequence that it may take


def measure(bench: Bench) -> Answer:
    """Plan in fresh processes."""
    answer = Answer("s to the first batch")
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for exponent in (6, 7) if bench.quick else (6, 7, 8, 9):
        for way, title in WAYS.items():
            setting = f"10^{exponent} sequences"
            if GIB[way] * 10**exponent > free:
                answer.left_out[f"{title}: {setting}"] = "more memory than is free here"
                continue
            bench.say(f"planning: {title}, {setting}")
            for _ in range(min(bench.rounds, 3) if exponent < 8 else 1):
                _plan_once(answer, way, setting, 10**exponent)
    return answer


def _plan_once(answer: Answer, way: str, setting: str, count: int) -> None:
    command = [sys.executable, "-c", PROGRAM, str(count), way]
    try:
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        answer.left_out[f"{WAYS[way]}: {setting}"] = "more than 120 s"
        return
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
        answer.left_out[f"{WAYS[way]}: {setting}"] = lines[-1][:200]
        return
    seconds, memory = json.loads(done.stdout)
    row = answer.row(setting, WAYS[way])
    row.values.append(seconds)
    row.note = f"+{memory:,.0f} MiB"
