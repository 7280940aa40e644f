"""The DataModule's arguments: what they give, and what is refused."""

import copy
import inspect
import pickle
import typing
from dataclasses import dataclass

import lightning.pytorch as pl
import numpy as np
import pytest
from lightning.pytorch.callbacks import GradientAccumulationScheduler

from seqdata.errors import ConfigError, PluginError, SeqDataWarning
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.lightning.trainer_loader import TrainerLoader
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.storage.memory import MemoryStore
from tests.lightning.harness import QUIET, Recorder, data_of, fit, quietly, sequences


def played(loader: TrainerLoader) -> list[list[int]]:
    return [batch.ids.tolist() for batch in loader]


def ready(stage: str, **options: object) -> SequenceDataModule:
    data = SequenceDataModule(**options)
    data.setup(stage)
    return data


def test_without_a_trainer_a_loader_plays_epoch_after_epoch():
    loader = ready("fit", train=sequences(9), batching=Bucketed(3), seed=1).train_dataloader()
    epochs = [[(batch.epoch, batch.number) for batch in loader] for _ in range(2)]
    assert epochs == [[(0, 0), (0, 1), (0, 2)], [(1, 0), (1, 1), (1, 2)]]


def test_setup_without_a_stage_is_that_of_a_fit():
    options = {"train": sequences(9), "val": sequences(4), "batching": Bucketed(3), "seed": 1}
    data, due = SequenceDataModule(**options), ready("fit", **options)
    data.setup()
    assert played(data.train_dataloader()) == played(due.train_dataloader())
    assert played(data.val_dataloader()) == played(due.val_dataloader())


def test_loaders_are_there_before_setup():
    data = SequenceDataModule(train=sequences(9), batching=Fixed(3))
    assert len(data.train_dataloader()) == 3


def test_a_store_may_be_passed_as_it_is():
    store = MemoryStore.from_sequences(sequences(4))
    data = ready("predict", predict=store, batching=Fixed(2))
    assert played(data.predict_dataloader()) == [[0, 1], [2, 3]]


def test_evaluation_is_not_shuffled_whatever_the_policy_says():
    data = ready("test", test=sequences(6), batching=Fixed(2, shuffle=True))
    assert played(data.test_dataloader()) == [[0, 1], [2, 3], [4, 5]]


def test_evaluation_may_have_a_policy_of_its_own():
    data = ready("validate", val=sequences(4), batching=Fixed(2), eval_batching=Fixed(4))
    assert played(data.val_dataloader()) == [[0, 1, 2, 3]]


@dataclass(frozen=True)
class Ordered:
    """A policy of somebody else, without an option to shuffle."""

    axis: str = "time"

    def plan(self, index, *, seed, epoch):
        return Fixed(2, shuffle=False).plan(index, seed=seed, epoch=epoch)

    def num_batches(self, index):
        return Fixed(2).num_batches(index)


class Classy(Ordered):
    """The same, by a class that is told nothing."""


@pytest.mark.parametrize("policy", [Ordered(), Classy()])
def test_a_policy_without_shuffle_evaluates_as_it_is(policy):
    data = ready("validate", val=sequences(4), batching=policy)
    assert played(data.val_dataloader()) == [[0, 1], [2, 3]]


def test_named_locations_give_a_list_of_loaders_in_their_order():
    data = ready("test", test={"long": sequences(4), "short": sequences(2)}, batching=Fixed(2))
    assert [played(loader) for loader in data.test_dataloader()] == [[[0, 1], [2, 3]], [[0, 1]]]


def test_the_trainer_runs_every_named_location():
    data = data_of(val=None, test={"a": sequences(4), "b": sequences(2)}, eval_batching=Fixed(2))
    model = Recorder()
    with quietly():
        pl.Trainer(**QUIET).test(model, datamodule=data)
    assert model.log_of.val == [(0, (0, 1)), (0, (2, 3)), (1, (0, 1))]


def test_prediction_gives_every_sequence_once():
    data = data_of(val=None, predict=sequences(7), eval_batching=Fixed(3))
    with quietly():
        given = pl.Trainer(**QUIET).predict(Recorder(), datamodule=data)
    assert given == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_tuple_reaches_a_model_that_knows_nothing_of_us():
    seen = []

    class Plain(Recorder):
        def training_step(self, batch, batch_idx):
            x, lengths = batch
            seen.append((x.shape[0], lengths.tolist()))
            return self.layer(x).mean()

    fit(data_of(val=None, as_tuple=("x", "lengths")), model=Plain(), max_epochs=1)
    assert sum(rows for rows, _ in seen) == 23


