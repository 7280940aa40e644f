"""Recorded runs without a Trainer: losses of batches of a real plan, written to real files."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from seqdata.index import SequenceIndex
from seqdata.protocols import Policy
from seqdata.runs.loss_files import LossBlock, LossHeader, LossWriter
from seqdata.sharing import World, share


def block_of(batches: Sequence[tuple[int, int, int, Sequence[int], object]], **more) -> LossBlock:
    """A block of batches: step, epoch, number, ids, and a score for each or one for all."""
    counts = [len(ids) for _, _, _, ids, _ in batches]
    numbers = [np.array([batch[i] for batch in batches]) for i in range(3)]
    scores = [np.broadcast_to(np.float64(score), len(ids)) for _, _, _, ids, score in batches]
    ids = np.concatenate([np.asarray(ids, dtype=np.int64) for _, _, _, ids, _ in batches])
    return LossBlock(
        steps=numbers[0],
        epochs=numbers[1],
        numbers=numbers[2],
        is_shared=np.array([np.ndim(score) == 0 for *_, score in batches]),
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        ids=ids,
        parts=more.pop("parts", np.full(len(ids), -1)),
        scores=np.concatenate(scores),
        **more,
    )


def write_run(
    folder: Path,
    lengths: np.ndarray,
    policy: Policy,
    score: Callable[[np.ndarray, int], object],
    *,
    epochs: int = 1,
    world: int = 1,
    accumulate: int = 1,
    blocks: int = 100,
) -> None:
    """Write the losses of a run over a plan.

    Args:
        folder: Where the files are.
        lengths: Lengths of the sequences.
        policy: Makes the plan.
        score: Returns the scores of a batch, or the one of the batch, from ids and step.
        epochs: How many.
        world: Number of ranks.
        accumulate: Steps of a rank in an update.
        blocks: Batches of a block.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index = SequenceIndex({policy.axis: lengths})
    plans = [policy.plan(index, seed=0, epoch=epoch) for epoch in range(epochs)]
    for rank in range(world):
        writer = LossWriter(folder, LossHeader(fit=1, rank=rank, world=world, score="losses"))
        batches, trained = [], 0
        for epoch, plan in enumerate(plans):
            for step in share(plan, World(rank, world)):
                number, ids = trained // accumulate, step.spans[:, 0][step.weights > 0]
                scores = score(ids, number) if len(ids) else np.zeros(0)
                batches.append((number, epoch, step.number, ids, scores))
                trained += 1
        for first in range(0, len(batches), blocks):
            writer.append(block_of(batches[first : first + blocks]))
