"""Weights from losses by id: exact on resume, and refused where there is nothing to weigh by."""

import math

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from seqdata.errors import ConfigError, ResumeError, SeqDataWarning
from seqdata.lightning.callbacks.feedback import Feedback
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.lightning.score_means import compute_means, weigh_in_proportion
from seqdata.lightning.scores import FRACTION_BITS
from seqdata.policies.curriculum import Curriculum
from seqdata.policies.fixed import Bucketed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.weighted import Weighted
from tests.lightning.feeding import EPOCHS, GROUP, POLICIES, Feeding, feed, saved
from tests.lightning.harness import QUIET, quietly, sequences

MID_UPDATE = "ignore:.*inside an update.*:seqdata.errors.SeqDataWarning"
pytestmark = pytest.mark.filterwarnings(MID_UPDATE)
BATCHES = 23
RISING = Curriculum(Bucketed(2), [(0, 3), (1, None)])
UPDATES = math.ceil(BATCHES / GROUP)


KINDS = ("weighted", "importance", "token budget", "mix", "rows")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "places"),  # the first two, and one behind the end of an epoch; at night all
    [(kind, {0, 1, 7} if kind == "weighted" else {1, 2}) for kind in KINDS]
    + [pytest.param(kind, None, marks=pytest.mark.nightly) for kind in KINDS],
)
def test_every_update_is_a_place_to_go_on(policy, places, tmp_path):
    whole = feed(policy, folder=tmp_path)
    per_epoch = len(whole.log_of.train) // EPOCHS
    for number, path in enumerate(saved(tmp_path)[:-1]):
        if places is not None and number not in places:
            continue
        state = torch.load(path)["SequenceDataModule"]
        done = state["epoch"] * per_epoch + state["position"]
        rest = feed(policy, ckpt=path)
        assert rest.log_of.train == whole.log_of.train[done:]
        assert rest.parameters_of() == whole.parameters_of()


@pytest.mark.parametrize("options", [{"prefetch": 0}, {"num_workers": 1}], ids=str)
def test_what_is_drawn_does_not_depend_on_what_is_read_ahead(options):
    assert feed(data=options).log_of.train == feed().log_of.train


def test_a_segment_is_drawn_by_the_scores_of_the_one_before():
    seen = []

    def weigh(scores):
        seen.append(scores)
        return np.arange(30) < 3 + len(seen)

    feedback = Feedback("row_loss", 2, weigh)
    model = feed_with(feedback)
    for number, (_, batch, ids) in enumerate(model.log_of.train):
        begun = batch // (2 * GROUP) + (number >= BATCHES) * 3
        assert begun == 0 or max(ids) < 3 + begun
    first = {one for _, _, ids in model.log_of.train[: 2 * GROUP] for one in ids}
    assert set(np.flatnonzero(~np.isnan(seen[0])).tolist()) == first
    assert feedback.feedback_run is None  # the run has ended


def feed_with(feedback, **data):
    """Fit with another callback than the usual one."""
    import tests.lightning.feeding as feeding

    usual, feeding.Feedback = feeding.Feedback, lambda *_: feedback
    try:
        return feed(data=data)
    finally:
        feeding.Feedback = usual


def test_a_long_segment_ends_with_its_epoch():
    seen = []
    feed_with(Feedback("row_loss", 1_000, lambda scores: seen.append(scores) or scores + 1e-9))
    assert len(seen) == EPOCHS - 1


def test_the_state_has_scores_and_weights_for_weights_only(tmp_path):
    feed(folder=tmp_path)
    checkpoint = torch.load(saved(tmp_path)[2], weights_only=True)["SequenceDataModule"]
    state = checkpoint["feedback"]
    assert state["scores"].shape == state["weights"].shape == (30,)
    assert state["pending"]["counts"].sum() == 2 * GROUP  # two rows each, of the one update since
    assert len(checkpoint["weights"]) == 32


