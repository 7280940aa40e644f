"""Callback that logs the steps and exceptions of each rank to a file, one per line.

Each line is appended in one write, so that lines of several processes do not mix.
"""

from __future__ import annotations

import json
import math
import os
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from seqdata.errors import ConfigError, must_be, warn
from seqdata.lightning import adapter
from seqdata.lightning.callbacks._support.batch_info import (
    BatchInfo,
    get_batch_info,
    get_train_loader,
)

# Maximum number of characters of a message, a note or a traceback.
_MAX_TEXT = 8_000


class RankFileLogger(Callback):
    """Callback that writes a line of JSON for each training step and exception of each rank.

    The file is in the log folder of the Trainer, which must be set. With ``fast_dev_run``, no file
    is written. Every line has ``time`` (seconds since 1970), ``rank`` and ``event``, which is
    ``step``, ``exception`` or an event of ``record``:

    - Steps have ``epoch``, ``batch`` (index in the plan), ``step``, ``update``, and the timesteps
      ``tokens`` (scored) and ``padded`` (including padding). ``values`` are the numbers that
      ``training_step`` returns; reading them waits for the device.
    - Exceptions have the position of the latest training step, ``stage``, ``error``, ``message``,
      ``details``, ``notes`` and ``traceback``.

    If the file cannot be written, training continues. The callback warns once, and again at the end
    with the number of missing lines.

    Args:
        name: Name of the file. A name with ``{rank}`` gives each rank its own file. This is needed
            in a folder that several machines share, because lines of two machines may overwrite
            each other.
        every_n_steps: Number of steps between two lines.

    Attributes:
        path: Path of the file; None before ``setup``, and with ``fast_dev_run``.

    Raises:
        ConfigError: If an argument is invalid, or, in ``setup``, if the Trainer has no log folder.

    Examples:
        >>> logger = RankFileLogger("rank-{rank}.jsonl", every_n_steps=50)
    """

    def __init__(self, name: str = "ranks.jsonl", every_n_steps: int = 1) -> None:
        if not isinstance(name, str) or name in ("", "..") or Path(name).name != name:
            raise ConfigError(
                must_be(
                    "RankFileLogger: `name`",
                    "the name of a file",
                    repr(name),
                    "It is written to the Trainer's log folder",
                )
            )
        if not isinstance(every_n_steps, int) or every_n_steps < 1:
            raise ConfigError(
                must_be(
                    "RankFileLogger: `every_n_steps`",
                    "an integer of at least 1",
                    repr(every_n_steps),
                )
            )
        self.path: Path | None = None
        self._name, self._every_n_steps = name, every_n_steps
        self._rank = 0
        self._step_info: dict[str, Any] = {}
        # Number of lines that could not be written.
        self._missing = 0
        # Whether the last line was written only in part.
        self._is_torn = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set the path of the file.

        Raises:
            ConfigError: If the Trainer has no log folder.
        """
        del pl_module, stage
        folder = adapter.get_run_folder(trainer)  # collective
        self._rank, self._step_info = trainer.global_rank, {}
        self._missing, self._is_torn = 0, False
        self.path = None
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if folder is None:
            raise ConfigError(
                must_be(
                    "RankFileLogger: the Trainer's log folder",
                    "a folder of this machine that was set",
                    "None",
                    "Pass `default_root_dir`, such as '.', or a logger that writes to a folder",
                )
            )
        self.path = folder / self._name.replace("{rank}", str(self._rank))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note the position of the run, for the next line."""
        del pl_module
        info = get_batch_info(batch, get_train_loader(trainer))
        self._step_info = _describe_step(trainer, info, batch_idx)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write a line every ``every_n_steps`` steps."""
        del pl_module, batch
        if batch_idx % self._every_n_steps == 0:
            values = _select_numbers(outputs)
            if "loss" in values:  # Lightning has divided it by the accumulated batches
                values["loss"] *= adapter.count_accumulated(trainer)
            self.record("step", {**self._step_info, "values": values})

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write a line about an exception."""
        del pl_module
        text = "".join(traceback.format_exception(exception))
        self.record(
            "exception",
            {
                **self._step_info,
                "stage": trainer.state.stage,
                "error": type(exception).__name__,
                "message": str(exception)[:_MAX_TEXT],
                "details": getattr(exception, "details", {}),
                "notes": [note[:_MAX_TEXT] for note in getattr(exception, "__notes__", ())],
                "traceback": text[-_MAX_TEXT:],
            },
        )

    def record(self, event: str, values: Mapping[str, Any]) -> None:
        """Write a line about any event; do nothing before ``setup``, when there is no file.

        Args:
            event: Name of the event.
            values: Name -> value. Values that JSON cannot represent are written as strings.
        """
        if self.path is None:
            return
        header = {"time": time.time(), "rank": self._rank, "event": event}
        line = json.dumps({**header, **_to_strict_json(values)}, default=str).encode() + b"\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            line = b"\n" * self._is_torn + line
            written = _append_line(self.path, line)
            self._is_torn = written != len(line) and (written > 0 or self._is_torn)
            problem = "" if written == len(line) else f"{written} of {len(line)} bytes were written"
        except OSError as error:
            problem = error.strerror or str(error)
        if problem:
            self._missing += 1
        if problem and self._missing == 1:
            warn(
                f"RankFileLogger: rank {self._rank} cannot write {self.path} ({problem}). "
                "Training continues; lines that cannot be written are counted",
            )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Warn about lines that could not be written."""
        del trainer, pl_module, stage
        missing, self._missing = self._missing, 0
        if missing:
            warn(
                f"RankFileLogger: {missing} lines of rank {self._rank} could not be written to "
                f"{self.path} and are lost",
            )


def _append_line(path: Path, line: bytes) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        return os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _describe_step(trainer: Trainer, info: BatchInfo | None, step: int) -> dict[str, Any]:
    counters = {"step": step, "update": trainer.global_step}
    if info is None:
        return {"epoch": trainer.current_epoch, **counters}
    batch_info = {"epoch": info.epoch, "batch": info.number}
    return {**batch_info, **counters, "tokens": info.tokens, "padded": info.padded}


def _select_numbers(outputs: Any) -> dict[str, float]:
    """Return the scalars in the output of a training step; a tensor alone is the loss."""
    values = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
    return {
        str(name): float(value)
        for name, value in values.items()
        if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
    }


def _to_strict_json(value: Any) -> Any:
    """Return a value with NaN and infinities as strings, because strict JSON does not have them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _to_strict_json(item) for name, item in value.items()}
    return [_to_strict_json(item) for item in value] if isinstance(value, list | tuple) else value
