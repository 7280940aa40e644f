"""Cut gradients at random places, so that they are right on average (ARTBP).

Truncation at fixed places leaves out what reaches farther back, always in the same direction. Here
each edge between chunks is a cut with probability ``cut``; where it is none, the gradient that
crosses it is multiplied by 1 / (1 - cut), which makes up for those that were cut (C. Tallec and
Y. Ollivier, "Unbiasing truncated backpropagation through time", 2017). ``--draws`` says how many
are averaged.
"""

import argparse

import numpy as np
import torch
import torch.nn.functional as F

from seqdata import TBPTT, LaneStates, Loader


class Net(torch.nn.Module):
    """A small LSTM that remembers for long."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = torch.nn.LSTM(2, 4, batch_first=True)
        self.head = torch.nn.Linear(4, 1)
        with torch.no_grad():
            self.rnn.bias_hh_l0[4:8] += 2.0  # the forget gate stays open


def gradient(net: Net, loader: Loader, cut: float, random: np.random.Generator) -> torch.Tensor:
    """Return the gradient of one epoch's loss; ``cut`` 1: every edge, 0: none."""
    net.zero_grad()
    lanes, going_on, losses = LaneStates(), None, []
    for batch in loader:
        state = lanes.take(batch)  # its values; what goes on has these too, and a graph
        out, state = lanes.run(net.rnn, batch, "x", going_on or state)
        lanes.put(batch, state)
        errors = F.mse_loss(net.head(out)[..., 0], batch["y"], reduction="none")
        losses.append((errors * batch.score).sum())
        if random.random() < cut:
            torch.stack(losses).sum().backward()  # an optimizer may step here
            going_on, losses = None, []
        else:
            for tensor in state:
                tensor.register_hook(lambda grad: grad / (1 - cut))
            going_on = state
    if losses:
        torch.stack(losses).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters()])


def compare(draws: int) -> tuple[float, float, float]:
    """Return how far off gradients are, as shares of the true one's length.

    Returns:
        Of chunks that are always cut; of the mean over random cuts; and what is to be expected of
        that mean by chance, its standard error.
    """
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    x = random.normal(size=(32, 2))
    series = [{"x": x, "y": 0.3 * x[:, 0].cumsum()}]
    loader = Loader(series, TBPTT(lanes=1, chunk=8))
    net = Net().double()
    whole = gradient(net, loader, 0.0, random)
    always = gradient(net, loader, 1.0, random)
    found = torch.stack([gradient(net, loader, 0.5, random) for _ in range(draws)])
    errors = found.std(dim=0) / draws**0.5
    return tuple(
        float(difference.norm() / whole.norm())
        for difference in (always - whole, found.mean(0) - whole, errors)
    )


def main() -> None:
    """Compare, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=2_000)
    draws = parser.parse_args().draws
    torch.set_num_threads(1)
    always, mean, chance = compare(draws)
    print(f"always cut: the gradient is {always:.1%} off")
    print(f"cut at random, mean of {draws}: {mean:.1%} off, by chance {chance:.1%}")


if __name__ == "__main__":
    main()
