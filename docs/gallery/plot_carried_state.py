"""
Stateful LSTM: the loss with and without a carried hidden state
===============================================================

This example trains on long sequences in chunks of 16 timesteps. An LSTM that
begins each chunk with a zero state cannot use earlier chunks. ``LaneStates``
carries the state of each lane to the next chunk and resets the state at the
start of a sequence.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from seqdata import TBPTT, LaneStates, Loader
from seqdata.datasets import make_flip_flops
from torch.nn import functional as F

torch.set_num_threads(1)
CHUNK = 16

# %%
# Pulses of +1 and -1 arrive at random. At each timestep, the model must tell
# which pulse came last, on average 20 timesteps ago.

store = make_flip_flops(64, bits=1, pulses=0.05, median=400)
loader = Loader(store, TBPTT(lanes=32, chunk=CHUNK, segments=True), seed=0)


def train(carry, epochs=5):
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(1, 16, batch_first=True)
    head = torch.nn.Linear(16, 2)
    parameters = [*lstm.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, 2e-2)
    lanes, losses = LaneStates(), []
    by_place = torch.zeros(2, CHUNK)  # sums of losses, and their number
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            state = lanes.take(batch) if carry else None
            out, state = lanes.run(lstm, batch, "x", state)
            lanes.put(batch, state)
            logits = head(out).transpose(1, 2)
            nll = F.cross_entropy(logits, batch["y"], reduction="none")
            loss = (nll * batch.score).sum() * batch.loss_scale
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            losses.append(loss.item())
            if epoch == epochs - 1 and nll.shape[1] == CHUNK:
                sums = [
                    (nll.detach() * batch.score).sum(0),
                    batch.score.sum(0),
                ]
                by_place += torch.stack(sums)
    return losses, by_place[0] / by_place[1]


results = {
    "state of zeros in each chunk": train(carry=False),
    "carried state (LaneStates)": train(carry=True),
}
for name, (losses, _) in results.items():
    print(f"{name:29} loss {np.mean(losses[-50:]):.3f} nats per timestep")

# %%
# The right chart shows the loss by position in the chunk, in the last epoch.
# Without a carried state, the loss is high at the beginning of each chunk.

figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 3.8), layout="constrained"
)
styles = zip(results.items(), ["#E69F00", "#0072B2"], strict=True)
for (name, (losses, by_place)), color in styles:
    smooth = np.convolve(losses, np.ones(15) / 15, mode="valid")
    left.plot(smooth, color=color, label=name)
    right.plot(by_place, color=color, label=name)
left.set(xlabel="step", ylabel="loss, nats per timestep", ylim=(0, None))
right.set(xlabel="timestep of the chunk", ylabel="loss", ylim=(0, None))
right.legend(frameon=False, loc=(0.05, 0.2))
plt.show()