def test_weights_of_a_checkpoint_are_compared_with_its_digest(tmp_path):
    feed(folder=tmp_path, max_epochs=1)
    path = saved(tmp_path)[2]
    checkpoint = torch.load(path)
    state = checkpoint["SequenceDataModule"]["feedback"]
    for change, message in (
        (lambda: state["weights"].add_(1), "the digest of `weights` must be"),
        (lambda: state.pop("scores"), "`feedback` of the state is damaged"),
        (checkpoint["SequenceDataModule"].pop, "`feedback` of the state must be the weights"),
    ):
        change("feedback") if message.endswith("weights") else change()
        torch.save(checkpoint, tmp_path / "other.ckpt")
        with pytest.raises(ResumeError, match=message):
            feed(ckpt=tmp_path / "other.ckpt")


def test_a_resume_with_segments_of_another_length_is_refused(tmp_path):
    feed(folder=tmp_path, max_epochs=1)
    with pytest.raises(ResumeError, match=r"batches=8\)', but is '.*batches=12\)"):
        feed(ckpt=saved(tmp_path)[0], every=3)


def test_weights_begin_again_over_changed_data(tmp_path):
    feed(folder=tmp_path, max_epochs=1)
    changed = {"train": sequences(31), "on_changed": "next_epoch"}
    with pytest.warns(SeqDataWarning, match="that the weights of the saved run do not fit"):
        feed(ckpt=saved(tmp_path)[2], data=changed)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"batching": Bucketed(2)}, r"`batching` of the DataModule must be Weighted, or a Mix"),
        ({"batching": TBPTT(2, 4)}, r"but is TBPTT.*\. Pass e.g. Weighted\(Bucketed\(64\)\)\.$"),
        ({"batching": Weighted(RISING)}, r"those of Curriculum vary\. Pass e.g. Weighted\("),
        ({"as_tuple": ("x", "weight")}, "the batch must be a SequenceBatch"),
        ({"as_dict": ("x", "weight")}, "the batch must be a SequenceBatch"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_data_without_weights_or_ids_is_refused(data, message):
    with pytest.raises(ConfigError, match=message):
        fit_plain(data, {"loss": lambda layer: layer.weight.sum()})


def fit_plain(data, outputs, score="loss", **trainer):
    """Fit a model that looks at no data and returns what it is told."""
    import lightning.pytorch as pl

    from tests.lightning.harness import QUIET, quietly

    class Plain(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, batch_idx):
            return {name: make(self.layer) for name, make in outputs.items()}

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    options = {"seed": 3, **POLICIES["weighted"](), **data}
    settings = {**QUIET, "max_epochs": 1, "enable_checkpointing": False, **trainer}
    callbacks = settings.pop("callbacks", [Feedback(score, 2)])
    with quietly():
        pl.Trainer(**settings, callbacks=callbacks).fit(
            Plain(), datamodule=SequenceDataModule(**options)
        )


def loss(layer):
    return layer.weight.sum()


@pytest.mark.parametrize(
    ("score", "value", "message"),
    [
        ("rows", lambda _: torch.tensor([1.0, math.nan]), "a finite number .*, but is nan"),
        ("rows", lambda _: torch.ones(3), r"shape of 'rows' must be \(2,\)"),
        ("row", lambda _: torch.ones(2), r"must be a key of what `training_step` returns .*'row'"),
        ("rows", lambda _: -torch.ones(2), "a mean score must be at least 0 to be a weight"),
    ],
)
def test_scores_that_are_no_weights_are_refused(score, value, message):
    with pytest.raises(ConfigError, match=message):
        fit_plain({}, {"loss": loss, "rows": value}, score)


def test_a_score_of_the_whole_batch_counts_for_each_row():
    seen = []
    feedback = Feedback("one", 2, lambda scores: seen.append(scores) or np.ones(30))
    outputs = {"loss": loss, "one": lambda _: torch.tensor(2.5)}
    fit_plain({}, outputs, callbacks=[feedback])
    assert set(seen[0][~np.isnan(seen[0])].tolist()) == {2.5}


def test_feedback_goes_with_a_datamodule_once_and_not_with_overfitting():
    with pytest.raises(ConfigError, match="must have one Feedback, but has 2"):
        fit_plain({}, {"loss": loss}, callbacks=[Feedback(), Feedback()])
    with pytest.raises(ConfigError, match="`overfit_batches` of the Trainer must be 0"):
        fit_plain({}, {"loss": loss}, overfit_batches=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"score": ""},
            "Feedback: `score` must be a non-empty string, a key of the step's output, but is ''",
        ),
        ({"every": 0}, "Feedback: `every` must be an integer of at least 1, but is 0"),
        ({"every": True}, "Feedback: `every` must be an integer of at least 1, but is True"),
        ({"weigh": 3}, "Feedback: `weigh` must be a function of scores, but is 3"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ConfigError, match=message):
        Feedback(**options)


