"""A batch of a run is made again from its file."""

from pathlib import Path

import numpy as np
import pytest

from seqdata.api import open_store, write_store
from seqdata.errors import ConfigError, FingerprintMismatch, PlanError
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.fixed import Bucketed
from seqdata.runs.class_paths import make_call
from seqdata.runs.locate_batch import ReplayRequest
from seqdata.runs.locations import open_view
from seqdata.runs.replay import open_replay
from seqdata.runs.run_file import NAME
from seqdata.storage.splitting import split
from tests.lightning.crashing import Crashing, told
from tests.lightning.harness import fit, sequences
from tests.runs.run_files import read_run_file, remake, write_run_file


@pytest.fixture
def store(tmp_path) -> str:
    """Forty short sequences."""
    rows = ({"id": f"s{i}", "x": x} for i, x in enumerate(sequences(40)))
    write_store(tmp_path / "store", rows)
    return str(tmp_path / "store")


def test_a_resumed_run_says_where_it_began(store, tmp_path):
    def data():
        return SequenceDataModule(train=store, batching=Bucketed(4), seed=3)

    fit(data(), folder=tmp_path / "saved", every=3, max_epochs=1)
    run = fit(data(), model=Crashing(step=7), max_epochs=1, ckpt=tmp_path / "saved/step=3.ckpt")
    course = read_run_file()["run"]
    assert (course["epoch"], course["position"], course["world_size"]) == (0, 3, 1)
    assert told(remake(7)) == run.model.kept
    assert remake(1).number == 1  # of the run before
    with pytest.raises(
        PlanError, match=r"`step` must be in \[3, 10\), the steps of 1 ranks .*but is 2 in epoch 0"
    ):
        open_replay(Path(NAME), ReplayRequest(epoch=0, step=2), "train")


def test_an_overfitted_run_replays_its_frozen_epoch(store):
    data = SequenceDataModule(train=store, batching=Bucketed(4), seed=3)
    run = fit(data, model=Crashing(step=1), overfit_batches=2, max_epochs=3)
    assert told(remake(1, epoch=2)) == run.model.kept


def test_a_view_keeps_its_numbers_beside_the_file(store):
    parts = split(open_store(store), {"train": 0.8, "val": 0.2})
    data = SequenceDataModule(train=parts["train"], val=parts["val"], batching=Bucketed(4))
    run = fit(data, model=Crashing(step=2), max_epochs=1)
    assert told(remake(2)) == run.model.kept
    arrays = str(Path("seqdata-run-train.npz").absolute())
    assert read_run_file()["data"]["train"] == make_call(open_view, base=store, arrays=arrays)
    numbers = Path("seqdata-run-train.npz")
    raw = numbers.read_bytes()
    unsealed = np.load(numbers)["numbers"]
    for content in (raw[:-2] + (b"0\n" if raw[-2:] != b"0\n" else b"1\n"), raw[::-1]):
        numbers.write_bytes(content)
        with pytest.raises(
            ConfigError, match=r"arrays that are in the file .* which cannot be read from '.*' \("
        ):
            remake(2)
    np.savez(numbers, numbers=unsealed)  # of an older release: the archive has checksums
    assert told(remake(2)) == run.model.kept
    numbers.unlink()
    with pytest.raises(ConfigError, match=r"arrays that are in the file 'seqdata-run-train\.npz' next to"):
        remake(2)


def test_data_that_changed_is_refused(store, tmp_path):
    fit(SequenceDataModule(train=store, batching=Bucketed(4)), max_epochs=1)
    rows = ({"id": f"s{i}", "x": x} for i, x in enumerate(sequences(40, 1)))
    write_store(tmp_path / "store", rows, overwrite=True)
    message = (
        r"the data of `train` must have fingerprint '\w+' as when the run began, but has '\w+'"
    )
    with pytest.raises(FingerprintMismatch, match=message):
        remake(0)


def test_a_policy_that_plans_otherwise_is_refused(store):
    fit(SequenceDataModule(train=store, batching=Bucketed(4)), max_epochs=1)
    plain = read_run_file()
    plain["data"]["batching"]["init_args"]["batch_size"] = 5
    write_run_file(plain)
    with pytest.raises(PlanError, match=r"the plan of epoch 0 must have fingerprint .* but has"):
        remake(0)
