"""The batches of a mixture are those of its parts' own plans, wherever a reader begins."""

import numpy as np
import pytest

from seqdata import TBPTT, Fixed, TokenBudget, Windows
from seqdata.errors import ConfigError, PlanError
from seqdata.index import SequenceIndex
from seqdata.planning.mix_table import MixTable, PartRun, find_lookahead
from seqdata.planning.part_order import PartOrder, PartPair

LENGTHS = ([3, 5, 2, 8, 1], [4, 4, 9])


def runs():
    first = 0
    for name, lengths, policy in zip("ab", LENGTHS, (Fixed(2), TokenBudget(9)), strict=True):
        index = SequenceIndex({"time": np.array(lengths)})
        yield PartRun(name, first, index, policy, 7, policy.num_batches(index), 0)
        first += len(lengths)


def table_of(first=0, count=12, group=1):
    order = PartOrder((PartPair(3, 2, 0, ~0, ~1),), 0)  # two of three events are the first part's
    return MixTable(list(runs()), order, group, first, count)


@pytest.mark.parametrize("group", [1, 2])
def test_batches_are_those_of_the_parts_plans_one_after_another(group):
    parts, played = list(runs()), {"a": 0, "b": 0}
    table = table_of(group=group)
    for number, label in enumerate(table.label(range(len(table)))):
        part = parts["ab".index(label.part)]
        epoch, own = divmod(played[label.part], part.num_batches)
        played[label.part] += 1
        expected = part.policy.plan(part.index, seed=7, epoch=epoch).batch(own).spans.copy()
        expected[:, 0] += part.first
        assert table.batch(number).spans.tolist() == expected.tolist()
        assert label.epoch == epoch
    assert played == {"a": 8, "b": 4}


@pytest.mark.parametrize("group", [1, 2])
def test_a_slice_has_the_same_batches(group):
    table = table_of(group=group)
    part = table.slice(3, 9)
    for number in range(6):
        assert part.batch(number).spans.tolist() == table.batch(3 + number).spans.tolist()
    steps = [table.batch(number) for number in range(3, 9)]
    timesteps = sum(int(batch.lengths.sum()) for batch in steps)
    assert table.totals(3, 9, 0) == (timesteps, sum(len(batch.lengths) for batch in steps))


def test_an_epoch_continues_where_the_one_before_ended():
    whole, second = table_of(count=12), table_of(first=5, count=7)
    for number in range(7):
        assert second.batch(number).spans.tolist() == whole.batch(5 + number).spans.tolist()


def test_a_part_that_plans_other_batches_than_it_says_is_named():
    part = next(runs())
    wrong = PartRun("a", 0, part.index, part.policy, 7, 99, 0)
    with pytest.raises(PlanError, match=r"epoch 2 of part 'a' must have .* \(99, 0\), .* \(3, 0\)"):
        wrong.plan(2)


def test_a_part_with_other_lanes_than_it_says_is_named():
    part = next(runs())
    for policy, found in ((part.policy, 0), (TBPTT(3, 4), 3)):
        run = PartRun("a", 0, part.index, policy, 7, 1, 0, lanes=2)
        with pytest.raises(PlanError, match=f"part 'a' must have 2 lanes, .*, but have {found}"):
            run.plan(0)


def test_the_windows_of_all_parts_read_equally_far():
    part = next(runs())
    other = PartRun("b", 0, part.index, Windows(2, horizon=1), 7, 1, 1)
    assert find_lookahead([other, other]) == 1
    with pytest.raises(
        ConfigError, match=r"must have the same `horizon`, but have {'a': 0, 'b': 1}"
    ):
        find_lookahead([part, other])


@pytest.mark.parametrize("group", [1, 2, 3, 8])
@pytest.mark.parametrize("batches", [1, 2, 5, 8, 21])
def test_groups_of_a_part_begin_at_multiples_of_their_size_and_each_batch_comes_once(
    group, batches
):
    part = next(runs())
    run = PartRun("a", 0, part.index, part.policy, 7, batches, 0, group=group)
    located = [run.locate(own) for own in range(6 * batches)]
    for epoch in range(6):
        own = [number for found, number in located if found == epoch]
        assert sorted(own) == list(range(batches))
        assert [found for found, _ in located[epoch * batches : (epoch + 1) * batches]] == [
            epoch
        ] * batches
    for place, (epoch, number) in enumerate(located):
        left = run.count_left(epoch, number)
        assert left == (epoch + 1) * batches - place
        if place % batches >= -epoch * batches % group:  # those before are from the plan's end
            assert (place - number) % group == 0
