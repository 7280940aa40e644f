"""Learning rates of a fit that goes on are those of one that was as long from its beginning."""

from __future__ import annotations

import lightning as L
import numpy as np
import pytest
import torch
from seqdata_models import LSTMClassifier, StatefulLM, StatefulTagger
from seqdata_models.schedules import Cosine, OneCycle

from seqdata import TBPTT, Bucketed, SequenceDataModule

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
RANDOM = np.random.default_rng(0)
TEXTS = [RANDOM.integers(0, 7, n).astype(np.uint8) for n in (60, 41, 23, 30)]
LABELLED = [{"x": RANDOM.normal(size=(n, 2)), "y": n % 3} for n in range(3, 15)]
TAGGED = [{"x": RANDOM.normal(size=(n, 2)), "y": np.arange(n) % 3} for n in (40, 33, 21)]

MODELS = {
    "cosine": (
        lambda: StatefulLM(7, 4, 5, cosine=True),
        lambda: SequenceDataModule(train=TEXTS, batching=TBPTT(2, 8, continuous=True), shift=1),
    ),
    "cosine of the tagger": (
        lambda: StatefulTagger(2, 3, hidden=5, cosine=True),
        lambda: SequenceDataModule(train=TAGGED, batching=TBPTT(2, 8)),
    ),
    "one cycle": (
        lambda: LSTMClassifier(2, 3, hidden=4),
        lambda: SequenceDataModule(train=LABELLED, batching=Bucketed(3), dtype="float32"),
    ),
}


class Rates(L.Callback):
    """Notes the rate and, where it is cycled, the momentum of each update."""

    def __init__(self):
        self.found = []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        (group,) = optimizer.param_groups
        self.found.append((group["lr"], group["betas"][0]))


def fit(trainer_of, make, epochs, **options):
    rates = Rates()
    trainer = trainer_of(max_epochs=epochs, callbacks=[rates], deterministic=True)
    torch.manual_seed(0)
    model = make[0]()
    trainer.fit(model, make[1](), **options)
    return trainer, model, rates.found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("epochs", [1, 2])
def test_a_finished_fit_goes_on_from_its_checkpoint(model, epochs, trainer_of, tmp_path):
    make = MODELS[model]
    _, _, expected = fit(trainer_of, make, 4)
    trainer, _, before = fit(trainer_of, make, epochs)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    _, _, found = fit(trainer_of, make, 4, ckpt_path=tmp_path / "last.ckpt")
    assert found == expected[len(before) :]


@pytest.mark.parametrize("model", MODELS)
def test_a_finished_fit_goes_on_with_the_same_trainer(model, trainer_of):
    make = MODELS[model]
    _, _, expected = fit(trainer_of, make, 4)
    trainer, module, before = fit(trainer_of, make, 2)
    count = len(before)
    trainer.fit_loop.max_epochs = 4
    trainer.fit(module, make[1]())
    assert count
    assert before[count:] == expected[count:]  # the callback goes on


@pytest.mark.parametrize("model", MODELS)
def test_a_resumed_fit_of_the_same_length_is_the_same_to_all_bits(model, trainer_of, tmp_path):
    make, saved = MODELS[model], tmp_path / "mid.ckpt"

    class Save(L.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 3:
                trainer.save_checkpoint(saved)

    trainer, _, expected = fit(trainer_of, make, 2)
    other = trainer_of(max_epochs=2, callbacks=[Save()])
    torch.manual_seed(0)
    other.fit(make[0](), make[1]())
    again, _, found = fit(trainer_of, make, 2, ckpt_path=saved)
    assert found == expected[3:]
    states = [one.lr_scheduler_configs[0].scheduler.state_dict() for one in (trainer, again)]
    for name in ("last_epoch", "_step_count", "base_lrs", "_last_lr"):
        assert states[0][name] == states[1][name]


@pytest.mark.parametrize("kind", [Cosine, lambda *given: OneCycle(given[0], 0.5, *given[1:])])
@pytest.mark.parametrize("done", [0, 1, 7, 9, 10, 13])
def test_a_schedule_stands_where_its_steps_would_have_brought_it(kind, done):
    def make(*given):
        return kind(torch.optim.Adam([torch.zeros(1, requires_grad=True)], 0.5), *given)

    stepped, placed, loaded = make(10), make(10, done), make(10)
    for _ in range(done):
        stepped.optimizer.step()
        stepped.step()
    loaded.load_state_dict(stepped.state_dict())
    shown = [
        (one.last_epoch, one._step_count, one.get_last_lr(), one.optimizer.param_groups[0]["betas"])
        for one in (stepped, placed, loaded)
    ]
    assert shown[0] == shown[1] == shown[2]


def test_a_schedule_that_torch_saved_goes_on():
    optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], 0.5)
    saved = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for _ in range(4):
        optimizer.step()
        saved.step()
    schedule = Cosine(torch.optim.Adam([torch.zeros(1, requires_grad=True)], 0.5), 10)
    schedule.load_state_dict(saved.state_dict())
    assert schedule.get_last_lr() == pytest.approx(saved.get_last_lr(), rel=1e-12)
