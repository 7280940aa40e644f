"""Who made a step's loss high: the planted sequence, and nobody where nothing was planted."""

import math

import numpy as np
import pytest

from seqdata import Bucketed, Fixed
from seqdata.errors import ConfigError
from seqdata.runs.loss_files import LossFiles, LossHeader, LossWriter
from seqdata.runs.step_losses import StepLosses
from seqdata.runs.suspects import explain_steps
from tests.runs.loss_runs import block_of, write_run

LENGTHS = np.random.default_rng(1).integers(3, 90, 2_000)


def explain(folder, *steps, top=10):
    """The reports of steps, or of the worst one."""
    losses = LossFiles.open([folder])
    table = StepLosses.read(losses)
    return explain_steps(losses, table, steps or table.find_worst(1), top)


def by_hand(folder, *batches, **more):
    """The report of the last step of these batches, after 20 usual ones of other sequences."""
    writer = LossWriter(folder, LossHeader(fit=1, rank=0, world=1, score="loss"))
    usual = [(step, 0, step, [100 + step], [1.0 + step % 2 / 10]) for step in range(20)]
    writer.append(block_of([*usual, *batches], **more))
    return explain(folder, batches[-1][0])[0]


class Planted:
    """Losses that fall with training, differ by sequence and draw, and are high for some."""

    def __init__(self, seed, bad, *, height, per_row):
        self.draws = np.random.default_rng(seed)
        self.own = self.draws.lognormal(0, 0.4, len(LENGTHS))
        self.bad, self.height, self.per_row = bad, height, per_row
        self.steps = []  # in which a bad one was drawn

    def __call__(self, ids, step):
        losses = self.own[ids] * (1 + 4 * math.exp(-step / 60)) * self.draws.uniform(0.8, 1.2)
        losses = losses * self.draws.lognormal(0, 0.2, len(ids))
        is_bad = np.isin(ids, self.bad)
        losses[is_bad] += self.height
        self.steps += [step] * int(is_bad.sum())
        return losses if self.per_row else float(losses.mean())


@pytest.mark.parametrize("per_row", [True, False])
@pytest.mark.parametrize(("world", "accumulate"), [(1, 1), (3, 1), (2, 4)])
def test_the_bad_sequence_is_first(tmp_path, per_row, world, accumulate):
    score = Planted(0, [1_235], height=200.0 * world * accumulate, per_row=per_row)
    policy = Bucketed(16) if per_row else Fixed(16)
    write_run(tmp_path, LENGTHS, policy, score, epochs=3, world=world, accumulate=accumulate)
    (worst,) = explain(tmp_path)
    assert worst.step in score.steps
    for report in explain(tmp_path, *score.steps):
        first = report.suspects[0]
        assert (first.id, first.part, first.draws) == (1_235, None, 3)
        assert report.stands_out
        assert report.is_explained
        assert report.is_shared is not per_row
        assert report.batches == world * accumulate
        assert (first.share is None) is not per_row


def test_without_a_bad_one_nothing_stands_out(tmp_path):
    write_run(tmp_path, LENGTHS, Fixed(16), Planted(0, [], height=0, per_row=True), epochs=2)
    (report,) = explain(tmp_path, 150)
    assert not report.stands_out
    assert not report.is_explained


def test_a_batch_loss_of_sequences_that_were_drawn_once_names_none(tmp_path):
    score = Planted(0, [7], height=60, per_row=False)
    write_run(tmp_path, LENGTHS, Fixed(16), score)
    (report,) = explain(tmp_path, top=16)
    assert report.step == score.steps[0]
    assert report.stands_out
    assert not report.is_explained
    assert report.tied == 16
    assert 7 in [suspect.id for suspect in report.suspects]


def test_sequences_that_were_always_together_are_counted(tmp_path):
    together = [(20 + i, 0, 20 + i, [1, 2, 3 + i], 9.0) for i in range(4)]
    report = by_hand(tmp_path, *together)
    assert [suspect.id for suspect in report.suspects] == [1, 2, 6]
    assert (report.tied, report.is_explained) == (2, False)
    (tmp_path / "told").mkdir()
    report = by_hand(tmp_path / "told", (25, 0, 25, [2, 9], 1.0), *together)
    assert [suspect.id for suspect in report.suspects] == [1, 2, 6]
    assert (report.tied, report.is_explained) == (1, True)


