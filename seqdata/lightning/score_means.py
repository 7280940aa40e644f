"""Mean scores of sequences or parts, and weights made from them.

Sums are integers, so that they are the same in any order. Means are rounded to 16 significant bits,
so that losses that differ in their last bits on another number of ranks yield the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from seqdata.errors import ConfigError, must_be
from seqdata.lightning.scores import FRACTION_BITS, ScoreSums
from seqdata.protocols import Store

WeighFn = Callable[[Any], Any]
"""Function of mean scores that returns weights: float64 (sequences,), NaN without a score; or dicts
by part."""

_MEAN_BITS = 16
_LEAST = 0.1  # least weight, relative to the mean weight, so that every sequence is drawn again


class SequenceSums(NamedTuple):
    """Sums of the scores of a segment, by sequence.

    Attributes:
        ids: int64 (n,), increasing indices of sequences in their store.
        sums: int64 (n,), multiples of ``2**-FRACTION_BITS``.
        counts: int64 (n,), number of scores in each sum.
    """

    ids: NDArray[np.int64]
    sums: NDArray[np.int64]
    counts: NDArray[np.int64]


class SequenceScores:
    """Latest mean score of each sequence of a store.

    Args:
        store: Store of the sequences.
        count: Number of sequences.
        weigh: Function of mean scores that returns weights; None: in proportion to scores.

    Attributes:
        weigh_fn: The argument ``weigh``; it may be replaced.
    """

    def __init__(self, store: Store, count: int, weigh: WeighFn | None) -> None:
        self._bases = store.base_numbers(np.arange(count))
        self._means = np.full(count, np.nan)
        self.weigh_fn = weigh

    def reduce(self, sums: ScoreSums) -> SequenceSums:
        """Return the sums of this rank over a segment."""
        return SequenceSums(sums.ids, sums.sums, sums.counts)

    def merge(self, sums: Sequence[SequenceSums]) -> SequenceSums:
        """Return the total of the sums of several ranks."""
        columns = [np.concatenate(column) for column in zip(*sums, strict=True)]
        ids, positions = np.unique(columns[0], return_inverse=True)
        merged = [np.zeros(len(ids), dtype=np.int64) for _ in range(2)]
        for total, values in zip(merged, columns[1:], strict=True):
            np.add.at(total, positions, values)
        return SequenceSums(ids, *merged)

    def weigh(self, sums: SequenceSums) -> Any:
        """Update the mean scores after a segment, and return the weights of the next one."""
        if len(sums.ids):
            rows = np.minimum(np.searchsorted(sums.ids, self._bases), len(sums.ids) - 1)
            is_met = sums.ids[rows] == self._bases
            self._means[is_met] = compute_means(sums.sums, sums.counts)[rows[is_met]]
        return (self.weigh_fn or weigh_in_proportion)(self._means.copy())

    def state(self, weights: Any) -> dict[str, Any]:
        """Return scores and weights as tensors."""
        values = None if weights is None else torch.from_numpy(weights.values.copy())
        return {"scores": torch.from_numpy(self._means.astype(np.float32)), "weights": values}

    def load(self, state: Mapping[str, Any]) -> Any:
        """Load saved scores; return the weights, None if there are none."""
        means = state["scores"].numpy().astype(np.float64)
        if means.shape != self._means.shape:
            raise ValueError(f"{len(means)} scores")
        self._means = means
        return None if state["weights"] is None else state["weights"].numpy()

    def pending_state(self, sums: SequenceSums | None) -> dict[str, Any] | None:
        """Return sums as tensors."""
        if sums is None:
            return None
        return {name: torch.from_numpy(array.copy()) for name, array in sums._asdict().items()}

    def load_pending(self, state: Mapping[str, Any] | None) -> SequenceSums | None:
        """Return the sums that ``pending_state`` saved; None if there were none."""
        if state is None:
            return None
        return SequenceSums(*(state[name].numpy() for name in SequenceSums._fields))


PartSums = dict[str, tuple[int, int]]
"""Sum and count of the scores of each part."""


class PartScores:
    """Latest mean score of each part of a mixture.

    Args:
        policy: The mixture.
        weigh: Function of mean scores by part that returns weights; None: the weights of the
            mixture, multiplied by the scores.

    Attributes:
        weigh_fn: The argument ``weigh``; it may be replaced.
    """

    def __init__(self, policy: Any, weigh: WeighFn | None) -> None:
        self._part_weights = {name: float(part.weight) for name, part in policy.parts.items()}
        self._means = dict.fromkeys(self._part_weights, math.nan)
        self.weigh_fn = weigh

    def reduce(self, sums: ScoreSums) -> PartSums:
        """Return the sums of this rank over a segment."""
        own = (sums.sums.tolist(), sums.counts.tolist())
        return self.merge(
            {part: (total, count)} for part, total, count in zip(sums.parts, *own, strict=True)
        )

    def merge(self, sums: Any) -> PartSums:
        """Return the total of the sums of several ranks."""
        merged: PartSums = {}
        for part, (total, count) in ((k, v) for part_sums in sums for k, v in part_sums.items()):
            earlier = merged.get(part, (0, 0))
            merged[part] = earlier[0] + total, earlier[1] + count
        return merged

    def weigh(self, sums: PartSums) -> Any:
        """Update the mean scores after a segment, and return the weights of the next one."""
        for part, (total, count) in sums.items():
            mean = compute_means(np.array([total], dtype=object), np.array([count], dtype=object))
            self._means[part] = float(mean[0])
        return (self.weigh_fn or self._multiply)(dict(self._means))

    def state(self, weights: Any) -> dict[str, Any]:
        """Return scores as numbers; weights are elsewhere in the state."""
        del weights
        return {"scores": dict(self._means)}

    def load(self, state: Mapping[str, Any]) -> Any:
        """Load saved scores; weights are elsewhere in the state."""
        self._means.update((part, float(mean)) for part, mean in state["scores"].items())

    def pending_state(self, sums: PartSums | None) -> dict[str, Any] | None:
        """Return sums as numbers."""
        return None if sums is None else {part: list(pair) for part, pair in sums.items()}

    def load_pending(self, state: Mapping[str, Any] | None) -> PartSums | None:
        """Return the sums that ``pending_state`` saved; None if there were none."""
        if state is None:
            return None
        return {part: (int(total), int(count)) for part, (total, count) in state.items()}

    def _multiply(self, means: dict[str, float]) -> dict[str, float]:
        values = weigh_in_proportion(np.array(list(means.values())))
        return {
            part: self._part_weights[part] * value
            for part, value in zip(means, values.tolist(), strict=True)
        }


def weigh_in_proportion(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return weights in proportion to scores, and at least a tenth of their mean.

    A missing score counts as the mean of the others. If no score is above 0, all weights are 1.

    Args:
        scores: float64 (n,), NaN where a score is missing.

    Raises:
        ConfigError: If one is negative.
    """
    is_known = ~np.isnan(scores)
    if not is_known.any():
        return np.ones(len(scores))
    least = float(scores[is_known].min())
    if least < 0:
        raise ConfigError(
            must_be(
                "Feedback: a mean score", "at least 0 to be a weight", f"{least}",
                "Pass `weigh`, a function of scores that returns weights",
            )
        )  # fmt: skip
    mean = math.fsum(scores[is_known].tolist()) / int(is_known.sum())
    if not mean:
        return np.ones(len(scores))
    return np.maximum(np.where(is_known, scores, mean), _LEAST * mean)


def compute_means(sums: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.float64]:
    """Return means of integer sums, rounded to 16 significant bits, float64 (n,)."""
    means = np.ldexp((sums / counts).astype(np.float64), -FRACTION_BITS)
    mantissas, exponents = np.frexp(means)
    rounded = np.rint(np.ldexp(mantissas, _MEAN_BITS))
    result: NDArray[np.float64] = np.ldexp(rounded, exponents - _MEAN_BITS)
    return result
