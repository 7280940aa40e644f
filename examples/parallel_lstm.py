"""One character model over several processes: by data, layers, time, or layers and data.

Trains it on one process, then on several, and prints the difference as the last line::

    python examples/parallel_lstm.py --mode wavefront          # 2 stages, 4 chunks an update
    python examples/parallel_lstm.py --mode pipeline           # the same, by torch's 1F1B schedule
    python examples/parallel_lstm.py --mode ring book.txt      # 2 parts of each row's timesteps
    python examples/parallel_lstm.py --mode hybrid             # 2 replicas of 2 stages
    python examples/parallel_lstm.py --mode ddp                # 2 replicas

Without a text it reads the source files of Python's own ``json`` package.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from seqdata_models import StatefulLM
from seqdata_models.parallel import RingStrategy, WavefrontStrategy

from seqdata import TBPTT, SequenceDataModule

CHUNKS, LANES, STEPS = 4, 16, 32


def strategy_of(mode: str) -> tuple[Any, int]:
    """Return the Trainer's strategy and its number of devices."""
    return {
        "one": lambda: ("auto", 1),
        "ddp": lambda: ("ddp", 2),
        "pipeline": lambda: (WavefrontStrategy(2, chunks=CHUNKS, engine="torch"), 2),
        "wavefront": lambda: (WavefrontStrategy(2, chunks=CHUNKS), 2),
        "ring": lambda: (RingStrategy(2, lane_groups=4), 2),
        "hybrid": lambda: (WavefrontStrategy(2, chunks=CHUNKS, data=2), 4),
    }[mode]()


class Clock(L.Callback):
    """Notes when each update has ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        """Note the time, once for each update."""
        if trainer.global_step > len(self.ends):
            self.ends.append(time.perf_counter())


def train(mode: str, text: np.ndarray, updates: int) -> tuple[torch.Tensor, float]:
    """Return the weights after some updates, in float64, and the seconds of those after the first.

    The first one's time goes to what is made once: groups, buffers, a thread pool.
    """
    torch.manual_seed(0)
    strategy, devices = strategy_of(mode)
    data = SequenceDataModule(train=[text], batching=TBPTT(LANES, STEPS, continuous=True), shift=1)
    model = StatefulLM(256, 32, 64, 2, learning_rate=3e-3).double()
    trainer = L.Trainer(
        max_steps=updates,
        accelerator="cpu",
        devices=devices,
        strategy=strategy,
        precision="64-true",
        accumulate_grad_batches=CHUNKS,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[(clock := Clock())],
    )
    trainer.fit(model, data)
    seconds = clock.ends[-1] - clock.ends[0]
    return torch.cat([value.detach().flatten() for value in model.parameters()]), seconds


def main() -> None:
    """Train twice and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("text", nargs="?", type=Path)
    modes = ["ddp", "pipeline", "wavefront", "ring", "hybrid"]
    parser.add_argument("--mode", choices=modes, required=True)
    parser.add_argument("--updates", type=int, default=10)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    files = [options.text] if options.text else sorted(Path(json.__file__).parent.glob("*.py"))
    text = np.frombuffer(b"\n".join(file.read_bytes() for file in files), np.uint8)
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"  # the Trainer starts the others
    expected = train("one", text, options.updates) if is_first else None
    found, seconds = train(options.mode, text, options.updates)
    if expected is not None:
        weights, alone = expected
        print(
            f"{options.updates - 1} updates after the first, without the start of processes: "
            f"{alone:.2f} s on one process, {seconds:.2f} s on all"
        )
        difference = float((weights - found).abs().max())
        print(f"{options.mode}: largest difference of a weight from one process: {difference:.1e}")


if __name__ == "__main__":
    main()