def test_shift_makes_targets():
    data = ready("fit", train=[np.arange(4), np.arange(9)], shift=1, batching=Fixed(2))
    (batch,) = data.train_dataloader()
    assert batch["targets"][0, :3].tolist() == (batch["x"][0, :3] + 1).tolist()


def test_a_subclass_may_bring_its_own_validation():
    class Own(SequenceDataModule):
        def val_dataloader(self):
            return self.train_dataloader()

    run = fit(Own(train=sequences(8), batching=Fixed(4)), max_epochs=1)
    assert len(run.log.val) == 2


def test_validation_starts_with_the_first_batch_each_time():
    run = fit(data_of(), max_epochs=2)
    assert [ids for _, ids in run.log.val[:3]] == [ids for _, ids in run.log.val[3:]]


@pytest.mark.parametrize("kind", ["train", "test", "predict"])
def test_a_loader_without_data_says_what_to_pass(kind):
    with pytest.raises(ConfigError, match=f"`{kind}` must be a location, but is None"):
        getattr(SequenceDataModule(), f"{kind}_dataloader")()


def test_a_fit_without_training_data_says_so_at_once():
    with pytest.raises(ConfigError, match="`train` must be a location, but is None"):
        fit(SequenceDataModule(val=sequences(3)), max_epochs=1)


