"""Reference models train in every precision that this processor has, and refuse others by name.

What users set of torch changes nothing of what they find.
"""

from __future__ import annotations

import lightning as L
import numpy as np
import pytest
import torch
from seqdata_models import (
    ByteLM,
    Forecaster,
    LSTMClassifier,
    LSTMTagger,
    Seq2SeqLSTM,
    StatefulLM,
    StatefulTagger,
)
from seqdata_models.parallel import Mesh, Ring, Wavefront

from seqdata import TBPTT, Bucketed, ConfigError, Loader, SequenceDataModule, Windows, write_store
from seqdata.recurrent import autocast
from tests.torch_settings import SETTINGS

RANDOM = np.random.default_rng(0)
LENGTHS = [7, 5, 9, 7, 12, 7]
SOUNDS = [RANDOM.normal(size=(n, 2)).astype("float32") for n in LENGTHS]
TEXTS = [RANDOM.integers(0, 5, n).astype(np.uint8) for n in LENGTHS]
LABELLED = [{"x": x, "y": len(x) % 3} for x in SOUNDS]
TAGGED = [{"x": x, "y": np.arange(len(x)) % 3} for x in SOUNDS]
PAIRS = [{"source": text, "target": text[:3]} for text in TEXTS]
MODELS = {
    "bytes": (lambda: ByteLM(4, 5), TEXTS, Bucketed(3), {"shift": 1}),
    "forecaster": (lambda: Forecaster(2, 2, hidden=4), SOUNDS, Windows(3, 2, 1, horizon=2), {}),
    "classifier": (lambda: LSTMClassifier(2, 3, hidden=4), LABELLED, Bucketed(3), {}),
    "tagger": (lambda: LSTMTagger(2, 3, hidden=4), TAGGED, Bucketed(3), {}),
    "pairs": (lambda: Seq2SeqLSTM(5, 5, hidden=4), PAIRS, Bucketed(3), {}),
    "stateful": (lambda: StatefulLM(5, 4, 5), TEXTS, TBPTT(2, 4), {"shift": 1}),
    "stateful tagger": (lambda: StatefulTagger(2, 3, hidden=4), TAGGED, TBPTT(2, 4), {}),
}
REFUSED = "the LSTM '.*' under autocast must be in float32, but is in bfloat16, for which oneDNN"
PRECISIONS = ("32-true", "bf16-mixed", "bf16-true")


def make_data(kind, folder):
    _, source, batching, more = MODELS[kind]
    if source is PAIRS:
        source = write_store(folder / "pairs", PAIRS, axes={"source": "time", "target": "text"})
    return SequenceDataModule(train=source, val=source, batching=batching, **more)


def fit(trainer_of, kind, precision, folder, **options):
    torch.manual_seed(0)
    trainer = trainer_of(max_epochs=1, precision=precision, **options)
    trainer.fit(MODELS[kind][0](), make_data(kind, folder))
    return trainer


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_model_trains_in_a_precision_or_says_why_not(kind, precision, trainer_of, tmp_path):
    if precision == "bf16-mixed" and not autocast.can_run(torch.bfloat16):
        with pytest.raises(ConfigError, match=REFUSED):
            fit(trainer_of, kind, precision, tmp_path)
        return
    metrics = fit(trainer_of, kind, precision, tmp_path).callback_metrics
    assert all(bool(torch.as_tensor(value).isfinite()) for value in metrics.values())
    assert metrics


@pytest.mark.parametrize("engine", [Ring, Wavefront])
def test_the_parallel_lstm_is_refused_before_its_first_step(engine, monkeypatch):
    monkeypatch.setattr(autocast, "can_run", lambda dtype: False)
    batches = list(Loader(TEXTS, TBPTT(2, 4), shift=1))[:2]
    with torch.autocast("cpu"), pytest.raises(ConfigError, match="the LSTM under autocast must be"):
        engine(StatefulLM(5, 4, 5, 2), Mesh(1)).update(batches)


class Notes(L.Callback):
    """Says that a step begins."""

    def on_train_batch_start(self, *_):
        pytest.fail("a step has begun")

    def on_validation_batch_start(self, *_):
        pytest.fail("a step has begun")


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_is_refused_before_its_first_step(kind, trainer_of, tmp_path, monkeypatch):
    monkeypatch.setattr(autocast, "can_run", lambda dtype: False)
    with pytest.raises(ConfigError, match=REFUSED):
        fit(trainer_of, kind, "bf16-mixed", tmp_path, callbacks=[Notes()])


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_each_model_finds_the_same_whatever_torchs_defaults_are(
    kind, setting, trainer_of, tmp_path
):
    torch.manual_seed(0)
    model, data = MODELS[kind][0](), make_data(kind, tmp_path)
    (expected,) = trainer_of().validate(model, data, verbose=False)
    with SETTINGS[setting]():
        (found,) = trainer_of().validate(model, data, verbose=False)
    assert found == expected
