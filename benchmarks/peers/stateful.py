"""torchdata's StatefulDataLoader over the tuned hand-written dataset."""

from __future__ import annotations

from typing import Any

from peers.asking import BATCH, Ask, Peer, Pooled, Reading, pad
from peers.by_hand_tuned import Sequences


def read(ask: Ask) -> Reading:
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import RandomSampler

    dataset = Sequences(ask.folder, ask.name)
    if ask.order == "bucketed":
        kinds: dict[str, Any] = {"batch_sampler": Pooled(dataset.lengths)}
    else:
        drawn = torch.Generator().manual_seed(ask.seed)
        kinds = {"batch_size": BATCH, "sampler": RandomSampler(dataset, generator=drawn)}
    options = {"collate_fn": pad, "persistent_workers": ask.workers > 0, **kinds}
    loader = StatefulDataLoader(dataset, num_workers=ask.workers, **options)
    if ask.state is not None:
        loader.load_state_dict(ask.state)
    return Reading(loader, loader.state_dict if ask.order == "random" else None)


PEER = Peer(
    "StatefulDataLoader", ("torchdata",), read,
    lacks="resume only with its own samplers, on as many ranks and workers",
)  # fmt: skip
