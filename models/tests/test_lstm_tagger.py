"""A timestep's logits are its row's own, and the tagger remembers where a glance is not enough."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from seqdata_models import LSTMTagger, masked_token_loss
from torch import Tensor

from seqdata import Bucketed, ConfigError, SequenceDataModule

LAYOUTS = ["packed", "dense"]
FEATURES, CLASSES = 4, 3


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Tensor]]:
    made = torch.Generator().manual_seed(5)
    return [
        {
            "x": torch.randn(length, FEATURES, generator=made),
            "y": torch.randint(0, CLASSES, (length,), generator=made),
        }
        for length in (3, 17, 9, 40, 1, 22)
    ]


def model_of(layout: str = "packed", **options: object) -> LSTMTagger:
    torch.manual_seed(0)
    return LSTMTagger(FEATURES, CLASSES, hidden=8, layout=layout, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
@torch.no_grad()
def test_logits_of_a_row_are_those_of_the_row_alone(
    rows, batch_of, layout, training, bidirectional
):
    model = model_of(layout, layers=2, bidirectional=bidirectional).train(training)
    logits = model(batch_of(rows, wider=3))
    assert logits.shape == (6, 43, CLASSES)
    for number, row in enumerate(rows):
        alone = model(batch_of([row]))[0]
        assert (logits[number, : len(row["x"])] - alone).abs().max() <= 1e-6


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("padding", [torch.nan, 1e9])
def test_padding_reaches_neither_the_loss_nor_any_gradient(rows, batch_of, layout, padding):
    found = []
    for value in (0.0, padding):
        model = model_of(layout, bidirectional=True).train()
        batch = batch_of(rows, padding=value, wider=2)
        loss = masked_token_loss(model(batch), batch["y"], batch.score)
        loss.backward()
        found.append([loss.detach(), *(weight.grad for weight in model.parameters())])
    assert all(torch.equal(clean, dirty) for clean, dirty in zip(*found, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_over_parts_of_an_update_add_up_to_one_step_over_all_of_it(
    rows, batch_of, loader_of, trainer_of, layout
):
    total = sum(len(row["x"]) for row in rows)
    parts = [batch_of(part, tokens_of_update=total) for part in (rows[:1], rows[1:4], rows[4:])]
    parts.append(batch_of(rows[:2], weight=[0.0, 0.0], tokens_of_update=total))
    trained = []
    for batches in ([batch_of(rows)], parts):
        for batch in batches:
            batch.loss_scale *= len(batches)  # the Trainer divides by its accumulation
        model = model_of(layout).double().train()
        trainer = trainer_of(
            max_epochs=1, accumulate_grad_batches=len(batches), precision="64-true"
        )
        trainer.fit(model, loader_of(batches), loader_of(batches))
        trained.append(torch.cat([weight.flatten() for weight in model.parameters()]))
    assert (trained[0] - trained[1]).abs().max() <= 1e-12


@torch.no_grad()
def test_evaluation_gives_sums_over_timesteps_whatever_the_batching_and_dummy_rows(
    rows, batch_of, loader_of, trainer_of
):
    model = model_of().eval()
    rows = [{**row, "y": row["y"].where(row["x"][:, 0] < 1, -100)} for row in rows]
    logits = torch.cat([model(batch_of([row]))[0] for row in rows])
    labels = torch.cat([row["y"] for row in rows])
    assert 0 < (labels < 0).sum() < len(labels)
    right = float((logits.argmax(-1) == labels)[labels >= 0].double().mean())
    loss = float(torch.nn.functional.cross_entropy(logits.double(), labels))
    dummy = batch_of(rows[:1], weight=[0.0])
    for size in (1, 4, 6):
        batches = [batch_of(rows[first : first + size], wider=1) for first in range(0, 6, size)]
        trainer = trainer_of()
        for run, stage in ((trainer.validate, "val"), (trainer.test, "test")):
            (found,) = run(model, loader_of([*batches, dummy]), verbose=False)
            assert found[f"{stage}_accuracy"] == pytest.approx(right, abs=1e-7)
            assert found[f"{stage}_loss"] == pytest.approx(loss, abs=1e-6)


def test_predictions_have_lengths_and_no_dummy_rows(rows, batch_of, loader_of, trainer_of):
    batch = batch_of(rows[:3], ids=[4, 9, 2], weight=[1.0, 0.0, 1.0])
    (found,) = trainer_of().predict(model_of(), loader_of([batch]))
    assert found["ids"].tolist() == [4, 2]
    assert found["lengths"].tolist() == [3, 9]
    assert found["logits"].shape == (2, 17, CLASSES)


def test_an_unknown_layout_is_refused():
    with pytest.raises(
        ConfigError, match="tagger: `layout` must be 'packed' or 'dense', but is 'nested'"
    ):
        model_of("nested")


# A rule that needs memory. At a timestep there is one of four symbols: three markers, or nothing
# (most often). The label is the last marker so far; 3 before the first.

SYMBOLS, NOTHING = 4, 3
Marked = tuple[np.ndarray, np.ndarray]


def marked(count: int, seed: int) -> list[Marked]:
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        symbols = random.choice(SYMBOLS, random.integers(5, 40), p=[0.1, 0.1, 0.1, 0.7])
        labels, last = [], NOTHING
        for symbol in symbols.tolist():
            last = symbol if symbol != NOTHING else last
            labels.append(last)
        found.append((symbols, np.array(labels)))
    return found


def accuracy_of_a_table(key, train: list[Marked], test: list[Marked]) -> float:
    """Return the accuracy of predicting the most frequent training label of each key."""
    seen: dict[object, Counter[int]] = {}
    for symbols, labels in train:
        for step, label in enumerate(labels.tolist()):
            seen.setdefault(key(symbols, step), Counter())[label] += 1
    best = {known: counts.most_common(1)[0][0] for known, counts in seen.items()}
    right = [
        best.get(key(symbols, step), NOTHING) == label
        for symbols, labels in test
        for step, label in enumerate(labels.tolist())
    ]
    return float(np.mean(right))


def counts_so_far(symbols: np.ndarray, step: int) -> tuple[int, ...]:
    return tuple(np.bincount(symbols[: step + 1], minlength=SYMBOLS)[:NOTHING].tolist())


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [pytest.param(one, marks=[pytest.mark.nightly] * (one == "packed")) for one in LAYOUTS],
)
def test_it_remembers_the_last_marker_where_shortcuts_fail(layout, trainer_of):
    train, test, val = marked(400, seed=0), marked(200, seed=1), marked(20, seed=2)
    shortcuts = {
        "majority": accuracy_of_a_table(lambda symbols, step: None, train, test),
        "last value": accuracy_of_a_table(lambda symbols, step: symbols[step], train, test),
        "order ignored": accuracy_of_a_table(counts_so_far, train, test),
    }
    one_hot = np.eye(SYMBOLS, dtype=np.float32)
    parts = {
        name: [{"x": one_hot[symbols], "y": labels} for symbols, labels in part]
        for name, part in (("train", train), ("val", val), ("test", test))
    }
    torch.manual_seed(0)
    model = LSTMTagger(SYMBOLS, SYMBOLS, hidden=24, layout=layout, learning_rate=0.015)
    data = SequenceDataModule(**parts, batching=Bucketed(32), seed=0)
    trainer = trainer_of(max_epochs=6)
    trainer.fit(model, data)
    (found,) = trainer.test(model, data, verbose=False)
    assert found["test_accuracy"] >= 0.98
    assert found["test_accuracy"] >= max(shortcuts.values()) + 0.30, shortcuts


@torch.no_grad()
def test_a_class_156_of_labels_in_bytes_counts(batch_of, loader_of, trainer_of):
    rows = [{"x": torch.ones(3, FEATURES), "y": torch.tensor([156, 1, 156], dtype=torch.uint8)}]
    model = LSTMTagger(FEATURES, 200, hidden=8)
    (found,) = trainer_of().validate(model, loader_of([batch_of(rows)]), verbose=False)
    logits = model.eval()(batch_of(rows))[0]
    expected = float(torch.nn.functional.cross_entropy(logits, rows[0]["y"].long()))
    assert found["val_loss"] == pytest.approx(expected, rel=1e-6)