def test_a_sequence_that_was_always_high_explains_less_than_one_that_is_so_now(tmp_path):
    earlier = [(20 + i, 0, 20 + i, [1, 2], [6.0, 1.0]) for i in range(6)]
    report = by_hand(tmp_path, *earlier, (30, 0, 30, [1, 2, 3], [6.0, 6.0, 1.0]))
    assert [suspect.id for suspect in report.suspects] == [2, 1, 3]
    first, second, third = report.suspects
    assert (first.mean_before, second.mean_before, third.mean_before) == (1.0, 6.0, None)
    assert (first.draws, third.draws) == (7, 1)
    assert first.share == pytest.approx(6 / 13)


def test_earlier_losses_are_compared_with_what_was_usual_then(tmp_path):
    """Sequence 1 had the usual loss of the start of the run, sequence 2 is always too high."""
    fell = [(step, 0, step, [100 + step], [10.0 if step < 300 else 1.0]) for step in range(600)]
    for step in range(6):
        fell[step] = (step, 0, step, [1], [10.0])
        fell[590 + step] = (590 + step, 0, 590 + step, [2], [4.0])
    writer = LossWriter(tmp_path, LossHeader(fit=1, rank=0, world=1, score="loss"))
    writer.append(block_of([*fell, (600, 0, 600, [1, 2, 3], [5.0, 5.0, 1.0])]))
    (report,) = explain(tmp_path, 600)
    assert [suspect.id for suspect in report.suspects] == [1, 2, 3]


def test_a_sequence_that_is_always_far_too_high_is_first_all_the_same(tmp_path):
    earlier = [(20 + i, 0, 20 + i, [1, 2], [60.0, 1.0]) for i in range(6)]
    report = by_hand(tmp_path, *earlier, (30, 0, 30, [1, 2, 3], [60.0, 3.0, 1.0]))
    assert report.suspects[0].id == 1


def test_rows_of_one_sequence_are_taken_together(tmp_path):
    report = by_hand(tmp_path, (30, 0, 30, [5, 6, 5], [4.0, 5.0, 4.0]))
    assert [(suspect.id, suspect.draws) for suspect in report.suspects] == [(5, 2), (6, 1)]
    assert report.suspects[0].score == 4.0
    assert report.suspects[0].share == pytest.approx(8 / 13)
    assert report.sequences == 2


@pytest.mark.parametrize("scores", [(2.0, 9.0), (9.0, 2.0)])
def test_of_several_batches_of_a_step_the_worst_is_named(tmp_path, scores):
    usual = [(step, 0, step, [100 + step], [1.0 + step % 2 / 10]) for step in range(20)]
    for rank, score in enumerate(scores):
        writer = LossWriter(tmp_path, LossHeader(fit=1, rank=rank, world=2, score="loss"))
        own = [(30, rank, 40 + rank, [5, 6 + rank], [score, 1.0])]
        writer.append(block_of([*([] if rank else usual), *own]))
    (report,) = explain(tmp_path, 30)
    first, worst = report.suspects[0], scores.index(9.0)
    assert (first.id, first.score, first.draws) == (5, 5.5, 2)
    assert (first.rank, first.batch, first.epoch) == (worst, 40 + worst, worst)
    assert (report.batches, report.sequences) == (2, 3)


def test_what_came_after_a_step_does_not_explain_it(tmp_path):
    step = (30, 0, 30, [1, 2], [6.0, 1.0])
    earlier = [(20, 0, 20, [1], [2.0]), (21, 0, 21, [1], [math.nan])]
    due = by_hand(tmp_path, *earlier, step).suspects[0]
    assert (due.id, due.mean_before, due.draws) == (1, 2.0, 3)
    (tmp_path / "later").mkdir()
    later = [(500, 0, 500, [1], [90.0]), (501, 0, 501, [1], [math.nan])]
    found = by_hand(tmp_path / "later", *earlier, *later, step).suspects[0]
    assert (found.id, found.mean_before, found.draws) == (1, 2.0, 5)
    assert found.excess == pytest.approx(due.excess, rel=0.05)


def test_a_step_with_a_score_for_a_whole_batch_is_shared(tmp_path):
    report = by_hand(tmp_path, (30, 0, 30, [1, 2], 9.0), (30, 0, 31, [3], [1.0]))
    assert report.is_shared
    assert [suspect.share for suspect in report.suspects] == [None] * 3


def test_equal_ids_of_two_parts_are_two_sequences(tmp_path):
    batches = [(21, 0, 21, [4], [1.0]), (22, 3, 99, [4, 4], [2.0, 9.0])]
    parts = np.array([*([-1] * 20), 1, 0, 1])
    report = by_hand(tmp_path, *batches, parts=parts, names=["en", "de"])
    found = [(s.id, s.part, s.draws, s.mean_before, s.batch) for s in report.suspects]
    assert found == [(4, "de", 2, 1.0, 99), (4, "en", 1, None, 99)]


