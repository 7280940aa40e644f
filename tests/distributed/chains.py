"""What a rank does in the tests of chains: parts of one run, each told to stop, on any world."""

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from seqdata.errors import PreemptedError
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.fixed import Bucketed, Fixed, Sorted
from seqdata.policies.packed import Packed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.windows import Windows
from tests.distributed.ddp import under_ddp
from tests.lightning.crashing import noisy, poor
from tests.lightning.harness import QUIET, Recorder, data_of, fit, quietly, sequences

POLICIES: dict[str, Callable[[], dict[str, Any]]] = {
    "fixed": lambda: {"batching": Fixed(3)},
    "fixed in order": lambda: {"batching": Fixed(3, shuffle=False)},
    "sorted": lambda: {"batching": Sorted(3, balance_ranks=2)},
    "bucketed": lambda: {"batching": Bucketed(3, balance_ranks=2)},
    "split": lambda: {"batching": Bucketed(4, max_length=4, too_long="split", balance_ranks=2)},
    "token budget": lambda: {"batching": TokenBudget(16, balance_ranks=2)},
    "windows": lambda: {"batching": Windows(3, stride=2, batch_size=8)},
    "crops": lambda: {"batching": Windows(2, batch_size=5, random=True, per_sequence=2)},
    "packed": lambda: {"batching": Packed(2, 10), "collator": "varlen"},
    "lanes": lambda: {"batching": TBPTT(6, 3)},
    "continuous lanes": lambda: {"batching": TBPTT(5, 3, continuous=True)},
}
COUNT = 45


class Seeing(pl.LightningModule):
    """Writes down each real row of each batch, to the last bit, in any layout."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[tuple[int, int, list[Any]]]] = []
        self.validated: list[tuple[int, list[int]]] = []
        self.begun: list[int] = []

    def training_step(self, batch, batch_idx):
        rows = torch.nonzero(batch.weight > 0).flatten().tolist()
        told = [(int(batch.ids[row]), int(batch.start[row]), content(batch, row)) for row in rows]
        self.seen.append([(batch.epoch, batch.number, told)])
        return self.layer(torch.ones(1, 1)).sum() * 0

    def validation_step(self, batch, batch_idx):
        self.validated.append((self.current_epoch, batch.real().ids.tolist()))

    def on_train_epoch_start(self):
        self.begun.append(self.current_epoch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def content(batch: Any, row: int) -> str:
    """Digest a row without its padding; of other layouts the whole batch."""
    data = batch["x"]
    data = data[row, : int(batch.lengths[row])] if batch.layout == "padded" else data
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()


class Told(Callback):
    """Tells the run to stop after so many steps of this process, on one rank."""

    def __init__(self, after: int | None) -> None:
        self.left = after

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if self.left is not None and trainer.global_rank == trainer.world_size - 1:
            self.left -= 1
            if not self.left:
                trainer.datamodule.stop("the test")


def part(spec: dict[str, Any]) -> dict[str, Any]:
    """Train from a checkpoint, if there is one, until told to stop; gives what was seen."""
    options = POLICIES[spec["policy"]]()
    data = SequenceDataModule(
        train=sequences(COUNT), val=sequences(5, 1), eval_batching=Bucketed(2), seed=3,
        transform=noisy, num_workers=spec["num_workers"], start_method="fork", **options,
    )  # fmt: skip
    saves = ModelCheckpoint(
        dirpath=spec["folder"], filename="saved", every_n_train_steps=1000, save_on_exception=True
    )
    model = Seeing()
    with quietly():
        trainer = pl.Trainer(
            **{
                **QUIET, "max_epochs": spec["epochs"], "callbacks": [saves, Told(spec["after"])],
                **(under_ddp(spec["world"]) if spec["world"] > 1 else {}),
            }
        )  # fmt: skip
        stopped = False
        try:
            trainer.fit(model, datamodule=data, ckpt_path=spec["ckpt"])
        except PreemptedError:
            stopped = True
    path = Path(spec["folder"]) / "saved.ckpt"
    state = torch.load(path)["SequenceDataModule"] if stopped else {}
    return {
        "seen": model.seen, "validated": model.validated, "begun": model.begun,
        "stopped": stopped, "state": len(json.dumps(state)),
    }  # fmt: skip


class Cycled(Recorder):
    """Under OneCycle, which wants to know how many updates there will be; keeps all rates."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        total = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=total)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def on_before_optimizer_step(self, optimizer):
        self.log_of.rates.append(optimizer.param_groups[0]["lr"])


def updates(spec: dict[str, Any]) -> dict[str, Any]:
    """Train with a constant number of batches per update; gives what decides the run."""
    data = data_of(
        spec["count"], batching=Bucketed(2), batches_per_update=spec["group"],
        num_workers=spec.get("num_workers", 0), start_method="fork",
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # a resumed ModelCheckpoint saves once before its first update
        warnings.filterwarnings("ignore", message=".*inside an update.*")
        warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*")
        run = fit(
            data, model=Cycled(), folder=Path(spec["folder"]), every=1, ckpt=spec["ckpt"],
            max_epochs=EPOCHS, **spec["trainer"],
            **(under_ddp(spec["world"]) if spec["world"] > 1 else {}),
        )  # fmt: skip
    return {
        "train": run.log.train, "val": run.log.val, "epochs": run.log.epochs,
        "rates": run.log.rates, "global_step": run.trainer.global_step,
        "parameters": run.model.parameters_of(),
    }  # fmt: skip


def mended(spec: dict[str, Any]) -> dict[str, Any]:
    """Go on from errors in the data; gives the count in the state after each step, and the end."""
    states: list[int] = []

    class Kept(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            states.append(trainer.datamodule.state_dict()["errors"])

    data = data_of(
        40, transform=poor, on_error="mask", max_errors=spec.get("max_errors", 100), val=None
    )
    error = None
    try:
        fit(
            data, callbacks=(Kept(),), folder=Path(spec["folder"]), every=1, ckpt=spec.get("ckpt"),
            max_epochs=EPOCHS, default_root_dir=spec["logs"],
            **(under_ddp(spec["world"]) if spec["world"] > 1 else {}),
        )  # fmt: skip
    except ValueError as failure:
        error = "\n".join([str(failure), *failure.__notes__])
    return {"states": states, "error": error}


EPOCHS = 2
TASKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "part": part,
    "updates": updates,
    "mended": mended,
}
