"""One run, however many processes take part: the same parameters on 1, 2 and 4.

Start it as you like, the file is the same::

    python examples/ddp.py --out one.pt                  # one process
    python examples/ddp.py --devices 4 --out four.pt     # the Trainer starts four
    torchrun --standalone --nproc-per-node 4 examples/ddp.py --devices 4 --out also.pt

Without ``--out`` it starts itself in all these ways, one after the other, and compares what the
runs end with: after 100 updates within 1e-5 in float32 and 1e-12 in float64.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import lightning as L
import numpy as np
import torch

from seqdata import Bucketed, SequenceDataModule

BOUNDS = {"float32": 1e-5, "float64": 1e-12}
WAYS = [("Trainer", 1), ("Trainer", 2), ("Trainer", 4), ("torchrun", 2), ("torchrun", 4)]
LAUNCH = {
    "Trainer": [sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"],
}


class Model(L.LightningModule):
    """An LSTM that learns the mean of its input; the loss knows nothing of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(3, 16, batch_first=True)
        self.head = torch.nn.Linear(16, 1)

    def training_step(self, batch):
        """Return the sum over this rank's sequences, times what makes it the mean over all."""
        _, (last, _) = self.lstm(batch.packed("x"))
        losses = (self.head(last[-1]).squeeze(-1) - batch["y"]) ** 2
        return (losses * batch.weight).sum() * batch.sequence_scale

    def configure_optimizers(self):
        """Return plain SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def sequences(dtype: str) -> list[dict[str, np.ndarray]]:
    """Make 200 sequences of 2 to 40 timesteps."""
    random, made = np.random.default_rng(0), []
    for length in random.integers(2, 41, 200):
        x = random.normal(size=(length, 3)).astype(dtype)
        made.append({"x": x, "y": x.mean(dtype=dtype)})
    return made


def train(dtype: str, devices: int, updates: int) -> dict[str, torch.Tensor]:
    """Train in this process, which may be one of several; gives the parameters."""
    L.seed_everything(0, verbose=False)
    model = Model().to(getattr(torch, dtype))
    data = SequenceDataModule(train=sequences(dtype), batching=Bucketed(8), batches_per_update=4)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    strategy = "ddp" if devices > 1 else "auto"
    trainer = L.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy=strategy,
        max_steps=updates,
        enable_checkpointing=False,
        **quiet,
    )
    trainer.fit(model, data)
    return model.state_dict() if trainer.is_global_zero else {}


def compare(ways: list[tuple[str, int]], updates: int) -> None:
    """Start this file in each way, and compare with the first."""
    with tempfile.TemporaryDirectory() as folder:
        first = None
        for launcher, devices in ways:
            out = Path(folder) / f"{launcher}-{devices}.pt"
            started = [*LAUNCH[launcher], *([str(devices)] if launcher == "torchrun" else [])]
            options = ["--devices", str(devices), "--updates", str(updates), "--out", str(out)]
            done = subprocess.run(
                [*started, __file__, *options], capture_output=True, text=True, timeout=300
            )
            if done.returncode:
                raise SystemExit(f"{launcher} with {devices} processes failed:\n{done.stderr}")
            found = torch.load(out, weights_only=True)
            first = found if first is None else first
            for dtype, bound in BOUNDS.items():
                pairs = zip(found[dtype].values(), first[dtype].values(), strict=True)
                apart = max(float((one - other).abs().max()) for one, other in pairs)
                print(f"{launcher:8} {devices} processes, {dtype}: apart by {apart:.1e}")
                if apart > bound:
                    raise SystemExit(f"NOT THE SAME: {apart} is more than {bound}")
    print(f"the same after {updates} updates")


def main() -> None:
    """Train, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1, help="processes that take part")
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--out", type=Path, help="where the parameters go")
    parser.add_argument("--smoke", action="store_true", help="compare two ways, 10 updates")
    asked = parser.parse_args()
    if asked.out is None:
        compare([WAYS[0], WAYS[3]] if asked.smoke else WAYS, 10 if asked.smoke else asked.updates)
        return
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")  # hints that are not about this
    torch.set_num_threads(1)
    made = {dtype: train(dtype, asked.devices, asked.updates) for dtype in BOUNDS}
    if made["float64"]:
        torch.save(made, asked.out)


if __name__ == "__main__":
    main()
