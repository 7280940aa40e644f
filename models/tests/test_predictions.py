"""What each model predicts is what ``PredictionWriter`` writes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from seqdata_models import Forecaster, LSTMClassifier, LSTMTagger, Seq2SeqLSTM

from seqdata import Bucketed, PredictionWriter, SequenceDataModule, Windows, open_store, write_store

RANDOM = np.random.default_rng(0)
SERIES = [RANDOM.normal(size=(n, 4)).astype(np.float32) for n in RANDOM.integers(12, 40, 20)]
PAIRS = [{name: RANDOM.integers(0, 5, n) for name, n in (("source", 3 + k % 4), ("target", 2))}
         for k in range(20)]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "options", "shape", "axis"),
    [
        (LSTMClassifier(4, 3), {"field": "logits"}, (3,), None),
        (LSTMTagger(4, 3), {"field": "logits"}, (3,), "time"),
        (Forecaster(4, 5), {"field": "forecast", "per": "span"}, (5, 4), None),
        (
            Seq2SeqLSTM(5, 5, max_length=6),
            {"fields": ("tokens", "lengths"), "per": "sequence"},
            (6,),
            None,
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else "",
)
def test_predictions_are_written_back_by_id(model, options, shape, axis, tmp_path, trainer_of):
    source, batching = SERIES, Bucketed(8)
    if isinstance(model, Seq2SeqLSTM):
        source = write_store(tmp_path / "pairs", PAIRS, axes={"source": "time", "target": "text"})
    if isinstance(model, Forecaster):
        batching = Windows(8, 8, 16)
    data = SequenceDataModule(predict=source, batching=batching)
    trainer_of(callbacks=[PredictionWriter(tmp_path / "out", **options)]).predict(model, data)
    out = open_store(tmp_path / "out")
    name = options.get("field", "tokens")
    assert (out.fields[name].shape, out.fields[name].axis) == (shape, axis)
    if isinstance(model, Forecaster):
        assert len(out) == sum(len(one) // 8 for one in SERIES)
    else:
        assert len(out) == 20
    if axis:
        assert out.lengths.tolist() == [len(one) for one in SERIES]
