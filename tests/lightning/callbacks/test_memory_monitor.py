"""RankMemoryMonitor: figures of every rank, one warning, and what is said where memory ran out."""

import functools
import re
import warnings

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

import seqdata
from seqdata import Bucketed, ConfigError, Fixed, RankMemoryMonitor, SeqDataWarning
from tests.lightning.callbacks.monitored import BareLoader, CarelessModel, fit_loader, read_logged
from tests.lightning.harness import QUIET, Recorder, data_of, fit, quietly, sequences

MIB = 1 << 20


class Full(Recorder):
    """Has no memory left at a batch of training or validation."""

    def __init__(self, at, error=None, where="training"):
        super().__init__()
        self.at, self.where, self.seen = at, where, 0
        self.error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    def training_step(self, batch, batch_idx):
        self.count("training")
        return self.layer.weight.sum()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.count("validation")

    def count(self, where):
        if where == self.where:
            self.seen += 1
            if self.seen > self.at:
                raise self.error


class FullOnTheWay(Full):
    """Has no memory left for a batch on its way to the device."""

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        self.count("training")
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def training_step(self, batch, batch_idx):
        return self.layer.weight.sum()


def notes_of(model, data, monitor=None, **trainer):
    """Fit until memory runs out; give what the monitor says."""
    monitor = monitor or RankMemoryMonitor()
    with pytest.raises(type(model.error)) as caught:
        fit(data, model=model, max_epochs=2, callbacks=(monitor,), **trainer)
    notes = getattr(caught.value, "__notes__", ())
    return [note for note in notes if note.startswith("RankMemoryMonitor: ")]


def planned(data, number, epoch=0):
    """Return lengths and ids of a batch as the plan has them."""
    player = data._get_engines("train")[0]
    spans = player.plan(epoch).batch(number).spans
    return (spans[:, 2] - spans[:, 1]).tolist(), spans[:, 0].tolist()


def test_peak_memory_and_timesteps_are_logged_every_few_steps(tmp_path):
    monitor = RankMemoryMonitor(every_n_steps=4)
    logger = CSVLogger(tmp_path, name="", version="")
    run = fit(
        data_of(23, val=None), max_epochs=1, callbacks=(monitor,), logger=logger,
        log_every_n_steps=3,
    )  # fmt: skip
    rows = [row for row in read_logged(tmp_path) if "memory/rank_0/tokens" in row]
    assert [row["step"] for row in rows] == [3, 6]  # four steps, and the rest
    lengths = run.data._get_engines("train")[0].index.lengths
    assert sum(row["memory/rank_0/tokens"] for row in rows) == lengths.sum()
    assert rows[0]["memory/rank_0/padded_timesteps"] >= rows[0]["memory/rank_0/tokens"]
    assert 50 * MIB < rows[0]["memory/rank_0/peak_bytes"] <= monitor.ranks[0].peak_bytes


def test_steps_are_counted_across_epochs():
    monitor = RankMemoryMonitor(every_n_steps=5)
    fit(data_of(23, val=3), max_epochs=3, callbacks=(monitor,), val_check_interval=2)
    assert [one.steps for one in monitor.ranks] == [3]  # 18 = 3 x 5 + 3


def test_out_of_memory_tells_batch_shape_ids_budget_and_command(tmp_path):
    rows = [np.ones((length, 1)) for length in (5, 3, 6, 7, 2, 2, 4, 9, 1)]
    data = seqdata.SequenceDataModule(train=rows, batching=Fixed(3, shuffle=False), seed=1)
    (note,) = notes_of(Full(at=2), data, default_root_dir=tmp_path)
    assert note == (
        "RankMemoryMonitor: out of memory on rank 0 in epoch 0, batch 2: 3 rows x 9 timesteps, 27 "
        "after padding (14 real), ids 6, 7, 8. The largest batch that passed had 21 timesteps after"
        " padding, so this budget would have fit: TokenBudget(21). See it: "
        "data.replay(epoch=0, batch=2)"
    )


