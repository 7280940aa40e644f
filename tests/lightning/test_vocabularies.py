"""Codes of strings mean the same in all data of a DataModule, or are encoded by the strings."""

import lightning as L
import numpy as np
import pytest
import torch

from seqdata import Fixed, Labels, SequenceDataModule, Vocabulary, fit, open_store, split
from seqdata.errors import ConfigError
from seqdata.loading.transforms.declare import columnar

TRAIN = [{"id": "a", "word": ["x", "y"], "n": [1, 2]}, {"id": "b", "word": ["y"], "n": [3]}]
VAL = [{"id": "c", "word": ["y", "z"], "n": [4, 5]}]
OTHER = [{"id": "d", "word": ["q", "x"], "n": [6, 7]}]


class Kept(L.LightningModule):
    """Keeps the codes that it gets, by the id of the sequence."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.codes = {}

    def training_step(self, batch, batch_idx):
        self.keep(batch)
        return self.weight * 0

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.keep(batch)

    def keep(self, batch):
        for name, codes, length in zip(batch["id"], batch["word"], batch.lengths, strict=True):
            self.codes[name] = codes[:length].tolist()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def train(**options):
    model = Kept()
    trainer = L.Trainer(
        max_epochs=1, logger=False, enable_progress_bar=False, enable_checkpointing=False,
        accelerator="cpu", num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(model, SequenceDataModule(batching=Fixed(1, shuffle=False), **options))
    return model.codes


def test_other_vocabularies_are_refused():
    message = (
        "codes of field 'word' must stand for the same strings in all data, but 0 is 'x' in "
        r"'train' and 'y' in 'val'. Pass statistics={'word': Vocabulary\(\)}, which encodes"
    )
    with pytest.raises(ConfigError, match=message):
        train(train=TRAIN, val=VAL)
    with pytest.raises(ConfigError, match="but 2 is None in 'train' and 'z' in 'val'"):
        train(train=TRAIN, val=[{**VAL[0], "word": ["x", "y", "z"], "n": [1, 2, 3]}])


def test_parts_of_one_table_share_theirs():
    store = open_store([*TRAIN, *VAL])
    parts = split(store, {"train": 0.67, "val": 0.33}, exact=True, seed=1)
    codes = train(train=parts["train"], val=parts["val"])
    assert codes == {"a": [0, 1], "b": [1], "c": [1, 2]}


@columnar
def keep_all(columns, seeds):
    del seeds
    return dict(columns)


def keep_each(sequence, rng):
    del rng
    return dict(sequence)


@pytest.mark.parametrize("then", [None, keep_all, keep_each])
def test_fitted_encoders_go_by_the_strings_of_each_store(then):
    statistics = fit(open_store(TRAIN), {"word": Vocabulary()})
    assert statistics["word"].tokens == ["y", "x"]  # ids 2 and 3
    codes = train(train=TRAIN, val={"v": VAL, "o": OTHER}, statistics=statistics, transform=then)
    assert codes == {"a": [3, 2], "b": [2], "c": [2, 1], "d": [1, 3]}
    labels = {"word": Labels(unknown=-100)}
    codes = train(train=TRAIN, val={"v": VAL, "o": OTHER}, statistics=labels, transform=then)
    assert codes == {"a": [0, 1], "b": [1], "c": [1, -100], "d": [-100, 0]}


def test_fields_that_are_not_read_may_differ():
    data = SequenceDataModule(train=TRAIN, val=VAL, batching=Fixed(2), fields=("n",))
    assert np.asarray(next(iter(data.val_dataloader()))["n"]).tolist() == [[4, 5]]
