"""Write what tests/compat keeps: run once, with the code that later code has to understand.

python -m tests.compat.make tests/compat/saved
"""

import hashlib
import json
import shutil
import sys
import warnings
from pathlib import Path

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from seqdata import (
    TBPTT,
    LaneStates,
    Loader,
    SequenceDataModule,
    TokenBudget,
    World,
    open_store,
    write_store,
)
from seqdata.collators.padded import Padded

TREE = Path(__file__).resolve().parents[2]
TEXTS = ("", "a", "zwei", "три", "四つ")


def sequences(count: int = 40):
    """Yield numbers, ragged and per sequence, text and bytes."""
    rng = np.random.default_rng(7)
    for i in range(count):
        length = int(rng.integers(1, 30))
        yield {
            "id": f"s{i:02}",
            "x": rng.normal(size=(length, 3)).astype("f4"),
            "t": rng.integers(0, 50, length).astype("i2"),
            "y": i % 3,
            "note": TEXTS[i % 5],  # not ASCII only
        }


def digest(batch) -> str:
    """Return the hash of a batch's data, ids, lengths and weights."""
    return hash_of(batch.data, batch.ids, batch.lengths, batch.weight)


def hash_of(data, *tensors) -> str:
    """Return the hash of fields by name, and of tensors."""
    found = hashlib.sha256()
    for name in sorted(data):
        found.update(name.encode() + data[name].numpy().tobytes())
    for tensor in tensors:
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()[:16]


class Model(L.LightningModule):
    """A tiny recurrent model; with ``carried`` it carries the state of each lane."""

    def __init__(self, carried: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.head = nn.Linear(4, 1)
        self.lanes = LaneStates() if carried else None
        self.seen: list[str] = []

    def training_step(self, batch, _):
        self.seen.append(digest(batch))
        if self.lanes is None:
            out, _ = self.lstm(batch["x"])
        else:
            out, state = self.lanes.run(self.lstm, batch, "x", self.lanes.take(batch))
            self.lanes.put(batch, state)
        each = self.head(out)[..., 0].pow(2) * batch.score
        return each.sum() * batch.loss_scale

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


def data_module(store: str, **options: object) -> SequenceDataModule:
    """Return the DataModule of ``module.ckpt``, with a transform of this file's and a view."""
    train = open_store(store).select("x", "y")
    return SequenceDataModule(
        train=train,
        batching=TokenBudget(64),
        transform=halve,
        collator=Padded(padding={"x": -1.0}),
        seed=3,
        **options,
    )


def lanes_module(store: str) -> SequenceDataModule:
    """Return the DataModule of ``lanes.ckpt``."""
    train = open_store(store).select("x", "t")
    return SequenceDataModule(train=train, batching=TBPTT(lanes=4, chunk=5), seed=3)


def halve(sequence, rng):
    """Return the sequence with half of its values."""
    return {**sequence, "x": sequence["x"] / 2}


def quiet_trainer(**options) -> L.Trainer:
    """Return a Trainer on the CPU that shows nothing."""
    return L.Trainer(
        accelerator="cpu", devices=1, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip


def fit(folder: Path, data: SequenceDataModule, name: str, save: int) -> dict[str, object]:
    """Train two epochs and save a checkpoint; return what follows it, and the parameters."""
    model = Model(carried=name == "lanes")
    saver = Saver(folder / f"{name}.ckpt", save)
    logger = CSVLogger(folder, name="logs", version=name)
    quiet_trainer(max_epochs=2, logger=logger, callbacks=[saver]).fit(model, data)
    run_file = (folder / "logs" / name / "seqdata-run.yaml").read_text().splitlines(keepends=True)
    text = "".join(line for line in run_file if "seal" not in line)
    text = text.replace(str(folder.resolve()), "@SAVED@").replace(str(TREE), "@TREE@")
    (folder / f"{name}-run.yaml").write_text(text)
    shutil.rmtree(folder / "logs")
    return {"batches": len(model.seen), "rest": model.seen[save:], "parameters": parameters(model)}


def parameters(model: nn.Module) -> list[float]:
    """Return the sum of each parameter."""
    return [float(value.double().sum()) for value in model.state_dict().values()]


class Saver(L.Callback):
    """Save a checkpoint after a step."""

    def __init__(self, path: Path, step: int) -> None:
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer, model, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def main(folder: Path) -> None:
    """Write stores, states and what is to come of them."""
    warnings.filterwarnings("ignore")
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(sequences())
    write_store(folder / "arrow", rows)
    write_store(folder / "tar", rows, format="webdataset", shard_bytes=30_000)
    found: dict[str, object] = {}
    for name in ("arrow", "tar"):
        store = open_store(folder / name)
        found[name] = {"fingerprint": store.fingerprint}
        loader = Loader(store.select("x", "y"), TokenBudget(64), seed=5, world=World(0, 1))
        batches = iter(loader)
        for _ in range(7):
            next(batches)
        state = loader.state_dict()
        torch.save(state, folder / f"{name}-loader.pt")
        found[name]["rest"] = [digest(batch) for batch in batches]
    store = str(folder.resolve() / "arrow")
    found["module"] = fit(folder, data_module(store), "module", save=9)
    found["lanes"] = fit(folder, lanes_module(store), "lanes", save=9)
    (folder / "expected.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