def test_the_command_is_of_the_run_file_where_there_is_one(tmp_path):
    seqdata.write_store(tmp_path / "store", ({"x": one} for one in sequences(23)))
    data = seqdata.SequenceDataModule(train=tmp_path / "store", batching=Bucketed(4), seed=1)
    (note,) = notes_of(Full(at=8), data, default_root_dir=tmp_path / "run")
    assert note.endswith("See it: seqdata replay run/seqdata-run.yaml --epoch 1 --batch 2")


def test_out_of_memory_in_the_first_batch_knows_no_budget_that_fits():
    data = data_of(23, val=None)
    (note,) = notes_of(Full(at=0), data)
    lengths, _ = planned(data, 0)
    wanted = (
        f". No batch has passed. Use a budget below {4 * max(lengths)} timesteps after padding "
        "(TokenBudget), or a smaller model. See it: "
    )
    assert wanted in note


def test_out_of_memory_in_a_batch_that_is_not_the_largest_is_not_blamed_on_its_size():
    data = data_of(23, val=None, batching=Bucketed(4, shuffle=False))
    (note,) = notes_of(Full(at=7), data)  # batch 1 of epoch 1
    most = max(4 * max(planned(data, number)[0]) for number in range(5))
    assert "epoch 1, batch 1:" in note
    assert (
        f". A batch of {most} timesteps after padding has passed before, so the size of this "
        "batch is not the cause: look for outputs that are kept from step to step, for other "
        "processes on the device, or for fragmentation "
        "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True). "
        "See it: "
    ) in note


@pytest.mark.filterwarnings("ignore:You have overridden `transfer_batch_to_device`")
@pytest.mark.parametrize("options", [{}, {"as_tuple": ["x"]}, {"as_dict": ["x", "lengths"]}])
def test_a_batch_that_did_not_get_onto_the_device_is_the_one_that_is_told(options):
    (note,) = notes_of(FullOnTheWay(at=3), data_of(val=None, **options))
    assert "epoch 0, batch 3:" in note


def test_out_of_memory_in_a_validation_tells_its_batch():
    data = data_of(val=5, as_tuple=["x"])
    (note,) = notes_of(Full(at=1, where="validation"), data)
    wanted = (
        r"on rank 0 in epoch 0, batch 1: 2 rows x \d+ timesteps, \d+ after padding \(\d+ real\)"
    )
    assert re.search(wanted, note)
    assert note.endswith(
        ", in validation: lower the budget of `eval_batching`. See it: "
        "data.replay(epoch=0, batch=1, kind='val')"
    )


def test_out_of_memory_in_one_of_several_validation_sets_tells_its_batch():
    data = data_of(val={"one": sequences(2), "two": sequences(6)})
    (note,) = notes_of(Full(at=3, where="validation"), data)
    assert "epoch 0, batch 2:" in note
    assert note.endswith("See it: data.replay(epoch=0, batch=2, kind='val', name='two')")


@pytest.mark.parametrize(("call", "what"), [("test", "test"), ("predict", "prediction")])
def test_out_of_memory_in_a_test_or_prediction_tells_its_batch(call, what):
    class Testing(Full):
        def test_step(self, batch, batch_idx):
            self.count("validation")
            return self.seen

        predict_step = test_step

    data, model = data_of(val=None, **{call: sequences(6)}), Testing(at=1, where="validation")
    trainer = pl.Trainer(**QUIET, max_epochs=1, callbacks=[RankMemoryMonitor()])
    with quietly(), pytest.raises(torch.OutOfMemoryError) as caught:
        getattr(trainer, call)(model, datamodule=data)
    (note,) = [one for one in caught.value.__notes__ if one.startswith("RankMemoryMonitor")]
    assert "on rank 0 in epoch 0, batch 1: 2 rows" in note
    assert note.endswith(
        f", in {what}: lower the budget of `eval_batching`. See it: "
        f"data.replay(epoch=0, batch=1, kind={call!r})"
    )


