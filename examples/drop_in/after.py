"""Train on recordings: ``python after.py FOLDER``; the folder is made if it is not there."""

import sys
from pathlib import Path

import lightning as L
from project import Model, Recordings, make_recordings

from seqdata import Bucketed, SequenceDataModule


def main(folder, epochs=8, **options):
    for seed, part in enumerate(("train", "val")):
        if not (folder / part).exists():
            make_recordings(folder / part, 200, seed)
    L.seed_everything(0, verbose=False)
    train, val = Recordings(folder / "train"), Recordings(folder / "val")
    data = SequenceDataModule(
        train=train,
        val=val,
        lengths={"train": train.lengths, "val": val.lengths},
        batching=Bucketed(16),
        as_tuple=("x", "lengths", "y"),
        tail="drop",
    )
    trainer = L.Trainer(max_epochs=epochs, **options)
    trainer.fit(Model(), data)
    return float(trainer.callback_metrics["accuracy"])


if __name__ == "__main__":
    print(f"accuracy {main(Path(sys.argv[1])):.3f}")
