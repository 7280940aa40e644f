"""seqdata with its defaults."""

from __future__ import annotations

from pathlib import Path

from samples import Samples

from peers.asking import BATCH, Ask, Peer, Reading


def write(folder: Path, samples: Samples) -> None:
    from seqdata import write_store

    write_store(folder, samples.dicts(), progress=False)


def read(ask: Ask) -> Reading:
    from seqdata import Bucketed, Fixed, Loader

    policy = Bucketed(BATCH) if ask.order == "bucketed" else Fixed(BATCH)
    loader = Loader(
        str(ask.folder), policy, seed=ask.seed, num_workers=ask.workers,
        as_tuple=["x", "lengths"],
    )  # fmt: skip
    if ask.state is not None:
        loader.load_state_dict(ask.state)
    return Reading(loader, loader.state_dict, loader.shutdown)


PEER = Peer(
    "seqdata", ("lightning-seqdata",), read, write,
    lacks="decodes no images or video; keeps lengths of all sequences in memory",
)  # fmt: skip
