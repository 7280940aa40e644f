"""
Imbalanced classes: draw the rare class as often as the others
==============================================================

One user in twenty is fraudulent, so most batches have at most one fraudulent
user, and the model learns to answer "ok". ``Weighted`` with ``balanced`` draws
each class equally often in every epoch.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from seqdata import Bucketed, Loader, Weighted, balanced, open_store, split
from seqdata.datasets import make_events
from torch.nn import functional as F

torch.set_num_threads(1)
events = make_events(800, rare=0.05)  # a table with a row per event
store = open_store(events, group="user", order="time")
parts = split(store, {"train": 0.6, "val": 0.4}, stratify="label")
print(store)

# %%
# The model is a small classifier with an LSTM that reads the actions of a
# user.


class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(6, 24, batch_first=True)
        self.head = torch.nn.Linear(24, 1)

    def forward(self, batch):
        amount = batch["amount"].float().log1p().unsqueeze(-1)
        x = torch.cat([F.one_hot(batch["action"].long(), 5), amount], -1)
        hidden, _ = self.lstm(x)
        means = (hidden * batch.mask.unsqueeze(-1)).sum(1)
        return self.head(means / batch.lengths.unsqueeze(-1)).squeeze(-1)


def is_fraud(batch):
    return torch.tensor([label == "fraud" for label in batch["label"]])


def train(policy, epochs=8):
    torch.manual_seed(0)
    model, rare, recall = Detector(), [], []
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    loader = Loader(parts["train"], policy, seed=0)
    for _ in range(epochs):
        for batch in loader:
            y = is_fraud(batch)
            rare.append(int(y.sum()))
            loss = F.binary_cross_entropy_with_logits(model(batch), y.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            val = list(Loader(parts["val"], Bucketed(64)))
            found = torch.cat([model(batch) > 0 for batch in val])
        true = torch.cat([is_fraud(batch) for batch in val])
        recall.append(float((found & true).sum() / true.sum()))
    return rare, recall, float((found & true).sum() / max(found.sum(), 1))


policies = {
    "as they come": Bucketed(32),
    "balanced": Weighted(Bucketed(32), balanced("label")),
}
results = {name: train(policy) for name, policy in policies.items()}
for name, (rare, recall, precision) in results.items():
    print(f"{name:12} {np.mean(rare):4.1f} of 32 rows are fraud,", end=" ")
    print(f"recall {recall[-1]:.0%}, precision {precision:.0%}")

# %%
# The left chart shows the number of frauds in each training batch. The right
# chart shows how many frauds among the held-out users the model finds.

figure, (left, right) = plt.subplots(
    1, 2, figsize=(10, 3.6), layout="constrained"
)
styles = zip(results.items(), ["#E69F00", "#0072B2"], "so", strict=True)
for (name, (rare, recall, _)), color, marker in styles:
    left.plot(rare, color=color, label=name)
    right.plot(
        range(1, len(recall) + 1),
        recall,
        color=color,
        marker=marker,
        label=name,
    )
left.set(xlabel="batch", ylabel="frauds of 32 rows", ylim=(-0.5, 32))
right.set(xlabel="epoch", ylabel="recall of frauds", ylim=(-0.03, 1.03))
left.legend(frameon=False)
right.legend(frameon=False)
plt.show()
