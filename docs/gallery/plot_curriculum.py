"""
Curriculum learning: short sequences first
==========================================

A curriculum begins with short sequences and raises the limit during training.
``Curriculum`` wraps another policy and limits the length of its sequences,
depending on the epoch or on the batch of the run. The number of steps is known
before the run starts.
"""

import matplotlib.pyplot as plt
import numpy as np
from seqdata import Curriculum, Loader, TokenBudget
from seqdata.datasets import make_documents

documents = make_documents(1_000)

# %%
# The limit may change after each segment of 25 batches. It is 100 tokens at
# first and 300 tokens from batch 50 on. From batch 100 on, there is no limit.

limits = [(0, 100), (2, 300), (4, None)]
policy = Curriculum(TokenBudget(8_192), limits, segment=25, batches=50)
loader = Loader(documents, policy, seed=0)
batches = [batch for epoch in range(3) for batch in loader]

print(f"{len(loader)} batches in each epoch")
print("longest:", [int(max(b.lengths.max() for b in batches[i : i + 50]))
                   for i in (0, 50, 100)])  # fmt: skip

# %%
# Each dot is a sequence. Every batch has about 8,192 tokens, so batches of
# shorter sequences have more rows.

batch_of = np.repeat(np.arange(150), [len(batch) for batch in batches])
lengths = np.concatenate([batch.lengths.numpy() for batch in batches])
figure, (above, below) = plt.subplots(
    2, 1, figsize=(10, 4.6), sharex=True, height_ratios=[3, 1],
    layout="constrained",
)  # fmt: skip
above.scatter(batch_of, lengths, s=5, color="#0072B2", linewidths=0)
steps = [0, 50, 100, 150]
for first, stop, limit in zip(
    steps, steps[1:], [100, 300, 2400], strict=False
):
    above.hlines(limit, first, stop, color="#D55E00", linewidth=2)
    above.text(first + 1, limit * 1.1, f"limit {limit}" if limit < 2400
               else "no limit", color="#D55E00")  # fmt: skip
above.set(yscale="log", ylabel="timesteps", ylim=(8, 5_000))
below.bar(range(150), [len(b) for b in batches], width=1, color="#0072B2")
below.set(xlabel="batch of the run", ylabel="rows", xlim=(0, 150))
for epoch in (50, 100):
    below.axvline(epoch, color="black", linewidth=0.8, linestyle=":")
plt.show()
