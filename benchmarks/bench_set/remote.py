"""Seconds for an epoch from an S3 server on the loopback interface, and bytes that it sent."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from peers.asking import BATCH, Ask, Reading

from bench_set.rows import OURS, Aim, Answer, Bench
from bench_set.server import LeftOut, Room

LEAST = 2.0
HERE = Path(__file__).resolve().parent


def read_ours(ask: Ask, bucket: str, _: str, cache: Path) -> Reading:
    from seqdata import Fixed, Loader, Remote, open_store

    store = open_store(f"{bucket}/ours", remote=Remote(cache_dir=cache))
    loader = Loader(store, Fixed(BATCH), seed=ask.seed, as_tuple=["x", "lengths"])
    return Reading(loader, None, loader.shutdown)


def read_wds(ask: Ask, _: str, http: str, cache: Path) -> Reading:
    from peers.wds import SHARDS, pipeline

    del cache  # it streams
    urls = [f"{http}/wds/shard-{number:06d}.tar" for number in range(SHARDS)]
    return Reading(pipeline(urls, ask.seed, 0))


def read_mds(ask: Ask, bucket: str, _: str, cache: Path) -> Reading:
    from peers.mds import read

    return read(Ask(cache, ask.name, seed=ask.seed), f"{bucket}/mds")


def read_ld(ask: Ask, bucket: str, http: str, cache: Path) -> Reading:
    from peers.ld import read

    place = {"endpoint_url": http.rpartition("/")[0]}
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
    options = {**place, **keys}
    return read(ask, input_dir=f"{bucket}/ld", cache_dir=str(cache), storage_options=options)


def read_hf(ask: Ask, bucket: str, _: str, cache: Path) -> Reading:
    """The documented way for ``save_to_disk``: the folder is copied first."""
    import fsspec
    from peers.hf import read

    fsspec.filesystem("s3").get(f"{bucket}/hf", str(cache / "hf"), recursive=True)
    return read(Ask(cache / "hf", ask.name, seed=ask.seed))


WAYS: dict[str, Callable[[Ask, str, str, Path], Reading]] = {
    "ours": read_ours, "wds": read_wds, "mds": read_mds, "ld": read_ld, "hf": read_hf,
}  # fmt: skip


def read_epoch(room: Room, module: str, ask: Ask, port: int) -> tuple[float, float, int]:
    """Read an epoch with an empty cache; return seconds to the first batch and all, sequences."""
    del room
    http = f"http://127.0.0.1:{port}"
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": http, "S3_ENDPOINT_URL": http, "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip
    cache = Path(tempfile.mkdtemp(dir=ask.folder.parent.parent))
    way = getattr(importlib.import_module("bench_set.remote"), f"read_{module}")
    began, first, count = time.perf_counter(), 0.0, 0
    reading: Any = way(ask, f"s3://{ask.name}", f"{http}/{ask.name}", cache)
    for _, lengths in reading.loader:
        first = first or time.perf_counter() - began
        count += len(lengths)
    taken = time.perf_counter() - began
    reading.close()
    shutil.rmtree(cache, ignore_errors=True)
    return first, taken, count


def measure(bench: Bench) -> Answer:
    """Read frames with each loader in turn; buckets are the folders of the sets."""
    answer, best = Answer("s for an epoch"), []
    servers = {m: s for m, s in bench.prepare("M").items() if m in WAYS}
    command = [sys.executable, str(HERE / "s3.py"), str(bench.root)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        port = int(process.stdout.readline()) if process.stdout else 0
        try:
            for number in range(min(bench.rounds, 3) + 1):  # the first one imports
                for module in servers:
                    bench.say(f"S3, round {number}: {module}")
                    _read_once(bench, answer, module, port)
                if not number:
                    answer.rows.clear()
        finally:
            process.terminate()
    mine = answer.find("frames", OURS)
    best = [row for row in answer.rows if row.loader != OURS and row.values]
    if mine and best:
        row = min(best, key=lambda row: row.median)
        text = f"S3: at least {LEAST:g}x as fast as the best packaged loader"
        found = f"{row.median / mine:.1f}x ({row.loader})"
        answer.aims.append(Aim(text, found, row.median / mine >= LEAST))
    return answer


def _read_once(bench: Bench, answer: Answer, module: str, port: int) -> None:
    title = bench.servers[module].peer.title
    if title in answer.left_out:
        return
    _count(port)
    try:
        ask = bench.ask_for("M", module)
        first, taken, sequences = bench.servers[module].ask(read_epoch, module, ask, port)
    except LeftOut as error:
        answer.left_out[title] = str(error)
        return
    counts = _count(port)
    row = answer.row("frames", title)
    row.values.append(taken)
    row.note = (
        f"first batch after {first:.2f} s; {counts['bytes'] / 1e6:,.0f} MB in "
        f"{counts['requests']:,} requests; {sequences:,} sequences"
    )


def _count(port: int) -> dict[str, int]:
    with urlopen(f"http://127.0.0.1:{port}/-/counts", timeout=20) as answer:
        found: dict[str, int] = json.loads(answer.read())
    return found
