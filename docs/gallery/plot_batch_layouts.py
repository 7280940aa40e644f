"""
Padded, PackedSequence, nested and varlen: one batch in four layouts
====================================================================

This example shows the same five sequences in four layouts: a padded tensor
with its mask, a ``PackedSequence`` for ``torch.nn.LSTM``, a nested tensor,
and flat values with ``cu_seqlens`` for attention kernels. You can convert
a batch to any other layout without loss.
"""

import matplotlib.pyplot as plt
import numpy as np
from seqdata import Bucketed, Loader

lengths = [9, 4, 7, 2, 5]
rows = [
    {"x": np.arange(length, dtype="float32") + 10 * number}
    for number, length in enumerate(lengths)
]
batch = next(iter(Loader(rows, Bucketed(5))))
print("x       ", tuple(batch["x"].shape), batch["x"].dtype)
print("lengths ", batch.lengths.tolist())
print("ids     ", batch.ids.tolist())
print("tokens  ", batch.num_tokens)

# %%
# The other layouts contain the same values. To get a layout directly from the
# Loader or the DataModule, pass its name, such as ``collator="varlen"``.

packed = batch.as_layout("packed")["x"]
nested = batch.as_layout("jagged")["x"]
varlen = batch.as_layout("varlen")
print("packed  ", packed.batch_sizes.tolist())
print("nested  ", [len(row) for row in nested.unbind()])
print("varlen  ", varlen.cu_seqlens.tolist())

# %%
# Each color marks a sequence, and each number is a timestep of the sequence. A
# ``PackedSequence`` stores timestep 0 of all rows, then timestep 1 of all
# rows, and so on.

COLORS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"]


def draw(axis, x, y, value, is_padding=False):
    color = "#DDDDDD" if is_padding else COLORS[int(value // 10)]
    axis.add_patch(plt.Rectangle((x, y), 0.94, 0.9, color=color))
    step = "" if is_padding else int(value % 10)
    axis.text(x + 0.47, y + 0.47, step, ha="center", va="center")


figure, axes = plt.subplot_mosaic(
    [["padded", "jagged"], ["packed"] * 2, ["varlen"] * 2],
    figsize=(10, 5), height_ratios=[5, 2, 2], layout="constrained",
)  # fmt: skip
for row, values in enumerate(batch["x"].tolist()):
    for step, value in enumerate(values):
        is_padding = not batch.mask[row, step]
        draw(axes["padded"], step, row, value, is_padding)
for row, values in enumerate(nested.unbind()):
    for step, value in enumerate(values.tolist()):
        draw(axes["jagged"], step, row, value)
for name, flat in {"packed": packed.data, "varlen": varlen["x"]}.items():
    for place, value in enumerate(flat.tolist()):
        draw(axes[name], place, 0, value)
for bound in varlen.cu_seqlens.tolist():
    axes["varlen"].text(bound, 1.6, bound, ha="center")
starts = np.cumsum([0, *packed.batch_sizes.tolist()])
for start, size in zip(starts, packed.batch_sizes.tolist(), strict=False):
    axes["packed"].text(start + size / 2, 1.6, size, ha="center")
axes["padded"].set_title('"padded": a tensor and its mask')
axes["jagged"].set_title('"jagged": a nested tensor')
axes["packed"].set_title('"packed": PackedSequence, with batch_sizes')
axes["varlen"].set_title('"varlen": row after row, with cu_seqlens')
for name, axis in axes.items():
    is_flat = name in ("packed", "varlen")
    axis.set(
        xlim=(-0.2, 27 if is_flat else 9), ylim=(1.7 if is_flat else 5, -0.1)
    )
    axis.set_aspect("equal")
    axis.axis("off")
plt.show()
