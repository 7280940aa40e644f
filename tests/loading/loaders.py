"""Loaders over small data, and what they deliver."""

import functools
import json

import numpy as np

from seqdata import Zip
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Bucketed
from seqdata.policies.token_budget import TokenBudget
from seqdata.storage.memory import MemoryStore

LENGTHS = np.random.default_rng(1).integers(1, 40, size=101)
STORE = MemoryStore.from_sequences(
    [
        {"x": np.arange(n, dtype=np.int32) + 100 * number, "y": number % 2, "id": f"s{number}"}
        for number, n in enumerate(LENGTHS)
    ]
)
POLICY = Bucketed(8)  # 13 batches
ZIP = Zip(  # in one order, whatever the ranks with which the run begins
    {"labelled": Bucketed(4), "unlabelled": TokenBudget(60)}, lead="labelled"
).for_ranks(4)


def make_loader(policy=POLICY, store=STORE, **options):
    return Loader(store, policy, **{"prefetch": 0, **options})


def pass_through_json(state):
    return json.loads(json.dumps(state))


def resume_loader(state, **options):
    made = make_loader(**options)
    made.load_state_dict(pass_through_json(state))
    return made


def start_loader(count, **options):
    """Return a loader, and the iteration it has delivered ``count`` batches of."""
    made = make_loader(**options)
    items = iter(made)
    for _ in range(count):
        next(items)
    return made, items


def make_zip_rows(count, seed, *, labels=True):
    rng = np.random.default_rng(seed)
    return [
        {"x": rng.integers(0, 9, size=rng.integers(1, 20)), **({"y": number} if labels else {})}
        for number in range(count)
    ]


def make_zip_data():
    return {"labelled": make_zip_rows(41, 1), "unlabelled": make_zip_rows(150, 2, labels=False)}


def describe_step(step):
    return {
        name: (
            batch.part, batch.part_epoch, batch.epoch, batch.number, batch.ids.tolist(),
            batch["x"].tolist(), batch.weight.tolist(), batch.update_num_tokens,
        )
        for name, batch in step.items()
    }  # fmt: skip


def play_zip(loader):
    try:
        return [describe_step(step) for step in loader]
    finally:
        loader.shutdown()


@functools.cache
def play_whole_zip():
    """Return four epochs, played in one process."""
    loader = Loader(make_zip_data(), ZIP, seed=5)
    return [play_zip(loader) for _ in range(4)]
