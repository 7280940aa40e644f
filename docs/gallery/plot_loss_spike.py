"""
Find the sequence behind a loss spike
=====================================

If the loss jumps at some steps, the data may be the cause. ``LossRecord``
records the sequences of each step and their losses. ``seqdata why`` names the
sequence with an unusually high loss.
"""

import json
import logging
import subprocess
import sys
import tempfile
import warnings

import lightning as L
import matplotlib.pyplot as plt
import numpy as np
import torch
from lightning.pytorch.loggers import CSVLogger
from seqdata import Bucketed, LossRecord, SequenceDataModule, write_store
from seqdata.datasets import load_japanese_vowels
from seqdata_models import LSTMClassifier

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
torch.set_num_threads(1)

# %%
# One of 270 utterances has the wrong label.

folder = tempfile.mkdtemp()
rows = list(load_japanese_vowels("train"))
rows[123]["y"] = (rows[123]["y"] + 5) % 9
write_store(f"{folder}/store", rows)
curve = []


class Classifier(LSTMClassifier):
    def training_step(self, batch):
        losses = self.row_losses(self(batch), batch)
        loss = (losses * batch.weight).sum() * batch.sequence_scale
        curve.append(loss.item())
        return {"loss": loss, "losses": losses}


L.seed_everything(0, verbose=False)
data = SequenceDataModule(train=f"{folder}/store", batching=Bucketed(9))
trainer = L.Trainer(
    max_epochs=9,
    callbacks=[LossRecord(score="losses")],
    logger=CSVLogger(folder, name="", version=""),
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Classifier(12, 9, hidden=32, learning_rate=1e-2), data)

# %%
# The example looks for the sequences that caused the highest loss in the last
# epochs. Without ``--json``, the command prints a table.

step = 150 + int(np.argmax(curve[150:]))
command = [sys.executable, "-m", "seqdata", "why", folder, "--json"]
done = subprocess.run(
    [*command, "--step", str(step), "--top", "9"],
    capture_output=True,
    check=True,
    timeout=600,
)
suspects = json.loads(done.stdout)["steps"][0]["suspects"]
print(f"step {step}: loss {curve[step]:.2f}")
for suspect in suspects[:3]:
    print(f"{suspect['key']:10} loss {suspect['score']:5.2f}", end=", ")
    print(f"before {suspect['mean_before']:5.2f}")

# %%
# The left chart shows the loss of the run. The right chart shows the losses of
# the sequences in the marked step.

figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 4), layout="constrained"
)
left.plot(curve, color="#0072B2")
left.plot(step, curve[step], "o", color="#D55E00", markersize=9)
left.set(xlabel="step", ylabel="loss, nats", ylim=(0, None))
names = [suspect["key"] for suspect in suspects]
scores = [suspect["score"] for suspect in suspects]
colors = ["#D55E00"] + ["#0072B2"] * (len(names) - 1)
right.barh(names, scores, color=colors)
right.invert_yaxis()
right.set(xlabel="loss, nats", title=f"Sequences of step {step}")
plt.show()
