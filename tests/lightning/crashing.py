"""A model that crashes at one batch and keeps it, and transforms that have an import path."""

from typing import Any

from tests.lightning.harness import Recorder, sequences

PARTS = ("ids", "lengths", "weight", "start")
NUMBERS = (
    "epoch", "number", "num_tokens", "global_num_tokens", "update_num_tokens", "loss_scale",
    "sequence_scale",
)  # fmt: skip


def told(batch: Any) -> dict[str, Any]:
    """Return all that a batch says, bit by bit."""
    parts = {name: getattr(batch, name).numpy().tobytes() for name in PARTS}
    data = {
        name: value if isinstance(value, list) else value.numpy().tobytes()
        for name, value in batch.data.items()
    }
    numbers = {name: getattr(batch, name) for name in NUMBERS}
    lanes = None if batch.lanes is None else (batch.lanes.tolist(), batch.reset.tolist())
    return {**parts, **numbers, "data": data, "lanes": lanes}


class Crashing(Recorder):
    """Crashes in the training step of one batch; ``kept`` is what that batch said."""

    def __init__(self, epoch: int = 0, step: int = 3) -> None:
        super().__init__()
        self.at = epoch, step
        self.kept: dict[str, Any] = {}

    def training_step(self, batch, batch_idx):
        if (batch.epoch, batch_idx) == self.at:
            self.kept = told(batch)
            raise OSError("told to crash")
        return super().training_step(batch, batch_idx)


def noisy(sequence, rng):
    """Add noise."""
    return {**sequence, "x": sequence["x"] + rng.random(sequence["x"].shape)}


def halved(sequence, rng):
    """Keep every other timestep."""
    return {**sequence, "x": sequence["x"][: len(sequence["x"]) // 2 * 2 : 2]}


halved.lengths = lambda lengths: lengths // 2


def poor(sequence, rng):
    """Fail at the first sequence of nine timesteps."""
    if len(sequence["x"]) == 9:
        raise ValueError("nine is too many")
    return sequence


# of 40 sequences and of 23, those at which ``poor`` fails
FAILING, BAD = (sum(len(one) == 9 for one in sequences(count)) for count in (40, 23))
