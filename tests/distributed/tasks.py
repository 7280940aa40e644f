"""What a rank does in a test: one function per task, from plain values to plain values."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from seqdata.errors import DecodeError, SeqDataError
from seqdata.index import SequenceIndex
from seqdata.lightning import adapter
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.lightning.metrics import ExactMean
from seqdata.lightning.ranks.collect import check_consistent
from seqdata.plan import Plan
from seqdata.policies.fixed import Bucketed
from seqdata.sharing import World
from seqdata.storage.memory import MemoryStore
from tests.distributed import (
    chains,
    crashes,
    determined,
    differing,
    drawn,
    failing,
    feedback,
    lanes,
    returned,
    shaped,
    watching,
    zipped,
)
from tests.distributed.ddp import under_ddp
from tests.lightning.crashing import Crashing
from tests.lightning.crashing import told as told_by_batch
from tests.lightning.harness import QUIET, Lanes, Recorder, Run, data_of, fit, quietly, sequences
from tests.lightning.predictions import predicting


def told(run: Run) -> dict[str, Any]:
    """Return what a run did, as plain values."""
    return {
        "train": run.log.train,
        "steps": run.log.steps,
        "val": run.log.val,
        "epochs": run.log.epochs,
        "global_step": run.trainer.global_step,
        "parameters": run.model.parameters_of(),
        "error": None if run.error is None else str(run.error),
        "rate": run.trainer.optimizers[0].param_groups[0]["lr"],
    }


def run_fit(spec: dict[str, Any]) -> dict[str, Any]:
    """Fit as ``spec`` says; an error of ours is told, not raised."""
    states = States()
    with strictly():
        if "batches_per_update" in spec.get("data", {}):
            # a resumed ModelCheckpoint saves once before its first update
            warnings.filterwarnings("ignore", message=".*inside an update.*")
        try:
            run = fit(
                data_in(spec),
                model=Recorder(**spec.get("model", {})),
                folder=Path(spec["folder"]) if "folder" in spec else None,
                every=spec.get("every"),
                ckpt=spec.get("ckpt"),
                callbacks=(states,) if spec.get("states") else (),
                **spec.get("trainer", {}),
                **under_ddp(spec["world"]),
            )
        except SeqDataError as error:
            return {"refused": type(error).__name__, "text": str(error), "details": error.details}
    return {**told(run), "states": states.seen}


def data_in(spec: dict[str, Any]) -> SequenceDataModule:
    """Make the DataModule that a task is told of."""
    options = dict(spec.get("data", {}))
    if options.pop("impure", False):
        return data_of(batching=Impure(), **options)
    batch, lanes = options.pop("batch", 4), options.pop("lanes", 0)
    return data_of(batching=Lanes(lanes) if lanes else Bucketed(batch, balance_ranks=2), **options)


class Impure:
    """A policy that breaks the rule of policies: its plan depends on the process."""

    axis = "time"

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        return Bucketed(4).plan(index, seed=os.getpid(), epoch=epoch)

    def num_batches(self, index: SequenceIndex) -> int:
        return Bucketed(4).num_batches(index)


@contextmanager
def strictly() -> Iterator[None]:
    """Make every warning an error, as pytest does."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*treespec, LeafSpec.*")
        yield


class States(Callback):
    """Takes the DataModule's state after each step."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.seen.append(trainer.datamodule.state_dict())


def evaluate(spec: dict[str, Any]) -> list[tuple[int, ...]]:
    """Test a model; gives the real ids of each batch of this rank."""
    model, data = Recorder(), data_in(spec)
    with strictly(), quietly():
        pl.Trainer(**{**QUIET, **under_ddp(spec["world"])}).test(model, datamodule=data)
    return [ids for _, ids in model.log_of.val]


def predict(spec: dict[str, Any]) -> list[list[int]]:
    """Predict; gives the real ids of each batch of this rank."""
    data = data_in(spec)
    with strictly(), quietly():
        trainer = pl.Trainer(**{**QUIET, **under_ddp(spec["world"])})
        return trainer.predict(Recorder(), datamodule=data)


def write_predictions(spec: dict[str, Any]) -> str:
    """Predict to a store; gives the error, if there is one."""
    data = written_data(**spec.get("data", {}))
    model = predicting.Predictor(**spec.get("model", {}))
    with strictly():
        try:
            predicting.predict(
                data,
                Path(spec["location"]),
                model=model,
                trainer={**under_ddp(spec["world"]), "limit_predict_batches": spec.get("limit")},
                **spec.get("writer", {}),
            )
        except (SeqDataError, OSError) as error:
            return f"{type(error).__name__}: {error}"
    return ""


def written_data(
    count: int = 27,
    *,
    take: list[int] | None = None,
    split: int | None = None,
    named: int | None = None,
    batch: int = 2,
) -> SequenceDataModule:
    """Make data to be predicted: whole, a view, in pieces of ``split``, or two sets by name."""
    rows = [{"id": f"s{number}", "x": one} for number, one in enumerate(sequences(count))]
    given: Any = rows if named is None else {"one": rows[:named], "two": rows[named:]}
    if take is not None:
        given = MemoryStore.from_sequences(rows).take(take)
    policy = Bucketed(batch, balance_ranks=2)
    if split is not None:
        policy = Bucketed(batch, max_length=split, too_long="split", balance_ranks=2)
    return SequenceDataModule(predict=given, batching=policy)


def exact_mean(spec: dict[str, Any]) -> dict[str, Any]:
    """Validate: the exact mean, the mean of the ranks' means, and what a new epoch begins with."""

    class Validated(Recorder):
        def on_validation_epoch_start(self):
            self.exact = ExactMean()
            self.values = []

        def validation_step(self, batch, batch_idx):
            x = batch["x"][..., 0].exp()
            self.exact.update((x * batch.score).sum(), batch.score.sum())
            self.values.extend(x[batch.score].tolist())

    data, model = data_in(spec), Validated()
    with strictly(), quietly():
        strategy = under_ddp(spec["world"]) if spec["world"] > 1 else {}
        pl.Trainer(**{**QUIET, **strategy}).validate(model, datamodule=data, verbose=False)
    return {"mean": model.exact.compute(), "values": model.values}


