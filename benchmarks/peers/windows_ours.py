"""seqdata: windows of sequences, drawn again in every epoch."""

from __future__ import annotations

from peers.asking import CONTEXT, HORIZON, WINDOWS, Ask, Peer, Reading
from peers.ours import write


def read(ask: Ask) -> Reading:
    from seqdata import Loader, Windows

    policy = Windows(CONTEXT, horizon=HORIZON, stride=1, batch_size=WINDOWS)
    loader = Loader(str(ask.folder), policy, seed=ask.seed)
    return Reading(loader, loader.state_dict, loader.shutdown)


PEER = Peer("seqdata", ("lightning-seqdata",), read, write, sets=("W",))
