"""Callback that records the sequences and losses of each step, for ``seqdata why``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer

from seqdata.errors import ConfigError, must_be, warn
from seqdata.lightning import adapter
from seqdata.lightning.callbacks._support.batch_info import get_metadata, get_train_loader
from seqdata.lightning.ranks.collect import GatherGroup
from seqdata.lightning.scores import LOSS, BatchScores, ScoreCollector
from seqdata.runs.loss_files import LossBlock, LossHeader, LossWriter, count_fits


class LossRecord(Callback):
    """Callback that writes the losses of each step with the ids of their sequences.

    Each rank writes a file in the log folder of the run, next to ``seqdata-run.yaml``. The command
    ``seqdata why RUN --step N`` then names the sequences with a high loss in a step. A fit that
    resumes from a checkpoint adds files. Steps that it trains again replace earlier records of
    these steps.

    The loss of a batch says little about its sequences, which only several epochs distinguish. A
    training step can return one value for each row under another key, which is then the ``score``::

        return {"loss": loss, "losses": loss_of_each_row}

    The callback takes about 35 microseconds per step and does not wait for a device. It keeps the
    ids and scores of up to ``every`` batches in memory. If a file cannot be written, training
    continues, and the record continues once there is space. The callback warns once, and again at
    the end with the number of missing batches.

    Args:
        folder: Folder of the files; None: the log folder of the Trainer.
        score: Key of the scores in the output of ``training_step``: one value for each row, or one
            value for the batch. A tensor as output has the key ``loss``.
        every: Number of batches of a rank between two writes. Batches are also written with each
            checkpoint, and when training ends or fails. A process that is killed loses at most
            this number of batches.

    Attributes:
        path: Path of the file of this rank; None before the first write.

    Raises:
        ConfigError: If an argument is invalid. In training, if there is no folder, if a batch has
            no ids, or if ``training_step`` returns no such score.

    Examples:
        >>> record = LossRecord(score="losses")
    """

    def __init__(
        self, folder: str | Path | None = None, score: str = LOSS, every: int = 100
    ) -> None:
        if not isinstance(every, int) or every < 1:
            raise ConfigError(
                must_be("LossRecord: `every`", "an integer of at least 1", repr(every))
            )
        if folder is not None and (not isinstance(folder, str | Path) or "://" in str(folder)):
            raise ConfigError(
                must_be("LossRecord: `folder`", "a folder of this machine", repr(folder))
            )
        self.path: Path | None = None
        self._folder = None if folder is None else Path(folder)
        self._score, self._every = score, every
        self._collector = ScoreCollector(score, owner="LossRecord")
        self._gather_group = GatherGroup()
        self._writer: LossWriter | None = None
        # None: nothing is recorded.
        self._header: LossHeader | None = None
        # Number of batches that could not be written.
        self._missing = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Choose the folder and the index of the fit, equal on all ranks.

        Raises:
            ConfigError: If no folder is given, and the Trainer has no log folder.
        """
        del pl_module
        self._collector = ScoreCollector(self._score, owner="LossRecord")
        self._writer, self._header, self._missing = None, None, 0
        run_folder = adapter.get_run_folder(trainer)  # collective
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        folder = self._folder or run_folder
        if folder is None:
            raise ConfigError(
                must_be(
                    "LossRecord: `folder`",
                    "given, since the Trainer has no log folder",
                    "None",
                    "Pass a folder, or a logger to the Trainer",
                )
            )
        self._gather_group.open()
        fits = self._gather_group.all_gather(count_fits(folder))
        self._gather_group.close()
        self._header = LossHeader(
            fit=max(fits) + 1, rank=trainer.global_rank, world=trainer.world_size,
            score=self._score, run=_find_relative(run_folder or folder, folder),
        )  # fmt: skip
        self._used_folder = folder

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Collect the scores of a batch, and write them every ``every`` batches.

        Raises:
            ConfigError: If the batch has no ids, or the step returns no such score.
        """
        del pl_module, batch_idx
        if self._header is None:
            return
        self._collector.add(
            outputs,
            get_metadata(batch, get_train_loader(trainer)),
            step=adapter.get_logged_step(trainer),
            divided_by=adapter.count_accumulated(trainer),
        )
        if len(self._collector) >= self._every:
            self._write()

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Write the collected batches, so that the record of a resumed run is complete."""
        del trainer, pl_module, checkpoint
        self._write()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the last batches, and warn about batches that could not be written."""
        del trainer, pl_module
        self._write()
        self._report_missing()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write the last batches before the exception."""
        del trainer, pl_module, exception
        self._gather_group.close()
        self._write()
        self._report_missing()

    def _report_missing(self) -> None:
        missing, self._missing = self._missing, 0
        if missing:
            warn(
                f"LossRecord: {missing} batches could not be written to {self._used_folder}, and "
                "are missing there",
            )

    def _write(self) -> None:
        """Write the collected batches, and count batches that cannot be written."""
        if not len(self._collector) or self._header is None:
            return
        batches = self._collector.take_batches()
        block = _make_block(batches)
        try:
            if self._writer is None:
                self._used_folder.mkdir(parents=True, exist_ok=True)
                self._writer = LossWriter(self._used_folder, self._header)
                self.path = self._writer.path
            self._writer.append(block)
        except OSError as error:
            is_first, self._missing = not self._missing, self._missing + len(batches)
            if is_first:
                warn(
                    f"LossRecord: losses cannot be written to {self._used_folder} "
                    f"({error.strerror or error}). Training continues; batches that cannot be "
                    "recorded are counted",
                )


def _make_block(batches: list[BatchScores]) -> LossBlock:
    """Return batches as a block of arrays."""
    names = sorted({part for batch in batches for part in set(batch.parts) if part is not None})
    codes: dict[str | None, int] = {None: -1, **{name: i for i, name in enumerate(names)}}
    counts = [len(batch.ids) for batch in batches]
    return LossBlock(
        steps=np.array([batch.step for batch in batches]),
        epochs=np.array([batch.epoch for batch in batches]),
        numbers=np.array([batch.number for batch in batches]),
        is_shared=np.array([batch.is_shared for batch in batches]),
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        ids=np.concatenate([batch.ids for batch in batches]),
        parts=np.array([codes[part] for batch in batches for part in batch.parts], dtype=np.int64),
        scores=np.concatenate([batch.scores for batch in batches]),
        names=names,
    )


def _find_relative(target: Path, start: Path) -> str:
    """Return the path from a folder to another."""
    return os.path.relpath(target, start)
