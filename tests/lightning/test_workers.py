"""Worker processes under the Trainer: the same run as without, and none left when it ends."""

import pytest
from lightning.pytorch.callbacks import Callback

from seqdata import Bucketed, SequenceDataModule
from seqdata_testing.waiting import until
from tests.lightning.harness import data_of, fit, sequences
from tests.loading.workers.parts import descriptors, lives


def jitter(sequence, rng):
    return {"x": sequence["x"] + rng.normal(size=sequence["x"].shape)}


def fails_late(sequence, rng):
    if len(sequence["x"]) == 9:
        raise OSError("told to fail in a worker")
    return sequence


def data(workers, **options):
    return data_of(transform=jitter, num_workers=workers, start_method="fork", **options)


@pytest.mark.parametrize("options", [{}, {"limit_train_batches": 3, "limit_val_batches": 1}])
def test_a_fit_with_workers_is_bit_by_bit_the_fit_without(options):
    runs = [
        fit(data(workers), max_epochs=3, num_sanity_val_steps=1, val_check_interval=2, **options)
        for workers in (0, 2)
    ]
    alone, run = runs
    assert run.error is None
    assert run.log.train == alone.log.train
    assert run.log.val == alone.log.val
    assert run.model.parameters_of() == alone.model.parameters_of()


class Watch(Callback):
    """Notes the workers of the training loader at each step."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.seen.append(tuple(trainer.train_dataloader.engine.worker_pids))


@pytest.mark.parametrize("limit", [1.0, 3])
def test_the_workers_are_kept_over_epochs_and_gone_in_the_end(limit):
    watch = Watch()
    run = fit(data(2), max_epochs=4, limit_train_batches=limit, callbacks=(watch,))
    assert run.error is None
    (pids,) = set(watch.seen)
    assert len(pids) == 2
    assert until(lambda: not any(map(lives, pids)))


def test_a_run_goes_on_from_a_checkpoint_with_another_number_of_workers(tmp_path):
    whole = fit(data(0), max_epochs=2)
    fit(data(2), max_epochs=2, max_steps=4, folder=tmp_path, every=4)
    rest = fit(data(1), max_epochs=2, ckpt=tmp_path / "step=4.ckpt")
    assert rest.log.train == whole.log.train[4:]
    assert rest.model.parameters_of() == whole.model.parameters_of()


def test_an_error_in_a_worker_ends_the_fit_and_the_workers():
    before = descriptors()
    run = fit(data_of(transform=fails_late, num_workers=2, start_method="fork"), max_epochs=1)
    assert "told to fail in a worker" in str(run.error)
    assert any("in the transform of sequence" in note for note in run.error.__notes__)
    del run
    assert until(lambda: descriptors() <= before + 4)


def test_sequences_are_trained_once_with_workers_and_dummy_rows():
    run = fit(data(2, batching=Bucketed(4)), max_epochs=1)
    trained = [number for _, _, ids in run.log.train for number in ids]
    assert sorted(trained) == list(range(23))


class Evaluations(Callback):
    """Notes the workers of all evaluations in steps of training and of validation."""

    def __init__(self):
        self.training, self.validating = [], []

    def _list(self, trainer):
        return [tuple(loader.engine.worker_pids) for loader in trainer.val_dataloaders or ()]

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.training.append([pids for pids in self._list(trainer) if pids])

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx, dataloader_idx=0):
        self.validating.append([pids for pids in self._list(trainer) if pids])


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("limit", [1, 1.0])
def test_workers_of_a_validation_end_with_it(prefetch, limit):
    watch, val = Evaluations(), {name: sequences(5) for name in "ab"}
    run = fit(
        data(2, val=val, prefetch=prefetch), max_epochs=1, limit_val_batches=limit,
        num_sanity_val_steps=1, val_check_interval=3, callbacks=(watch,),
    )  # fmt: skip
    assert run.error is None
    assert watch.training == [[]] * 6
    assert {len(running) for running in watch.validating} <= {0, 1}  # of one loader at a time
    assert all(len(pids) == 2 for running in watch.validating for pids in running)
    first, *_, last = (pids for running in watch.validating for pids in running)
    assert first != last
    assert not any(map(lives, {*first, *last}))


def test_persistent_workers_of_validations_stay_until_the_end_of_the_fit():
    watch, val = Evaluations(), {name: sequences(5) for name in "ab"}
    made = data(2, val=val, persistent_workers=True)
    run = fit(made, max_epochs=2, num_sanity_val_steps=0, callbacks=(watch,))
    assert run.error is None
    assert [len(running) for running in watch.training] == [0] * 6 + [2] * 6
    assert len({tuple(running) for running in watch.training[6:]}) == 1
    pids = {pid for pids in watch.training[-1] for pid in pids}
    assert until(lambda: not any(map(lives, pids)))


@pytest.mark.parametrize("kind", ["val", "test", "predict"])
@pytest.mark.parametrize("stays", [False, True])
def test_an_evaluation_in_a_plain_loop_ends_its_workers_too(kind, stays):
    options = {"num_workers": 1, "start_method": "fork", "persistent_workers": stays}
    made = SequenceDataModule(**{kind: sequences(5)}, batching=Bucketed(2), **options)
    loader = getattr(made, f"{kind}_dataloader")()
    assert [len(list(loader)) for _ in range(2)] == [3, 3]
    assert len(loader.engine.worker_pids) == stays
    loader.shutdown()
