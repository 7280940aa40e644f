"""SPDL: a pipeline of threads over the files of the hand-written loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from peers.asking import BATCH, Ask, Peer, Pooled, Reading, pad
from peers.by_hand_tuned import Sequences


class Epoch:
    """An epoch each time, by a pipeline of its own."""

    def __init__(self, ask: Ask) -> None:
        self._dataset = Sequences(ask.folder, ask.name)
        lengths = self._dataset.lengths
        if ask.order == "random":
            lengths = np.zeros_like(lengths)
        self._batches = Pooled(lengths, random=np.random.default_rng(ask.seed))

    def __iter__(self) -> Iterator[Any]:
        from spdl.pipeline import PipelineBuilder

        builder = PipelineBuilder().add_source(self._batches)
        builder = builder.pipe(self._load, concurrency=2, output_order="input").add_sink(8)
        pipeline = builder.build(num_threads=2)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator(timeout=60)

    def _load(self, numbers: list[int]) -> Any:
        return pad(self._dataset.__getitems__(numbers))


def read(ask: Ask) -> Reading:
    return Reading(Epoch(ask))


PEER = Peer(
    f"SPDL, 2 threads, batches of {BATCH}", ("spdl-core",), read,
    lacks="threads, no worker processes here; no resume; orders are one's own",
)  # fmt: skip
