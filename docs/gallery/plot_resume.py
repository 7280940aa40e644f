"""
Stop and resume in the middle of an epoch
=========================================

A run stops after 17 batches and resumes in a new loader, as after a crash or a
preempted job. The next batch is the 18th. No sequence is skipped or trained
twice.
"""

import matplotlib.pyplot as plt
import numpy as np
from seqdata import Bucketed, Loader
from seqdata.datasets import load_japanese_vowels

store = load_japanese_vowels("train")


def make_loader():
    return Loader(store, Bucketed(9), seed=0)


# %%
# The example compares a run that is never stopped with a run that stops. The
# ``state_dict`` of the loader has only a few numbers. Save it together with
# the states of the model and the optimizer. A Lightning ``Trainer`` stores it
# in every checkpoint.

whole = [batch.ids.tolist() for batch in make_loader()]

stopped = []
loader = make_loader()
for batch in loader:
    stopped.append(batch.ids.tolist())
    if len(stopped) == 17:
        state = loader.state_dict()
        break

# %%
# A new process creates the same loader and loads the state.

loader = make_loader()
loader.load_state_dict(state)
resumed = [batch.ids.tolist() for batch in loader]

print(f"{len(stopped)} + {len(resumed)} = {len(whole)} batches")
print("the same sequences in the same order:", stopped + resumed == whole)

# %%
# The picture shows the sequences of both runs. Each cell is a sequence, each
# column is a batch, and the color is the index of the sequence in the dataset.

figure, axes = plt.subplots(
    2, 1, figsize=(10, 4.2), sharex=True, layout="constrained"
)
strips = {
    "Never stopped": np.array(whole).T,
    "Stopped after 17 batches (red line), resumed in a new loader": np.array(
        stopped + resumed
    ).T,
}
for axis, (title, ids) in zip(axes, strips.items(), strict=True):
    picture = axis.imshow(ids, cmap="viridis", aspect="auto")
    axis.set(title=title, ylabel="row", yticks=[0, 4, 8])
axes[1].axvline(16.5, color="#D55E00", linewidth=3)
axes[1].set_xlabel("batch of the epoch")
figure.colorbar(picture, ax=axes, label="sequence")
plt.show()
