"""What a rank does in the tests of the contract: loaders that are not ours, and two nodes."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler
from torch.utils.data import SequentialSampler as InOrder

from seqdata.api import write_store
from seqdata.errors import SeqDataError
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Bucketed
from seqdata.sharing import World
from tests.distributed.ddp import under_ddp
from tests.lightning.harness import QUIET, Recorder, data_of, quietly, sequences

COUNT = 6


class Numbers(Dataset):
    """Six numbers."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.tensor(float(number))


class Stream(IterableDataset):
    """The same six."""

    def __iter__(self):
        return (torch.tensor(float(number)) for number in range(COUNT))


class Planned(BatchSampler):
    """A plan of its own, without a sampler to be told of."""

    def __init__(self, plan: list[list[int]]) -> None:
        self.plan = plan

    def __iter__(self):
        return iter(self.plan)

    def __len__(self) -> int:
        return len(self.plan)


class PlannedOver(BatchSampler):
    """Long batches first, made from what a sampler gives at the beginning."""

    def __init__(self, sampler: Any, batch_size: int = 2, drop_last: bool = False) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self.plan = [[5, 4, 3], [2], [1, 0]]

    def __iter__(self):
        return iter(self.plan)


class Plain(Sampler):
    """A plan of its own that is no ``BatchSampler``."""

    def __init__(self, plan: list[list[int]]) -> None:
        self.plan = plan

    def __iter__(self):
        return iter(self.plan)

    def __len__(self) -> int:
        return len(self.plan)


class Duck:
    """Looks like a ``BatchSampler``; its first argument is a plan."""

    def __init__(self, plan: Any, batch_size: int = 2, drop_last: bool = False) -> None:
        self.plan, self.batch_size, self.drop_last = plan, batch_size, drop_last

    def __iter__(self):
        return (one if isinstance(one, list) else [one] for one in self.plan)

    def __len__(self) -> int:
        return len(self.plan)


class Extra(DataLoader):
    """A ``DataLoader`` with an argument of its own."""

    def __init__(self, data: Any, *, flavour: str, **options: Any) -> None:
        super().__init__(data, **options)
        self.flavour = flavour


PLAN = [[3, 4], [1, 2], [0, 5]]
RETURNED: dict[str, Callable[[], DataLoader]] = {
    "map": lambda: DataLoader(Numbers(), batch_size=2, sampler=InOrder(Numbers()), drop_last=True),
    "batch_sampler": lambda: DataLoader(Numbers(), batch_sampler=Planned(PLAN)),
    "batch_sampler_over_sampler": lambda: DataLoader(
        Numbers(), batch_sampler=PlannedOver(InOrder(Numbers()))
    ),
    "plain_sampler": lambda: DataLoader(Numbers(), batch_sampler=Plain(PLAN)),
    "duck": lambda: DataLoader(Numbers(), batch_sampler=Duck(PLAN)),
    "iterable": lambda: DataLoader(Stream(), batch_size=2),
    "no_batch_size": lambda: DataLoader(Numbers(), batch_size=None),
    "subclass": lambda: Extra(Numbers(), flavour="sweet", batch_size=2),
}


class Writing(pl.LightningModule):
    """Writes down what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def training_step(self, batch, batch_idx):
        self.seen.append([int(one) for one in batch.reshape(-1)])
        return self.layer(batch.reshape(-1, 1)).sum()

    def validation_step(self, batch, batch_idx):
        self.training_step(batch, batch_idx)

    predict_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Returning(pl.LightningDataModule):
    """Makes one of the loaders inside the hook."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.made: DataLoader | None = None

    def train_dataloader(self) -> DataLoader:
        self.made = RETURNED[self.name]()
        return self.made

    predict_dataloader = train_dataloader


