"""
The same training run on 1, 2 and 4 processes
=============================================

With a fixed number of batches per update, a run makes the same updates on any
number of processes. Each process takes its share of the batches, and DDP
averages the gradients. The losses differ only by rounding of float64.
"""

import json
import subprocess
import sys
import tempfile

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from seqdata import Bucketed, Loader, World
from seqdata.datasets import load_japanese_vowels
from torch.nn.parallel import DistributedDataParallel

BATCHES_PER_UPDATE = 4

# %%
# Each process runs the following function. ``balance_ranks`` keeps the order
# of the batches on any number of ranks, and ``accumulate`` combines four
# batches into an update.


class Losses(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(12, 32, batch_first=True)
        self.head = torch.nn.Linear(32, 9)

    def forward(self, batch):
        _, (last, _) = self.lstm(batch.packed("x"))
        logits = self.head(last[-1])
        losses = torch.nn.functional.cross_entropy(
            logits, batch["y"], reduction="none"
        )
        return (losses * batch.weight).sum() * batch.sequence_scale


def train(rank, ranks, folder):
    torch.set_num_threads(1)
    meeting = f"file://{folder}/{ranks}"
    dist.init_process_group("gloo", meeting, rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = DistributedDataParallel(Losses().double())
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    loader = Loader(
        load_japanese_vowels("train"),
        Bucketed(9, balance_ranks=BATCHES_PER_UPDATE),
        world=World.current(),
        accumulate=BATCHES_PER_UPDATE // ranks,
        dtype="float64",
    )
    curve, update = [], torch.zeros((), dtype=torch.float64)
    for _ in range(8):
        for batch in loader:
            loss = model(batch)
            loss.backward()
            update += loss.detach()
            if batch.ends_update:
                optimizer.step()
                optimizer.zero_grad()
                dist.all_reduce(update)  # the loss of the whole update
                curve.append(update.item() / ranks)
                update = torch.zeros_like(update)
    if rank == 0:
        print(json.dumps(curve), flush=True)
    dist.destroy_process_group()


# %%
# The script starts itself with 1, 2 and 4 processes. Start your own training
# script with ``torchrun --nproc-per-node 4 train.py``, or use a Lightning
# Trainer with ``devices=4``.

if __name__ == "__main__" and "--train" in sys.argv:
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (1, 2, 4):
            torch.multiprocessing.start_processes(
                train, (ranks, folder), nprocs=ranks, start_method="fork"
            )
    sys.exit()

script = globals().get("__file__", "plot_same_run.py")  # in a notebook: beside
command = [sys.executable, script, "--train"]
output = subprocess.run(
    command, capture_output=True, text=True, check=True, timeout=600
)
curves = [json.loads(line) for line in output.stdout.splitlines()]
for ranks, curve in zip((1, 2, 4), curves, strict=True):
    error = max(abs(a - b) for a, b in zip(curve, curves[0], strict=True))
    print(f"processes: {ranks}  updates: {len(curve)}", end="  ")
    print(f"last loss: {curve[-1]:.4f}  largest difference: {error:.0e}")

# %%
# The three loss curves coincide.

figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 3.8), layout="constrained"
)
styles = [("#0072B2", 7), ("#E69F00", 4), ("black", 1)]
for ranks, curve, (color, width) in zip(
    (1, 2, 4), curves, styles, strict=True
):
    label = f"{ranks} processes" if ranks > 1 else "1 process"
    left.plot(curve, color=color, linewidth=width, label=label)
    if ranks > 1:
        error = [abs(a - b) for a, b in zip(curve, curves[0], strict=True)]
        right.plot(error, ".", color=color, label=label)
left.set(xlabel="update", ylabel="loss, nats", ylim=(0, None))
right.set(xlabel="update", ylabel="difference to 1 process, nats")
left.legend(frameon=False)
right.legend(frameon=False)
plt.show()
