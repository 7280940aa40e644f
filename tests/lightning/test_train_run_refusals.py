"""States that do not fit: each is refused, with the reason."""

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from seqdata.errors import ConfigError, ResumeError, SeqDataWarning
from seqdata.lightning.adapter import loop_states
from seqdata.lightning.cursor import finish_epoch
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.fixed import Bucketed
from seqdata.policies.token_budget import TokenBudget
from seqdata.resume_state import FitState
from tests.damage import damaged
from tests.lightning.carrying import Carrying, lanes_of
from tests.lightning.harness import Recorder, data_of, fit, sequences
from tests.lightning.resuming import SAVED


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    fit(data_of(), folder=folder, every=1, max_epochs=2)
    return folder / "step=8.ckpt"


def edited(path, folder, change):
    saved = torch.load(path)
    change(saved)
    torch.save(saved, folder / "edited.ckpt")
    return folder / "edited.ckpt"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"count": 24}, "`data` was .*, but is .*pass on_changed='next_epoch'"),
        (
            {"batching": Bucketed(5)},
            "was 'Bucketed.batch_size=4, balance_ranks=2.', but is 'Bucketed.batch_size=5",
        ),
        ({"seed": 4}, "`seed` was 3, but is 4. A state continues only over the same plan"),
        ({"shift": 1}, "resume: `shift` was 0, but is 1. A state continues"),
        ({"seed": 4, "batching": Bucketed(5)}, "`policy` was .*; `seed` was 3, but is 4"),
    ],
)
def test_a_state_of_another_plan_is_refused_with_the_reason(checkpoint, options, reason):
    with pytest.raises(ResumeError, match=reason):
        fit(data_of(**options), ckpt=checkpoint, max_epochs=2)


def test_changed_data_may_begin_the_next_epoch(checkpoint):
    grown = {"count": 30, "on_changed": "next_epoch"}
    rest = fit(data_of(**grown), ckpt=checkpoint, max_epochs=3)
    assert rest.log.train == fit(data_of(**grown), max_epochs=3).log.train[-8:]
    assert rest.log.epochs == [2]


def test_changed_data_begins_the_epoch_that_comes_after_the_last_one(tmp_path):
    fit(data_of(), folder=tmp_path, every=6, max_epochs=2)
    grown = {"count": 30, "on_changed": "next_epoch"}
    rest = fit(data_of(**grown), ckpt=tmp_path / "step=6.ckpt", max_epochs=3)
    assert rest.log.train == fit(data_of(**grown), max_epochs=3).log.train[-16:]
    assert rest.log.epochs == [1, 2]


OTHERS = [{"batching": Bucketed(2)}, {"batching": TokenBudget(16)}, {"seed": 4}]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ended")
    fit(data_of(), folder=folder, every=6, max_epochs=2)
    return folder / "step=6.ckpt"


@pytest.mark.parametrize("other", OTHERS)
def test_another_policy_or_seed_may_begin_the_epoch_after_the_last_one(ended, other):
    data = data_of(**other, on_changed="next_epoch")
    with pytest.warns(SeqDataWarning, match=r"`(policy|seed)` was .*, but is .*, from epoch 1 on"):
        rest = fit(data, ckpt=ended, max_epochs=3)
    whole = fit(data_of(**other), max_epochs=3).log.train
    assert rest.log.train == [batch for batch in whole if batch[0] > 0]
    assert rest.trainer.global_step == 6 + len(rest.log.train)
    assert rest.log.validations()[0] == 6  # of the epoch of the checkpoint


@pytest.mark.parametrize("other", OTHERS)
def test_another_policy_or_seed_at_an_epochs_end_is_refused_with_the_way_to_continue(ended, other):
    with pytest.raises(ResumeError, match="pass on_changed='next_epoch' to begin epoch 1 with it"):
        fit(data_of(**other), ckpt=ended, max_epochs=3)