def inject(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Say what becomes of each returned loader: ``same``, ``rebuilt`` or an error, and batches."""
    made = {name: become(spec, Returning(name)) for name in RETURNED}
    outside = Extra(Numbers(), flavour="sour", batch_size=2)
    return {**made, "subclass_outside": become(spec, outside)}


def become(spec: dict[str, Any], given: Any) -> dict[str, Any]:
    model = Writing()
    options = {**QUIET, **under_ddp(spec["world"]), "enable_checkpointing": False, "max_epochs": 1}
    trainer = pl.Trainer(**options, use_distributed_sampler=spec["injected"])
    try:
        with quietly():
            fit = trainer.fit if spec["stage"] == "fit" else trainer.predict
            if isinstance(given, pl.LightningDataModule):
                fit(model, datamodule=given)
            else:
                fit(model, given)
    except (TypeError, MisconfigurationException) as error:
        return {"became": type(error).__name__}
    got = trainer.train_dataloader if spec["stage"] == "fit" else trainer.predict_dataloaders
    asked = given.made if isinstance(given, Returning) else given
    return {"became": "same" if got is asked else "rebuilt", "batches": model.seen}


class Uneven:
    """Batches of one number each, of which ranks have other counts."""

    def __init__(self, numbers: list[float]) -> None:
        self.numbers = numbers

    def __iter__(self):
        return (torch.tensor([number]) for number in self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def validate(spec: dict[str, Any]) -> dict[str, Any]:
    """Validate a loader that is not ours; gives the logged mean and what this rank saw."""

    class Logging(Writing):
        def validation_step(self, batch, batch_idx):
            self.seen.append([int(one) for one in batch.reshape(-1)])
            options = {"on_step": True, "on_epoch": True} if spec.get("on_step") else {}
            mean = batch.double().mean()
            self.log("mean", mean, sync_dist=True, batch_size=len(batch), **options)

    uneven = spec.get("numbers")
    loader = DataLoader(Numbers(), batch_size=1) if uneven is None else Uneven(uneven)
    if "count" in spec:
        loader = DataLoader(range(spec["count"]), batch_size=1, collate_fn=torch.tensor)
    model = Logging()
    trainer = pl.Trainer(**{**QUIET, **under_ddp(spec["world"])})
    with quietly():
        (found,) = trainer.validate(model.double(), loader, verbose=False)
    return {"seen": model.seen, "mean": found["mean_epoch" if spec.get("on_step") else "mean"]}


class Preparing(SequenceDataModule):
    """Downloads, so to say: ``prepare_data`` writes the store that ``setup`` opens."""

    def __init__(self, location: str, per_node: bool) -> None:
        super().__init__(train=location, batching=Bucketed(2), seed=3)
        self.location = location
        self.prepare_data_per_node = per_node
        self.prepared = False

    def prepare_data(self) -> None:
        self.prepared = True
        rows = ({"id": f"s{number}", "x": one} for number, one in enumerate(sequences(11)))
        write_store(self.location, rows)


def of_node(spec: dict[str, Any]) -> dict[str, Any]:
    """Fit as one of two processes of one of two nodes, each with a folder of its own, or one."""
    rank = torch.distributed.get_rank()
    node, local = divmod(rank, 2)
    os.environ.update({"LOCAL_RANK": str(local), "GROUP_RANK": str(node), "LOCAL_WORLD_SIZE": "2"})
    folder = Path(spec["folder"]) / (f"node-{node}" if spec["apart"] else "both")
    os.environ["HOME"] = os.environ["XDG_CACHE_HOME"] = str(folder / "home")
    data, model = Preparing(str(folder / "store"), spec["per_node"]), Recorder()
    options = {**QUIET, **under_ddp(2), "num_nodes": 2, "max_epochs": 2}
    trainer = pl.Trainer(**options, enable_checkpointing=False)
    try:
        with quietly():
            trainer.fit(model, datamodule=data)
    except SeqDataError as error:
        return {"refused": type(error).__name__, "text": str(error), "prepared": data.prepared}
    return {
        "train": model.log_of.train,
        "prepared": data.prepared,
        "state": data.state_dict(),
        "parameters": model.parameters_of(),
    }


def without_a_trainer(spec: dict[str, Any]) -> dict[str, Any]:
    """Play an epoch of a plain ``Loader``, which asks the process group who we are."""
    loader = Loader(sequences(spec["count"]), Bucketed(2), seed=1)
    world = World.current()
    return {
        "world": (world.rank, world.size),
        "ids": [batch.real().ids.tolist() for batch in loader],
        "steps": len(loader),
    }


class OfItsOwn(Recorder):
    """Makes a plain ``Loader`` when the ranks are there."""

    def train_dataloader(self) -> Loader:
        return Loader(sequences(11), Bucketed(2), seed=1, prefetch=0)


def plain_loader(spec: dict[str, Any]) -> dict[str, Any]:
    """Fit with a plain ``Loader``: made before the Trainer has made its ranks, or after."""
    model, early, evaluated = OfItsOwn(), None, None
    if spec["early"]:
        with mock.patch.object(World, "current", return_value=World()):  # no group so far
            model, early = Recorder(), OfItsOwn().train_dataloader()
            if spec["early"] != "loader":
                data = data_of(11)
                early, evaluated = data.train_dataloader(), data.val_dataloader()
    if spec["early"] == "val":
        early = OfItsOwn().train_dataloader()
    options = {**QUIET, **under_ddp(spec["world"]), "enable_checkpointing": False, "max_epochs": 1}
    trainer = pl.Trainer(**options)
    error = ""
    try:
        with quietly():
            trainer.fit(model, early, evaluated)
    except SeqDataError as refused:
        error = f"{type(refused).__name__}: {refused}"
    return {"train": model.log_of.train, "error": error}


TASKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "inject": inject,
    "validate": validate,
    "of_node": of_node,
    "without_a_trainer": without_a_trainer,
    "plain_loader": plain_loader,
}
