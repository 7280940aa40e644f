"""DataMonitor: what it logs is what was planned and what the clock said, for every output."""

import re
import warnings

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

import seqdata
from seqdata import Bucketed, DataMonitor, SeqDataWarning, Windows
from seqdata.collators.packed import PackedRows
from seqdata.collators.varlen import Varlen
from seqdata.lightning.callbacks._support.batch_info import get_batch_info, get_train_loader
from seqdata.lightning.trainer_loader import IterationStart, TrainerLoader
from seqdata.loading.options import UpdateSchedule
from seqdata.resume_state import RunPosition
from tests.lightning.callbacks.monitored import BareLoader, CarelessModel, fit_loader, read_logged
from tests.lightning.harness import Recorder, data_of, fit, sequences


class Looking(Callback):
    """Keeps what is known of each batch, from the batch and from the plan."""

    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        loader = get_train_loader(trainer)
        of_plan = get_batch_info(None, loader)
        self.seen.append((get_batch_info(batch, loader), of_plan))


@pytest.fixture
def measured(clock):
    """A clock that goes only where a test lets it, for what the monitor measures."""
    clock.rule("seqdata.loading.base_engine", "seqdata.lightning.callbacks._support.step_stats")
    return clock


class Slow(Recorder):
    """Takes its time in a step, and far more in a validation."""

    def __init__(self, clock):
        super().__init__()
        self.clock = [clock]

    def training_step(self, batch, batch_idx):
        self.clock[0].seconds += 0.01
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.clock[0].seconds += 0.15


def get_values(info):
    return {
        name: getattr(info, name).tolist() if name == "ids" else getattr(info, name)
        for name in info.__slots__
    }


def test_it_logs_rates_and_shares_in_the_steps_that_the_trainer_logs(tmp_path):
    monitor = DataMonitor()
    logger = CSVLogger(tmp_path, name="", version="")
    run = fit(
        data_of(23, val=None), max_epochs=1, callbacks=(monitor,), logger=logger,
        log_every_n_steps=2,
    )  # fmt: skip
    rows = read_logged(tmp_path)
    steps = [row for row in rows if "data/tokens_per_second" in row]
    assert [row["step"] for row in steps] == [1, 3, 5]
    names = {name.removeprefix("data/") for name in steps[0] if name.startswith("data/")}
    assert names == {
        "tokens_per_second", "wait_share", "wait_seconds", "padding_share", "real_timesteps",
        "padded_timesteps",
    }  # fmt: skip
    lengths = run.data._get_engines("train")[0].index.lengths
    assert 2 * sum(row["data/real_timesteps"] for row in steps) == lengths.sum()
    (last,) = [row for row in rows if "data/rank_0/wait_share" in row]
    (figures,) = monitor.ranks
    assert figures.tokens == figures.real == lengths.sum()
    assert figures.steps == 6
    assert last["data/rank_0/padding_share"] == pytest.approx(1 - figures.real / figures.padded)
    assert last["data/rank_0/tokens_per_second"] == pytest.approx(
        figures.tokens / figures.seconds, rel=1e-5
    )


def test_padding_is_what_the_tensors_hold_beyond_the_sequences():
    monitor, looking = DataMonitor(), Looking()
    fit(data_of(9, val=None), max_epochs=1, callbacks=(monitor, looking))
    padded = sum(info.rows * info.width for info, _ in looking.seen)
    (figures,) = monitor.ranks
    assert figures.padded == padded > figures.real > 0
    assert figures.largest == max(info.rows * info.width for info, _ in looking.seen)


def test_waiting_is_seen_where_data_is_late(measured):
    def slow(sequence, rng):
        measured.seconds += 0.02
        return sequence

    waits = []
    for transform in (None, slow):
        monitor = DataMonitor()
        data = data_of(8, val=None, transform=transform, prefetch=0)
        fit(data, max_epochs=1, callbacks=(monitor,))
        waits.append(monitor.ranks[0])
    quick, late = waits
    assert late.waited == pytest.approx(8 * 0.02)
    assert (late.wait_share, quick.waited) == (1, 0)


def test_waiting_for_other_ranks_is_not_waiting_for_data(measured):
    def after_others(iteration, drawn):
        for one in drawn:
            measured.seconds += 0.02
            yield one

    whole = data_of(16, val=None).train_dataloader()
    loader = TrainerLoader(
        whole.engine,
        lambda _: IterationStart(RunPosition(), UpdateSchedule()),
        synchronize=after_others,
    )
    assert len(list(loader)) == 4
    assert loader.waited_seconds == 0


