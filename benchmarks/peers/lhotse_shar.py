"""lhotse: Shar files of features, and its ``DynamicBucketingSampler``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samples import FRAME, Samples

from peers.asking import BATCH, Ask, Peer, Reading

SHIFT = 0.01  # seconds of a frame


def _cuts(samples: Samples) -> Iterator[Any]:
    from lhotse import Features, MonoCut
    from lhotse.features.io import MemoryRawWriter

    writer = MemoryRawWriter()
    for number, frames in enumerate(row["x"] for row in samples.dicts()):
        seconds, place = round(len(frames) * SHIFT, 2), writer.write("", frames)
        features = Features(
            num_frames=len(frames), num_features=FRAME, frame_shift=SHIFT, sampling_rate=16_000,
            start=0, duration=seconds, storage_type=writer.name, storage_path="",
            storage_key=place, channels=0, type="frames",
        )  # fmt: skip
        yield MonoCut(f"{number}", 0, seconds, 0, features=features)


def write(folder: Path, samples: Samples) -> None:
    from lhotse.shar import SharWriter

    folder.mkdir()
    with SharWriter(str(folder), fields={"features": "numpy"}, shard_size=500) as sink:
        for cut in _cuts(samples):
            sink.write(cut)


class Padded:
    def __getitem__(self, cuts: Any) -> Any:
        from lhotse.dataset.collation import collate_features

        return collate_features(cuts)


def read(ask: Ask) -> Reading:
    from lhotse import CutSet
    from lhotse.dataset import DynamicBucketingSampler, IterableDatasetWrapper
    from torch.utils.data import DataLoader

    cuts = CutSet.from_shar(in_dir=str(ask.folder), shuffle_shards=True, seed=ask.seed)
    sampler = DynamicBucketingSampler(cuts, max_cuts=BATCH, shuffle=True, num_buckets=10)
    wrapped: Any = IterableDatasetWrapper(Padded(), sampler)
    return Reading(DataLoader(wrapped, None, num_workers=ask.workers))


_LACKS = "made for speech: frames only; buckets of a buffer of cuts"
PEER = Peer("lhotse", ("lhotse",), read, write, orders=("bucketed",), sets=("M",), lacks=_LACKS)
