"""What a rank does in the tests of determinism: noise, digests, and ranks that are not alike."""

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from seqdata.errors import SeqDataError, SeqDataWarning
from seqdata.lightning.ranks import settings
from seqdata.runs import run_record
from tests.distributed.ddp import under_ddp
from tests.lightning.crashing import noisy
from tests.lightning.harness import Recorder, data_of, fit
from tests.lightning.noise import Digesting, Dropping, many_steps


def augmented(spec: dict[str, Any]) -> dict[tuple[int, int], str]:
    """Return what each real sequence of each epoch looked like after a random transform."""
    model = Digesting()
    data = data_of(spec["count"], transform=noisy, num_workers=spec.get("num_workers", 0))
    fit(data, model=model, max_epochs=2, **under_ddp(spec["world"]))
    return model.seen


def losses(spec: dict[str, Any]) -> dict[str, Any]:
    """Train for many steps; gives every loss and the parameters."""
    given = {"deterministic": True} if spec.get("deterministic") else {}
    model = many_steps(Dropping(), spec["steps"], **given, **under_ddp(spec["world"]))
    return {"losses": model.losses, "parameters": model.parameters_of()}


class Naive(Recorder):
    """Takes the mean over the timesteps that its own rank has."""

    def training_step(self, batch, batch_idx):
        error = (self.layer(batch["x"]).squeeze(-1) - 1.0) ** 2
        return (batch.score * error).sum() / batch.score.sum()


def gradient(spec: dict[str, Any]) -> list[float]:
    """Return the gradients of each update of an epoch, as DDP and the Trainer leave them."""

    class Kept(Naive if spec["naive"] else Recorder):
        def on_before_optimizer_step(self, optimizer):
            kept.extend(float(one.grad.sum()) for one in self.parameters())

    kept: list[float] = []
    data = data_of(spec["count"], val=None, batches_per_update=4)
    fit(data, model=Kept(), max_epochs=1, **under_ddp(spec["world"]))
    return kept


def prepared(spec: dict[str, Any]) -> dict[str, Any]:
    """Fit on a rank that was set up as told; gives what it was refused with or warned of."""
    if "package" in spec:  # a release that lies before the installed one
        name, version = spec["package"]
        folder = Path(spec["folder"]) / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}")
        sys.path.insert(0, spec["folder"])
        run_record._version_of.cache_clear()  # what was read before this process was forked
    if "precision" in spec:
        torch.set_float32_matmul_precision(spec["precision"])
    os.environ.update(spec.get("variables", {}))
    if "driver" in spec:  # what a machine with cards says of it
        settings._DRIVER = Path(spec["driver"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fit(
                data_of(**spec.get("data", {})),
                **{"max_epochs": 1, **spec.get("trainer", {})},
                **under_ddp(spec["world"]),
            )
        except SeqDataError as error:
            return {"refused": f"{type(error).__name__}: {error}"}
    ours = [one for one in caught if issubclass(one.category, SeqDataWarning)]
    return {"warned": [str(one.message) for one in ours]}


TASKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "augmented": augmented,
    "losses": losses,
    "gradient": gradient,
    "prepared": prepared,
}
