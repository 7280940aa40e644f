"""The main job on real input: write, look, plan, train, stop in mid-epoch, go on, prove it.

``make demo`` runs this. The data are the source files of the Python that runs it: about 1,800
sequences of bytes, of 0 to 750,000 bytes each. Everything made lies in ``demo-output/``.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import logging
import math
import os
import subprocess
import sys
import sysconfig
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from seqdata_models import ByteLM

from seqdata import SequenceBatch, SequenceDataModule, TokenBudget, write_store

STOPPED = 75  # how the process that stops itself ends
HOUR = 3600  # seconds; no process is waited for longer


@dataclass(frozen=True)
class Size:
    """Size of the model and length of the training."""

    files: int | None = None  # None: all
    max_length: int = 512  # bytes of each file that are trained on
    max_tokens: int = 8192  # bytes of a batch, padding included
    epochs: int = 3
    hidden: int = 192
    show_every: int = 25  # steps


SMOKE = Size(files=150, max_length=64, max_tokens=1024, epochs=2, hidden=16, show_every=5)


def source_files() -> Iterator[dict[str, object]]:
    """Yield each source file of the standard library as a sequence of bytes with its path as id."""
    root = Path(sysconfig.get_path("stdlib"))
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*.py")}
    for name, path in sorted(files.items()):
        if "-packages/" not in name and path.is_file():  # what others have installed
            yield {"id": name, "x": np.fromfile(path, dtype=np.uint8)}


class RecordingLM(ByteLM):
    """A ByteLM that writes down what it is trained on, and may stop the whole process."""

    record: Path
    show_every: int
    stop_at: int | None = None

    def training_step(self, batch: SequenceBatch) -> torch.Tensor:
        """Record the batch, then train on it."""
        if self.global_step == self.stop_at:
            os._exit(STOPPED)  # as if killed: nothing is closed, nothing is saved
        with self.record.open("a") as file:
            print(json.dumps([batch.epoch, batch.number, *contents(batch)]), file=file)
        loss = super().training_step(batch)
        if self.global_step % self.show_every == 0:
            bits = float(loss.detach()) / math.log(2)
            print(f"  epoch {batch.epoch}  step {self.global_step:4}  {bits:.2f} bits per byte")
        return loss


def contents(batch: SequenceBatch) -> list[tuple[int, str]]:
    """Return the id and a hash of the real bytes, inputs and targets, of each row."""
    rows = []
    for row, length in enumerate(batch.lengths.tolist()):
        made = hashlib.blake2b(batch["x"][row, :length].numpy(), digest_size=16)
        made.update(batch["targets"][row, :length].numpy())
        rows.append((int(batch.ids[row]), made.hexdigest()))
    return rows


def train(out: Path, size: Size, name: str, stop_at: int | None, resume: Path | None) -> None:
    """Train one run, with a checkpoint where it is to stop, or else after each epoch."""
    L.seed_everything(1, verbose=False)
    torch.set_num_threads(1)  # several are much slower where other programs want the cores too
    batching = TokenBudget(size.max_tokens, max_length=size.max_length, too_long="truncate")
    data = SequenceDataModule(train=out / "store", batching=batching, fields=("x",), shift=1)
    model = RecordingLM(embedding=64, hidden=size.hidden)
    model.record, model.show_every, model.stop_at = out / f"{name}.jsonl", size.show_every, stop_at
    model.record.unlink(missing_ok=True)
    saving = ModelCheckpoint(out, name, every_n_train_steps=stop_at, enable_version_counter=False)
    trainer = L.Trainer(
        max_epochs=size.epochs,
        accelerator="cpu",
        gradient_clip_val=1.0,
        callbacks=saving,
        logger=False,
        default_root_dir=out,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data, ckpt_path=resume)


def command(*arguments: object) -> None:
    """Run the ``seqdata`` command, and show how to."""
    print("\n$ seqdata", *arguments)
    words = [sys.executable, "-m", "seqdata", *map(str, arguments)]
    subprocess.run(words, check=True, timeout=HOUR)


def in_a_new_process(*arguments: object, ends_with: int) -> None:
    """Run this file again."""
    words = [sys.executable, __file__, *map(str, arguments)]
    ended = subprocess.run(words, timeout=HOUR).returncode
    if ended != ends_with:
        raise SystemExit(f"the process ended with {ended}, must end with {ends_with}")


def prove(out: Path, stop_at: int) -> None:
    """Compare what the runs recorded, and the parameters they ended with."""
    texts = [(out / f"{name}.jsonl").read_text() for name in ("whole", "stopped", "resumed")]
    whole, stopped, resumed = ([json.loads(line) for line in text.splitlines()] for text in texts)
    rows = sum(len(step) - 2 for step in whole)
    in_mid_epoch = len(stopped) == stop_at and stopped[-1][0] == resumed[0][0]
    if not in_mid_epoch or stopped + resumed != whole:
        raise SystemExit("NOT PROVED: the stopped and the resumed run trained something else")
    one, other = (torch.load(out / f"{name}.ckpt")["state_dict"] for name in ("whole", "resumed"))
    difference = max(float((one[key] - other[key]).abs().max()) for key in one)
    before, after = len(stopped), len(resumed)
    print(f"  One run trained {len(whole)} batches, {rows:,} sequences, in one go. The other")
    print(f"  trained {before}, stopped, and trained {after} in a new process: the same batches in")
    print("  the same order, none lost, none twice, every id and every byte equal (by hash).")
    print(f"  The parameters they end with differ by at most {difference}.")


def demo(out: Path, size: Size) -> None:
    """Do everything, and say what is done."""
    begun = time.perf_counter()
    print("1. Write: the source files of Python's standard library, as Arrow shards")
    sequences = itertools.islice(source_files(), size.files)
    store = write_store(out / "store", sequences, shard_bytes=8 << 20, overwrite=True)
    print(f"  {len(store):,} files, {int(store.lengths.sum(dtype=np.int64)):,} bytes")

    print("\n2. Look: lengths; a plan of whole files, with a picture; the plan to train on")
    command("stats", out / "store")
    limits = ["--max-tokens", store.lengths.max(), "--plot", out / "plan.png"]
    command("plan", out / "store", *limits)
    limits = ["--max-tokens", size.max_tokens, "--max-length", size.max_length]
    command("plan", out / "store", *limits, "--too-long", "truncate", "--world", "1,2,8")

    print(f"\n3. Train: a language model, on the first {size.max_length} bytes of each file")
    train(out, size, "whole", None, None)
    steps = len((out / "whole.jsonl").read_text().splitlines()) // size.epochs  # of one epoch
    stop_at = steps + steps // 2
    print(f"\n4. The same again, but the process stops itself at step {stop_at}, in mid-epoch")
    again = ["--out", out, *(["--smoke"] if size == SMOKE else [])]
    in_a_new_process(*again, "--run", "stopped", "--stop-at", stop_at, ends_with=STOPPED)
    print("  (stopped) ... and goes on in a new process")
    in_a_new_process(*again, "--run", "resumed", "--resume", out / "stopped.ckpt", ends_with=0)

    print("\n5. Proof")
    prove(out, stop_at)
    seqdata = os.path.relpath(Path(sys.executable).with_name("seqdata"))
    print(f"\nDone in {time.perf_counter() - begun:.0f} s. What to try next:")
    print(f"  look at    {out / 'plan.png'}: how much padding random, bucketed, token-budget cost")
    print(f'  own data   {seqdata} write "logs/**/*.txt" store/ (or .npy, .csv, .jsonl, .parquet)')
    print(f"             {seqdata} stats store/ && {seqdata} plan store/ --max-tokens 16384")
    print("  read       README.md, then this demo: examples/first_run.py")


def main() -> None:
    """Run the demo, or one run of it in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output"))
    parser.add_argument("--smoke", action="store_true", help="a few files, some seconds")
    for name, kind in (("--run", str), ("--stop-at", int), ("--resume", Path)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # several processes write to it in turn
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")  # hints that are not about this
    size = SMOKE if options.smoke else Size()
    if options.run:
        train(options.out, size, options.run, options.stop_at, options.resume)
    else:
        demo(options.out, size)


if __name__ == "__main__":
    main()
