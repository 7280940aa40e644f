"""What a stateful model finds does not depend on how its sequences were cut and dealt."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from seqdata_models import StatefulLM, StatefulTagger
from torch import Tensor

from seqdata import TBPTT, LaneStates, Loader, SequenceBatch, World

TOKENS = 11
RANDOM = np.random.default_rng(0)
LENGTHS = [1, 2, 90, 7, 33, 64, 65, 3, 128, 20, 47]
TEXTS = [RANDOM.integers(0, TOKENS, n) for n in LENGTHS]
TAGGED = [
    {"x": RANDOM.normal(size=(n, 3)), "y": RANDOM.integers(0, 2, n).astype(np.int64)}
    for n in LENGTHS
]
WORLDS = [1, 2, 3]
Spans = list[tuple[int, int, int]]


def language_model(**options: object) -> StatefulLM:
    torch.manual_seed(0)
    return StatefulLM(TOKENS, 8, 12, 2, **options).double().eval()


def ranks(data: list, policy: TBPTT, world: int, **options: object) -> Iterator[Loader]:
    """Yield the loader of each rank of a world."""
    for rank in range(world):
        yield Loader(data, policy, world=World(rank, world), **options)


def spans_of(batch: SequenceBatch, row: int) -> Spans:
    """Return sequence, start and stop of what lies in a row."""
    if batch.segments is not None:
        return [tuple(one[1:]) for one in batch.segments.tolist() if one[0] == row]
    start, length = int(batch.start[row]), int(batch.lengths[row])
    return [(int(batch.ids[row]), start, start + length)]


def mark(seen: list[np.ndarray], batch: SequenceBatch) -> None:
    """Count each timestep that is scored."""
    for row in range(len(batch)):
        scores = batch.score[row].numpy()
        at = 0
        for sequence, start, stop in spans_of(batch, row):
            seen[sequence][start:stop] += scores[at : at + stop - start]
            at += stop - start
        assert not scores[at:].any()


@torch.no_grad()
def evaluated(model: StatefulLM, policy: TBPTT, world: int) -> tuple[float, list[np.ndarray]]:
    """Return the mean nats per token over all ranks, and how often each token was scored."""
    total, count = 0.0, 0
    seen = [np.zeros(len(text), dtype=np.int64) for text in TEXTS]
    for loader in ranks(TEXTS, policy, world, shift=1):
        model.lanes = LaneStates()  # a rank is a process, and has its own
        for batch in loader:
            total += float(model.nll(batch).sum())
            count += batch.num_tokens
            mark(seen, batch)
    assert count == sum(int(one.sum()) for one in seen)
    return total / count, seen


@torch.no_grad()
def alone(model: StatefulLM, text: np.ndarray) -> tuple[float, int]:
    """Return the nats of a text that is run whole, by torch alone."""
    if len(text) < 2:
        return 0.0, 0
    tokens = torch.as_tensor(text)[None]
    out, _ = model.rnn(model.embedding(tokens[:, :-1]))
    loss = F.cross_entropy(model.head(out).flatten(0, 1), tokens[0, 1:], reduction="sum")
    return float(loss), len(text) - 1


def in_pairs(*axes: list[Any]) -> list[Any]:
    """Return every combination; at each change a third of them, with every value of each axis."""
    return [
        pytest.param(
            *(axis[place] for axis, place in zip(axes, places, strict=True)),
            marks=[pytest.mark.nightly] * (sum(places) % 3 != 2),
            id="-".join(str(axis[place]) for axis, place in zip(axes, places, strict=True)),
        )
        for places in itertools.product(*(range(len(axis)) for axis in axes))
    ]


@pytest.fixture(scope="module")
def exact() -> float:
    """The mean nats per token of sequences that are run alone."""
    model = language_model()
    whole = [alone(model, text) for text in TEXTS]
    return sum(total for total, _ in whole) / sum(count for _, count in whole)


CUTS = [{"chunk": 7}, {"chunk": 64}, {"chunk": 1}, {"chunk": 500}, {"chunk": 9, "advance": 4},
        {"chunk": 7, "segments": True}, {"chunk": 64, "segments": True}]  # fmt: skip


@pytest.mark.filterwarnings("ignore:share. .* the load is uneven")
@pytest.mark.parametrize(("cut", "lanes", "world"), in_pairs(CUTS, [1, 3, 8], WORLDS))
@pytest.mark.slow
def test_sequences_in_lanes_give_what_each_gives_alone_and_every_token_counts_once(
    cut, lanes, world, exact
):
    found, seen = evaluated(language_model(), TBPTT(lanes, **cut, shuffle=False), world)
    assert abs(found - exact) <= 1e-9
    for text, times in zip(TEXTS, seen, strict=True):
        assert times.tolist() == [1] * (len(text) - 1) + [0]


@pytest.mark.filterwarnings("ignore:share. .* the load is uneven")
@pytest.mark.parametrize(("chunk", "lanes", "world"), in_pairs([7, 64, 1, 1000], [1, 4], WORLDS))
@pytest.mark.slow
def test_a_stream_does_not_depend_on_chunk_and_world_and_every_token_but_the_last_counts_once(
    chunk, lanes, world
):
    model = language_model()
    stream = np.concatenate(TEXTS)
    edges = [lane * (len(stream) - 1) // lanes for lane in range(lanes + 1)]
    columns = [alone(model, stream[begin : end + 1]) for begin, end in itertools.pairwise(edges)]
    exact = sum(total for total, _ in columns) / (len(stream) - 1)
    policy = TBPTT(lanes, chunk, continuous=True, shuffle=False)
    found, seen = evaluated(model, policy, world)
    assert abs(found - exact) <= 1e-9
    assert np.concatenate(seen).tolist() == [1] * (len(stream) - 1) + [0]


@pytest.mark.parametrize("cut", [{"continuous": True}, {"segments": True}, {}], ids=str)
def test_schedules_of_chunk_lengths_train_as_many_tokens(cut):
    varied = {"chunk": 16, "jitter": True} if cut else {"chunk": 16, "advance": 8}
    schedules = [{"chunk": 16}, {"chunk": lambda epoch: 4 * 2**epoch}, varied]
    for schedule in schedules:
        loader = Loader(TEXTS, TBPTT(3, **schedule, **cut), shift=1, seed=5)
        for _ in range(3):  # epochs
            tokens = sum(batch.num_tokens for batch in loader)
            separate = sum(LENGTHS) - len(LENGTHS)
            assert tokens == (sum(LENGTHS) - 1 if "continuous" in cut else separate)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@torch.no_grad()
def test_labels_of_a_sequence_are_those_of_the_whole_sequence(cell):
    torch.manual_seed(0)
    model = StatefulTagger(3, 2, hidden=6, layers=2, cell=cell).double().eval()
    found: list[list[Tensor]] = [[] for _ in TAGGED]
    for batch in Loader(TAGGED, TBPTT(3, 16, shuffle=False)):
        made = model.predict_step(batch)
        for number, length, logits in zip(
            made["ids"].tolist(), made["lengths"].tolist(), made["logits"], strict=True
        ):
            found[number].append(logits[:length])
    for row, chunks in zip(TAGGED, found, strict=True):
        out, _ = model.rnn(torch.as_tensor(row["x"])[None])
        assert (torch.cat(chunks) - model.head(out)[0]).abs().max() <= 1e-12


def test_gradients_are_the_sum_over_rows_run_alone_and_all_labels_enter_them():
    batches = list(Loader(TAGGED, TBPTT(len(TAGGED), max(LENGTHS))))
    assert [batch.num_tokens for batch in batches] == [sum(LENGTHS)]
    torch.manual_seed(0)
    model = StatefulTagger(3, 2, hidden=6).double()
    logits = model(batches[0])
    scored = batches[0].score
    F.cross_entropy(logits[scored], batches[0]["y"][scored], reduction="sum").backward()
    together = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    for row in TAGGED:
        out, _ = model.rnn(torch.as_tensor(row["x"])[None])
        loss = F.cross_entropy(model.head(out)[0], torch.as_tensor(row["y"]), reduction="sum")
        loss.backward()
    for one, parameter in zip(together, model.parameters(), strict=True):
        assert (one - parameter.grad).abs().max() <= 1e-12


@torch.no_grad()
def test_figures_are_of_exact_sums():
    model = language_model()
    nats, _ = evaluated(model, TBPTT(3, 16, shuffle=False), 1)
    model.lanes = LaneStates()
    for batch in Loader(TEXTS, TBPTT(3, 16, shuffle=False), shift=1):
        total = model.nll(batch).sum()
        for metric in (model.val_loss, model.val_perplexity, model.val_bits):
            metric.update(total, batch.num_tokens)
    assert abs(float(model.val_loss.compute()) - nats) <= 1e-12
    assert abs(float(model.val_perplexity.compute()) - math.exp(nats)) <= 1e-9
    assert abs(float(model.val_bits.compute()) - nats / math.log(2)) <= 1e-12
