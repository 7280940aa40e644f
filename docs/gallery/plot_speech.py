"""
Speech: from the waveform to a batch of log-mel spectrograms
============================================================

The loader turns utterances of half a second to four seconds into log-mel
spectrograms. Batches are planned by the number of frames, not of utterances,
so that all batches have about the same size. The text of an utterance has a
separate axis.
"""

import matplotlib.pyplot as plt
import numpy as np
from seqdata import Loader, TokenBudget
from seqdata.datasets import make_speech
from seqdata_audio import LogMel

sounds = make_speech(40)  # synthetic digits, 16,000 samples a second
print(sounds)

# %%
# ``LogMel`` computes the number of frames from the number of samples, so the
# plan counts frames. To open your own files, use ``open_store("clips/")``.

log_mel = LogMel(rate=16_000, n_mels=80, n_fft=400, hop_length=160)
loader = Loader(sounds, TokenBudget(2_000), transform=log_mel, seed=0)
batches = list(loader)
for batch in batches[:4]:
    padding = 1 - batch.num_tokens / batch["mel"].shape[:2].numel()
    print(
        "mel", tuple(batch["mel"].shape), f"{padding:4.0%} padding", end="  "
    )
    print("tokens", tuple(batch["tokens"].shape))

# %%
# A CTC loss needs two lengths, ``batch.lengths`` and
# ``batch.lengths_of["tokens"]``.

batch = next(batch for batch in batches if len(batch) >= 6)
first = sounds[int(batch.ids[0])]
figure, axes = plt.subplot_mosaic(
    [["sound", "batch"], ["mel", "batch"]],
    figsize=(10, 5), layout="constrained",
)  # fmt: skip
seconds = np.arange(len(first["audio"])) / 16_000
axes["sound"].plot(seconds, first["audio"], color="#0072B2", linewidth=0.5)
axes["sound"].set(title=f'"{first["text"]}"', ylabel="amplitude")
axes["sound"].set(xlim=(0, seconds[-1]), xticks=[])
mel = batch["mel"][0, : batch.lengths[0]]
axes["mel"].imshow(
    mel.T, origin="lower", aspect="auto", cmap="magma",
    extent=(0, seconds[-1], 0, 80),
)  # fmt: skip
axes["mel"].set(xlabel="seconds", ylabel="mel band", title="log-mel, dB")
rows = batch["mel"].clone()
rows[~batch.mask] = float("nan")  # padding
image = rows.transpose(1, 2).flip(1).reshape(-1, rows.shape[1])
axes["batch"].imshow(image, aspect="auto", cmap="magma")
axes["batch"].set_facecolor("#DDDDDD")
axes["batch"].set_yticks(80 * np.arange(len(batch)) + 40, range(len(batch)))
for row in range(1, len(batch)):
    axes["batch"].axhline(80 * row, color="white", linewidth=2)
axes["batch"].set(
    xlabel="frame", ylabel="row", title="One batch; grey: padding"
)
plt.show()
