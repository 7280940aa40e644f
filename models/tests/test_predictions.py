"""What each model predicts is what ``PredictionWriter`` writes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from seqdata_models import (
    Forecaster,
    LSTMClassifier,
    LSTMTagger,
    Seq2SeqLSTM,
    StatefulLM,
    StatefulTagger,
)

from seqdata import (
    TBPTT,
    Bucketed,
    Fixed,
    Loader,
    PredictionWriter,
    SequenceDataModule,
    Windows,
    open_store,
    write_store,
)

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


@pytest.mark.parametrize(
    "batching",
    [TBPTT(3, 8), TBPTT(3, 8, advance=5), TBPTT(1, 100)],
    ids=["chunks", "overlapping", "whole"],
)
def test_what_is_predicted_chunk_by_chunk_is_written_as_whole_sequences(
    batching, tmp_path, trainer_of
):
    model = StatefulTagger(4, 3, hidden=5).eval()
    writer = PredictionWriter(tmp_path / "out", field="logits")
    trainer_of(callbacks=[writer]).predict(
        model, SequenceDataModule(predict=SERIES, batching=batching)
    )
    out = open_store(tmp_path / "out")
    assert out.lengths.tolist() == [len(one) for one in SERIES]
    with torch.no_grad():
        for batch, one in zip(Loader(out, Fixed(1, shuffle=False)), SERIES, strict=True):
            whole, _ = model.rnn(torch.as_tensor(one)[None])
            assert (batch["logits"] - model.head(whole)).abs().max() <= 1e-6


def test_a_stateful_language_model_gives_the_nats_of_each_token(trainer_of):
    texts = [RANDOM.integers(0, 7, n) for n in (5, 20, 1, 9)]
    model = StatefulLM(7, 4, 5).double().eval()
    data = SequenceDataModule(predict=texts, batching=TBPTT(3, 6), shift=1)
    found: dict[int, list[torch.Tensor]] = {}
    for made in trainer_of(precision="64-true").predict(model, data):
        for number, length, nll in zip(
            made["ids"].tolist(), made["lengths"].tolist(), made["nll"], strict=True
        ):
            assert nll[length:].eq(0).all()
            found.setdefault(number, []).append(nll[:length])
    assert sorted(found) == [0, 1, 3]  # a token alone has none to be guessed from
    with torch.no_grad():
        for number, chunks in found.items():
            tokens = torch.as_tensor(texts[number])[None]
            out, _ = model.rnn(model.embedding(tokens[:, :-1]))
            expected = torch.nn.functional.cross_entropy(
                model.head(out)[0], tokens[0, 1:], reduction="none"
            )
            assert (torch.cat(chunks) - expected).abs().max() <= 1e-12
