"""Every model reads fields of any name: the same losses, figures and predictions as of `x`, `y`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from seqdata_models import (
    ByteLM,
    Forecaster,
    LSTMClassifier,
    LSTMTagger,
    StatefulLM,
    StatefulTagger,
)

from seqdata import TBPTT, Fixed, SequenceDataModule, Windows

RNG = np.random.default_rng(0)
SOUNDS = [RNG.normal(size=(n, 3)).astype("float32") for n in (9, 12, 10, 9)]
LABELLED = [{"x": sound, "y": number % 2} for number, sound in enumerate(SOUNDS)]
TAGGED = [{"x": sound, "y": (sound[:, 0] > 0).astype(int)} for sound in SOUNDS]
TEXTS = [{"x": RNG.integers(0, 256, n).astype("uint8")} for n in (9, 12, 10, 9)]
NAMES = {"x": "mel", "y": "label"}
LANES, FEW = TBPTT(2, 4), Fixed(2, shuffle=False)

Case = tuple[Callable[..., L.LightningModule], list[dict[str, Any]], dict[str, Any]]
CASES: dict[str, Case] = {
    "classifier": (lambda **names: LSTMClassifier(3, 2, **names), LABELLED, {"batching": FEW}),
    "dense": (
        lambda **names: LSTMClassifier(3, 2, layout="dense", **names), LABELLED, {"batching": FEW},
    ),
    "tagger": (lambda **names: LSTMTagger(3, 2, **names), TAGGED, {"batching": FEW}),
    "stateful tagger": (lambda **names: StatefulTagger(3, 2, **names), TAGGED, {"batching": LANES}),
    "bytes": (lambda **names: ByteLM(4, 5, **names), TEXTS, {"batching": FEW, "shift": 1}),
    "stream": (
        lambda **names: StatefulLM(256, 4, 5, **names), TEXTS, {"batching": LANES, "shift": 1},
    ),
    "forecaster": (
        lambda **names: Forecaster(3, 2, **names),
        [{"x": sound} for sound in SOUNDS],
        {"batching": Windows(4, 2, 4, horizon=2)},
    ),
}  # fmt: skip


def figures(case: Case, names: dict[str, str]) -> dict[str, float]:
    make, rows, options = case
    rows = [{names.get(name, name): value for name, value in row.items()} for row in rows]
    torch.manual_seed(0)
    model = make(**{name: names[name] for name in rows and names if names[name] in rows[0]})
    data = SequenceDataModule(train=rows, val=rows, **options)
    trainer = L.Trainer(
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu",
    )  # fmt: skip
    trainer.fit(model, data)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_reads_fields_of_any_name(name):
    named = figures(CASES[name], NAMES)
    assert len(named) > 1
    assert named == figures(CASES[name], {})


def test_field_is_a_deprecated_name_of_x():
    with pytest.warns(DeprecationWarning, match="`field` is deprecated: write `x`"):
        assert ByteLM(field="tokens").x == "tokens"
    assert ByteLM(field="x").x == "x"  # as checkpoints of 0.1 say
