"""A collator around a torch ``collate_fn``: a list of samples goes in, whatever it makes comes out.

Place in the flow: columns of one read -> samples -> the batch of somebody else. Reads: nothing.
Makes: ``data``. No speed is promised: each sample is a dict of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from seqdata.batch import SequenceBatch
from seqdata.errors import ConfigError
from seqdata.protocols import Columns

COLLATED = "collated"
"""Where ``batch.data`` holds what the function gave."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Hands the rows of a batch to a ``collate_fn``.

    A sample is a dict: a tensor (length, *shape) per ragged field, a tensor of its value per other
    field of numbers, or a text; with a shift the inputs, and ``targets``.

    Args:
        collate_fn: ``collate_fn(samples) -> anything``.
    """

    collate_fn: Callable[[list[dict[str, Any]]], Any]

    def __call__(self, columns: Columns, batch: SequenceBatch) -> SequenceBatch:
        """Fill ``batch.data``: ``collated``, and its parts by name where it is a mapping.

        Raises:
            ConfigError: If a row holds several spans, which a list of samples cannot tell.
        """
        if batch.segments is not None:
            raise ConfigError(
                "collator: a `collate_fn` takes one sequence per row, but rows of this policy hold "
                "several; take a collator such as 'varlen', or another policy"
            )
        samples: list[dict[str, Any]] = [{} for _ in range(len(batch))]
        for name, column in columns.items():
            self._add(samples, name, column, batch)
        made = self.collate_fn(samples)
        batch.data = dict(made) if isinstance(made, Mapping) else {}
        batch.data[COLLATED] = made
        return batch

    def _add(
        self, samples: list[dict[str, Any]], name: str, column: Any, batch: SequenceBatch
    ) -> None:
        if isinstance(column, list):
            for sample, text in zip(samples, column, strict=True):
                sample[name] = text
            return
        ragged = batch.axes.along(name) is not None
        for number, sample in enumerate(samples):
            piece = torch.from_numpy(np.array(column[number]))  # a copy: mapped bytes are not ours
            sample[name] = piece if ragged else piece[0]