def test_out_of_memory_before_any_batch_says_so():
    class Empty(Full):
        def on_fit_start(self):
            raise self.error

    (note,) = notes_of(Empty(at=0), data_of(val=None))
    assert note == "RankMemoryMonitor: out of memory on rank 0; the batch is unknown"


@pytest.mark.filterwarnings("ignore:RankMemoryMonitor. the loader is a Bare")
def test_a_batch_of_another_loader_is_told_as_far_as_it_is_known():
    error = torch.OutOfMemoryError("CUDA out of memory")

    class Failing(CarelessModel):
        def training_step(self, batch, batch_idx):
            raise error

    batches = list(seqdata.Loader(sequences(8), Bucketed(4)))
    with pytest.raises(torch.OutOfMemoryError):
        fit_loader(BareLoader(batches), RankMemoryMonitor(), model=Failing())
    assert error.__notes__[0].startswith(
        f"RankMemoryMonitor: out of memory on rank 0 in epoch 0, batch {batches[0].number}: 4 rows"
    )
    assert error.__notes__[0].endswith("(TokenBudget), or a smaller model")


def test_ids_are_shown_as_far_as_a_person_reads():
    data = data_of(40, val=None, batching=Bucketed(30, shuffle=False))
    (note,) = notes_of(Full(at=0), data)
    _, ids = planned(data, 0)
    assert f"ids {', '.join(map(str, ids[:20]))}, …. No batch" in note


def test_another_error_gets_no_note():
    model = Full(at=1, error=RuntimeError("shapes do not match"))
    assert notes_of(model, data_of(val=None)) == []


def test_one_process_is_never_skewed():
    with warnings.catch_warnings():
        warnings.simplefilter("error", SeqDataWarning)
        fit(data_of(val=None), max_epochs=1, callbacks=(RankMemoryMonitor(every_n_steps=1),))


@pytest.mark.parametrize("every", [0, 2.5])
def test_steps_must_be_a_count(every):
    wanted = f"RankMemoryMonitor: `every_n_steps` must be an integer of at least 1, but is {every}"
    with pytest.raises(ConfigError, match=f"^{wanted}$"):
        RankMemoryMonitor(every_n_steps=every)


@pytest.mark.parametrize("skew", [1, "2"])
def test_skew_must_be_above_1(skew):
    wanted = (
        "RankMemoryMonitor: `skew` must be a number above 1, the largest allowed ratio to the "
        "other ranks, but "
        f"is {skew!r}"
    )
    with pytest.raises(ConfigError, match=f"^{wanted}$"):
        RankMemoryMonitor(skew=skew)


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ([5, 50, 7, 9], "A batch of 50 timesteps after padding has passed before, so the size"),
        ([50, 5, 7, 9], "A batch of 50 timesteps after padding has passed before, so the size"),
        (
            [5, 50, 7, 60],
            "The largest batch that passed had 50 timesteps after padding, so this budget",
        ),
    ],
)
def test_the_largest_batch_that_passed_need_not_be_the_latest(lengths, said):
    rows = [np.ones((length, 1)) for length in lengths]
    data = seqdata.SequenceDataModule(train=rows, batching=Fixed(1, shuffle=False))
    (note,) = notes_of(Full(at=3), data)
    assert said in note


def test_a_monitor_that_is_used_again_begins_anew():
    """After a fit that failed between two exchanges, and after one that has ended."""
    data = functools.partial(data_of, val=None)  # six steps
    monitor = RankMemoryMonitor(every_n_steps=4)
    assert notes_of(Full(2), data(), monitor)
    fit(data(), max_epochs=1, callbacks=(monitor,))
    assert [stats.steps for stats in monitor.ranks] == [2]
    assert notes_of(Full(0), data(), monitor) == notes_of(Full(0), data())
