"""RescaleLearningRate: an optimizer steps with other rates, and nobody else ever sees them."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from seqdata import ConfigError, RescaleLearningRate, SequenceBatch
from seqdata.lightning.callbacks._support.batch_info import get_batch_info, get_lr_scale
from tests.lightning.harness import QUIET, Recorder, data_of, fit, quietly

SCALES = [1.0, 0.5, 0.25, 1.5, 0.75]
RATES = (0.125, 0.5)  # of the two groups of parameters


class Batches:
    """The same batches each epoch, with the scales that jitter would give them."""

    def __init__(self, first=0):
        self.first = first  # a resumed epoch goes on there

    def __len__(self):
        return len(SCALES)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        """Lightning wants a loader that can go on to have both."""

    def __iter__(self):
        for number, scale in list(enumerate(SCALES))[self.first :]:
            yield SequenceBatch(
                data={"x": torch.full((1, 1), number + 1.0, dtype=torch.float64)},
                lengths=torch.ones(1, dtype=torch.int64),
                ids=torch.tensor([number]),
                weight=torch.ones(1),
                start=torch.zeros(1, dtype=torch.int64),
                number=number,
                lr_scale=scale,
            )


class Model(pl.LightningModule):
    """Two parameters in groups of their own; keeps the rates that each step used."""

    def __init__(self, decay=1.0, by_hand=False, fails_at=None):
        super().__init__()
        self.one = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
        self.other = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
        self.decay, self.fails_at = decay, fails_at
        self.automatic_optimization = not by_hand
        self.used, self.between = [], []

    def training_step(self, batch, batch_idx):
        if self.global_step == self.fails_at:
            raise OSError("told to fail")
        loss = ((self.one - 2 * self.other) * batch["x"]).sum().square()
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            if batch_idx % 2 == 0:
                optimizer.step()
            return None
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.between.append(rates_of(self.trainer.optimizers[0]))

    def configure_optimizers(self):
        groups = [
            {"params": [one], "lr": rate}
            for one, rate in zip((self.one, self.other), RATES, strict=True)
        ]
        optimizer = Writing(groups, self.used)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.decay)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class Writing(torch.optim.SGD):
    """SGD by tiny steps that writes down its rates where it uses them."""

    def __init__(self, groups, used):
        super().__init__(groups, lr=1.0)
        self.used = used

    @torch.no_grad()
    def step(self, closure=None):
        if closure is not None:
            with torch.enable_grad():
                closure()
        self.used.append(rates_of(self))
        for group in self.param_groups:
            for one in group["params"]:
                one -= group["lr"] * 1e-3 * one.grad


def rates_of(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


def scaled(*scales):
    return [[rate * scale for rate in RATES] for scale in scales]


def train(model, *callbacks, first=0, path=None, **options):
    options = {"max_epochs": 1, "enable_checkpointing": False, **QUIET, **options}
    trainer = pl.Trainer(callbacks=[RescaleLearningRate(), *callbacks], **options)
    with quietly():
        trainer.fit(model, Batches(first), ckpt_path=path)
    return trainer


def test_each_step_uses_the_rates_of_its_batch_and_leaves_them_as_they_were():
    model = Model()
    trainer = train(model, max_epochs=2)
    assert model.used == scaled(*SCALES, *SCALES)
    assert model.between == [list(RATES)] * 10
    assert not trainer.optimizers[0]._optimizer_step_pre_hooks


def test_the_parameters_are_those_of_a_loop_that_sets_the_rates_itself():
    model = Model()
    train(model)
    plain = Model()
    optimizer = plain.configure_optimizers()[0][0]
    for batch in Batches():
        for group, rate in zip(optimizer.param_groups, RATES, strict=True):
            group["lr"] = rate * batch.lr_scale
        optimizer.zero_grad()
        ((plain.one - 2 * plain.other) * batch["x"]).sum().square().backward()
        optimizer.step()
    assert model.one.item() == plain.one.item() != 1.0
    assert model.other.item() == plain.other.item()


def test_under_accumulation_it_is_the_mean_of_the_update_the_short_last_one_too():
    model = Model()
    train(model, max_epochs=2, accumulate_grad_batches=2)
    assert model.used == scaled(0.75, 0.875, 0.75) * 2


def test_a_scheduler_multiplies_the_rates_and_not_the_rescaled_ones():
    model = Model(decay=0.5)
    train(model)
    expected = [scale * 0.5**step for step, scale in enumerate(SCALES)]
    assert model.used == scaled(*expected)


def test_by_hand_it_is_the_mean_of_the_batches_since_the_last_step():
    model = Model(by_hand=True)
    train(model)
    assert model.used == scaled(1.0, (0.5 + 0.25) / 2, (1.5 + 0.75) / 2)


@pytest.mark.parametrize("fails_at", [None, 3])
def test_a_rescaled_rate_is_in_no_checkpoint_and_a_run_goes_on_as_if_not_stopped(
    tmp_path, fails_at
):
    whole = Model(decay=0.5)
    train(whole)
    stopped = Model(decay=0.5, fails_at=fails_at)
    saving = ModelCheckpoint(
        tmp_path, "{step}", every_n_train_steps=1 if fails_at is None else 100, save_top_k=-1,
        save_on_exception=True,
    )  # fmt: skip
    if fails_at is None:
        train(stopped, saving, enable_checkpointing=True)
    else:
        with pytest.raises(OSError, match="told to fail"):
            train(stopped, saving, enable_checkpointing=True)
    saved = {torch.load(path)["global_step"]: path for path in tmp_path.iterdir()}
    assert set(saved) == ({1, 2, 3, 4, 5} if fails_at is None else {3})
    for step, path in saved.items():
        (state,) = torch.load(path)["optimizer_states"]
        # A scheduler steps before a checkpoint of a step's end is saved.
        assert rates_of_state(state) == [[rate * 0.5**step for rate in RATES]]
    again = Model(decay=0.5)
    train(again, path=saved[3], first=3)
    assert again.one.item() == whole.one.item()
    assert again.used == whole.used[3:]


def rates_of_state(state):
    return [[group["lr"] for group in state["param_groups"]]]


def test_a_batch_of_a_tuple_has_the_scale_of_its_plan():
    seen = []

    class Looking(pl.Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            loader = trainer.train_dataloader
            seen.append((get_lr_scale(batch, loader), get_batch_info(batch, loader).number))

    class Careless(Recorder):
        def training_step(self, batch, batch_idx):
            return self.layer.weight.sum()

    data = data_of(as_tuple=("x", "weight"), val=None)
    fit(data, model=Careless(), callbacks=(Looking(), RescaleLearningRate()), max_epochs=1)
    assert len(seen) > 2
    assert seen == [(1.0, number) for number in range(len(seen))]


def test_a_batch_without_a_scale_is_refused():
    class Plain(Model):
        def training_step(self, batch, batch_idx):
            return (self.one * batch[0]).sum()

    trainer = pl.Trainer(callbacks=RescaleLearningRate(), max_epochs=1, **QUIET)
    batches = DataLoader([(torch.ones(1),)])
    refused = pytest.raises(
        ConfigError,
        match=(
            r"RescaleLearningRate: the batch must have `lr_scale`, but is a list of a loader "
            "that is not seqdata's. Train with a SequenceDataModule"
        ),
    )
    with quietly(), refused:
        trainer.fit(Plain(), batches)


def test_an_optimizer_that_is_not_torchs_is_refused():
    class Foreign:
        """What a strategy may put in an optimizer's place."""

    trainer = pl.Trainer(callbacks=(callback := RescaleLearningRate()), max_epochs=1, **QUIET)
    trainer.strategy._optimizers = [Foreign()]
    with pytest.raises(
        ConfigError,
        match=r"the optimizer must be a torch\.optim\.Optimizer, but is a Foreign. Leave the",
    ):
        callback.on_train_start(trainer, Model())
