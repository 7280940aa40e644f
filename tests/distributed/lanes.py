"""What a rank does in the tests of lanes: fits and loops that carry states, some of them killed."""

import json
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from seqdata.errors import SeqDataError
from seqdata.lightning.ranks.coordinator import ExceptionNotifier, RankCoordinator
from seqdata.lightning.ranks.watchdog import RankTimeouts
from seqdata.loading.loader import Loader
from seqdata.policies.tbptt import TBPTT
from seqdata.recurrent.lane_states import LaneStates
from tests.distributed.ddp import under_ddp
from tests.distributed.failing import Failing, Hurt
from tests.lightning.carrying import Carrying, Stacked, lanes_of, series
from tests.lightning.harness import fit


class Killed(Callback):
    """Kills this process in the middle of a step.

    Args:
        step: The global step, or the first one after it that comes to the hook.
        hook: The name of a hook of callbacks.
    """

    def __init__(self, step: int, hook: str) -> None:
        self.step = step
        setattr(self, hook, self._maybe)

    def _maybe(self, trainer, *args, **kwargs):
        if trainer.global_step >= self.step:
            os.kill(os.getpid(), signal.SIGKILL)


class Telling(Carrying):
    """Writes each loss into a file as soon as it is known: what is killed cannot tell it later."""

    def __init__(self, path: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.path = path

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if self.path:
            with open(f"{self.path}-{self.global_rank}", "a") as file:
                file.write(json.dumps(self.did.losses[-1]) + "\n")
        return loss


def fit_lanes(spec: dict[str, Any]) -> dict[str, Any]:
    """Fit a model that carries states; tell what it did."""
    model = dict(spec.get("model", {}))
    if "dtype" in model:
        model["dtype"] = getattr(torch, model["dtype"])
    carrying = Stacked(**model) if "kept" in model else Telling(**model)
    options = dict(spec.get("data", {}))
    if "transform" in spec:
        options["transform"] = Failing(**spec["transform"])
    policy = TBPTT(**{"lanes": 12, "chunk": 8, **options.pop("policy", {})})
    data = lanes_of(options.pop("count", 40), batching=policy, **options)
    if "bounds" in spec:
        data._coordinator = RankCoordinator(RankTimeouts(**spec["bounds"]))
        data._notifier = ExceptionNotifier(data._coordinator.leave_by_exception)
    callbacks: list[Callback] = []
    if "kill" in spec:
        callbacks.append(Killed(**spec["kill"]))
    if "spare" in spec:
        never = {"every_n_train_steps": 1000, "save_on_exception": True}
        callbacks.append(ModelCheckpoint(dirpath=spec["spare"], filename="spare", **never))
    if "hurt" in spec:
        callbacks.append(Hurt(**spec["hurt"]))
    error: Exception | None = None
    run, began = None, time.monotonic()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            run = fit(
                data,
                model=carrying,
                folder=Path(spec["folder"]) if "folder" in spec else None,
                every=spec.get("every"),
                ckpt=spec.get("ckpt"),
                callbacks=tuple(callbacks),
                **{"max_epochs": 2, **spec.get("trainer", {})},
                **(under_ddp(spec["world"]) if spec["world"] > 1 else {}),
            )
            if "after" in spec:
                run.trainer.save_checkpoint(spec["after"])
            if spec.get("asks"):
                run.data.state_dict()
        except (SeqDataError, KeyError, RuntimeError) as failure:
            error = failure
    lanes = carrying.lanes if isinstance(carrying.lanes, LaneStates) else LaneStates()
    table = lanes.state_dict()["tables"].get("train")
    return {
        "losses": carrying.did.losses,
        "lanes": carrying.did.lanes,
        "parameters": carrying.parameters_of(),
        "error": "" if error is None else f"{type(error).__name__}: {error}",
        "seconds": time.monotonic() - began,
        "warnings": [str(one.message) for one in said if "seqdata" in str(one.category)],
        "table": None if table is None else table["lanes"][table["put"] >= 0].tolist(),
        "states": [] if table is None else [one.tolist() for one in table["state"]],
    }


def loop_lanes(spec: dict[str, Any]) -> dict[str, Any]:
    """Play lanes in a plain loop, save what all ranks have gathered, and go on."""
    module = Carrying()
    loader = Loader(series(20), TBPTT(6, 8), fields=("x",), shift=1, seed=3, prefetch=0)
    if "ckpt" in spec:
        saved = torch.load(spec["ckpt"], weights_only=True)
        loader.load_state_dict(saved["loader"])
        module.lanes.load_state_dict(saved["lanes"])
    found: dict[tuple[int, int], float] = {}
    for batch in loader:
        errors = module.errors(batch).detach().sum(1)
        for lane, weight, value in zip(batch.lanes, batch.weight, errors, strict=True):
            if weight:
                found[batch.number, int(lane)] = float(value)
        if batch.number + 1 == spec.get("stop"):
            state = {"loader": loader.state_dict(), "lanes": module.lanes.gathered()}
            if torch.distributed.get_rank() == 0:
                torch.save(state, spec["path"])
            break
    return found


def buffered(spec: dict[str, Any]) -> dict[str, Any]:
    """Train under DDP with states kept rightly, or wrongly in buffers; tell what came of it."""

    class Buffering(Carrying):
        def errors(self, batch):
            if not spec["buffers"]:
                return super().errors(batch)
            state = self.lanes.take(batch)
            if batch.number:
                state = self.kept_h, self.kept_c
            out, state = self.lanes.run(self.lstm, batch, "x", state)
            self.lanes.put(batch, state)
            self.kept_h, self.kept_c = (one.detach() for one in state)
            return ((self.head(out) - batch["targets"]) ** 2).sum(-1) * batch.score

    model = Buffering()
    if spec["buffers"]:
        rows = 12 // spec["world"]
        for name in ("kept_h", "kept_c"):
            model.register_buffer(name, torch.zeros(1, rows, 4, dtype=torch.float64))
    data = lanes_of(40, batching=TBPTT(12, 8))
    fit(data, model=model, max_epochs=1, **under_ddp(spec["world"]))
    return {"lanes": model.did.lanes, "parameters": model.parameters_of()}


TASKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "lanes": fit_lanes,
    "loop_lanes": loop_lanes,
    "buffered": buffered,
}
