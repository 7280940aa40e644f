"""A row's logits are its own, and the loss and the metrics are those of the rows."""

from __future__ import annotations

import pytest
import torch
from seqdata_models import LSTMClassifier
from torch import Tensor

from seqdata import ConfigError

LAYOUTS = ["packed", "dense"]
FEATURES, CLASSES, SEQUENCES = 12, 9, 370  # the shape of Japanese Vowels' test file


@pytest.fixture(scope="module")
def sequences() -> list[dict[str, Tensor]]:
    made = torch.Generator().manual_seed(3)
    lengths = torch.randint(7, 30, (SEQUENCES,), generator=made).tolist()
    speakers = torch.randn(CLASSES, FEATURES, generator=made)
    rows = []
    for length in lengths:
        y = torch.randint(0, CLASSES, (), generator=made)
        rows.append({"x": speakers[y] + torch.randn(length, FEATURES, generator=made), "y": y})
    return rows


def model_of(layout: str = "packed", **options: object) -> LSTMClassifier:
    torch.manual_seed(0)
    return LSTMClassifier(FEATURES, CLASSES, layout=layout, **options).eval()


@pytest.fixture(scope="module")
def trained(sequences, batch_of) -> dict[str, Tensor]:
    """Parameters with logits around 10, as on the real data: there a step of float32 is 1e-6."""
    model = model_of("dense").train()
    optimizer = torch.optim.Adam(model.parameters(), 0.015)
    batch = batch_of(sequences)
    for _ in range(9):
        optimizer.zero_grad()
        model.row_losses(model(batch), batch).mean().backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
@pytest.mark.slow
def test_logits_of_a_row_are_the_same_in_any_batching_order_and_padding(
    sequences, trained, batch_of, layout
):
    model = model_of(layout)
    model.load_state_dict(trained)
    whole = model(batch_of(sequences))
    assert 8 < whole.abs().max() < 16
    order = torch.randperm(SEQUENCES, generator=torch.Generator().manual_seed(1)).tolist()
    for size, wider in ((1, 0), (7, 3), (30, 0), (64, 20), (SEQUENCES, 1)):
        for first in range(0, SEQUENCES, size)[:60]:
            rows = order[first : first + size]
            logits = model(batch_of([sequences[row] for row in rows], wider=wider))
            assert (logits - whole[rows]).abs().max() <= 1e-6


