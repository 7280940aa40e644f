"""Scores by id: what counts, for whom, and that the sums do not depend on an order."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from seqdata import TBPTT, Bucketed, Fixed, Loader, Mix, Packed
from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError, SeqDataWarning
from seqdata.lightning.scores import FRACTION_BITS, MAX_SCORE, ScoreCollector


def batch_of(ids, weight=None, **more):
    """A batch of rows of one timestep."""
    rows = len(ids)
    return SequenceBatch(
        data={"x": torch.zeros(rows, 1)},
        lengths=torch.ones(rows, dtype=torch.int64),
        ids=torch.tensor(ids),
        weight=torch.ones(rows) if weight is None else torch.tensor(weight),
        start=torch.zeros(rows, dtype=torch.int64),
        padded_length=1,
        **more,
    )


def means(sums):
    """(part, id) -> exact mean and count."""
    rows = zip(sums.parts, sums.ids.tolist(), sums.sums.tolist(), sums.counts.tolist(), strict=True)
    return {
        (part, id_): (Fraction(total, count << FRACTION_BITS), count)
        for part, id_, total, count in rows
    }


def collect(outputs, batch, **options):
    """The sums of one step."""
    collector = ScoreCollector(**options)
    collector.add(outputs, batch)
    return means(collector.take())


def test_each_row_has_its_score():
    found = collect({"each": torch.tensor([0.5, 2.0, -1.25])}, batch_of([7, 3, 9]), score="each")
    assert found == {(None, 3): (2, 1), (None, 7): (0.5, 1), (None, 9): (-1.25, 1)}


@pytest.mark.parametrize("loss", [torch.tensor(1.5), torch.tensor([1.5]), 1.5])
@pytest.mark.parametrize("wrapped", [True, False])
def test_one_score_of_the_batch_counts_for_each_real_row(loss, wrapped):
    outputs = {"loss": loss} if wrapped else loss
    found = collect(outputs, batch_of([4, 5, 6], weight=[1.0, 0.0, 0.25]))
    assert found == {(None, 4): (1.5, 1), (None, 6): (1.5, 1)}


def test_dummy_rows_and_idle_lanes_are_left_out():
    batch = batch_of([4, -1, 6], weight=[1.0, 1.0, 0.0])
    assert collect({"loss": torch.ones(3)}, batch) == {(None, 4): (1, 1)}


def test_draws_of_a_sequence_are_summed_and_counted_until_they_are_taken():
    collector = ScoreCollector()
    collector.add(torch.tensor([1.0, 2.0, 4.0]), batch_of([1, 2, 1]))
    collector.add(torch.tensor([8.0]), batch_of([1]))
    assert len(collector) == 2
    assert means(collector.take()) == {(None, 1): (Fraction(13, 3), 3), (None, 2): (2, 1)}
    assert len(collector) == 0
    assert not len(collector.take().ids)


def test_sums_are_the_same_in_every_order():
    draws = np.random.default_rng(0)
    batches = [(draws.integers(0, 9, 64).tolist(), 1e5 * draws.normal(size=64)) for _ in range(40)]
    results = []
    for order in (range(40), draws.permutation(40)):
        collector = ScoreCollector()
        for i in order:
            collector.add(torch.tensor(batches[i][1]), batch_of(batches[i][0]))
        results.append(collector.take())
    for name in ("ids", "sums", "counts"):
        assert np.array_equal(getattr(results[0], name), getattr(results[1], name))


def test_a_step_without_output_adds_nothing():
    collector = ScoreCollector()
    for outputs in (None, {}, {"loss": None}):
        collector.add(outputs, batch_of([1]))
    assert len(collector) == 0
    assert collector.take_batches() == []


def test_a_loss_that_lightning_divided_is_as_it_was_returned():
    collector = ScoreCollector()
    collector.add({"loss": torch.tensor(0.5)}, batch_of([1]), divided_by=4)
    assert means(collector.take()) == {(None, 1): (2, 1)}
    collector = ScoreCollector("each")
    collector.add({"loss": 0.0, "each": torch.tensor([0.5])}, batch_of([1]), divided_by=4)
    assert means(collector.take()) == {(None, 1): (0.5, 1)}


def test_a_row_of_several_documents_gives_its_score_to_each():
    documents = [np.zeros((length, 1), np.float32) for length in (3, 2, 4, 1)]
    batch = next(iter(Loader(documents, Packed(rows=2, row_length=6, shuffle=False))))
    assert batch.segments is not None
    assert len(batch.segments) == 4
    by_row = collect({"loss": torch.tensor([1.0, 2.0])}, batch)
    row_of = {id_: row for row, id_ in batch.segments[:, :2].tolist()}
    assert by_row == {(None, id_): (1 + row, 1) for id_, row in row_of.items()}
    by_span = collect({"loss": torch.arange(4.0)}, batch)
    assert by_span == {(None, id_): (i, 1) for i, id_ in enumerate(batch.segments[:, 1].tolist())}


def test_each_chunk_of_a_lane_counts():
    long = [np.zeros((length, 1), np.float32) for length in (10, 4, 3)]
    collector = ScoreCollector()
    for batch in Loader(long, TBPTT(lanes=2, chunk=4), seed=0):
        collector.add(torch.ones(len(batch)), batch)
    counts = {id_: count for (_, id_), (_, count) in means(collector.take()).items()}
    assert counts == {0: 3, 1: 1, 2: 1}


@pytest.mark.parametrize("rows", [False, True])
def test_ids_of_a_mixture_are_those_of_its_parts(rows):
    parts = {
        name: [np.zeros((length, 1), np.float32) for length in (1, 2, 3)] for name in ("b", "a")
    }
    weights = {"a": 0.5, "b": 0.5}
    mixed = Mix(weights, Fixed(2), rows=True) if rows else Mix(weights, Bucketed(2), batches=32)
    collector = ScoreCollector()
    for batch in Loader(parts, mixed):
        collector.add(torch.ones(len(batch)), batch)
    sums = collector.take()
    assert {(part, id_) for part in "ab" for id_ in range(3)} == set(means(sums))
    assert sums.parts == sorted(sums.parts)


def test_a_dict_of_batches_names_the_parts():
    batches = {"b": batch_of([1, 2]), "a": batch_of([1])}
    both = collect({"loss": {"a": torch.tensor([3.0]), "b": torch.tensor([1.0, 2.0])}}, batches)
    assert both == {("a", 1): (3, 1), ("b", 1): (1, 1), ("b", 2): (2, 1)}
    one_part = collect({"loss": {"a": torch.tensor([3.0])}}, batches)
    assert one_part == {("a", 1): (3, 1)}
    shared = collect(torch.tensor(5.0), batches)
    assert shared == {("a", 1): (5, 1), ("b", 1): (5, 1), ("b", 2): (5, 1)}


def test_batches_keep_their_place_and_what_is_not_finite():
    collector = ScoreCollector()
    collector.add(torch.tensor([1.0, math.nan]), batch_of([3, 4], epoch=2, number=9), step=17)
    collector.add(torch.tensor(math.inf), batch_of([5], part="a"), step=18)
    first, second = collector.take_batches()
    assert (first.step, first.epoch, first.number, first.is_shared) == (17, 2, 9, False)
    assert first.ids.tolist() == [3, 4]
    assert math.isnan(first.scores[1])
    assert second.scores.tolist() == [math.inf]
    assert list(second.parts) == ["a"]
    assert second.is_shared


def test_scores_are_those_of_the_step_even_if_their_memory_is_used_again():
    memory, collector = torch.tensor([1.0, 2.0], requires_grad=True), ScoreCollector()
    collector.add(memory, batch_of([1, 2]))
    with torch.no_grad():
        memory.fill_(9.0)
    assert means(collector.take()) == {(None, 1): (1, 1), (None, 2): (2, 1)}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32])
def test_any_dtype_is_summed_exactly(dtype):
    collector = ScoreCollector()
    collector.add(torch.tensor([1.0, 3.0]), batch_of([1, 2]))
    collector.add(torch.tensor([2, 4]).to(dtype), batch_of([1, 2]))
    assert means(collector.take()) == {(None, 1): (1.5, 2), (None, 2): (3.5, 2)}


def test_nothing_of_the_data_is_kept():
    batch, collector = batch_of([1]), ScoreCollector()
    collector.add(torch.ones(1), batch)
    held = [value for entry in collector._pending for value in entry]
    assert not any(value is batch or value is batch["x"] for value in held)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2 * MAX_SCORE, -2 * MAX_SCORE])
def test_a_score_that_has_no_sum_is_named(value):
    collector = ScoreCollector(owner="Feedback")
    collector.add(torch.tensor([1.0, value]), batch_of([3, 44], epoch=1, number=5, part="de"))
    with pytest.raises(
        ConfigError,
        match=r"Feedback: 'loss' of sequence 44 of part 'de' \(epoch 1, batch 5\) must be a finite "
        r"number from -1,048,576 to 1,048,576, but is (nan|-?inf|-?2097152.0). Leave such rows out",
    ):
        collector.take()


@pytest.mark.parametrize("batch", [(torch.ones(2), torch.ones(2)), {"x": torch.ones(2)}, None])
def test_a_batch_without_ids_is_refused(batch):
    with pytest.raises(
        ConfigError,
        match=r"the batch must be a SequenceBatch, or a dict of them, .*Train with a S",
    ):
        ScoreCollector().add(torch.ones(2), batch)


def test_a_key_that_is_not_returned_is_refused_with_what_is():
    with pytest.raises(
        ConfigError,
        match=r"`score` must be a key of what `training_step` returns \('loss', 'each'\), but is "
        r"'eahc'. Did you mean 'each'\? Return one value for each row",
    ):
        ScoreCollector("eahc").add({"loss": 1.0, "each": torch.ones(1)}, batch_of([1]))
    with pytest.raises(ConfigError, match=r"but is 'zzz'. Return one value for each row"):
        ScoreCollector("zzz").add({"loss": 1.0}, batch_of([1]))


def test_a_tensor_alone_is_the_loss():
    with pytest.raises(
        ConfigError,
        match=r"must be a dict with the key 'each', but is a Tensor, which is the loss. Return "
        r'\{"loss": loss, "each": values\}',
    ):
        ScoreCollector("each").add(torch.ones(1), batch_of([1]))


@pytest.mark.parametrize("shape", [(2,), (3, 1), (3, 4), (4,)])
def test_a_score_of_another_shape_is_refused(shape):
    with pytest.raises(
        ConfigError, match=r"the shape of 'loss' must be \(3,\), a value for each row, or \(\)"
    ):
        ScoreCollector().add(torch.ones(shape), batch_of([1, 2, 3]))


def test_the_shape_of_spans_is_named_where_rows_hold_several():
    segments = torch.tensor([[0, 1, 0, 1], [0, 2, 0, 1], [1, 3, 0, 1]])
    with pytest.raises(ConfigError, match=r"must be \(2,\) or \(3,\), a value for each row"):
        ScoreCollector().add(torch.ones(4), batch_of([1, 3], segments=segments))


def test_scores_of_a_batch_that_is_not_there_are_refused():
    with pytest.raises(
        ConfigError, match=r"the keys of 'loss' must be names of batches \(a, b\), but is 'c'"
    ):
        ScoreCollector().add({"loss": {"c": 1.0}}, {"a": batch_of([1]), "b": batch_of([1])})


@pytest.mark.parametrize("score", ["", None, 3])
def test_the_score_is_a_key(score):
    with pytest.raises(
        ConfigError, match="`score` must be a non-empty string, a key of the step's output, but is"
    ):
        ScoreCollector(score)


@pytest.mark.parametrize("largest", [1e-300, 1e-11, 9e-7])
def test_scores_too_small_to_be_told_apart_are_told_once(largest):
    collector = ScoreCollector("each")
    scores = torch.tensor([largest, largest / 3, 0.0], dtype=torch.float64)
    collector.add({"each": scores}, batch_of([1, 2, 3]))
    with pytest.warns(SeqDataWarning, match="'each' should be above 1e-06 in some rows, .* Mult"):
        collector.take()
    collector.add({"each": scores}, batch_of([1, 2, 3]))
    collector.take()


@pytest.mark.parametrize("scores", [[1e-6, 1e-11, 0.0], [0.0, 0.0, 0.0], [-1.0, 1e-300, 0.0]])
def test_some_small_scores_among_others_are_nothing_to_tell(scores):
    collector = ScoreCollector("each")
    collector.add({"each": torch.tensor(scores, dtype=torch.float64)}, batch_of([1, 2, 3]))
    collector.take()
