"""
Padding of variable-length sequences, by batching policy
========================================================

All rows of a batch are padded to its longest sequence. Random batches of texts
are mostly padding. Batches of sequences with similar lengths have almost no
padding, and packed rows have even less.
"""

import matplotlib.pyplot as plt
import numpy as np
from seqdata import Bucketed, Fixed, Packed, SequenceIndex, TokenBudget
from seqdata.datasets import make_documents

documents = make_documents(1_000)  # log-normal lengths, like those of texts

# %%
# A policy turns lengths into the plan of an epoch. Planning reads no data, so
# you can quickly compare many policies.

policies = {
    "Fixed(32), random": Fixed(32),
    "Bucketed(32)": Bucketed(32),
    "TokenBudget(8192)": TokenBudget(8192),
    "Packed(8, 1024)": Packed(8, 1024, too_long="split"),
}
index = SequenceIndex.from_lengths(documents.lengths)
plans = {
    name: policy.plan(index, seed=0, epoch=0)
    for name, policy in policies.items()
}
for name, plan in plans.items():
    sizes = plan.measures
    padding = 1 - sizes.timesteps.sum() / sizes.padded.sum()
    print(f"{name:18} {len(plan):3} batches, {padding:6.1%} padding")

# %%
# Each line is a row of the epoch, in the order of the batches. A model
# computes the complete colored area. The orange part is padding.

figure, axes = plt.subplots(
    1, 4, figsize=(10, 4.4), sharex=True, sharey=True, layout="constrained"
)
for axis, (name, plan) in zip(axes, plans.items(), strict=True):
    lengths = plan.spans[:, 2] - plan.spans[:, 1]
    if plan.rows is not None:  # several documents in a row
        lengths = np.add.reduceat(lengths, plan.rows[:-1])
    sizes = plan.measures
    longest = np.repeat(sizes.longest, sizes.rows)
    row = np.arange(len(lengths))
    axis.fill_betweenx(row, longest, step="mid", color="#E69F00")
    axis.fill_betweenx(row, lengths, step="mid", color="#0072B2")
    padding = 1 - lengths.sum() / longest.sum()
    axis.set_title(f"{name}\n{padding:.1%} padding", fontsize=11)
    axis.set_xlabel("timesteps")
axes[0].set(ylabel="row of the epoch", xlim=(0, 2_400), ylim=(1_000, 0))
figure.legend(
    handles=[
        plt.Rectangle((0, 0), 1, 1, color="#0072B2", label="tokens"),
        plt.Rectangle((0, 0), 1, 1, color="#E69F00", label="padding"),
    ],
    loc="outside lower center",
    ncols=2,
    frameon=False,
)
plt.show()
