"""Recording of the rows that a loader delivers, in this or another process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from seqdata.batch.batch import SequenceBatch
from seqdata.loading.loader import Loader
from seqdata.protocols import Policy, Store
from seqdata.sharing import Tail, World


class LoaderLike(Protocol):
    """A loader with the interface of ``seqdata.Loader``."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the delivered batches."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration continue at the position of a state."""
        ...

    def shutdown(self) -> None:
        """Stop threads and workers."""
        ...


Make = Callable[[World], LoaderLike]


class Row(NamedTuple):
    """A delivered row of weight > 0.

    Attributes:
        epoch: Epoch of the batch.
        number: Index of the batch in the plan.
        lane: Lane of the row; -1 without lanes.
        id: Index of its sequence in the base store.
        start: First timestep.
        length: Number of timesteps.
        digest: Digest of the content of all fields.
    """

    epoch: int
    number: int
    lane: int
    id: int
    start: int
    length: int
    digest: str


def record_rows(batch: SequenceBatch) -> list[Row]:
    """Return the rows of a batch that have weight > 0."""
    counted = [row for row, weight in enumerate(batch.weight.tolist()) if weight > 0]
    if not counted:
        return []
    lanes = [-1] * len(batch) if batch.lanes is None else batch.lanes.tolist()
    ids, starts, lengths = batch.ids.tolist(), batch.start.tolist(), batch.lengths.tolist()
    digests = _digest_rows(batch, counted)
    return [
        Row(batch.epoch, batch.number, lanes[row], ids[row], starts[row], lengths[row], digest)
        for row, digest in zip(counted, digests, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class LoaderFactory:
    """Factory of the loader of a rank; can be pickled for other processes.

    Args:
        store: Store to read.
        policy: Policy that batches epochs.
        seed: Seed of the order.
        tail: Treatment of ranks without a batch in the last step.
        prefetch: Number of groups that a thread reads ahead; 0: no thread.
    """

    store: Store
    policy: Policy
    seed: int = 0
    tail: Tail = "fill"
    prefetch: int = 2

    def __call__(self, world: World) -> Loader:
        """Make the loader of a rank."""
        return Loader(
            self.store,
            self.policy,
            world=world,
            seed=self.seed,
            tail=self.tail,
            prefetch=self.prefetch,
        )


def play_rank(make: Make, world: World, state: dict[str, Any] | None = None) -> list[Row]:
    """Play one epoch of one rank, and return its rows; for process pools."""
    loader = make(world)
    if state is not None:
        loader.load_state_dict(state)
    return [row for batch in loader for row in record_rows(batch)]


def _digest_rows(batch: SequenceBatch, rows: list[int]) -> list[str]:
    """Return a digest of the content of each row, over all fields."""
    digests = {row: hashlib.sha256() for row in rows}
    for name in sorted(batch.data):
        values = batch.data[name]
        if isinstance(values, list):
            for row, digest in digests.items():
                digest.update(repr(values[row]).encode())
            continue
        along = batch.axes.along(name)
        stops = None if along is None else batch.lengths_of[along].tolist()
        # Rows of several tensors (nested ones, too) have no common array.
        for row, digest in digests.items():
            content = values[row] if stops is None else values[row][: stops[row]]
            digest.update(name.encode() + content.numpy().tobytes())
    return [digest.hexdigest()[:16] for digest in digests.values()]