def test_without_our_datamodule_there_is_nothing_to_weigh():
    trainer = type("Trainer", (), {"datamodule": None})()
    with pytest.raises(ConfigError, match="`datamodule` must be a SequenceDataModule"):
        Feedback().setup(trainer, None, "fit")


def test_a_mean_is_rounded_so_that_its_last_bits_do_not_matter():
    sums = np.array([1 << FRACTION_BITS, (1 << FRACTION_BITS) + 5, 3 << 4, 9 << FRACTION_BITS])
    means = compute_means(sums, np.array([1, 1, 1, 3]))
    assert means.tolist() == [1.0, 1.0, 3 * 2.0 ** (4 - FRACTION_BITS), 3.0]


def test_weights_are_in_proportion_and_nothing_is_left_out():
    nan = math.nan
    assert weigh_in_proportion(np.array([nan, nan])).tolist() == [1, 1]
    assert weigh_in_proportion(np.array([1.0, nan, 3.0])).tolist() == [1, 2, 3]
    assert weigh_in_proportion(np.array([0.0, 0.0])).tolist() == [1, 1]
    weights = weigh_in_proportion(np.array([0.0, 4.0]))
    assert weights.tolist() == [pytest.approx(0.2), 4]


def test_parts_of_a_mixture_are_weighted_by_their_mean_loss(tmp_path):
    seen = []

    def weigh(scores):
        seen.append(scores)
        return {"a": 0, "b": 1, "c": 3}

    model = feed_with(Feedback("row_loss", 2, weigh), **POLICIES["mix"]())
    assert all(set(scores) == {"a", "b", "c"} for scores in seen)
    assert len(seen) == 2 * 3 - 1  # 22 batches are three segments
    assert not math.isnan(seen[0]["a"])
    assert len(model.log_of.train) == 2 * 22
    feed("mix", folder=tmp_path)
    state = torch.load(saved(tmp_path)[-1])["SequenceDataModule"]
    assert state["weights"].count(";") == 4
    assert set(state["feedback"]["scores"]) == {"a", "b", "c"}


def test_copies_of_a_sequence_in_a_view_share_its_score():
    from seqdata.storage.memory import MemoryStore

    view = MemoryStore.from_sequences(sequences(10)).take([3, 3, 5, 7, 5])
    seen = []
    feedback = Feedback("one", 1, lambda scores: seen.append(scores) or np.ones(5))
    outputs = {"loss": loss, "one": lambda _: torch.tensor(1.0)}
    fit_plain(
        {"train": view, "batching": Weighted(Bucketed(1), [1, 0, 1, 0, 0])}, outputs,
        callbacks=[feedback], max_epochs=2,
    )  # fmt: skip
    met = {0, 1} if not np.isnan(seen[0][0]) else {2, 4}
    assert set(np.flatnonzero(~np.isnan(seen[0])).tolist()) == met


