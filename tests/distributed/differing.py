"""What a rank does in the tests of ranks that were given other arguments."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch

from seqdata.errors import SeqDataError
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.loading import rank_comparison
from seqdata_testing.waiting import patient
from tests.distributed.ddp import under_ddp
from tests.lightning.harness import QUIET, Recorder, quietly
from tests.lightning.ranks import differing

OF = {
    "data": differing.DATA,
    "trainer": differing.TRAINER,
    "data free": differing.DATA_FREE,
    "trainer free": differing.TRAINER_FREE,
}


class Simple(Recorder):
    """Of any dtype and layout; with losses of rows for Feedback."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return {"loss": loss, "losses": batch.weight}


def differ(spec: dict[str, Any]) -> dict[str, Any]:
    """Fit with the argument that is meant for this rank; tell what was trained, or the error."""
    rank = torch.distributed.get_rank()
    found = OF[spec["of"]][spec["name"]]
    value = (found if spec["of"].endswith("free") else found[spec["number"]])[rank]
    own = differing.make_options(spec["name"], value)
    data = {
        "train": differing.ROWS,
        "val": differing.ROWS[:5],
        "batching": differing.ANY,
        "seed": 0,
    }
    trainer = {
        **QUIET, "num_sanity_val_steps": 2, "max_epochs": 2, "enable_checkpointing": False,
        **under_ddp(spec["world"]),
    }  # fmt: skip
    if spec["of"].startswith("data"):
        data |= own
    else:
        trainer |= own
    if spec["name"] == "lengths":
        data["train"] = differing.Items()
    if spec["name"] == "val" and value is differing.UNSET:
        del data["val"]
    if spec["name"] == "barebones":
        del trainer["num_sanity_val_steps"]
    if spec["name"] == "gradient_clip_algorithm":
        trainer["gradient_clip_val"] = 1.0
    if spec["name"] == "callbacks":
        trainer["enable_checkpointing"] = True
    if "Feedback" in spec.get("named", ""):
        data["batching"] = differing.WEIGHTED
    model = Simple()
    with quietly():
        try:
            pl.Trainer(**trainer).fit(model, datamodule=SequenceDataModule(**data))
        except SeqDataError as error:
            return {"error": f"{type(error).__name__}: {error}", "train": model.log_of.train}
    return {"error": None, "train": model.log_of.train, "parameters": model.parameters_of()}


def play(spec: dict[str, Any]) -> dict[str, Any]:
    """Iterate over a Loader with the argument that is meant for this rank, in step with all."""
    rank = torch.distributed.get_rank()
    found = differing.LOADER[spec["name"]][spec["number"]][rank if spec["differs"] else 0]
    loader, ids = differing.make_loader(spec["name"], found), list[list[int]]()
    try:
        for _ in range(2):
            for batch in loader:
                ids.append(batch.real().ids.tolist())
                torch.distributed.barrier()
    except SeqDataError as error:
        return {"error": f"{type(error).__name__}: {error}", "ids": ids}
    return {"error": None, "ids": ids}


def play_alone(spec: dict[str, Any]) -> int | str:
    """Iterate on rank 0 only, before the others do."""
    loader = differing.make_loader("seed", torch.distributed.get_rank() if spec["differs"] else 0)
    if torch.distributed.get_rank() == 0:
        patience, rank_comparison.PATIENCE = rank_comparison.PATIENCE, 0.1
        next(iter(loader))
        rank_comparison.PATIENCE = patient(patience)
    torch.distributed.barrier()
    try:
        return sum(1 for _ in loader)
    except SeqDataError as error:
        return str(error)


TASKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "differ": differ,
    "play": play,
    "play_alone": play_alone,
}
