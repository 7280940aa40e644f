"""
Pack documents into rows, with a mask that keeps them apart
===========================================================

``Packed`` puts several short documents into each row, so that a batch has
almost no padding. A block mask lets each token attend only to earlier tokens
of the same document. Attention then returns the same result for every document
as without packing.
"""

import matplotlib.pyplot as plt
import torch
from seqdata import Loader, Packed
from seqdata.datasets import make_documents
from torch.nn import functional as F

documents = make_documents(200, median=40, sigma=0.7, vocabulary=100)
policy = Packed(rows=4, row_length=160, too_long="split")
batch = next(iter(Loader(documents, policy, seed=0)))
print("tokens", tuple(batch["tokens"].shape), f"{batch.num_tokens} real")
print(f"{len(batch.segments)} documents: row, document, start, stop")
print(batch.segments[:4].tolist())

# %%
# ``batch.segments`` lists the row and the timesteps of each document. The next
# lines compute the document of each token, and the mask. Kernels such as
# FlashAttention take ``cu_seqlens`` instead (``collator="varlen"``).

document = torch.full(batch["tokens"].shape, -1)
for row in range(len(batch)):
    of_row = batch.segments[batch.segments[:, 0] == row]
    sizes = of_row[:, 3] - of_row[:, 2]
    order = torch.arange(len(sizes)).repeat_interleave(sizes)
    document[row, : len(order)] = order
same = document[:, :, None] == document[:, None, :]
mask = same.tril() & (document >= 0)[:, :, None]  # (rows, T, T)

# %%
# Compare attention over the packed row with attention over only its second
# document:

torch.manual_seed(0)
q, k, v = torch.randn(3, *document.shape, 16).unbind()
packed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
where = document[0] == 1
one = (tensor[:1, where] for tensor in (q, k, v))
alone = F.scaled_dot_product_attention(*one, is_causal=True)
print(f"largest difference {(packed[0, where] - alone[0]).abs().max():.2g}")

# %%
# The left chart shows the rows of the batch, with a color for each document.
# The right chart shows the mask of row 0. Tokens attend only to dark cells.

figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 4.4), width_ratios=[1.25, 1], layout="constrained"
)
palette = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442"]
for row, values in enumerate(document):
    start = 0
    for number in values[values >= 0].unique().tolist():
        size = int((values == number).sum())
        color = palette[(number + 2 * row) % 6]
        left.barh(row, size - 0.8, left=start, color=color)
        start += size
    left.barh(row, 160 - start, left=start, color="#DDDDDD")
left.set(title="Four rows of documents", xlabel="timestep", yticks=range(4))
left.set(ylabel="row", ylim=(3.6, -0.6))
right.imshow(mask[0], cmap="Blues", interpolation="nearest")
right.set(title="Attention mask of row 0")
right.set(xlabel="attended to", ylabel="timestep")
plt.show()