@pytest.mark.parametrize("policy", ["weighted", "mix"])
@pytest.mark.parametrize("kept", ["trainer", "callback", "data"])
def test_scores_of_a_fit_that_failed_do_not_count_where_its_objects_fit_again(
    policy, kept, tmp_path
):
    """The fit diverges after the checkpoint, whose batches are trained again."""

    class Diverging(Feeding):
        def training_step(self, batch, batch_idx):
            outputs = super().training_step(batch, batch_idx)
            return {**outputs, "row_loss": outputs["row_loss"] * 10.0 ** (batch.number % 7)}

    whole = feed(policy, folder=tmp_path / "whole")
    checkpoint = saved(tmp_path / "whole")[2]
    done = int(checkpoint.stem.split("=")[1]) * GROUP
    data = SequenceDataModule(
        seed=3, batches_per_update=GROUP, on_changed="error", **POLICIES[policy]()
    )
    callback = Feedback("row_loss", 2)
    options = {**QUIET, "max_epochs": EPOCHS, "enable_checkpointing": False}
    with quietly():
        trainer = pl.Trainer(**options, callbacks=[callback])
        with pytest.raises(OSError, match="told to fail"):
            trainer.fit(Diverging(done + 3), datamodule=data)
        if kept != "trainer":
            callback = callback if kept == "callback" else Feedback("row_loss", 2)
            trainer = pl.Trainer(**options, callbacks=[callback])
        model = Feeding()
        trainer.fit(model, datamodule=data, ckpt_path=checkpoint)
    assert model.log_of.train == whole.log_of.train[done:]
    assert model.parameters_of() == whole.parameters_of()


def test_the_callback_of_a_further_fit_weighs_by_its_own_function_and_score():
    class Scoring(Feeding):
        def training_step(self, batch, batch_idx):
            outputs = super().training_step(batch, batch_idx)
            return {**outputs, "seven": torch.full((len(batch),), 7.0)}

    data = SequenceDataModule(
        seed=3, batches_per_update=GROUP, on_changed="error", **POLICIES["weighted"]()
    )
    seen = {"first": [], "second": [], "third": []}
    for fit, score in (("first", "row_loss"), ("second", "row_loss"), ("third", "seven")):

        def weigh(scores, own=seen[fit]):
            own.append(scores)
            return np.ones(30)

        before = {name: len(scores) for name, scores in seen.items()}
        with quietly():
            trainer = pl.Trainer(
                **QUIET, max_epochs=EPOCHS, enable_checkpointing=False,
                callbacks=[Feedback(score, 2, weigh)],
            )  # fmt: skip
            trainer.fit(Scoring(), datamodule=data)
        after = {name: len(scores) for name, scores in seen.items()}
        assert after[fit] > 0
        assert {name for name in seen if after[name] > before[name]} == {fit}
    met = ~np.isnan(seen["third"][0])  # of the first segment alone
    assert 0 < met.sum() <= 2 * 2 * GROUP
    assert set(seen["third"][0][met].tolist()) == {7.0}


@pytest.mark.parametrize("hook", ["setup", "on_train_start"])
def test_a_callback_that_is_added_once_data_is_planned_is_refused(hook):
    class Adding(Feeding):
        pass

    def add(self, *_, **__):
        self.trainer.callbacks.append(Feedback("row_loss", 2))

    setattr(Adding, hook, add)
    data = SequenceDataModule(seed=3, batches_per_update=GROUP, **POLICIES["weighted"]())
    with quietly(), pytest.raises(ConfigError, match=r"but was added later.*configure_callbacks"):
        pl.Trainer(**QUIET, max_epochs=1, enable_checkpointing=False).fit(Adding(), datamodule=data)


@pytest.mark.parametrize("score", ["row_loss", "seven"])
def test_the_callback_of_the_module_weighs_in_the_place_of_the_trainers(score):
    seen = []
    own = Feedback(score, 2, lambda scores: seen.append(scores) or np.ones(30))

    class Configuring(Feeding):
        def configure_callbacks(self):
            return [own]

        def training_step(self, batch, batch_idx):
            outputs = super().training_step(batch, batch_idx)
            return {**outputs, "seven": torch.full((len(batch),), 7.0)}

    def refuse(scores):
        raise AssertionError("the callback was replaced")

    with quietly():
        trainer = pl.Trainer(
            **QUIET, max_epochs=1, enable_checkpointing=False,
            callbacks=[Feedback("row_loss", 2, refuse)],
        )  # fmt: skip
        data = SequenceDataModule(seed=3, batches_per_update=GROUP, **POLICIES["weighted"]())
        trainer.fit(Configuring(), datamodule=data)
    assert len(seen) == 2
    met = set(seen[-1][~np.isnan(seen[-1])].tolist())
    assert (met == {7.0}) == (score == "seven")
