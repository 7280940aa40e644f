"""
The same number of steps on every GPU
=====================================

If each rank fills batches from its share of a ``DistributedSampler``, ranks
have different numbers of batches, and DDP hangs when the first rank runs out.
With seqdata, every rank takes the same number of steps, and each sequence is
trained once.
"""

import matplotlib.pyplot as plt
import numpy as np
from seqdata import Loader, TokenBudget, World
from seqdata.datasets import make_documents
from torch.utils.data import DistributedSampler

store = make_documents(200, seed=3)
lengths = store.lengths
RANKS, TOKENS = 3, 4_096

# %%
# The usual recipe uses ``DistributedSampler`` to share the indices. Each rank
# then fills batches of up to 4,096 tokens, including padding.


def batches_of_rank(rank):
    batches, batch = [], []
    for item in DistributedSampler(range(len(lengths)), RANKS, rank, seed=1):
        longest = max([lengths[item], *lengths[batch]])
        if batch and longest * (len(batch) + 1) > TOKENS:
            batches.append(batch)
            batch = []
        batch.append(item)
    return [*batches, batch]


usual = [batches_of_rank(rank) for rank in range(RANKS)]
drawn = sum(len(batch) for rank in usual for batch in rank)
print(
    "steps:", [len(rank) for rank in usual], f"rows: {drawn} of {len(store)}"
)

# %%
# seqdata first makes the batches and then shares them. By default, ``world``
# is taken from the process group or the Trainer. The example passes ``world``
# to show all three ranks in one process. A rank without a batch in the last
# step gets a row of weight 0.

ours = [
    list(Loader(store, TokenBudget(TOKENS), seed=1, world=World(rank, RANKS)))
    for rank in range(RANKS)
]
ids = [n for rank in ours for b in rank for n in b.ids[b.weight > 0].tolist()]
print("steps:", [len(rank) for rank in ours], f"rows: {len(ids)}", end=" ")
print("each sequence once:", sorted(ids) == list(range(len(store))))

# %%
# Each box is a step of a rank. Darker boxes have fuller batches.

figure, axes = plt.subplots(
    2, 1, figsize=(10, 4), sharex=True, layout="constrained"
)
full = [
    [
        [lengths[b].sum() / (len(b) * max(lengths[b])) for b in r]
        for r in usual
    ],
    [[b.num_tokens / b["tokens"].numel() for b in rank] for rank in ours],
]
steps = max(map(len, usual))
titles = ["DistributedSampler, batches made by each rank", "seqdata"]
for axis, title, ranks in zip(axes, titles, full, strict=True):
    grid = np.full((RANKS, steps), np.nan)
    for rank, values in enumerate(ranks):
        grid[rank, : len(values)] = values
    picture = axis.pcolormesh(
        grid, cmap="Blues", vmin=0, vmax=1, edgecolor="white", linewidth=1.5
    )
    for rank, values in enumerate(ranks):
        if len(values) < max(map(len, ranks)):
            middle = (len(values) + steps) / 2
            axis.text(middle, rank + 0.5, "DDP hangs", color="#D55E00",
                      ha="center", va="center")  # fmt: skip
        for step in np.flatnonzero(np.array(values) == 0):
            axis.text(step + 0.5, rank + 0.5, "weight 0", ha="center",
                      va="center", fontsize=9)  # fmt: skip
    axis.set(title=title, yticks=np.arange(RANKS) + 0.5, ylim=(RANKS, 0))
    axis.set_yticklabels([f"rank {rank}" for rank in range(RANKS)])
axes[1].set_xlabel("step of the epoch")
figure.colorbar(
    picture, ax=axes, label="share of the batch that is no padding"
)
plt.show()