@pytest.mark.parametrize("on_changed", ["error", "next_epoch"])
@pytest.mark.parametrize("other", [*OTHERS, {"count": 30, "seed": 4}])
def test_another_policy_or_seed_in_the_middle_of_an_epoch_is_refused_with_where_it_may_change(
    checkpoint, other, on_changed
):
    advice = r"batch 2 of epoch 1 is next.*from the end of an epoch, with on_changed='next_epoch'"
    with pytest.raises(ResumeError, match=advice):
        fit(data_of(**other, on_changed=on_changed), ckpt=checkpoint, max_epochs=2)


def test_another_shift_is_refused_between_epochs_too(ended):
    with pytest.raises(ResumeError, match="restore what changed, or fit without"):
        fit(data_of(shift=1, on_changed="next_epoch"), ckpt=ended, max_epochs=3)


def leave_out_state(saved):
    del saved["SequenceDataModule"]


def test_a_checkpoint_of_a_run_without_the_datamodule_is_refused_in_the_middle_of_an_epoch(
    checkpoint, tmp_path
):
    path = edited(checkpoint, tmp_path, leave_out_state)
    with pytest.raises(
        ResumeError, match=r"after 2 steps, by a run without a SequenceDataModule.*'next_epoch'"
    ):
        fit(data_of(), ckpt=path, max_epochs=3)


def test_a_checkpoint_of_a_run_without_the_datamodule_may_begin_another_epoch(checkpoint, tmp_path):
    path = edited(checkpoint, tmp_path, leave_out_state)
    with pytest.warns(SeqDataWarning, match="so the data begins at epoch 0"):
        rest = fit(data_of(on_changed="next_epoch"), ckpt=path, max_epochs=3)
    assert rest.log.train == fit(data_of(), max_epochs=1).log.train
    assert rest.log.epochs == [2]
    assert rest.trainer.global_step == 8 + 6


def test_a_plan_that_another_release_made_is_refused(checkpoint, tmp_path):
    def forge(saved):
        saved["SequenceDataModule"]["fingerprint"] = "0" * 32

    with pytest.raises(ResumeError, match=r"the plan of epoch 1 must have the saved .*, but has"):
        fit(data_of(), ckpt=edited(checkpoint, tmp_path, forge), max_epochs=2)


def test_a_missing_state_is_noticed_before_the_first_batch(checkpoint, tmp_path):
    def rename(saved):
        saved["SomeOtherDataModule"] = saved.pop("SequenceDataModule")

    with pytest.raises(
        ResumeError, match=r"has the state of SomeOtherDataModule, but the .* is Seq"
    ):
        fit(data_of(), ckpt=edited(checkpoint, tmp_path, rename), max_epochs=2)


def test_a_renamed_subclass_is_noticed(checkpoint):
    class Renamed(SequenceDataModule):
        pass

    data = Renamed(train=sequences(23), batching=Bucketed(4), seed=3)
    with pytest.raises(ResumeError, match="Resume with the class that saved it, not renamed"):
        fit(data, ckpt=checkpoint, max_epochs=2)


def test_a_missing_state_at_an_epochs_end_warns(tmp_path):
    fit(data_of(), folder=tmp_path, every=6, max_epochs=1)

    def rename(saved):
        saved["SomeOtherDataModule"] = saved.pop("SequenceDataModule")
        finish_epoch(loop_states(saved))

    path = edited(tmp_path / "step=6.ckpt", tmp_path, rename)
    with pytest.warns(SeqDataWarning, match="has no state of this DataModule, so the data begins"):
        rest = fit(data_of(), ckpt=path, max_epochs=2)
    assert rest.log.train[0][:2] == (0, 0)


def test_a_state_of_another_run_than_the_loops_is_noticed(checkpoint, tmp_path):
    def move(saved):
        saved["SequenceDataModule"]["position"] = 3

    with pytest.raises(
        ResumeError, match=r"at step 2, but the data is at step 3.*are from two runs"
    ):
        fit(data_of(), ckpt=edited(checkpoint, tmp_path, move), max_epochs=2)


