"""Every reference model on several processes: the same loss curve on 1, 2 and 4.

Start it as you like, the file is the same::

    python examples/data_parallel.py --out one.json                       # one process
    python examples/data_parallel.py --devices 4 --out four.json          # the Trainer starts four
    torchrun --standalone --nproc-per-node 4 examples/data_parallel.py --devices 4 --out also.json

Under torchrun each model is trained twice: by the Trainer, and by a loop of plain torch with
``DistributedDataParallel``. Without ``--out`` the script starts itself in all these ways and
compares the losses of each update: within 1e-5 in float32 and 1e-12 in float64.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import torch.distributed as dist
from seqdata_models import (
    ByteLM,
    Forecaster,
    LSTMClassifier,
    LSTMTagger,
    Seq2SeqLSTM,
    StatefulLM,
    StatefulTagger,
)
from torch.nn.parallel import DistributedDataParallel

from seqdata import TBPTT, Bucketed, Fixed, Loader, SequenceDataModule, Windows, World, write_store

BOUNDS = {"float32": 1e-5, "float64": 1e-12}
WAYS = [("Trainer", 1), ("Trainer", 2), ("Trainer", 4), ("torchrun", 2), ("torchrun", 4)]
BATCHES = 4  # of an update, on all processes together
TOKENS = 7


@dataclass(frozen=True)
class Case:
    """A model, its data, and how they are batched."""

    model: type[L.LightningModule]
    arguments: dict[str, Any]
    data: str
    batching: Any
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def batches(self) -> int:
        """Batches of an update; of a chunk of all lanes each process has its own."""
        return 1 if isinstance(self.batching, TBPTT) else BATCHES


CASES = {
    "classifier": Case(
        LSTMClassifier, {"features": 3, "classes": 3, "hidden": 6, "dropout": 0.0}, "labelled",
        Bucketed(4, balance_ranks=2),
    ),
    "tagger": Case(LSTMTagger, {"features": 3, "classes": 3, "hidden": 6}, "tagged", Fixed(4)),
    "byte lm": Case(
        ByteLM, {"embedding": 4, "hidden": 6}, "texts", Bucketed(4, balance_ranks=2), {"shift": 1},
    ),
    "forecaster": Case(
        Forecaster, {"features": 3, "horizon": 2, "hidden": 6}, "series",
        Windows(5, batch_size=4, stride=4, horizon=2),
    ),
    "seq2seq": Case(
        Seq2SeqLSTM,
        {"source_tokens": TOKENS, "target_tokens": TOKENS, "embedding": 4, "hidden": 6},
        "pairs", Fixed(4),
    ),
    "stateful lm": Case(
        StatefulLM, {"tokens": TOKENS, "embedding": 4, "hidden": 6, "layers": 2}, "texts",
        TBPTT(8, 6, continuous=True), {"shift": 1},
    ),
    "stateful tagger": Case(
        StatefulTagger, {"features": 3, "classes": 3, "hidden": 6, "cell": "gru"}, "tagged",
        TBPTT(8, 6),
    ),
}  # fmt: skip

SMOKE = {("classifier", "float32"), *((name, "float64") for name in CASES)}


def make_data(kind: str, dtype: str, folder: Path) -> Any:
    """Return 60 sequences of 3 to 24 timesteps."""
    random = np.random.default_rng(0)
    lengths = random.integers(3, 25, 60)
    if kind == "texts":
        return [random.integers(0, TOKENS, n).astype("uint8") for n in lengths]
    if kind == "pairs":
        names = ("source", "target")
        rows = [{name: random.integers(0, TOKENS, n) for name in names} for n in lengths]
        write_store(folder / "pairs", rows, axes={"source": "time", "target": "text"})
        return folder / "pairs"
    series = [random.normal(size=(n, 3)).astype(dtype) for n in lengths]
    if kind == "series":
        return series
    tags = [(x.cumsum(axis=0)[:, 0] > 0) + (x[:, 1] > 0.5) for x in series]
    return [
        {"x": x, "y": y.astype("int64") if kind == "tagged" else int(y[-1])}
        for x, y in zip(series, tags, strict=True)
    ]


def make_model(case: Case, dtype: str) -> L.LightningModule:
    """Return a model with the same weights in every process."""
    torch.manual_seed(0)
    return case.model(**case.arguments).to(getattr(torch, dtype))


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return SGD: Adam would make the rounding of small gradients large in float32."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


class Curve(L.Callback):
    """Adds up the losses of each update."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self._sum = 0.0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        """Add this process's part of the loss, as it goes into the update."""
        del module, batch, batch_idx
        self._sum += float(outputs["loss"])
        if trainer.global_step > len(self.losses):
            self.losses.append(self._sum)
            self._sum = 0.0


