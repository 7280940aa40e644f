"""A forecast is its window's own, and it follows a rule that its shortcuts do not know."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from seqdata_models import Forecaster, LSTMForecaster

from seqdata import ConfigError, Loader, SequenceBatch, SequenceDataModule, Windows, World

SIZE, HORIZON, FEATURES = 12, 5, 2


def series(*lengths: int) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    return [random.normal(size=(length, FEATURES)).astype(np.float32) for length in lengths]


def batches_of(rows: list[np.ndarray], **options: object) -> list[SequenceBatch]:
    chosen = {"size": SIZE, "horizon": HORIZON, "stride": 3, "batch_size": 8, "shuffle": False}
    world = options.pop("world", World(0, 1))
    return list(Loader(rows, Windows(**{**chosen, **options}), world=world))


def model_of(**options: object) -> Forecaster:
    torch.manual_seed(0)
    return Forecaster(FEATURES, HORIZON, hidden=8, **options)


@torch.no_grad()
def test_a_forecast_is_that_of_the_window_alone():
    model = model_of(layers=2).eval()
    for batch in batches_of(series(40, 30)):
        context = batch.context["x"]
        forecast = model(context)
        assert forecast.shape == (len(batch), HORIZON, FEATURES)
        for row in range(len(batch)):
            assert (forecast[row] - model(context[row : row + 1])[0]).abs().max() <= 1e-6


@pytest.mark.parametrize("teacher_forcing", [False, True])
def test_evaluation_looks_at_no_future(teacher_forcing):
    model = model_of(teacher_forcing=teacher_forcing).eval()
    (batch,) = batches_of(series(30))
    before = model.predict_step(batch)["forecast"]
    error = model.window_errors(batch)
    batch.future["x"].fill_(7.0)
    assert torch.equal(model.predict_step(batch)["forecast"], before)
    torch.testing.assert_close(
        model.window_errors(batch), (before - 7.0).square().mean(dim=(1, 2)), rtol=1e-5, atol=1e-5
    )
    assert not torch.equal(error, model.window_errors(batch))


@torch.no_grad()
def test_teacher_forcing_takes_each_step_from_the_true_one_before_it():
    model = model_of(teacher_forcing=True)
    (batch,) = batches_of(series(30))
    context, future = batch.context["x"], batch.future["x"]
    taught, free = model(context, future), model(context)
    torch.testing.assert_close(taught[:, 0], free[:, 0])
    assert (taught[:, 1:] - free[:, 1:]).abs().max() > 1e-3
    # What is forecast is what is fed, so both ways give it again.
    torch.testing.assert_close(model(context, free), free)
    changed = future.clone()
    changed[:, -1] = 9.0  # the last step is before no other
    assert torch.equal(model(context, changed), taught)


@pytest.mark.parametrize("teacher_forcing", [False, True])
def test_steps_over_parts_of_an_update_add_up_to_one_step_over_all_of_it(
    loader_of, trainer_of, teacher_forcing
):
    rows = series(44, 20)
    dummy = batches_of(rows, batch_size=4, world=World(1, 2))[-1]  # 3 batches on 2 ranks
    assert not dummy.weight.any()
    windows = sum(len(batch) for batch in batches_of(rows))
    trained = []
    for batches in (batches_of(rows, batch_size=64), [*batches_of(rows, batch_size=4), dummy]):
        for batch in batches:
            batch.sequence_scale = len(batches) / windows  # the Trainer divides
        model = model_of(teacher_forcing=teacher_forcing).double()
        trainer = trainer_of(
            max_epochs=1, accumulate_grad_batches=len(batches), precision="64-true"
        )
        trainer.fit(model, loader_of(batches), loader_of(batches))
        trained.append(torch.cat([weight.flatten() for weight in model.parameters()]))
    assert len(batches) > 2
    assert (trained[0] - trained[1]).abs().max() <= 1e-12


def test_evaluation_gives_a_mean_over_windows_whatever_the_batching_and_dummy_rows(
    loader_of, trainer_of
):
    rows, model = series(44, 20), model_of().eval()
    with torch.no_grad():
        errors = torch.cat([model.window_errors(batch) for batch in batches_of(rows)])
    dummy = batches_of(rows, batch_size=4, world=World(1, 2))[-1]
    assert not dummy.weight.any()
    for size in (1, 5, 64):
        batches = loader_of([*batches_of(rows, batch_size=size), dummy])
        trainer = trainer_of()
        for run, name in ((trainer.validate, "val_mse"), (trainer.test, "test_mse")):
            (found,) = run(model, batches, verbose=False)
            assert found[name] == pytest.approx(float(errors.double().mean()), abs=1e-6)


def test_predictions_name_their_windows_and_need_no_future(trainer_of):
    rows = series(30, 12, 11)
    policy = Windows(SIZE, 9, 8)  # no horizon: the last windows too
    data = SequenceDataModule(predict=rows, batching=policy)
    (found,) = trainer_of().predict(model_of(), data)
    assert found["ids"].tolist() == [0, 0, 0, 1]
    assert found["start"].tolist() == [0, 9, 18, 0]
    assert found["forecast"].shape == (4, HORIZON, FEATURES)
    (dummy,) = batches_of(rows, batch_size=64, world=World(1, 2))
    assert model_of().predict_step(dummy)["forecast"].shape == (0, HORIZON, FEATURES)


def test_windows_of_another_horizon_are_refused():
    (batch,) = batches_of(series(30), horizon=4)
    with pytest.raises(ConfigError, match="the batch's horizon is 4, but must be 5"):
        model_of().window_errors(batch)


# A rule: two sines of known periods, with phases and amplitudes of each sequence's own.

PERIODS = (11.0, 17.0)


def waves(count: int, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    time = np.arange(120)
    found = []
    for _ in range(count):
        phases, sizes = random.uniform(0, 2 * np.pi, 2), random.uniform(0.5, 1.5, 2)
        parts = [
            size * np.sin(2 * np.pi * time / period + phase)
            for size, period, phase in zip(sizes, PERIODS, phases, strict=True)
        ]
        found.append(np.sum(parts, axis=0)[:, None].astype(np.float32))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("teacher_forcing", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_it_goes_on_with_waves_where_shortcuts_fail(teacher_forcing, trainer_of):
    size, horizon = 24, 8
    train, test, val = waves(40, seed=0), waves(20, seed=1), waves(2, seed=2)
    whole = np.concatenate(
        [np.lib.stride_tricks.sliding_window_view(wave[:, 0], size + horizon)[::4] for wave in test]
    )
    context, future = whole[:, :size], whole[:, size:]
    mean_error = {
        "last value": np.square(future - context[:, -1:]).mean(),
        "mean of context": np.square(future - context.mean(axis=1, keepdims=True)).mean(),
        "one period ago": min(
            np.square(future - whole[:, size - period : -period]).mean() for period in (11, 17)
        ),
    }
    torch.manual_seed(0)
    model = Forecaster(1, horizon, hidden=32, teacher_forcing=teacher_forcing, learning_rate=0.015)
    data = SequenceDataModule(
        train=train, val=val, test=test, batching=Windows(size, 4, 32, horizon=horizon), seed=0
    )
    trainer = trainer_of(max_epochs=6)
    trainer.fit(model, data)
    (found,) = trainer.test(model, data, verbose=False)
    assert found["test_mse"] <= 0.02 * min(mean_error.values()), mean_error


def test_a_forecaster_of_fields_needs_a_target_and_a_horizon():
    with pytest.raises(
        ConfigError, match=r"but they are \('load',\) and 0\. Write LSTMForecaster\.for"
    ):
        LSTMForecaster(["load"])
