"""Batches that were drawn by weights of Feedback are made again, by the weights kept of the run."""

from pathlib import Path

import lightning.pytorch as pl
import numpy as np
import pytest
from lightning.pytorch.callbacks import ModelCheckpoint

from seqdata.api import write_store
from seqdata.errors import ConfigError, SeqDataWarning
from seqdata.lightning.callbacks.feedback import Feedback
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.fixed import Bucketed
from seqdata.policies.weighted import Weighted
from seqdata.resume_state import RunPosition
from seqdata.runs import segment_files
from seqdata.runs.locate_batch import ReplayRequest, remake_batch
from seqdata.runs.replay import open_replay
from seqdata.runs.run_file import NAME
from tests.lightning.crashing import told
from tests.lightning.feeding import GROUP, POLICIES, Feeding
from tests.lightning.harness import QUIET, quietly, sequences

pytestmark = pytest.mark.filterwarnings("ignore:.*inside an update.*:seqdata.errors.SeqDataWarning")
SEGMENT = 2 * GROUP


class Keeping(Feeding):
    """Keeps what each batch says, by epoch and number."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def training_step(self, batch, batch_idx):
        self.kept[batch.epoch, batch.number] = told(batch)
        return super().training_step(batch, batch_idx)


def data_of(policy, folder):
    """Return the DataModule of a policy, over stores on disk."""
    options = POLICIES[policy]()
    parts = options["train"] if isinstance(options["train"], dict) else {None: options["train"]}
    stores = {}
    for name, part in parts.items():
        stores[name] = str(folder / f"store-{name}")
        if not Path(stores[name]).exists():
            write_store(stores[name], ({"id": f"s{i}", "x": x} for i, x in enumerate(part)))
    train = stores.get(None, stores)
    return SequenceDataModule(**{**options, "train": train}, seed=3, batches_per_update=GROUP)


def fit(data, *, ckpt=None, folder=".", weigh=None, saves=(), max_epochs=2):
    model = Keeping()
    trainer = pl.Trainer(
        **QUIET, max_epochs=max_epochs, default_root_dir=folder, enable_checkpointing=bool(saves),
        callbacks=[Feedback("row_loss", 2, weigh), *saves],
    )  # fmt: skip
    with quietly():
        trainer.fit(model, datamodule=data, ckpt_path=ckpt)
    return model.kept


def replayed(epoch, batch, path=NAME):
    found = open_replay(Path(path), ReplayRequest(epoch=epoch, batch=batch), "train")
    return told(remake_batch(found.engine, found.located))


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_batch_is_made_again_from_the_run_file(policy, tmp_path):
    data = data_of(policy, tmp_path)
    kept = fit(data)
    chosen = list(kept)[:: 5 if policy == "weighted" else 11]
    assert {epoch for epoch, _ in chosen} == {0, 1}
    for epoch, number in chosen:
        assert replayed(epoch, number) == kept[epoch, number]
    number = max(number for _, number in kept)
    assert told(data.replay(epoch=1, batch=number)) == kept[1, number]
    found = open_replay(Path(NAME), ReplayRequest(epoch=1, step=13), "train")
    assert told(remake_batch(found.engine, found.located)) == kept[1, 13]


def test_a_resumed_fit_has_its_own_segments_and_names_the_earlier_fit(tmp_path):
    saves = [ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)]
    first = fit(data_of("weighted", tmp_path), folder="first", saves=saves, max_epochs=1)
    rest = fit(data_of("weighted", tmp_path), folder="rest", ckpt=tmp_path / "step=3.ckpt")
    assert min(rest) == (0, 12)
    for epoch, number in list(rest)[::7]:
        assert replayed(epoch, number, f"rest/{NAME}") == rest[epoch, number]
    assert replayed(0, 9, f"first/{NAME}") == first[0, 9]
    message = r"batch 7 of .* must be in the file 'seqdata-run-weights/epoch-0-batch-0.npz' next to"
    with pytest.raises(ConfigError, match=message):
        replayed(0, 7, f"rest/{NAME}")


def test_a_fit_in_the_same_folder_leaves_no_segments_of_the_one_before(tmp_path):
    fit(data_of("weighted", tmp_path))
    weights = Path("seqdata-run-weights")
    weights.joinpath("mine.npz").touch()
    before = sorted(path.name for path in weights.iterdir())
    fit(data_of("weighted", tmp_path), max_epochs=1)
    left = sorted(path.name for path in weights.iterdir())
    assert [name for name in before if name not in left] == [
        f"epoch-1-batch-{first}.npz" for first in (0, 16, 8)
    ]
    assert "mine.npz" in left


def test_a_resumed_fit_in_the_same_folder_keeps_the_segments_before_it(tmp_path):
    saves = [ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)]
    whole = fit(data_of("weighted", tmp_path), saves=saves)
    weights = Path("seqdata-run-weights")
    before = {path.name: path.read_bytes() for path in weights.iterdir()}
    rest = fit(data_of("weighted", tmp_path), ckpt=tmp_path / "step=8.ckpt")
    first = min(rest)
    assert first[0] == 1
    assert first[1] > 0
    assert {path.name: path.read_bytes() for path in weights.iterdir()} == before
    for epoch, number in [min(whole), first, max(whole)]:
        assert replayed(epoch, number) == whole[epoch, number]


def test_a_resumed_fit_that_ends_earlier_leaves_no_segments_behind_its_end(tmp_path):
    saves = [ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)]
    fit(data_of("weighted", tmp_path), saves=saves)
    rest = fit(data_of("weighted", tmp_path), ckpt=tmp_path / "step=3.ckpt", max_epochs=1)
    assert min(rest) == (0, 12)
    left = sorted(path.name for path in Path("seqdata-run-weights").iterdir())
    assert left == [f"epoch-0-batch-{first}.npz" for first in (0, 16, 8)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), "'seqdata-run-weights/epoch-0-batch-8.npz' next to seqdata"),
        (lambda path: path.write_bytes(path.read_bytes()[:-200]), "which cannot be read"),
        (lambda path: np.savez(path, values=np.ones(30)), "must have a digest, but do not"),
        (
            lambda path: path.write_bytes(path.with_name("epoch-0-batch-16.npz").read_bytes()),
            "its checksum does not match",
        ),
    ],
)
def test_weights_that_are_missing_or_damaged_are_refused(change, message, tmp_path):
    fit(data_of("weighted", tmp_path), max_epochs=1)
    change(Path("seqdata-run-weights/epoch-0-batch-8.npz"))
    with pytest.raises(ConfigError, match=message):
        replayed(0, 9)
    replayed(0, 17)


def test_without_a_folder_nothing_is_kept_and_replay_says_so(tmp_path):
    data = data_of("weighted", tmp_path)
    fit(data, folder=None, max_epochs=1)
    assert not Path("seqdata-run-weights").exists()
    with pytest.raises(ConfigError, match="but `Feedback` changes the weights of this run"):
        data.replay(epoch=0, batch=20)


def test_a_folder_that_cannot_be_written_is_warned_of_once(tmp_path):
    Path("seqdata-run-weights").touch()
    with pytest.warns(SeqDataWarning, match="weights of segments cannot be written to") as found:
        fit(data_of("weighted", tmp_path), max_epochs=1)
    assert len([one for one in found if "of segments" in str(one.message)]) == 1


def test_more_weights_than_are_kept_are_warned_of(monkeypatch, tmp_path):
    monkeypatch.setattr(segment_files, "MOST_NUMBERS", 29)
    with pytest.warns(SeqDataWarning, match="there are more than 29 weights"):
        fit(data_of("weighted", tmp_path), max_epochs=1)


def test_a_run_without_feedback_has_no_segments(tmp_path):
    data = SequenceDataModule(train=sequences(9), batching=Weighted(Bucketed(2), draws=12))
    with quietly():
        pl.Trainer(**QUIET, max_epochs=1, default_root_dir=".").fit(Feeding(), datamodule=data)
    assert not Path("seqdata-run-weights").exists()


def test_a_fit_removes_the_files_of_segments_from_its_first_batch_on(tmp_path):
    folder = tmp_path / "seqdata-run-weights"
    folder.mkdir()
    places = [(0, 0), (0, 8), (0, 16), (1, 0), (1, 8)]
    for epoch, batch in places:
        (folder / f"epoch-{epoch}-batch-{batch}.npz").touch()
    (folder / "notes.npz").touch()
    segment_files.SegmentFiles(tmp_path).begin_fit(RunPosition(0, 16))
    kept = ["epoch-0-batch-0.npz", "epoch-0-batch-8.npz", "notes.npz"]
    assert sorted(path.name for path in folder.iterdir()) == kept