@torch.no_grad()
def test_packed_and_dense_give_the_same_logits_from_the_same_checkpoint(sequences, batch_of):
    packed = model_of("packed", layers=2, dropout=0.0)
    dense = model_of("dense", layers=2, dropout=0.0)
    dense.load_state_dict(packed.state_dict())
    batch = batch_of(sequences[:100], wider=2)
    assert torch.equal(packed(batch), dense(batch))  # in evaluation both run dense
    assert (packed.train()(batch) - dense.train()(batch)).abs().max() <= 1e-6
    assert (packed(batch) - packed.eval()(batch)).abs().max() <= 1e-6


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("padding", [torch.nan, 1e9])
def test_padding_reaches_neither_the_loss_nor_any_gradient(sequences, batch_of, layout, padding):
    found = []
    for value in (0.0, padding):
        model = model_of(layout, dropout=0.0).train()
        batch = batch_of(sequences[:9], padding=value, wider=2)
        loss = model.row_losses(model(batch), batch).sum()
        loss.backward()
        found.append([loss.detach(), *(weight.grad for weight in model.parameters())])
    assert all(torch.equal(clean, dirty) for clean, dirty in zip(*found, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_over_parts_of_an_update_add_up_to_one_step_over_all_of_it(
    sequences, batch_of, loader_of, trainer_of, layout
):
    rows = sequences[:10]
    parts = [rows[:4], rows[4:9], rows[9:]]
    dummy = batch_of(rows[:1], weight=[0.0], rows_of_update=10)
    trained = []
    for batches in (
        [batch_of(rows)],
        [*(batch_of(part, rows_of_update=10) for part in parts), dummy],
    ):
        for batch in batches:
            batch.sequence_scale *= len(batches)  # the Trainer divides by its accumulation
        model = model_of(layout, dropout=0.0).double().train()
        trainer = trainer_of(
            max_epochs=1, accumulate_grad_batches=len(batches), precision="64-true"
        )
        trainer.fit(model, loader_of(batches), loader_of(batches))
        trained.append(torch.cat([weight.flatten() for weight in model.parameters()]))
    assert (trained[0] - trained[1]).abs().max() <= 1e-12


@torch.no_grad()
def test_evaluation_gives_sums_over_rows_whatever_the_batching_and_dummy_rows(
    sequences, batch_of, loader_of, trainer_of
):
    model = model_of()
    unlabelled = torch.tensor(-100)
    sequences = [
        {**row, "y": unlabelled if number % 4 == 1 else row["y"]}
        for number, row in enumerate(sequences)
    ]
    with torch.no_grad():
        logits = torch.cat([model(batch_of([row])) for row in sequences[:25]])
    labels = torch.stack([row["y"] for row in sequences[:25]])
    right = (logits.argmax(-1) == labels)[labels >= 0].double().mean()
    loss = torch.nn.functional.cross_entropy(logits.double(), labels)
    means = []
    for size in (25, 4):
        parts = [sequences[first : min(first + size, 25)] for first in range(0, 25, size)]
        batches = [batch_of(part) for part in parts]
        batches.append(batch_of(sequences[30:32], weight=[0.0, 0.0]))
        trainer = trainer_of()
        for run, stage in ((trainer.validate, "val"), (trainer.test, "test")):
            (found,) = run(model, loader_of(batches), verbose=False)
            assert found[f"{stage}_accuracy"] == pytest.approx(float(right), abs=1e-7)
            assert found[f"{stage}_loss"] == pytest.approx(float(loss), abs=1e-6)
        losses = [float(model.row_losses(model(batch), batch).mean()) for batch in batches[:-1]]
        means.append(sum(losses) / len(losses))
    assert abs(means[1] - float(loss)) > 1e-3  # a mean of means is another number


def test_predictions_leave_dummy_rows_out(sequences, batch_of, loader_of, trainer_of):
    model = model_of()
    batches = [
        batch_of(sequences[:3], ids=[4, 9, 2], weight=[1.0, 0.0, 1.0]),
        batch_of(sequences[:2], weight=[0.0, 0.0]),
    ]
    first, second = trainer_of().predict(model, loader_of(batches))
    assert first["ids"].tolist() == [4, 2]
    assert first["logits"].shape == (2, CLASSES)
    assert second["ids"].tolist() == []
    assert second["logits"].shape == (0, CLASSES)


@pytest.mark.parametrize(
    "layout",
    [pytest.param(one, marks=[pytest.mark.nightly] * (one == "packed")) for one in LAYOUTS],
)
@pytest.mark.slow
def test_it_learns_to_tell_sequences_by_their_first_and_last_steps(
    batch_of, loader_of, trainer_of, layout
):
    made = torch.Generator().manual_seed(0)
    rows = []
    for number in range(60):
        x = torch.randn(5 + number % 8, 3, generator=made)
        rows.append({"x": x, "y": ((x[0, 0] > 0) + 2 * (x[-1, 0] > 0)).long()})
    batches = [batch_of(rows[first : first + 15]) for first in range(0, 60, 15)]
    torch.manual_seed(1)
    model = LSTMClassifier(3, 4, hidden=24, layout=layout, learning_rate=0.02)
    trainer = trainer_of(max_epochs=30)
    trainer.fit(model, loader_of(batches), loader_of(batches))
    (found,) = trainer.test(model, loader_of(batches), verbose=False)
    assert found["test_accuracy"] >= 0.95
    assert trainer.lr_scheduler_configs[0].scheduler.last_epoch == 30 * 4  # one cycle, to its end


def test_hyperparameters_rebuild_the_model_from_a_checkpoint(
    tmp_path, sequences, batch_of, loader_of, trainer_of
):
    model = model_of("dense", hidden=7, layers=2).train()
    trainer = trainer_of(max_epochs=1)
    batches = loader_of([batch_of(sequences[:4])])
    trainer.fit(model, batches, batches)
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    again = LSTMClassifier.load_from_checkpoint(tmp_path / "model.ckpt", weights_only=True).eval()
    batch = batch_of(sequences[:4])
    assert again.layout == "dense"
    assert torch.equal(again(batch), model.eval()(batch))


def test_an_unknown_layout_is_refused():
    with pytest.raises(ConfigError, match="`layout` must be 'packed' or 'dense', but is 'jagged'"):
        LSTMClassifier(3, 4, layout="jagged")


@torch.no_grad()
def test_a_class_156_of_labels_in_bytes_counts(batch_of, loader_of, trainer_of):
    rows = [{"x": torch.ones(3, FEATURES), "y": torch.tensor(156, dtype=torch.uint8)}]
    model = LSTMClassifier(FEATURES, 200, hidden=8)
    (found,) = trainer_of().validate(model, loader_of([batch_of(rows)]), verbose=False)
    logits = model.eval()(batch_of(rows))
    expected = float(torch.nn.functional.cross_entropy(logits, rows[0]["y"].long()[None]))
    assert found["val_loss"] == pytest.approx(expected, rel=1e-6)