def compare(spec: dict[str, Any]) -> str:
    """Say what ranks that differ are told."""
    rank = torch.distributed.get_rank()
    error = DecodeError.at("field 'x' is bad", shard=7) if spec.get("failing") == rank else None
    try:
        check_consistent(
            World(rank, spec["world"]), {"data": "a", "position": spec["position"]}, error
        )
    except SeqDataError as different:
        return f"{type(different).__name__}: {different} {different.details}"
    return "equal"


def parallel_world(spec: dict[str, Any]) -> tuple[int, int]:
    """Return rank and size of a Trainer of two by two data- and tensor-parallel ranks."""
    strategy = ModelParallelStrategy(
        data_parallel_size=2, tensor_parallel_size=2, process_group_backend="gloo"
    )
    trainer = pl.Trainer(
        **{**QUIET, "devices": 4, "strategy": strategy, "plugins": [TorchElasticEnvironment()]},
        max_epochs=1,
    )
    trainer.strategy.connect(Recorder())
    trainer.strategy.setup_environment()
    torch.distributed.barrier()  # who ends now would break off groups that others still connect
    world = adapter.get_world(trainer)
    return world.rank, world.size


class Meshed(Recorder):
    """A model of a device mesh, of which a part is shared out to the ranks of a replica."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(2, 2).requires_grad_(False)

    def configure_model(self):
        mesh = self.device_mesh["tensor_parallel"]
        parallelize_module(self.wide, mesh, ColwiseParallel())


def fit_on_mesh(spec: dict[str, Any]) -> dict[str, Any]:
    """Fit on two replicas of two ranks each, and go on from a checkpoint if told so."""
    strategy = ModelParallelStrategy(
        data_parallel_size=2, tensor_parallel_size=2, save_distributed_checkpoint=False,
        process_group_backend="gloo",
    )  # fmt: skip
    run = fit(
        data_of(spec["count"], batches_per_update=4), model=Meshed(),
        folder=Path(spec["folder"]) if "folder" in spec else None, every=1, ckpt=spec.get("ckpt"),
        max_epochs=2, devices=4, strategy=strategy, plugins=[TorchElasticEnvironment()],
    )  # fmt: skip
    return {"train": run.log.train, "val": run.log.val, "state": run.data.state_dict()}


def read_damage(spec: dict[str, Any]) -> str:
    """Fit over a damaged store; tell what was said of it."""
    data = SequenceDataModule(train=spec["store"], batching=Bucketed(4), seed=3)
    try:
        fit(data, default_root_dir=spec["logs"], max_epochs=1, **under_ddp(spec["world"]))
    except SeqDataError as error:
        return str(error)
    return "nothing"


def crash(spec: dict[str, Any]) -> dict[str, Any]:
    """Crash in one step of all ranks; tell what was said, and what each batch was."""
    data = SequenceDataModule(train=spec["store"], batching=Bucketed(4), seed=3)
    run = fit(
        data,
        model=Crashing(step=spec["step"]),
        default_root_dir=spec["logs"],
        max_epochs=1,
        **under_ddp(spec["world"]),
    )
    own = run.model.kept
    step = data.replay(epoch=0, step=spec["step"], rank=data.trainer.global_rank)
    return {"notes": run.error.__notes__, "kept": own, "here": told_by_batch(step) == own}


_OWN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "fit": run_fit,
    "test": evaluate,
    "predict": predict,
    "write_predictions": write_predictions,
    "exact_mean": exact_mean,
    "compare": compare,
    "parallel_world": parallel_world,
    "fit_on_mesh": fit_on_mesh,
    "crash": crash,
    "read_damage": read_damage,
}
TASKS = dict(  # a name that two files use is an error
    **_OWN,
    **chains.TASKS,
    **crashes.TASKS,
    **failing.TASKS,
    **feedback.TASKS,
    **determined.TASKS,
    **differing.TASKS,
    **drawn.TASKS,
    **lanes.TASKS,
    **watching.TASKS,
    **returned.TASKS,
    **shaped.TASKS,
    **zipped.TASKS,
)
