"""
Plan batches from your own lengths
==================================

A plan needs only the lengths of your sequences. Before you convert any data,
you can see the number of steps in an epoch, the padding of each batch and the
largest batch.
"""

import matplotlib.pyplot as plt
import numpy as np
from seqdata import Fixed, SequenceIndex, TokenBudget, World, share

# %%
# Insert the lengths of your own sequences, in tokens, frames or samples.

rng = np.random.default_rng(0)
lengths = np.rint(rng.lognormal(5.0, 0.9, 20_000)).astype(int) + 1

index = SequenceIndex.from_lengths(lengths)
policy = TokenBudget(16_384, max_length=2_000, too_long="truncate")
plan = policy.plan(index, seed=0, epoch=0)

# %%
# The report shows how the plan treats the data. On several GPUs, every rank
# takes the same number of steps.

report = plan.report
print(f"{len(plan)} batches of {report.sequences:,} sequences")
print(f"{1 - report.timesteps / report.padded:.1%} padding")
print(f"{len(report.truncated)} sequences are truncated")
print(f"largest batch: {report.worst_rows} rows x {report.worst_length}")
for ranks in (1, 2, 8):
    steps = len(share(plan, World(0, ranks)))
    print(f"GPUs: {ranks}  steps on each: {steps}")

# %%
# ``plan.plot`` draws a plan. Draw several plans into the same axes to compare
# their padding.

figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 3.8), layout="constrained"
)
plan.plot(left, kind="lengths")
random = Fixed(64, max_length=2_000, too_long="truncate")
random.plan(index, seed=0, epoch=0).plot(right, kind="padding", label="Fixed")
plan.plot(right, kind="padding", label="TokenBudget")
plt.show()
