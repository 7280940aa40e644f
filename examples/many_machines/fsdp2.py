"""A model that is cut into shards by FSDP2, in a plain loop: each rank reads its share of the plan.

python fsdp2.py STORE OUT.pt
torchrun --nproc-per-node 2 fsdp2.py STORE OUT.pt
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from seqdata import Bucketed, Loader, World

BATCHES_PER_UPDATE = 2


class Tagger(torch.nn.Module):
    """One number for each timestep."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = torch.nn.Linear(4, 8)
        self.lstm = torch.nn.LSTM(8, 8, batch_first=True)
        self.head = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one number for each timestep, (rows, T)."""
        outputs, _ = self.lstm(self.inputs(x))
        return self.head(outputs)[..., 0].clone()


def main(store: str, out: str) -> None:
    """Train for two epochs and save the whole weights."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = Tagger().double().to(device)
    if size > 1:
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
        mesh = init_device_mesh(device, (size,))
        for part in (model.inputs, model.lstm, model.head, model):
            fully_shard(part, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    steps = BATCHES_PER_UPDATE // size  # of a rank in an update
    policy = Bucketed(8, balance_ranks=BATCHES_PER_UPDATE)
    loader = Loader(store, policy, world=World.current(), accumulate=steps, dtype="float64")
    for _ in range(2):
        for step, batch in enumerate(loader, start=1):
            batch = batch.to(device)
            errors = (model(batch["x"]) - batch["x"].mean(-1)) ** 2
            ((errors * batch.score).sum() * batch.loss_scale).backward()
            if step % steps == 0 or step == len(loader):
                optimizer.step()
                optimizer.zero_grad()
    weights = {
        name: each.full_tensor() if isinstance(each, DTensor) else each
        for name, each in model.state_dict().items()
    }
    if int(os.environ.get("RANK", "0")) == 0:
        torch.save(weights, out)
    if size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
