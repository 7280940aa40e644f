"""Train on recordings: ``python before.py FOLDER``; the folder is made if it is not there."""

import random
import sys
from pathlib import Path

import lightning as L
import torch
import torch.distributed as dist
from project import Model, Recordings, make_recordings
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Sampler


def collate(items):
    xs, ys = zip(*items, strict=True)
    lengths = torch.tensor([len(x) for x in xs])
    return pad_sequence(xs, batch_first=True), lengths, torch.tensor(ys)


class BucketSampler(Sampler):
    def __init__(self, lengths, batch_size, shuffle):
        self.order = sorted(range(len(lengths)), key=lambda number: lengths[number])
        self.batch_size, self.shuffle, self.epoch = batch_size, shuffle, 0
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        size = self.batch_size
        batches = [self.order[i : i + size] for i in range(0, len(self.order), size)]
        if self.shuffle:
            random.Random(self.epoch).shuffle(batches)
        whole = len(batches) // self.world * self.world  # else ranks hang at the epoch's end
        return iter(batches[self.rank : whole : self.world])

    def __len__(self):
        return -(-len(self.order) // self.batch_size) // self.world


class RecordingsData(L.LightningDataModule):
    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def loader(self, part, shuffle):
        dataset = Recordings(self.folder / part)
        sampler = BucketSampler(dataset.lengths, 16, shuffle)
        return DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)

    def train_dataloader(self):
        return self.loader("train", True)

    def val_dataloader(self):
        return self.loader("val", False)


class SetEpoch(L.Callback):
    def on_train_epoch_start(self, trainer, module):
        trainer.train_dataloader.batch_sampler.set_epoch(trainer.current_epoch)


def main(folder, epochs=8, **options):
    for seed, part in enumerate(("train", "val")):
        if not (folder / part).exists():
            make_recordings(folder / part, 200, seed)
    L.seed_everything(0, verbose=False)
    data = RecordingsData(folder)
    trainer = L.Trainer(
        max_epochs=epochs, use_distributed_sampler=False, callbacks=[SetEpoch()], **options
    )
    trainer.fit(Model(), data)
    return float(trainer.callback_metrics["accuracy"])


if __name__ == "__main__":
    print(f"accuracy {main(Path(sys.argv[1])):.3f}")
