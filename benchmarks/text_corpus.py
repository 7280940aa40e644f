"""Tokenizing a corpus, next to the tokenizer's own ``encode_batch`` of the same texts in memory.

Each run is a process of its own, so that neither finds the other's cache of words. All have all
processors. Ours (threads of one process, or processes) also reads and parses the files, and writes
the tokens with checksums. The library also makes the lists of ids, which its caller needs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from common import spread
from rich.console import Console

FLOOR = 0.9  # times the speed of encode_batch
VOCABULARY = 8_000
ROOT = Path(__file__).resolve().parents[1]
LIBRARY = "encode_batch"


def write_corpus(folder: Path, size: int) -> int:
    """Write JSON lines of the sources and pages of this repository, again and again; the bytes."""
    paths = sorted([*(ROOT / "seqdata").rglob("*.py"), *(ROOT / "docs").rglob("*.md")])
    texts = [path.read_text("utf-8") for path in paths]
    train_tokenizer(texts, folder.parent / "tok.json")
    count = written = 0
    folder.mkdir()
    while written < size:
        with (folder / f"part.{count}.jsonl").open("w", encoding="utf-8") as file:
            for number, text in enumerate(texts):
                turned = text[number * 7 % 100 :]
                written += len(turned.encode())
                file.write(json.dumps({"text": turned}) + "\n")
                if written >= size:
                    break
        count += 1
    return written


def train_tokenizer(texts: list[str], path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=alphabet,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


def run_library(corpus: Path) -> int:
    """Encode all texts at once, and return the number of tokens; prints seconds."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(corpus.parent / "tok.json"))
    lines = (line for path in corpus.glob("*.jsonl") for line in path.open(encoding="utf-8"))
    texts = [json.loads(line)["text"] for line in lines]
    report = begin()
    ids = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
    report()
    return sum(map(len, ids))


def run_ours(corpus: Path, workers: int) -> int:
    """Tokenize the corpus into a new folder, and return the number of tokens; prints seconds."""
    import seqdata_text.text

    seqdata_text.text.PART_BYTES = 4 << 20  # as many parts as a large corpus has
    out = corpus.parent / f"tokens-{os.getpid()}"
    report = begin()
    store = seqdata_text.text.tokenize(
        corpus, out, tokenizer=corpus.parent / "tok.json", num_workers=workers, progress=False
    )
    report()
    return int(store.lengths.sum())


KINDS = {
    LIBRARY: run_library,
    "threads": partial(run_ours, workers=0),  # of this process
    "processes": partial(run_ours, workers=len(os.sched_getaffinity(0))),
}


def begin() -> Callable[[], None]:
    """Begin to measure; the result prints seconds, and seconds of processors of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    return lambda: print(time.perf_counter() - wall, time.process_time() - cpu)


def measure(root: Path, size: int, rounds: int) -> tuple[int, dict[str, list[list[float]]]]:
    """Return the bytes of the corpus, and [seconds, processor seconds] of each run, in turns."""
    corpus = root / "corpus"
    written = write_corpus(corpus, size)
    found: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    counts = set()
    for _ in range(rounds):
        for kind in KINDS:
            command = [sys.executable, __file__, kind, str(corpus)]
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, check=True, timeout=3600
            )
            *numbers, count = done.stdout.split()
            found[kind].append([float(number) for number in numbers])
            counts.add(count)
    if len(counts) > 1:
        raise ValueError(f"the numbers of tokens differ: {counts}")
    return written, found


def report(console: Console, written: int, found: dict[str, list[list[float]]]) -> None:
    """Print the speed of each kind, and its ratio to the library's, by medians."""
    console.print(f"a corpus of {written / 1e6:.0f} MB, vocabulary of {VOCABULARY}")
    for kind, runs in found.items():
        text = f"{kind}: {spread([wall for wall, _ in runs], '{:.2f}')} s"
        if kind != "processes":  # whose processors this process does not count
            text += f", of processors {spread([cpu for _, cpu in runs], '{:.2f}')} s"
        if kind != LIBRARY:
            walls, cpus = (
                statistics.median(run[at] for run in found[LIBRARY])
                / statistics.median(run[at] for run in runs)
                for at in (0, 1)
            )
            text += f", {walls:.2f}x ({'met' if walls >= FLOOR else 'MISSED'})"
            text += f", by processors {cpus:.2f}x" if kind == "threads" else ""
        console.print(text)


if __name__ == "__main__":
    kind, location = sys.argv[1:]
    print(KINDS[kind](Path(location)))
