"""The base of policies that plan block by block: they name their items, and how a block is cut."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqdata.index import SequenceIndex
from seqdata.plan import Plan
from seqdata.planning.blocks import Cutter
from seqdata.planning.build import build_plan, count_batches
from seqdata.planning.items import Items, count_planned


class BlockPolicy(ABC):
    """A policy whose batches are cut from blocks of items.

    A subclass is a frozen dataclass with ``axis`` and ``shuffle``, and ``worst_first`` if epoch 0
    may begin with the most expensive batch.
    """

    __slots__ = ()

    @abstractmethod
    def _select_items(self, index: SequenceIndex) -> Items:
        """Return what an epoch puts into batches."""

    @abstractmethod
    def _make_cutter(self) -> Cutter:
        """Return how a block becomes batches."""

    @abstractmethod
    def _make_rule(self) -> Any:
        """Return which items a sequence makes, with ``count_items`` and ``items_per_sequence``."""

    def plan(self, index: SequenceIndex, *, seed: int, epoch: int) -> Plan:
        """Make the epoch's plan."""
        items, cutter = self._select_items(index), self._make_cutter()
        worst = getattr(self, "worst_first", False)
        return build_plan(self, items, cutter, seed=seed, epoch=epoch, worst_first=worst)

    def num_batches(self, index: SequenceIndex) -> int:
        """Return the number of batches of every epoch."""
        return count_batches(self._select_items(index), self._make_cutter())

    def count_planned(self, index: SequenceIndex) -> tuple[int, int]:
        """Return how many sequences, or pieces of them, an epoch holds, and their timesteps."""
        return count_planned(self._select_items(index))

    def count_items(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many items each sequence makes, int64 (n,); 0: it is left out."""
        counts: NDArray[np.int64] = self._make_rule().count_items(lengths)
        return counts

    @property
    def items_per_sequence(self) -> int | None:
        """How many items each sequence makes that is not left out; None: it differs."""
        items: int | None = self._make_rule().items_per_sequence
        return items