def train_with_trainer(
    case: Case, dtype: str, data: Any, devices: int, updates: int
) -> list[float]:
    """Return this process's part of the losses, by the Trainer."""
    model, curve = make_model(case, dtype), Curve()
    model.configure_optimizers = lambda: make_optimizer(model)
    module = SequenceDataModule(
        train=data, batching=case.batching, batches_per_update=case.batches, seed=0, **case.options
    )
    trainer = L.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_steps=updates,
        callbacks=[curve],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, module)
    return curve.losses


class Step(torch.nn.Module):
    """Module that DistributedDataParallel wraps: ``forward`` returns the loss of a batch."""

    def __init__(self, model: L.LightningModule) -> None:
        super().__init__()
        self.model = model
        model.log = lambda *_, **__: None  # there is no Trainer

    def forward(self, batch):
        """Return the loss."""
        return self.model.training_step(batch)


def train_with_torch(case: Case, dtype: str, data: Any, updates: int) -> list[float]:
    """Return this process's part of the losses, by a loop of plain torch."""
    world = World.current()
    step = Step(make_model(case, dtype))
    ddp = DistributedDataParallel(step) if world.size > 1 else step
    optimizer, losses = make_optimizer(step), []
    every = max(1, case.batches // world.size)
    loader = Loader(data, case.batching, world=world, accumulate=every, **case.options)
    while len(losses) < updates:
        batches = iter(loader)
        while update := list(itertools.islice(batches, every)):
            optimizer.zero_grad()
            losses.append(0.0)
            for batch in update:
                loss = ddp(batch)
                loss.backward()
                losses[-1] += float(loss)
            optimizer.step()
    return losses[:updates]


def train_all(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the loss curves of all processes together, by model, dtype and loop."""
    launched = "TORCHELASTIC_RUN_ID" in os.environ
    if launched:
        dist.init_process_group("gloo")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, dtype in itertools.product(options.model or CASES, BOUNDS):
            if options.smoke and (name, dtype) not in SMOKE:
                continue
            case = CASES[name]
            data = make_data(case.data, dtype, Path(folder) / name / dtype)
            curve = train_with_trainer(case, dtype, data, options.devices, options.updates)
            found[f"{name}, {dtype}, Trainer"] = curve
            if launched or options.devices == 1:
                data = make_data(case.data, dtype, Path(folder) / name / dtype / "again")
                curve = train_with_torch(case, dtype, data, options.updates)
                found[f"{name}, {dtype}, torch"] = curve
    if dist.is_initialized():
        for name, curve in found.items():
            total = torch.tensor(curve, dtype=torch.float64)
            dist.all_reduce(total)
            found[name] = (total / dist.get_world_size()).tolist()
    return found


def compare(options: argparse.Namespace, ways: list[tuple[str, int]]) -> None:
    """Start this file in each way, and compare with one process."""
    with tempfile.TemporaryDirectory() as folder:
        first: dict[str, list[float]] = {}
        for launcher, devices in ways:
            out = Path(folder) / f"{launcher}-{devices}.json"
            start = [sys.executable]
            if launcher == "torchrun":
                start += ["-m", "torch.distributed.run", "--standalone"]
                start += ["--nproc-per-node", str(devices)]
            more = ["--devices", str(devices), "--updates", str(options.updates), "--out", str(out)]
            more += ["--model", *options.model] if options.model else []
            more += ["--smoke"] if options.smoke else []
            done = subprocess.run(
                [*start, __file__, *more], capture_output=True, text=True, timeout=1800
            )
            if done.returncode:
                raise SystemExit(f"{launcher} with {devices} processes failed:\n{done.stderr}")
            found = json.loads(out.read_text())
            first = first or found
            for name, curve in found.items():
                model, dtype, loop = name.split(", ")
                expected = first[f"{model}, {dtype}, Trainer"]
                pairs = zip(curve, expected, strict=True)
                difference = max(abs(one - other) for one, other in pairs)
                way = f"{launcher:8} {devices} processes, {loop:7}"
                print(f"{way}: {model}, {dtype}: {difference:.1e}", flush=True)
                if difference > BOUNDS[dtype]:
                    raise SystemExit(f"NOT THE SAME: {difference} is more than {BOUNDS[dtype]}")
    print(f"the same losses over {options.updates} updates")


def main() -> None:
    """Train, or compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", type=int, default=1, help="processes that take part")
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--model", nargs="+", choices=CASES, help="default: all")
    parser.add_argument("--out", type=Path, help="where the losses go")
    parser.add_argument("--smoke", action="store_true", help="two ways, few updates")
    options = parser.parse_args()
    if options.out is None:
        options.updates = 5 if options.smoke else options.updates
        compare(options, [WAYS[0], WAYS[3]] if options.smoke else WAYS)
        return
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    found = train_all(options)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
