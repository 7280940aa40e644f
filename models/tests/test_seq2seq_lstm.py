"""What is written is the sequence's own, each counts alike, and order is learned."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from seqdata_models import Seq2SeqLSTM

from seqdata import Bucketed, Fixed, Loader, SequenceBatch, SequenceDataModule, World, write_store

TOKENS = 6
Pair = dict[str, np.ndarray]


def backward(count: int, seed: int) -> list[Pair]:
    """Return pairs by a rule: the target is the source backward, without zeros, each token + 1."""
    random = np.random.default_rng(seed)
    pairs = []
    for _ in range(count):
        source = random.integers(0, TOKENS, random.integers(2, 7))
        target = (source[source > 0][::-1] + 1) % TOKENS
        pairs.append({"source": source, "target": target})
    return pairs


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return [*backward(12, seed=4), {"source": np.array([0, 0]), "target": np.array([], dtype=int)}]


@pytest.fixture(scope="module")
def store(pairs, tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("pairs") / "store", pairs)


def written(folder: Path, pairs: list[Pair]) -> Path:
    write_store(folder, pairs, axes={"source": "time", "target": "text"})
    return folder


def batches_of(store: Path, size: int, world: World | None = None) -> list[SequenceBatch]:
    return list(Loader(store, Fixed(size, shuffle=False), world=world or World(0, 1)))


def model_of(**options: object) -> Seq2SeqLSTM:
    torch.manual_seed(0)
    return Seq2SeqLSTM(TOKENS, TOKENS, embedding=4, hidden=8, **options)


def test_targets_end_with_the_end(store, pairs):
    model = model_of()
    for batch in batches_of(store, 5):
        targets, there = model.targets(batch)
        for row, number in enumerate(batch.ids.tolist()):
            expected = [*pairs[number]["target"].tolist(), TOKENS]
            assert targets[row][there[row]].tolist() == expected
            assert there[row, : len(expected)].all()


@torch.no_grad()
def test_logits_and_losses_of_a_row_are_those_of_the_row_alone(store):
    model = model_of().double()
    alone = batches_of(store, 1)
    (batch,) = batches_of(store, 64)
    logits = model(batch)
    losses = model.row_losses(logits, batch)
    for row, single in enumerate(alone):
        own = model(single)
        assert (logits[row, : own.shape[1]] - own).abs().max() <= 1e-12
        assert abs(float(losses[row] - model.row_losses(own, single))) <= 1e-12


@torch.no_grad()
def test_a_loss_is_the_mean_over_its_own_target_so_that_sequences_count_alike(store):
    model = model_of().double()
    (batch,) = batches_of(store, 64)
    logits = model(batch)
    losses = model.row_losses(logits, batch)
    targets, there = model.targets(batch)
    for row in range(len(batch)):
        own = logits[row][there[row]], targets[row][there[row]]
        assert float(losses[row] - torch.nn.functional.cross_entropy(*own)) == pytest.approx(0)


def test_padding_reaches_neither_the_loss_nor_any_gradient(store):
    found = []
    for padding in (0, TOKENS - 1):
        model = model_of()
        (batch,) = batches_of(store, 64)
        for name, axis in (("source", "time"), ("target", "text")):
            lengths = batch.lengths_of[axis]
            real = torch.arange(batch[name].shape[1]) < lengths[:, None]
            assert not real.all()
            batch.data[name] = torch.where(real, batch[name], padding)
        loss = model.row_losses(model(batch), batch).sum()
        loss.backward()
        found.append([loss.detach(), *(weight.grad for weight in model.parameters())])
    assert all(torch.equal(clean, dirty) for clean, dirty in zip(*found, strict=True))


def test_steps_over_parts_of_an_update_add_up_to_one_step_over_all_of_it(
    store, loader_of, trainer_of
):
    dummy = batches_of(store, 5, World(1, 2))[-1]  # 3 batches on 2 ranks
    assert not dummy.weight.any()
    trained = []
    for batches in (batches_of(store, 64), [*batches_of(store, 5), dummy]):
        for batch in batches:
            batch.sequence_scale = len(batches) / 13  # the Trainer divides
        model = model_of().double()
        trainer = trainer_of(
            max_epochs=1, accumulate_grad_batches=len(batches), precision="64-true"
        )
        trainer.fit(model, loader_of(batches), loader_of(batches))
        trained.append(torch.cat([weight.flatten() for weight in model.parameters()]))
    assert (trained[0] - trained[1]).abs().max() <= 1e-12


def test_evaluation_gives_exact_means_whatever_the_batching_and_dummy_rows(
    store, loader_of, trainer_of
):
    model = model_of().eval()
    losses, right, exact = [], [], []
    with torch.no_grad():
        for batch in batches_of(store, 1):
            logits = model(batch)
            losses.append(float(model.row_losses(logits, batch)))
            targets, there = model.targets(batch)
            row = (logits.argmax(-1) == targets)[there].tolist()
            right += row
            exact.append(all(row))
    dummy = batches_of(store, 5, World(1, 2))[-1]
    for size in (1, 5, 64):
        trainer = trainer_of()
        for run, stage in ((trainer.validate, "val"), (trainer.test, "test")):
            (found,) = run(model, loader_of([*batches_of(store, size), dummy]), verbose=False)
            assert found[f"{stage}_loss"] == pytest.approx(np.mean(losses), abs=1e-6)
            assert found[f"{stage}_accuracy"] == pytest.approx(np.mean(right), abs=1e-7)
            assert found[f"{stage}_exact"] == pytest.approx(np.mean(exact), abs=1e-7)


def test_predictions_leave_dummy_rows_out(store):
    dummy = batches_of(store, 5, World(1, 2))[-1]
    found = model_of(max_length=4).predict_step(dummy)
    assert found["ids"].tolist() == []
    assert found["tokens"].shape == (0, 4)


def order_ignored(train: list[Pair], test: list[Pair]) -> float:
    """Return the accuracy of whoever sees the tokens of a source, but not their order.

    It knows the rule for each token, and the target so far: a most frequent one of what is left.
    """
    right = []
    for pair in test:
        left = Counter(pair["target"].tolist())
        for token in pair["target"].tolist():
            right.append(left.most_common(1)[0][0] == token)
            left[token] -= 1
            left += Counter()
        right.append(True)  # nothing is left: the end
    return float(np.mean(right))


@pytest.mark.slow
def test_it_writes_backward_where_shortcuts_fail(tmp_path, trainer_of):
    train, test = backward(3000, seed=0), backward(300, seed=1)
    known = {tuple(pair["source"]) for pair in train}
    test = [pair for pair in test if tuple(pair["source"]) not in known]
    assert len(test) >= 100  # seen in no training
    written_tokens = [
        [token for pair in part for token in (*pair["target"].tolist(), TOKENS)]
        for part in (train, test)
    ]
    majority = Counter(written_tokens[0]).most_common(1)[0][0]
    shortcuts = {
        "majority": float(np.mean(np.array(written_tokens[1]) == majority)),
        "order ignored": order_ignored(train, test),
    }
    parts = {"train": train, "val": backward(50, seed=2), "test": test, "predict": test}
    stores = {name: written(tmp_path / name, part) for name, part in parts.items()}
    torch.manual_seed(0)
    model = Seq2SeqLSTM(TOKENS, TOKENS, embedding=16, hidden=64, learning_rate=0.02, max_length=8)
    data = SequenceDataModule(**stores, batching=Bucketed(64), seed=0)
    trainer = trainer_of(max_epochs=6, gradient_clip_val=1.0)
    trainer.fit(model, data)
    (found,) = trainer.test(model, data, verbose=False)
    assert found["test_accuracy"] >= max(shortcuts.values()) + 0.20, shortcuts
    assert found["test_exact"] >= 0.95

    right = 0
    for batch in trainer.predict(model, data):  # written freely, without the true tokens
        for number, tokens, length in zip(*batch.values(), strict=True):
            right += tokens[:length].tolist() == test[int(number)]["target"].tolist()
    assert right / len(test) == pytest.approx(found["test_exact"], abs=1e-6)
