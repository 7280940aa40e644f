"""A rank that trains on batches that a function has shaped for the model (`as_batch`)."""

from typing import Any

from seqdata import Bucketed, SequenceDataModule
from seqdata.errors import ConfigError
from tests.distributed.ddp import under_ddp
from tests.lightning.harness import Recorder, fit, sequences

COUNT = 27  # sequences: 9 batches, so that of two ranks one has a padding batch


def shape(batch):
    """Return what the model takes, with the weights of rows."""
    return {
        "inputs": (batch["x"], batch.score), "scale": batch.loss_scale, "weight": batch.weight,
        "ids": batch.ids,
    }  # fmt: skip


def shape_without_weight(batch):
    """Return what a model takes that knows nothing of padding rows."""
    return batch["x"], batch.lengths


class Shaped(Recorder):
    """It trains on shaped batches, and notes the losses of each update and the rows that count."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[tuple[int, float]] = []

    def training_step(self, batch, batch_idx):
        x, score = batch["inputs"]
        error = (self.layer(x).squeeze(-1) - 1.0) ** 2
        loss = (score * error).sum() * batch["scale"]
        self.losses.append((self.trainer.global_step, loss.item()))
        self.log_of.steps.append((self.current_epoch, batch_idx))
        real = tuple(batch["ids"][batch["weight"] > 0].tolist())
        self.log_of.train.append((self.current_epoch, batch_idx, real))
        return loss


def run_shaped(spec: dict[str, Any]) -> dict[str, Any]:
    """Fit, alone or as a rank; gives losses, rows and parameters, or the error."""
    ranks = under_ddp(spec["world"]) if spec["world"] > 1 else {}
    data = SequenceDataModule(
        train=[{"x": rows} for rows in sequences(COUNT, 1)],
        batching=Bucketed(3, balance_ranks=2), batches_per_update=4, seed=3,
        as_batch=shape_without_weight if spec.get("bare") else shape,
    )  # fmt: skip
    model, error = Shaped(), None
    try:
        fit(data, model=model, max_epochs=2, **ranks)
    except ConfigError as caught:
        error = (type(caught).__name__, str(caught))
    return {
        "losses": model.losses,
        "rows": [(epoch, row) for epoch, _, rows in model.log_of.train for row in rows],
        "padding": sum(not rows for _, _, rows in model.log_of.train),
        "parameters": model.parameters_of(),
        "steps": len(model.log_of.steps),
        "error": error,
    }


TASKS = {"shaped": run_shaped}