def test_what_is_not_finite_comes_first(tmp_path):
    report = by_hand(tmp_path, (30, 0, 30, [1, 2, 3], [9.0, math.nan, 1.0]))
    assert report.suspects[0].id == 2
    assert math.isnan(report.suspects[0].score)
    assert report.is_explained
    assert report.distance == math.inf


def test_a_step_of_nan_alone_is_explained_by_nobody(tmp_path):
    report = by_hand(tmp_path, (30, 0, 30, [1, 2], [math.nan, math.nan]))
    assert not report.is_explained


def test_a_batch_that_became_nan_is_explained_by_what_was_never_finite(tmp_path):
    earlier = [(20, 0, 20, [1, 2], 1.0), (21, 0, 21, [1, 3], 1.1)]
    later = [(31, 0, 31, [1, 9], math.nan)]  # the model is lost: that tells nothing
    report = by_hand(tmp_path, *earlier, *later, (30, 0, 30, [1, 2, 7], math.nan))
    assert [suspect.id for suspect in report.suspects[:1]] == [7]
    assert report.suspects[0].excess == math.inf
    assert report.suspects[1].excess < 1


def test_a_step_that_is_high_as_a_whole_says_so(tmp_path):
    report = by_hand(tmp_path, (30, 0, 30, [1, 2, 3], [9.0, 9.1, 9.2]))
    assert report.stands_out
    assert report.level == 9.1
    assert report.level_distance > 4
    assert not report.is_explained


def test_negative_scores_have_no_share(tmp_path):
    report = by_hand(tmp_path, (30, 0, 30, [1, 2], [9.0, -1.0]))
    assert [suspect.share for suspect in report.suspects] == [None, None]


def test_only_so_many_are_returned(tmp_path):
    write_run(tmp_path, LENGTHS, Fixed(16), Planted(0, [7], height=60, per_row=True))
    (report,) = explain(tmp_path, top=2)
    assert len(report.suspects) == 2
    assert report.sequences == 16


def test_several_steps_are_explained_in_the_order_asked(tmp_path):
    write_run(tmp_path, LENGTHS, Fixed(16), Planted(0, [7], height=60, per_row=True))
    reports = explain(tmp_path, 90, 3, 90)
    assert [report.step for report in reports] == [90, 3, 90]
    assert reports[0] == reports[2]


def test_a_step_without_a_record_names_the_nearest(tmp_path):
    writer = LossWriter(tmp_path, LossHeader(fit=1, rank=0, world=1, score="loss"))
    with pytest.raises(ConfigError, match=r"why: the record must be of at least one step, but is"):
        explain(tmp_path, 3)
    writer.append(block_of([(step, 0, 0, [1], [1.0]) for step in (2, 5)]))
    with pytest.raises(
        ConfigError,
        match=r"why: `step` must be a recorded step \(2 of 2 to 5\), but is 4, which has no record."
        r" The nearest recorded step is 5.",
    ):
        explain(tmp_path, 4)


@pytest.mark.slow
@pytest.mark.parametrize("per_row", [True, False])
@pytest.mark.parametrize(
    ("count", "bads"), [(40_000, 20), pytest.param(100_000, 100, marks=pytest.mark.nightly)]
)
def test_all_bad_sequences_of_many_are_each_named_first(tmp_path, count, bads, per_row):
    """All of them, in one run that has them all: `seqdata why` of each one's first step."""
    lengths = np.random.default_rng(5).integers(3, 90, count)
    bad = np.random.default_rng(6).choice(len(lengths), bads, replace=False)
    draws = np.random.default_rng(7)
    own, first_step = draws.lognormal(0, 0.4, len(lengths)), {}
    marked = np.zeros(len(lengths), dtype=bool)
    marked[bad] = True

    def score(ids, step):
        losses = own[ids] * (1 + 4 * math.exp(-step / 1_000)) * draws.lognormal(0, 0.2, len(ids))
        is_bad = marked[ids]
        losses[is_bad] += 200
        for id_ in ids[is_bad].tolist():
            first_step[id_] = min(step, first_step.get(id_, step))
        return losses if per_row else float(losses.mean())

    policy, epochs = (Bucketed(32), 1) if per_row else (Fixed(32), 3)
    write_run(tmp_path, lengths, policy, score, epochs=epochs, world=2)
    steps = [first_step[id_] for id_ in bad.tolist()]
    reports = explain(tmp_path, *steps)
    alone = [steps.count(step) == 1 for step in steps]
    assert sum(alone) > 0.8 * bads
    for id_, report, is_alone in zip(bad.tolist(), reports, alone, strict=True):
        first = [suspect.id for suspect in report.suspects[: 1 if is_alone else 2]]
        assert id_ in first
        assert report.stands_out
        assert report.is_explained
