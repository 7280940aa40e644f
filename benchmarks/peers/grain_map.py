"""Grain: a ``MapDataset`` over the files of the hand-written loader, its fastest source here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peers.asking import BATCH, Ask, Peer, Reading, pad
from peers.by_hand_tuned import Sequences


class Epoch:
    """An epoch each time, whose position can be saved and set."""

    def __init__(self, ask: Ask) -> None:
        import absl.flags
        import grain

        absl.flags.FLAGS.mark_as_parsed()
        dataset = grain.MapDataset.source(Sequences(ask.folder, ask.name))
        dataset = dataset.seed(ask.seed).shuffle().batch(BATCH, batch_fn=pad)
        in_line = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)  # faster than threads
        self._dataset = dataset.to_iter_dataset(in_line)
        if ask.workers:
            several = grain.MultiprocessingOptions(num_workers=ask.workers)
            self._dataset = self._dataset.mp_prefetch(several)
        self._state, self._batches = ask.state, iter(())

    def __iter__(self) -> Iterator[Any]:
        self._batches = iter(self._dataset)
        if self._state is not None:
            self._batches.set_state(self._state)
            self._state = None
        return self._batches

    def save(self) -> Any:
        return self._batches.get_state()


def read(ask: Ask) -> Reading:
    epoch = Epoch(ask)
    return Reading(epoch, epoch.save)


PEER = Peer(
    "Grain", ("grain",), read, orders=("random",), lacks="no buckets; resume on as many workers"
)
