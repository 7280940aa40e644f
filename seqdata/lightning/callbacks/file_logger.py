"""Writes what each rank does into one file, a line for each step, also of ranks that fail.

A line is one write at the end of the file, so that those of many processes never mix.
"""

from __future__ import annotations

import json
import math
import os
import time
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from seqdata.errors import ConfigError, SeqDataWarning
from seqdata.lightning import adapter
from seqdata.lightning.callbacks._support.batch_facts import BatchFacts, get_facts, get_train_loader

_MAX_TEXT = 8_000  # characters of a message, a note or a traceback


class RankFileLogger(Callback):
    """Writes a line of JSON for each step of each rank, and for an exception, to one file.

    The file lies in the Trainer's log folder. Every line has ``time`` (seconds since 1970),
    ``rank`` and ``event``: ``step``, ``exception``, or what ``record`` is told. Steps have
    ``epoch``, ``batch`` (its number in the plan), ``step``, ``update``, ``tokens`` and ``padded``
    timesteps, and as ``values`` the numbers that ``training_step`` gives: reading them waits for
    the device. Exceptions have where the run stood, ``error``, ``message``, ``facts``, ``notes``
    and ``traceback``. A file that cannot be written is warned of once; training goes on.

    Args:
        name: Of the file. With ``{rank}`` in it each rank has its own: for folders that several
            machines share, where lines of two machines may overwrite each other.
        every_n_steps: Of which steps there is a line.

    Attributes:
        path: Of the file; None before ``setup``.

    Raises:
        ConfigError: If an argument cannot be meant.

    Examples:
        >>> logger = RankFileLogger("rank-{rank}.jsonl", every_n_steps=50)
    """

    def __init__(self, name: str = "ranks.jsonl", every_n_steps: int = 1) -> None:
        if not isinstance(name, str) or name in ("", "..") or Path(name).name != name:
            raise ConfigError(
                f"RankFileLogger: `name` is {name!r}, must be the name of a file; it lies in the "
                "Trainer's log folder"
            )
        if not isinstance(every_n_steps, int) or every_n_steps < 1:
            raise ConfigError(
                f"RankFileLogger: `every_n_steps` is {every_n_steps!r}, must be an integer of at "
                "least 1"
            )
        self.path: Path | None = None
        self._name, self._every_n_steps = name, every_n_steps
        self._rank = 0
        self._step_facts: dict[str, Any] = {}
        self._has_failed = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find out where the file lies."""
        del pl_module, stage
        folder = adapter.get_log_folder(trainer)
        self._rank, self._step_facts, self._has_failed = trainer.global_rank, {}, False
        self.path = (folder or Path.cwd()) / self._name.replace("{rank}", str(self._rank))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note where the run stands."""
        del pl_module
        facts = get_facts(batch, get_train_loader(trainer))
        self._step_facts = _describe_step(trainer, facts, batch_idx)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write a line."""
        del trainer, pl_module, batch
        if batch_idx % self._every_n_steps == 0:
            self.record("step", {**self._step_facts, "values": _select_numbers(outputs)})

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write a line."""
        del pl_module
        text = "".join(traceback.format_exception(exception))
        self.record(
            "exception",
            {
                **self._step_facts,
                "stage": trainer.state.stage,
                "error": type(exception).__name__,
                "message": str(exception)[:_MAX_TEXT],
                "facts": getattr(exception, "facts", {}),
                "notes": [note[:_MAX_TEXT] for note in getattr(exception, "__notes__", ())],
                "traceback": text[-_MAX_TEXT:],
            },
        )

    def record(self, event: str, values: Mapping[str, Any]) -> None:
        """Write a line of your own; before ``setup`` there is no file, and nothing is written.

        Args:
            event: What it is.
            values: Anything that JSON knows; what it does not know is written as text.
        """
        if self.path is None or self._has_failed:
            return
        header = {"time": time.time(), "rank": self._rank, "event": event}
        line = json.dumps({**header, **_to_strict_json(values)}, default=str).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            written = _append_line(self.path, line)
            problem = "" if written == len(line) else f"{written} of {len(line)} bytes were written"
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            self._has_failed = True
            warnings.warn(
                f"RankFileLogger: rank {self._rank} cannot write {self.path} ({problem}), must be "
                "able to; training goes on, and nothing more is written there",
                SeqDataWarning,
                stacklevel=2,
            )


def _append_line(path: Path, line: bytes) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        return os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _describe_step(trainer: Trainer, facts: BatchFacts | None, step: int) -> dict[str, Any]:
    counters = {"step": step, "update": trainer.global_step}
    if facts is None:
        return {"epoch": trainer.current_epoch, **counters}
    batch_facts = {"epoch": facts.epoch, "batch": facts.number}
    return {**batch_facts, **counters, "tokens": facts.tokens, "padded": facts.padded}


def _select_numbers(outputs: Any) -> dict[str, float]:
    """Return the single numbers of what a training step gave; a tensor alone is the loss."""
    values = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
    return {
        str(name): float(value)
        for name, value in values.items()
        if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
    }


def _to_strict_json(value: Any) -> Any:
    """Return what strict JSON has no word for (NaN, infinity) as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _to_strict_json(item) for name, item in value.items()}
    return [_to_strict_json(item) for item in value] if isinstance(value, list | tuple) else value
