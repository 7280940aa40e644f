"""
Windows of sensors with different sampling rates
================================================

A recording has an accelerometer at 100 Hz, an ECG at 250 Hz, a temperature at
4 Hz and one label per second. A window of eight seconds covers the same time
span of every signal. The signals are not resampled.
"""

import matplotlib.pyplot as plt
import numpy as np
from seqdata import Loader, Windows
from seqdata.datasets import make_recordings

store = make_recordings(8, minutes=10)
print(store)

# %%
# Windows may overlap (``stride_seconds``) or start at random positions
# (``random=True``). Windows are views of the recording and need no storage.

loader = Loader(store, Windows(seconds=8, batch_size=32), seed=2)
batch = next(iter(loader))
for name in ("acc", "ecg", "temp", "activity"):
    print(f"{name:9}", tuple(batch[name].shape))
print(len(loader), "batches")

# %%
# The chart shows one window of each activity.

names, rows = ["rest", "walk", "run"], []
for kind in range(3):
    pure = (batch["activity"] == kind).all(dim=1).nonzero()
    rows.append(int(pure[0]))
figure, axes = plt.subplots(
    3, 3, figsize=(10, 5), sharex=True, sharey="row", layout="constrained"
)
fields = {
    "acc": ("vertical\nacceleration\nm/s²", "#0072B2", 100),
    "ecg": ("ECG\nmV", "#D55E00", 250),
    "temp": ("skin\ntemperature\n°C", "#009E73", 4),
}
for line, (field, (label, color, rate)) in zip(
    axes, fields.items(), strict=True
):
    for axis, row in zip(line, rows, strict=True):
        values = batch[field][row].reshape(8 * rate, -1)[:, -1]
        mark = "." if rate == 4 else ""
        axis.plot(np.arange(8 * rate) / rate, values, mark + "-", color=color)
    line[0].set_ylabel(label)
for axis, name in zip(axes[0], names, strict=True):
    axis.set_title(name)
for axis in axes[2]:
    axis.set_xlabel("seconds")
plt.show()
