"""
Truncated backpropagation through time (TBPTT): chunks and lanes
================================================================

``TBPTT`` cuts sequences that are too long for a batch into chunks. Each row of
a batch is a lane, which continues where it stopped in the previous batch, so
that a recurrent model can carry its hidden state. When a sequence ends, its
lane starts the next sequence.
"""

import matplotlib.pyplot as plt
import numpy as np
from seqdata import TBPTT, Loader
from seqdata.datasets import make_flip_flops

store = make_flip_flops(14, median=900, sigma=0.6, seed=1)
LANES, CHUNK = 4, 128

# %%
# ``batch.reset`` is true for lanes that begin a sequence, where the state must
# be zero. ``batch.start`` is the position of the chunk in its sequence.

loader = Loader(store, TBPTT(lanes=LANES, chunk=CHUNK), seed=0)
batches = list(loader)
for batch in batches[:3]:
    print("ids", batch.ids.tolist(), "start", batch.start.tolist(), end=" ")
    print("reset", batch.reset.int().tolist())

read = sum(batch.num_tokens for batch in batches)
print(f"{read:,} of {store.lengths.sum():,} timesteps, each once")

# %%
# Each line is a lane, and each color is a sequence. White gaps are the padding
# of last chunks. Bold edges mark resets of the state.

palette = ["#0072B2", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#CC79A7"]
figure, axis = plt.subplots(figsize=(10, 3.2), layout="constrained")
count = np.zeros(LANES, dtype=int)
for step, batch in enumerate(batches):
    for row, lane in enumerate(batch.lanes.tolist()):
        if batch.lengths[row] == 0:
            continue  # the lane has nothing left to read
        count[lane] += int(batch.reset[row])
        color = palette[(count[lane] + 2 * lane) % len(palette)]
        width = float(batch.lengths[row]) / CHUNK - 0.04
        axis.barh(lane, width, left=step, height=0.8, color=color)
        if batch.reset[row]:
            axis.plot([step, step], [lane - 0.4, lane + 0.4], "k", lw=3)
            axis.text(step + 0.15, lane, int(batch.ids[row]), va="center")
axis.set(xlabel="step of the epoch", xlim=(0, len(batches)), ylim=(3.5, -0.5))
axis.set_yticks(range(LANES), [f"lane {lane}" for lane in range(LANES)])
axis.set_title("Chunks of 128 timesteps in 4 lanes; numbers are sequences")
plt.show()
