"""The loss of a language model is the sum over its rows, and padding is nobody's business."""

from __future__ import annotations

import math

import pytest
import torch
from seqdata_models import ByteLM
from torch import Tensor


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Tensor]]:
    made = torch.Generator().manual_seed(5)
    texts = [
        torch.randint(0, 256, (length + 1,), generator=made, dtype=torch.uint8)
        for length in (3, 17, 9, 40, 1, 22)
    ]
    return [{"x": text[:-1], "targets": text[1:]} for text in texts]


def model_of(**options: object) -> ByteLM:
    torch.manual_seed(0)
    return ByteLM(8, 16, 2, **options).double()


@torch.no_grad()
def test_loss_is_the_sum_over_rows_alone(rows, batch_of):
    model = model_of()
    batch = batch_of(rows, wider=3)
    alone = sum(model.nll(batch_of([row])).sum() for row in rows)
    assert abs(float(model.nll(batch).sum() - alone)) <= 1e-10
    assert model.nll(batch).shape == batch.score.shape


def test_padding_bytes_change_neither_loss_nor_gradient(rows, batch_of):
    found = []
    for padding in (0, 255):
        model = model_of()
        loss = model.nll(batch_of(rows, padding=padding, wider=2)).sum()
        loss.backward()
        found.append([loss.detach(), *(weight.grad for weight in model.parameters())])
    assert all(torch.equal(zeros, ones) for zeros, ones in zip(*found, strict=True))


@torch.no_grad()
def test_dummy_rows_change_nothing(rows, batch_of):
    model = model_of()
    filled = batch_of([*rows, rows[0]], weight=[1.0] * len(rows) + [0.0])
    assert filled.num_tokens == batch_of(rows).num_tokens
    assert abs(float(model.nll(filled).sum() - model.nll(batch_of(rows)).sum())) <= 1e-12
    nothing = batch_of(rows[:1], weight=[0.0])
    assert float(model.nll(nothing).sum() * nothing.loss_scale) == 0.0


def test_steps_over_parts_of_an_update_add_up_to_one_step_over_all_of_it(
    rows, batch_of, loader_of, trainer_of
):
    total = sum(len(row["x"]) for row in rows)
    parts = [rows[:1], rows[1:4], rows[4:]]
    trained = []
    for batches in ([batch_of(rows)], [batch_of(part, tokens_of_update=total) for part in parts]):
        for batch in batches:
            batch.loss_scale *= len(batches)  # the Trainer divides by its accumulation
        model = model_of()
        trainer = trainer_of(
            max_epochs=1, accumulate_grad_batches=len(batches), precision="64-true"
        )
        trainer.fit(model, loader_of(batches), loader_of(batches))
        trained.append(torch.cat([weight.flatten() for weight in model.parameters()]))
    assert (trained[0] - trained[1]).abs().max() <= 1e-12


@torch.no_grad()
def test_bits_per_byte_are_exact_sums_whatever_the_batching(rows, batch_of, loader_of, trainer_of):
    model = model_of()
    total = sum(float(model.nll(batch_of([row])).sum()) for row in rows)
    exact = total / math.log(2) / sum(len(row["x"]) for row in rows)
    dummy = batch_of(rows[:1], weight=[0.0])
    for size in (1, 4, 6):
        batches = [batch_of(rows[first : first + size]) for first in range(0, 6, size)]
        trainer = trainer_of(precision="64-true")
        for run, stage in ((trainer.validate, "val"), (trainer.test, "test")):
            (found,) = run(model, loader_of([*batches, dummy]), verbose=False)
            assert found[f"{stage}_bits_per_byte"] == pytest.approx(exact, abs=1e-9)


@pytest.mark.slow
def test_it_learns_a_repeated_line(batch_of, loader_of, trainer_of):
    text = torch.frombuffer(bytearray(b"def f(x): return x\n" * 6), dtype=torch.uint8)
    batch = batch_of([{"x": text[:-1], "targets": text[1:]}] * 4)
    torch.manual_seed(0)
    model = ByteLM(16, 32, learning_rate=0.02)
    trainer = trainer_of(max_epochs=60)
    trainer.fit(model, loader_of([batch]), loader_of([batch]))
    assert float(trainer.callback_metrics["train_bits_per_byte"]) < 1.0 < 8.0
