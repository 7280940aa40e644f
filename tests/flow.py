"""Files and functions of ours that a piece of work enters, and its calls."""

import gc
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import lightning as L
import numpy as np
import torch

from seqdata import Fixed, Remote, SequenceDataModule, open_store, write_store

ROOT = Path(__file__).resolve().parents[1]
COLLATORS = str(ROOT / "seqdata" / "collators")
LIBRARY = (str(ROOT / "seqdata"), str(ROOT / "plugins"), str(ROOT / "models"))


class Flow:
    """The functions of ours that a call entered, in order of their first entry."""

    def __init__(self) -> None:
        self.functions: dict[tuple[str, str], None] = {}

    @property
    def files(self) -> list[str]:
        """Paths below the root of the repository, in order of their first entry."""
        return list(dict.fromkeys(file for file, _ in self.functions))

    def see(self, frame: Any, event: str, _: Any) -> None:
        """Note a function that is entered; for ``sys.setprofile``."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(LIBRARY):
            file = str(Path(code.co_filename).relative_to(ROOT))
            self.functions[file, code.co_qualname] = None


def follow(work: Callable[[], object]) -> Flow:
    """Call ``work`` and return what it entered in this thread."""
    flow = Flow()
    before = sys.getprofile()
    sys.setprofile(flow.see)
    try:
        work()
    finally:
        sys.setprofile(before)
    return flow


def count_calls(batches: Iterator[Any], number: int = 3) -> tuple[int, int]:
    """Return the calls of Python and of C functions of a batch, once first ones are made."""
    for _ in range(number):
        next(batches)
    calls = []

    def see(_: Any, event: str, function: Any) -> None:
        if event in ("call", "c_call") and function is not sys.setprofile:
            calls.append(event)

    before = sys.getprofile()
    gc.disable()  # what it would end is no part of a batch
    sys.setprofile(see)
    try:
        next(batches)
    finally:
        sys.setprofile(before)
        gc.enable()
    return calls.count("call"), calls.count("c_call")


def write_remote(url: str, folder: Path, format: str) -> Any:
    """Write some sequences to a URL and return their store, read by ranges."""
    rng = np.random.default_rng(0)
    rows = [{"x": rng.normal(size=(i % 40 + 5, 4)).astype("f4"), "y": i % 3} for i in range(400)]
    write_store(folder / "local", rows, format=format)
    files = fsspec.filesystem("memory")
    files.put(str(folder / "local"), url, recursive=True)
    return open_store(url, remote=Remote(how="ranges", gap=0, cache_dir=str(folder / "cache")))


def later_batch(batches: Iterator[Any], number: int = 3) -> Flow:
    """Return what one batch enters, once first ones have opened what stays open."""
    for _ in range(number):
        next(batches)
    return follow(lambda: next(batches))


class Model(L.LightningModule):
    """Takes the steps that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: Any) -> Any:
        """Return a loss."""
        return self.layer(batch["x"]).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an optimizer."""
        return torch.optim.SGD(self.parameters(), 0.1)


def find_iterators(location: str) -> list[str]:
    """Return the iterators of ours between a Trainer and a batch, the outermost first."""
    found: list[str] = []

    def see(frame: Any, event: str, _: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(COLLATORS):
            return
        names = []
        while frame is not None:
            code = frame.f_code
            is_iterator = code.co_name == "__next__" or code.co_flags & inspect.CO_GENERATOR
            if is_iterator and code.co_filename.startswith(LIBRARY):
                names.insert(0, code.co_qualname)
            frame = frame.f_back
        found[:] = max(found, names, key=len)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    data = SequenceDataModule(train=location, batching=Fixed(8), prefetch=0)
    trainer = L.Trainer(max_steps=5, accelerator="cpu", enable_model_summary=False, **quiet)
    sys.setprofile(see)
    try:
        trainer.fit(Model(), data)
    finally:
        sys.setprofile(None)
    return found