def test_validation_without_data_is_refused_by_the_trainer():
    with quietly(), pytest.raises(pl.utilities.exceptions.MisconfigurationException, match="val"):
        pl.Trainer(**QUIET).validate(Recorder(), datamodule=data_of(val=None))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": {"a": [], "b": []}}, "`train` must be one location, but has 2 named locations"),
        ({"on_error": "skip"}, "`on_error` must be .raise., .mask. or .replace., but is .skip."),
        (
            {"on_changed": "go"},
            "`on_changed` must be 'error', 'next_epoch' or 'next_segment', but is 'go'",
        ),
        (
            {"num_workers": -1},
            "`num_workers` must be an integer .*but is -1",
        ),
        (
            {"batches_per_update": 0},
            "`batches_per_update` must be an integer of at least 1.*, but is 0",
        ),
        ({"batches_per_update": 2.0}, "`batches_per_update` must be an integer.*, but is 2.0"),
        (
            {"batches_per_update": 2, "tail": "drop"},
            "`tail` must be 'fill' with `batch.*, but is 'drop'",
        ),
        ({"tail": "pad"}, "`tail` must be 'fill', 'drop' or 'repeat', but is 'pad'"),
        ({"seed": -1}, "`seed` must be an integer in .*, but is -1"),
        ({"prefetch": -1}, r"`prefetch` must be an integer in .*, 0 for no thread, but is -1"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused_in_the_constructor(options, message):
    with pytest.raises(ConfigError, match=message):
        SequenceDataModule(**options)


def test_every_argument_is_typed_and_its_type_is_there():
    hints = typing.get_type_hints(SequenceDataModule.__init__)
    names = inspect.signature(SequenceDataModule).parameters
    assert set(names) == set(hints) - {"return"}
    kinds = {type(parameter.default) for parameter in names.values()}
    assert kinds <= {bool, int, float, str, type(None)}  # for the CLI


def test_batches_per_update_sets_the_trainers_accumulation_and_takes_it_back():
    seen = []

    class Asking(Recorder):
        def on_train_start(self):
            seen.append(self.trainer.accumulate_grad_batches)

    data = data_of(batches_per_update=4)
    run = fit(data, model=Asking(), max_epochs=1)
    run.trainer.fit_loop.max_epochs = 2
    with quietly():
        run.trainer.fit(run.model, datamodule=data)
    assert seen == [4, 4]
    assert run.trainer.global_step == 4
    assert run.trainer.accumulate_grad_batches == 1


def test_batches_per_update_is_the_same_as_accumulating():
    asked = fit(data_of(batching=Bucketed(4), batches_per_update=4), max_epochs=2)
    policy = Bucketed(4, balance_ranks=4)  # the order that updates of 4 have by themselves
    given = fit(data_of(batching=policy), max_epochs=2, accumulate_grad_batches=4)
    assert asked.model.parameters_of() == given.model.parameters_of()


def test_a_fit_of_another_trainer_does_not_continue_in_the_order_of_the_one_before():
    data = data_of(batching=Bucketed(4))
    first = fit(data, max_epochs=1).log.train
    (engine,) = data._sources.get_engines("train")
    engine.set_order(None, 4)  # as a resume from 4 ranks does
    assert fit(data, max_epochs=1).log.train == first


def test_batches_per_update_may_be_resumed_after_an_error(tmp_path):
    whole = fit(data_of(batches_per_update=2), max_epochs=2)
    data = data_of(batches_per_update=2)
    cut = fit(data, model=Recorder(fail_at=8), folder=tmp_path, every=100, max_epochs=2)
    (path,) = tmp_path.glob("*.ckpt")
    rest = fit(data_of(batches_per_update=2), ckpt=path, max_epochs=2)
    assert rest.model.parameters_of() == whole.model.parameters_of()
    cut.model.fail_at = None
    with quietly():
        cut.trainer.fit(cut.model, datamodule=data, ckpt_path=str(path))
    assert cut.model.parameters_of() == whole.model.parameters_of()


def test_an_unknown_stage_is_refused():
    with pytest.raises(
        ConfigError, match=r"`stage` must be 'fit', 'validate', 'test'.*, but is 'training'"
    ):
        data_of().setup("training")


def test_batches_per_update_refuses_an_accumulation_of_the_trainer():
    with pytest.raises(ConfigError, match="of the Trainer must be 1 with `batches_per_update`"):
        fit(data_of(batches_per_update=4), max_epochs=1, accumulate_grad_batches=2)


def test_batches_per_update_refuses_a_scheduler_of_accumulation():
    scheduler = GradientAccumulationScheduler({0: 1, 1: 2})
    with pytest.raises(ConfigError, match="but is given with a GradientAccumulationScheduler"):
        fit(data_of(batches_per_update=4), max_epochs=1, callbacks=(scheduler,))


def test_batches_per_update_refuses_optimization_by_hand():
    model = Recorder()
    model.automatic_optimization = False
    with pytest.raises(ConfigError, match="needs automatic optimization, but the module"):
        fit(data_of(batches_per_update=4), model=model, max_epochs=1)


def test_validation_inside_an_update_warns():
    with pytest.warns(SeqDataWarning, match="validation every 3 steps is not a multiple of the 2"):
        fit(data_of(batches_per_update=2), max_epochs=1, val_check_interval=3)


def test_saving_inside_an_update_warns_once(tmp_path):
    with pytest.warns(
        SeqDataWarning, match="saved after step 3, inside an update of 2 steps"
    ) as said:
        fit(
            data_of(batches_per_update=2),
            model=Recorder(fail_at=3),
            folder=tmp_path,
            every=100,
            max_epochs=1,
        )
    assert len([one for one in said if "inside an update" in str(one.message)]) == 1


def test_resuming_inside_an_update_warns(tmp_path):
    fit(data_of(), folder=tmp_path, every=1, max_epochs=1)
    with pytest.warns(SeqDataWarning, match="step 3 is inside an update of 2 steps"):
        fit(data_of(batches_per_update=2), ckpt=tmp_path / "step=3.ckpt", max_epochs=1)


def test_scale_counts_one_step_where_the_module_optimizes_by_hand():
    scales = []

    class ByHand(Recorder):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            scales.append(batch.loss_scale * batch.global_num_tokens)

    fit(data_of(), model=ByHand(), max_epochs=1)
    assert scales == pytest.approx([1.0] * 6)


def test_changed_accumulation_in_later_epochs_is_followed():
    counted = []

    class Counting(Recorder):
        def training_step(self, batch, batch_idx):
            counted.append((self.current_epoch, batch.update_num_tokens > batch.global_num_tokens))
            return super().training_step(batch, batch_idx)

    scheduler = GradientAccumulationScheduler({0: 1, 1: 3})
    fit(data_of(), model=Counting(), max_epochs=2, callbacks=(scheduler,))
    assert counted == [(0, False)] * 6 + [(1, True)] * 6


def test_it_travels_to_other_processes_before_setup():
    data = pickle.loads(pickle.dumps(copy.deepcopy(data_of(val=None))))
    assert fit(data, max_epochs=1).log.train == fit(data_of(val=None), max_epochs=1).log.train
    assert fit(data, max_epochs=1).log.val == []


def test_a_quick_run_for_development_plays_a_few_batches():
    assert len(fit(data_of(), fast_dev_run=2).log.train) == 2


def test_a_registered_name_is_a_policy_or_a_collator():
    data = SequenceDataModule(train=sequences(4), batching=Fixed(2), collator="padded")
    assert len(data.train_dataloader()) == 2
    with pytest.raises(PluginError, match="unknown policy 'pairs'"):
        SequenceDataModule(train=sequences(4), batching="pairs").setup("fit")
