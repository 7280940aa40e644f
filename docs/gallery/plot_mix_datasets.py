"""
Mix datasets by weight: exact shares, at any point of an epoch
==============================================================

This example mixes three datasets in the ratio 60 : 30 : 10. Most libraries
draw at random, so the shares drift away from the weights. With ``Mix``,
the shares stay within a few batches of the weights at every point of the
epoch, even after a resume and on any number of GPUs.
"""

import matplotlib.pyplot as plt
import numpy as np
from seqdata import Bucketed, Loader, Mix
from seqdata.datasets import make_documents

WEIGHTS = {"books": 0.6, "code": 0.3, "talk": 0.1}
data = {
    "books": make_documents(800, median=400, seed=1),
    "code": make_documents(300, median=150, seed=2),
    "talk": make_documents(200, median=40, seed=3),
}

# %%
# Each batch has sequences of one dataset, which ``batch.part`` names. ``Mix``
# repeats the small datasets, in a new order every time.

loader = Loader(data, Mix(WEIGHTS, Bucketed(8), batches=400), seed=0)
parts = np.array([batch.part for batch in loader])
for name, weight in WEIGHTS.items():
    share = (parts == name).mean()
    print(f"{name:6} weight {weight:.2f}   share {share:.4f}")

rng = np.random.default_rng(0)
random = rng.choice(list(WEIGHTS), 400, p=list(WEIGHTS.values()))

# %%
# The chart shows the share of each dataset in all batches up to each point of
# the epoch.

figure, axes = plt.subplots(
    1, 2, figsize=(10, 4), sharey=True, layout="constrained"
)
colors = ["#0072B2", "#E69F00", "#009E73"]
titles = ["Random draws", "seqdata.Mix"]
for axis, title, drawn in zip(axes, titles, [random, parts], strict=True):
    count = np.arange(1, 401)
    for color, (name, weight) in zip(colors, WEIGHTS.items(), strict=True):
        axis.axhline(weight, color="black", linewidth=0.8, linestyle=":")
        axis.plot(np.cumsum(drawn == name) / count, color=color, label=name)
    axis.set(title=title, xlabel="batches of the epoch", ylim=(0, 1))
axes[0].set_ylabel("share of the batches so far")
axes[1].text(398, 0.62, "weights", ha="right")
axes[1].legend(frameon=False, loc="upper right", ncols=3)
plt.show()