def test_a_checkpoint_without_loops_is_refused(checkpoint, tmp_path):
    def cut(saved):
        del saved["loops"]

    with pytest.raises(ResumeError, match="must have 'loops', a counter of the fit loop"):
        fit(data_of(), ckpt=edited(checkpoint, tmp_path, cut), max_epochs=2)


def test_a_checkpoint_of_an_unknown_lightning_is_refused():
    with pytest.raises(ResumeError, match="must have 'epoch_progress', a counter of the fit loop"):
        loop_states({"loops": {"fit_loop": {}}})


@pytest.mark.parametrize(
    ("option", "value"), [("limit_train_batches", 4), ("val_check_interval", 3)]
)
def test_limits_in_steps_are_refused_when_the_world_changed(checkpoint, tmp_path, option, value):
    def of_two_ranks(saved):
        saved["SequenceDataModule"]["world_size"] = 2

    path = edited(checkpoint, tmp_path, of_two_ranks)
    reason = f"`{option}` must be a fraction, but is {value} steps, which have other batches on 1"
    with pytest.raises(ResumeError, match=reason):
        fit(data_of(), ckpt=path, max_epochs=2, **{option: value})


def test_a_long_policy_is_told_by_its_beginning_and_a_digest():
    texts = {FitState.shorten_policy("x" * 299 + "y" * count) for count in range(1, 50)}
    assert len(texts) == 49
    assert max(map(len, texts)) < 350


def test_other_ranks_than_those_that_the_plan_was_balanced_for_are_noticed(tmp_path):
    def rebalance(saved):
        saved["SequenceDataModule"]["balance_ranks"] = 3

    fit(data_of(batching=Bucketed(4)), folder=tmp_path, every=3, max_epochs=1)
    path = edited(tmp_path / "step=3.ckpt", tmp_path, rebalance)
    with pytest.raises(ResumeError, match="the plan of epoch 0 must have the saved fingerprint"):
        fit(data_of(batching=Bucketed(4)), ckpt=path, max_epochs=1)


def doubled(sequence, rng):
    return {**sequence, "x": sequence["x"] * 2}


def kept(sequence, rng):
    return sequence


def test_another_transform_than_before_is_told_with_both_names(tmp_path):
    fit(data_of(transform=doubled), folder=tmp_path, every=3, max_epochs=1)
    saved = tmp_path / "step=3.ckpt"
    one = r"test_train_run_refusals.doubled \([0-9a-f]{16}\)"
    other = r"test_train_run_refusals.kept \([0-9a-f]{16}\)"
    with pytest.warns(
        SeqDataWarning, match=f"resume: `transform` was .*{one}, but is now .*{other}: "
    ):
        fit(data_of(transform=kept), ckpt=saved, max_epochs=1)
    with pytest.warns(SeqDataWarning, match=f"resume: `transform` was .*{one}, but is now none: "):
        fit(data_of(), ckpt=saved, max_epochs=1)
    fit(data_of(transform=doubled), ckpt=saved, max_epochs=1)  # warnings are errors here


def test_a_state_without_a_transform_is_of_an_earlier_release(tmp_path):
    def forget(saved):
        del saved["SequenceDataModule"]["transform"]

    fit(data_of(), folder=tmp_path, every=3, max_epochs=1)
    old = edited(tmp_path / "step=3.ckpt", tmp_path, forget)
    assert fit(data_of(transform=kept), ckpt=old, max_epochs=1).log.train[0][1] == 3


class DrawsItself(Recorder):
    """Takes its batches from the Trainer's iterator."""

    def training_step(self, dataloader_iter):
        batch, number, _ = next(dataloader_iter)
        return super().training_step(batch, number)


class Beside(SequenceDataModule):
    """Has another loader beside ours, of so many batches."""

    def __init__(self, other, **options):
        super().__init__(**options)
        self.other = other

    def train_dataloader(self):
        return {"ours": super().train_dataloader(), "other": self.other}


