"""
Find corrupt data: one flipped bit, here and elsewhere
======================================================

Disks, memory and copies can flip bits. A memory-mapped file returns the wrong
value, and training continues. A seqdata store has a checksum for every
sequence. seqdata compares the checksum at the first read and raises an error
that names the sequence.
"""

import tempfile
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from seqdata import CorruptSampleError, Fixed, Loader, open_store, write_store
from seqdata.datasets import load_japanese_vowels

folder = Path(tempfile.mkdtemp())
sequences = load_japanese_vowels("train")
frames = np.concatenate([sequence["x"] for sequence in sequences])
np.save(folder / "frames.npy", frames)
write_store(folder / "store", sequences)

# %%
# The example flips the same bit of the same value in a NumPy file and in a
# store.

FRAME, COEFFICIENT = 2_000, 3


def flip_bit(path, place):
    with open(path, "r+b") as file:
        file.seek(place + 3)  # the high byte of a float32
        byte = file.read(1)[0]
        file.seek(place + 3)
        file.write(bytes([byte ^ 0b0100_0000]))


value = 4 * (12 * FRAME + COEFFICIENT)  # in bytes
flip_bit(folder / "frames.npy", 128 + value)  # behind the header
first = open_store(folder / "store").manifest.shards[0].buffers["x"][0][0]
flip_bit(folder / "store" / "part-00000.arrow", first + value)

# %%
# Reading the NumPy file raises no error and returns one wrong value.

mapped = np.load(folder / "frames.npy", mmap_mode="r")
print(f"was {frames[FRAME, COEFFICIENT]:.4f}", end=", ")
print(f"is {mapped[FRAME, COEFFICIENT]:.4g}")

# %%
# With the store, the epoch stops at the batch with the damaged sequence.

message = ""
try:
    batches = list(Loader(folder / "store", Fixed(30)))
except CorruptSampleError as error:
    message = str(error).replace(str(folder), "...")
message = "\n".join(textwrap.fill(line, 56) for line in message.split("\n"))
print(message)

# %%

figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 3.8), layout="constrained"
)
near = slice(FRAME - 40, FRAME + 41)
place = np.arange(near.start, near.stop)
left.plot(place, mapped[near, COEFFICIENT], color="#D55E00", label="as read")
left.plot(place, frames[near, COEFFICIENT], color="black", label="as written")
left.set_yscale("symlog", linthresh=1e3)
left.set_yticks([0, -1e13, -1e26, -1e39])
left.set(xlabel="frame", ylabel="value", title="numpy.load: no error")
left.legend(frameon=False)
right.axis("off")
right.set_title("seqdata: CorruptSampleError")
right.text(0, 0.95, message, va="top", family="monospace",
           fontsize=9, transform=right.transAxes)  # fmt: skip
plt.show()
