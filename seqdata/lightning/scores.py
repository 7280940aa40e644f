"""Scores of sequences, collected from the outputs of training steps by the ids of their batches.

A score is any number by which sequences are compared, usually the loss: one value for each row, or
one for the whole batch, which then counts for each of its rows. Collecting does not wait for a
device: values stay there until they are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError, did_you_mean, must_be, warn

FRACTION_BITS = 30
"""Sums are multiples of ``2**-FRACTION_BITS``: integers, whose sum does not depend on the order."""

MAX_SCORE = 2.0**20
"""Largest absolute score that is summed: the sum of 8,191 of them fits an int64."""

_SMALL_SCORE = 2.0**-20  # rounding changes a smaller score by up to 1/2048 of it, or more

LOSS = "loss"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchScores:
    """Scores of one batch on this rank, without padding rows.

    Attributes:
        step: Step of the optimizer, as it was passed to ``add``.
        epoch: Epoch of the plan.
        number: Index of the batch in the plan.
        ids: int64 (n,), indices of the sequences in their store.
        parts: Name of the part of each sequence; None without parts.
        scores: float64 (n,), including NaN and infinities.
        is_shared: Whether there was one score for the whole batch, repeated for each sequence.
    """

    step: int
    epoch: int
    number: int
    ids: NDArray[np.int64]
    parts: Sequence[str | None]
    scores: NDArray[np.float64]
    is_shared: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreSums:
    """Scores summed by sequence, ordered by part and id.

    Attributes:
        ids: int64 (n,), indices of the sequences in their store.
        parts: Name of the part of each; None without parts.
        sums: int64 (n,), multiples of ``2**-FRACTION_BITS``. Sums of ranks may be added.
        counts: int64 (n,), number of scores in each sum.
    """

    ids: NDArray[np.int64]
    parts: Sequence[str | None]
    sums: NDArray[np.int64]
    counts: NDArray[np.int64]


class _Pending(NamedTuple):
    """A score that was not read yet, with the metadata of its batch."""

    step: int
    epoch: int
    number: int
    ids: Tensor
    weight: Tensor
    segments: Tensor | None
    part: str | list[str] | None
    score: Tensor
    is_shared: bool


@dataclass(slots=True, eq=False)
class ScoreCollector:
    """Collects the scores of training steps, without waiting for a device.

    Rows of weight 0 (dummies and idle lanes) are dropped. The score of a row of several sequences
    (packed documents, streams of lanes) counts for each of them, unless there is one score for each
    of ``batch.segments``. Chunks and windows of a sequence count one by one. In a dict of batches
    names are parts, and the scores are a dict with some of these names, or one value for all.

    Attributes:
        score: Key of the score in the output of ``training_step``; a tensor alone is ``loss``.
        owner: Name of the user of the collector, for messages.
    """

    score: str = LOSS
    owner: str = "ScoreCollector"
    _pending: list[_Pending] = field(default_factory=list, init=False)
    _has_warned: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.score, str) or not self.score:
            raise ConfigError(
                must_be(
                    f"{self.owner}: `score`",
                    "a non-empty string, a key of the step's output",
                    repr(self.score),
                )
            )

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, outputs: Any, batch: Any, *, step: int = 0, divided_by: int = 1) -> None:
        """Add the output of a training step; a step without output adds nothing.

        Args:
            outputs: Output of ``training_step``, as Lightning passes it on: a tensor, or a dict.
            batch: A batch, or a dict of batches.
            step: Step of the optimizer, kept with the scores.
            divided_by: Number by which Lightning has divided ``loss``: the steps of an update.

        Raises:
            ConfigError: If the batch has no ids, or the output has no such score, or one of
                another shape.
        """
        batches = _name_batches(batch)
        if not batches:
            raise ConfigError(
                must_be(
                    f"{self.owner}: the batch",
                    "a SequenceBatch, or a dict of them, which have the ids of sequences",
                    f"a {type(batch).__name__}",
                    "Train with a SequenceDataModule, without `as_tuple`, `as_dict` and collate_fn",
                )
            )
        value = self._find_score(outputs)
        if value is None:
            return
        factor = divided_by if self.score == LOSS else 1
        for name, own_batch, own_value in self._match(value, batches):
            if not isinstance(own_value, Tensor):
                own_value = torch.as_tensor(own_value, device="cpu")
            score = own_value.detach()
            is_shared = score.numel() == 1 and (score.dim() == 0 or len(own_batch) != 1)
            if not is_shared:
                self._check_shape(score, own_batch)
            score = score.reshape(-1).clone()  # the memory of a step may be used again by the next
            score = score * factor if factor != 1 else score
            self._pending.append(
                _Pending(
                    step, own_batch.epoch, own_batch.number, own_batch.ids,
                    own_batch.weight.detach(), own_batch.segments, name or own_batch.part, score,
                    is_shared,
                )
            )  # fmt: skip

    def take_batches(self) -> list[BatchScores]:
        """Return and remove the scores of each batch since the last call, in their order."""
        pending, self._pending = self._pending, []
        scores = _move([entry.score for entry in pending])
        weights = _move([entry.weight for entry in pending])
        return [
            _select_real_rows(entry, score, weight)
            for entry, score, weight in zip(pending, scores, weights, strict=True)
        ]

    def take(self) -> ScoreSums:
        """Return and remove the sums by sequence since the last call; not collective.

        Raises:
            ConfigError: If a score is not finite, or too large for a sum; on this rank only.
        """
        return self.sum_batches(self.take_batches())

    def sum_batches(self, batches: Sequence[BatchScores]) -> ScoreSums:
        """Return sums by sequence: the same for any order of the batches.

        Raises:
            ConfigError: If a score is not finite, or too large for a sum.
        """
        for batch in batches:
            self._check_summable(batch)
        self._warn_of_small(batches)
        columns: list[tuple[str | None, NDArray[np.int64], NDArray[np.int64], NDArray[Any]]] = []
        for part, ids, scores in _group_by_part(batches):
            multiples = np.rint(np.ldexp(scores, FRACTION_BITS)).astype(np.int64)
            order = np.argsort(ids, kind="stable")
            own_ids, firsts, counts = np.unique(ids[order], return_index=True, return_counts=True)
            columns.append((part, own_ids, np.add.reduceat(multiples[order], firsts), counts))
        empty = np.zeros(0, dtype=np.int64)
        return ScoreSums(
            ids=np.concatenate([empty, *(ids for _, ids, _, _ in columns)]),
            parts=[part for part, ids, _, _ in columns for _ in range(len(ids))],
            sums=np.concatenate([empty, *(sums for _, _, sums, _ in columns)]),
            counts=np.concatenate([empty, *(counts for _, _, _, counts in columns)]),
        )

    def _find_score(self, outputs: Any) -> Any:
        """Return the score in the output of a step; None if the step was skipped."""
        if isinstance(outputs, Mapping):
            if outputs and self.score not in outputs:
                names = ", ".join(map(repr, outputs))
                similar = did_you_mean(self.score, map(str, outputs))
                raise ConfigError(
                    must_be(
                        f"{self.owner}: `score`",
                        f"a key of what `training_step` returns ({names})",
                        repr(self.score),
                        f"{similar[:1].upper()}{similar[1:]} Return one value for each row under "
                        "this key".lstrip(),
                    )
                )
            return outputs.get(self.score)
        if outputs is not None and self.score != LOSS:
            raise ConfigError(
                must_be(
                    f"{self.owner}: the output of `training_step`",
                    f"a dict with the key {self.score!r}",
                    f"a {type(outputs).__name__}, which is the loss",
                    f'Return {{"loss": loss, "{self.score}": values}}',
                )
            )
        return outputs

    def _match(
        self, value: Any, batches: Mapping[str | None, SequenceBatch]
    ) -> Iterator[tuple[str | None, SequenceBatch, Any]]:
        """Yield each batch with its part and its score."""
        if not isinstance(value, Mapping):
            for name, batch in batches.items():
                yield name, batch, value
            return
        for name, own_value in value.items():
            if name not in batches:
                raise ConfigError(
                    must_be(
                        f"{self.owner}: the keys of {self.score!r}",
                        f"names of batches ({', '.join(map(str, batches))})",
                        repr(name),
                    )
                )
            yield name, batches[name], own_value

    def _check_shape(self, score: Tensor, batch: SequenceBatch) -> None:
        """Raise unless there is a score for each row, or for each segment."""
        rows = len(batch)
        spans = rows if batch.segments is None else len(batch.segments)
        if tuple(score.shape) not in ((rows,), (spans,)):
            sizes = f"({rows},)" if spans == rows else f"({rows},) or ({spans},)"
            unit = "row" if spans == rows else "row or segment"
            raise ConfigError(
                must_be(
                    f"{self.owner}: the shape of {self.score!r}",
                    f"{sizes}, a value for each {unit}, or (), one of the whole batch",
                    f"{tuple(score.shape)}",
                    "Sum or average over timesteps and features",
                )
            )

    def _warn_of_small(self, batches: Sequence[BatchScores]) -> None:
        """Warn once if all scores are so small that their sums hardly distinguish them."""
        largest = max((float(np.abs(b.scores).max(initial=0)) for b in batches), default=0.0)
        if 0 < largest < _SMALL_SCORE and not self._has_warned:
            self._has_warned = True
            warn(
                f"{self.owner}: {self.score!r} should be above {_SMALL_SCORE:.0e} in some rows, "
                f"but is at most {largest:.3g}: scores are summed in steps of "
                f"{2.0**-FRACTION_BITS:.0e}, which hardly distinguish these. Multiply it before it "
                "is returned",
            )

    def _check_summable(self, batch: BatchScores) -> None:
        """Raise if a score is not finite, or too large for a sum."""
        is_bad = ~(np.abs(batch.scores) <= MAX_SCORE)
        if is_bad.any():
            first = int(is_bad.argmax())
            part = batch.parts[first]
            of_part = "" if part is None else f" of part {part!r}"
            raise ConfigError(
                must_be(
                    f"{self.owner}: {self.score!r} of sequence {batch.ids[first]}{of_part} "
                    f"(epoch {batch.epoch}, batch {batch.number})",
                    f"a finite number from -{MAX_SCORE:,.0f} to {MAX_SCORE:,.0f}",
                    f"{batch.scores[first]}",
                    "Leave such rows out with a weight of 0, or return a score that is bounded",
                )
            )


def _name_batches(batch: Any) -> dict[str | None, SequenceBatch]:
    """Return the batches of a step by name; empty if one is not a SequenceBatch."""
    if isinstance(batch, SequenceBatch):
        return {None: batch}
    if isinstance(batch, Mapping) and all(
        isinstance(own_batch, SequenceBatch) for own_batch in batch.values()
    ):
        return dict(batch)
    return {}


def _move(tensors: Sequence[Tensor]) -> list[NDArray[np.float64]]:
    """Return flat tensors as arrays on the CPU, with one transfer for each device."""
    arrays: list[NDArray[np.float64]] = [np.zeros(0)] * len(tensors)
    for device in {tensor.device for tensor in tensors}:
        indices = [i for i, tensor in enumerate(tensors) if tensor.device == device]
        flat = torch.cat([tensors[i] for i in indices]).cpu().double().numpy()
        stops = np.cumsum([len(tensors[i]) for i in indices])
        for i, array in zip(indices, np.split(flat, stops[:-1]), strict=True):
            arrays[i] = array
    return arrays


def _select_real_rows(
    entry: _Pending, score: NDArray[np.float64], weight: NDArray[np.float64]
) -> BatchScores:
    """Return the scores of rows with a weight above 0."""
    if entry.segments is None:
        ids = entry.ids.numpy()
        rows = np.arange(len(ids))
    else:
        rows, ids = entry.segments.numpy()[:, :2].T
    is_real = (weight[rows] > 0) & (ids >= 0)
    if entry.is_shared:
        scores = np.broadcast_to(score, ids.shape)
    else:
        scores = score[rows] if len(score) == len(weight) else score
    if isinstance(entry.part, list):
        parts: list[str | None] = [entry.part[row] for row in rows[is_real].tolist()]
    else:
        parts = [entry.part] * int(is_real.sum())
    return BatchScores(
        step=entry.step, epoch=entry.epoch, number=entry.number, ids=ids[is_real], parts=parts,
        scores=scores[is_real], is_shared=entry.is_shared,
    )  # fmt: skip


def _group_by_part(
    batches: Sequence[BatchScores],
) -> Iterator[tuple[str | None, NDArray[np.int64], NDArray[np.float64]]]:
    """Yield part, ids and scores, in the order of the parts' names."""
    parts = [part for batch in batches for part in batch.parts]
    if not parts:
        return
    ids = np.concatenate([batch.ids for batch in batches])
    scores = np.concatenate([batch.scores for batch in batches])
    names = sorted(set(parts), key=lambda part: (part is not None, part or ""))
    if len(names) == 1:
        yield names[0], ids, scores
        return
    codes = {name: code for code, name in enumerate(names)}
    code_of_row = np.array([codes[part] for part in parts])
    for name, code in codes.items():
        yield name, ids[code_of_row == code], scores[code_of_row == code]