class TakesBoth(Recorder):
    """Trains on the batches that are ours."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch["ours"], batch_idx)


def beside(steps):
    others = torch.utils.data.DataLoader(range(steps))
    batching = Bucketed(4, balance_ranks=2)  # 6 steps
    return Beside(others, train=sequences(23), batching=batching, seed=3)


@pytest.mark.filterwarnings("ignore:.*`dataloader_iter` step flavor")
def test_a_step_that_draws_its_own_batches_is_refused_before_the_first():
    model = DrawsItself()
    with pytest.raises(
        ConfigError, match=r"must take `batch`, but takes `dataloader_iter`: .*\. Write"
    ):
        fit(data_of(), model=model, max_epochs=1)
    assert not model.log_of.train


def test_a_loader_that_is_played_beside_a_longer_one_is_refused_before_the_first_step():
    model = TakesBoth()
    with pytest.raises(ConfigError, match=r"at most the 6 steps .*, but has 9: .* longest"):
        fit(beside(9), model=model, max_epochs=1)
    assert not model.log_of.train


@pytest.mark.parametrize("steps", [2, 6])
def test_a_loader_that_is_played_beside_a_shorter_one_plays_each_epoch_once(steps):
    due = fit(data_of(val=None), max_epochs=2).log.train
    assert fit(beside(steps), model=TakesBoth(), max_epochs=2).log.train == due
    assert (
        fit(beside(9), model=TakesBoth(), max_epochs=1, limit_train_batches=6).log.train
        == (due[:6])
    )


def test_every_damage_of_a_state_is_refused_or_a_state():
    refused = 0
    for _, broken in damaged({"state": SAVED}):
        try:
            FitState.from_dict(broken.get("state"))
        except ResumeError:
            refused += 1
    assert refused > 150


TOLD = {
    *(("world_size",), ("tail",), ("accumulate",), ("errors",), ("transform",), ("lanes",)),
    ("balance_ranks",),
}
"""Parts that may be others: of a run on more ranks, with another tail, or without lanes.

The policies here make the same plans for any ranks: where they do not, the fingerprint differs.
"""

TAKEN = ("lanes", "lanes")
"""Without it the first step is refused: there may be LaneStates that training does not use."""


class Held(Exception):
    """A run came to its first batch."""


class Holding(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        raise Held


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::seqdata.errors.SeqDataWarning")
@pytest.mark.parametrize(("data", "model"), [(data_of, Recorder), (lanes_of, Carrying)])
def test_every_damage_of_a_state_is_refused_before_the_first_batch(tmp_path, data, model):
    fit(data(), model=model(), folder=tmp_path, every=5, max_epochs=1)
    saved = torch.load(tmp_path / "step=5.ckpt")
    held = set()
    for where, broken in damaged(saved["SequenceDataModule"]):
        torch.save({**saved, "SequenceDataModule": broken}, tmp_path / "broken.ckpt")
        path, again = tmp_path / "broken.ckpt", {"max_epochs": 2, "callbacks": (Holding(),)}
        with pytest.raises((Held, ResumeError)) as caught:
            fit(data(), model=model(), ckpt=path, **again)
        if caught.type is Held:
            held.add(where)
    assert held <= {*TOLD, TAKEN}


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (0, "is at step 2, but the data is at step 0.*are from two runs"),
        (6, "is at step 2, but the data is at step 6.*are from two runs"),
        (7, "`position` of the state must be at most 6, the batches of epoch 1, but is 7"),
    ],
)
def test_a_position_that_is_not_the_trainers_is_refused(checkpoint, tmp_path, position, reason):
    def move(saved):
        saved["SequenceDataModule"]["position"] = position

    with pytest.raises(ResumeError, match=reason):
        fit(data_of(), ckpt=edited(checkpoint, tmp_path, move), max_epochs=2)
