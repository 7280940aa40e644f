"""Hugging Face datasets as an iterable set, with its shuffle buffer."""

from __future__ import annotations

from dataclasses import replace

from torture_set.asking import Ask, Reading
from torture_set.readers import hf
from torture_set.truth import SHARDS


def read(ask: Ask) -> Reading:
    import datasets
    from datasets.distributed import split_dataset_by_node

    data = datasets.load_from_disk(str(ask.folder)).to_iterable_dataset(num_shards=SHARDS)
    data = data.with_format("numpy")
    if ask.shuffle:
        data = data.shuffle(seed=3, buffer_size=64)
    if ask.world > 1:
        data = split_dataset_by_node(data, rank=ask.rank, world_size=ask.world)
    return hf.under_loader(data, ask)


LIBRARY = replace(hf.LIBRARY, read=read)
