"""A rank that trains on a batch of each of two parts in every step."""

import warnings
from pathlib import Path
from typing import Any

import torch

from seqdata import Bucketed, SequenceDataModule, TokenBudget, Zip
from tests.distributed.ddp import under_ddp
from tests.lightning.harness import Recorder, fit, sequences

ZIP = Zip({"labelled": Bucketed(3), "unlabelled": TokenBudget(30)}, lead="labelled").for_ranks(2)
STEPS = 9  # of an epoch: an odd number, so that a rank has padding rows


class Zipped(Recorder):
    """It trains on both parts, and notes their batches without padding rows."""

    def training_step(self, batch, batch_idx):
        loss = torch.zeros((), dtype=torch.float64)
        for part, aim in (("labelled", 1.0), ("unlabelled", 0.5)):
            own = batch[part]
            error = (self.layer(own["x"]).squeeze(-1) - aim) ** 2
            loss = loss + (own.score * error).sum() * own.loss_scale
        self.log_of.steps.append((self.current_epoch, batch_idx))
        if batch["labelled"].weight.any():
            self.log_of.train.append(
                (
                    batch["labelled"].epoch,
                    batch["labelled"].number,
                    [(own.part_epoch, own.ids.tolist()) for own in batch.values()],
                )
            )
        return loss


def make_data() -> SequenceDataModule:
    """Return two parts with other fields, one of them much longer."""
    labelled = [{"x": rows, "y": number} for number, rows in enumerate(sequences(27, 1))]
    return SequenceDataModule(
        train={"labelled": labelled, "unlabelled": [{"x": rows} for rows in sequences(70, 2)]},
        batching=ZIP, batches_per_update=4, seed=3,
    )  # fmt: skip


def run_zipped(spec: dict[str, Any]) -> dict[str, Any]:
    """Fit, alone or as a rank; gives what was trained and the parameters."""
    ranks = under_ddp(spec["world"]) if spec["world"] > 1 else {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*inside an update.*|.*no `val_dataloader`.*")
        run = fit(
            make_data(), model=Zipped(), ckpt=spec.get("ckpt"), every=spec.get("every"),
            folder=Path(spec["folder"]) if "folder" in spec else None,
            max_epochs=spec["epochs"], **ranks,
        )  # fmt: skip
    return {
        "train": run.log.train,
        "steps": run.log.steps,
        "parameters": run.model.parameters_of(),
        "updates": run.trainer.global_step,
    }


TASKS = {"zipped": run_zipped}