def test_time_in_a_validation_is_not_the_time_of_steps(measured):
    monitor = DataMonitor()
    data = data_of(16, val=4)  # a validation of two batches lies between four steps
    fit(data, model=Slow(measured), max_epochs=1, callbacks=(monitor,), val_check_interval=2)
    (figures,) = monitor.ranks
    assert figures.steps == 4
    assert figures.seconds == pytest.approx(4 * 0.01)


def test_each_epoch_begins_anew():
    monitor = DataMonitor()
    fit(data_of(9, val=None), max_epochs=3, callbacks=(monitor,))
    assert monitor.ranks[0].steps == 3


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"as_tuple": ["x", "lengths"]},
        {"as_dict": ["x", "mask"]},
        {"collator": len},
        {"batching": Windows(2, 1, 4, horizon=1)},
        {"shift": 1},
    ],
)
def test_a_batch_of_any_form_is_known_as_well_from_the_plan(options):
    whole, looking = Looking(), Looking()
    kept = {key: value for key, value in options.items() if key in ("batching", "shift")}
    fit(data_of(val=None, **kept), model=CarelessModel(), max_epochs=2, callbacks=(whole,))
    fit(data_of(val=None, **options), model=CarelessModel(), max_epochs=2, callbacks=(looking,))
    by_batch = [get_values(info) for info, _ in whole.seen]
    assert by_batch == [get_values(planned) for _, planned in looking.seen]
    assert by_batch == [get_values(info) for info, _ in looking.seen]
    assert {info["epoch"] for info in by_batch} == {0, 1}


@pytest.mark.parametrize("collator", [PackedRows(), Varlen()])
def test_layouts_without_padding_have_none(collator):
    looking, monitor = Looking(), DataMonitor()
    data = data_of(val=None, collator=collator)
    fit(data, model=CarelessModel(), max_epochs=1, callbacks=(looking, monitor))
    assert [get_values(info) for info, _ in looking.seen] == [
        get_values(plan) for _, plan in looking.seen
    ]
    assert monitor.ranks[0].padding_share == 0.0


def test_what_was_planned_is_known_after_a_resume(tmp_path):
    fit(data_of(val=None), folder=tmp_path, every=1, max_epochs=1)
    looking = Looking()
    fit(
        data_of(val=None, as_tuple=["x", "lengths"]), model=CarelessModel(), max_epochs=1,
        ckpt=tmp_path / "step=3.ckpt", callbacks=(looking,),
    )  # fmt: skip
    assert [planned.number for _, planned in looking.seen] == [3, 4, 5]


def test_overfitting_is_always_of_epoch_0():
    looking = Looking()
    fit(
        data_of(val=None, as_tuple=["x"]), model=CarelessModel(), max_epochs=3, overfit_batches=2,
        callbacks=(looking,),
    )  # fmt: skip
    assert {planned.epoch for _, planned in looking.seen} == {0}
    assert [planned.number for _, planned in looking.seen] == [0, 1] * 3


def test_another_loader_is_said_once():
    monitor = DataMonitor()
    loader = DataLoader([torch.ones(3)] * 4)
    wanted = (
        "DataMonitor: the loader is a DataLoader that returns a Tensor, for which waiting for "
        "data, tokens and padding are unknown. Pass a SequenceDataModule as `datamodule`"
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", SeqDataWarning)
        trainer = fit_loader(loader, monitor)
    assert [str(one.message) for one in said if one.category is SeqDataWarning] == [wanted]
    assert monitor.ranks[0].steps == 4
    assert monitor.ranks[0].seconds > 0
    assert monitor.ranks[0].padding_share == monitor.ranks[0].tokens_per_second == 0.0
    assert not trainer.callback_metrics  # a 0 would be read as a rate


def test_a_sequence_batch_of_another_loader_is_known_but_not_its_waiting():
    monitor = DataMonitor()
    batches = list(seqdata.Loader(sequences(8), Bucketed(4)))
    wanted = (
        "DataMonitor: the loader is a BareLoader that returns a SequenceBatch, for which waiting "
        "for data are unknown. Pass a SequenceDataModule as `datamodule`"
    )
    with pytest.warns(SeqDataWarning, match=re.escape(wanted)):
        trainer = fit_loader(BareLoader(batches), monitor)
    names = "rank_0/tokens_per_second rank_0/padding_share tokens_per_second padding_share"
    sizes = "real_timesteps padded_timesteps"
    assert {*trainer.callback_metrics} == {f"data/{name}" for name in f"{names} {sizes}".split()}
    assert monitor.ranks[0].tokens == sum(batch.num_tokens for batch in batches)
    assert monitor.ranks[0].waited == 0
