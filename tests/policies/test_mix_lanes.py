"""A mixture of lanes: each part owns its lanes, and every part is as if it were alone on them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdata.errors import ConfigError, PlanError, SeqDataWarning
from seqdata.index import SequenceIndex
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.loading.loader import Loader
from seqdata.planning.parts import Part, derive_part_seed
from seqdata.policies.fixed import Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.segments import Segments
from seqdata.policies.tbptt import TBPTT
from seqdata.recurrent.lane_states import LaneStates
from seqdata.sharing import World
from seqdata_testing.plans import check_constant_count, check_pure, check_table
from seqdata_testing.sharing import check_resume, check_shares

LENGTHS = {"code": [9, 4, 7, 3, 8, 15, 2], "prose": [5, 2, 6, 11]}
KINDS = [{}, {"segments": True}, {"continuous": True}, {"advance": 2}]


def index_of(lengths):
    return SequenceIndex.from_parts(
        {name: SequenceIndex.from_lengths(of) for name, of in lengths.items()}
    )


def rows_of(plan, number):
    batch = plan.batch(number)
    bounds = range(len(batch.spans) + 1) if batch.rows is None else batch.rows.tolist()
    return [batch.spans[a:b].tolist() for a, b in zip(bounds, list(bounds)[1:], strict=False)]


def alone(mix, name, lanes, lengths, seed):
    """The rows of a part by step, of its own epochs one after another."""
    policy = mix.policies[name]
    policy = TBPTT(lanes, policy.chunk, policy.advance, policy.continuous, policy.segments)
    first = sum(len(of) for of in list(lengths.values())[: list(lengths).index(name)])
    epoch = 0
    while True:
        plan = policy.plan(
            SequenceIndex.from_lengths(lengths[name]),
            seed=derive_part_seed(seed, name),
            epoch=epoch,
        )
        for number in range(len(plan)):
            yield [
                [[first + sequence, start, stop] for sequence, start, stop in row]
                for row in rows_of(plan, number)
            ]
        epoch += 1


lengths_of_part = st.lists(st.integers(1, 30), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    code=lengths_of_part, prose=lengths_of_part,
    lanes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    chunks=st.tuples(st.integers(1, 9), st.integers(1, 9)), kind=st.sampled_from(KINDS[:3]),
    seed=st.integers(0, 5), size=st.integers(1, 4), data=st.data(),
)  # fmt: skip
def test_each_part_is_as_if_it_were_alone_on_its_lanes(
    code, prose, lanes, chunks, kind, seed, size, data
):
    lengths = {"code": code, "prose": prose}
    own_lanes = dict(zip(lengths, lanes, strict=True))
    mix = Mix(
        {
            name: TBPTT(own_lanes[name], chunk, **kind)
            for name, chunk in zip(lengths, chunks, strict=True)
        }
    )
    index = index_of(lengths)
    check_constant_count(mix, index, seeds=(seed, seed + 1))
    check_pure(mix, index, seed=seed, epoch=1, shuffled=None)
    expected = {name: alone(mix, name, own_lanes[name], lengths, seed) for name in lengths}
    for epoch in range(3):
        plan = mix.plan(index, seed=seed, epoch=epoch)
        assert plan.lanes == sum(lanes)
        assert len(plan) == mix.num_batches(index)
        check_table(plan)
        for number in range(len(plan)):
            found = rows_of(plan, number)
            wanted = [row for name in lengths for row in next(expected[name])]
            for got, due in zip(found, wanted, strict=True):
                is_idle = all(start == stop for _, start, stop in got)
                assert got == due or (is_idle and all(a == b for _, a, b in due))
            (label,) = plan.label_parts([number])
            assert label.part == [name for name in lengths for _ in range(own_lanes[name])]
        if plan.lanes % size == 0:
            check_shares(plan, size)
            cut = data.draw(st.integers(0, len(plan)))
            check_resume(plan, size, [cut])


def test_lanes_are_given_by_weight():
    def lanes(mix):
        plan = mix.plan(index_of(LENGTHS), seed=0, epoch=0)
        part = plan.label_parts([0])[0].part
        return {name: part.count(name) for name in LENGTHS}

    assert lanes(Mix({"code": 3, "prose": 1}, TBPTT(8, 4))) == {"code": 6, "prose": 2}
    assert lanes(Mix({"code": 99, "prose": 1}, TBPTT(8, 4))) == {"code": 7, "prose": 1}
    assert lanes(Mix({"code": TBPTT(5, 4), "prose": TBPTT(2, 3)})) == {"code": 5, "prose": 2}
    own = {"code": Part(1, TBPTT(5, 4)), "prose": Part(1, TBPTT(3, 4))}
    assert lanes(Mix(own)) == {"code": 4, "prose": 4}
    assert lanes(Mix({"code": 1, "prose": 0}, TBPTT(8, 4))) == {"code": 8, "prose": 0}
    # 7 and 4 sequences
    assert lanes(Mix({"code": 1, "prose": 1}, TBPTT(11, 4), temperature=1)) == {
        "code": 7, "prose": 4,
    }  # fmt: skip


def test_an_epoch_is_a_pass_over_the_largest_part_and_others_go_on():
    mix = Mix({"code": TBPTT(2, 3), "prose": TBPTT(1, 3)})
    index = index_of(LENGTHS)
    code = TBPTT(2, 3).num_batches(SequenceIndex.from_lengths(LENGTHS["code"]))
    prose = TBPTT(1, 3).num_batches(SequenceIndex.from_lengths(LENGTHS["prose"]))
    assert mix.num_batches(index) == code
    assert Mix(mix.parts, batches=5).num_batches(index) == 5
    plan = mix.plan(index, seed=0, epoch=2)
    assert plan.locate_parts(1) == {"code": (2, 1), "prose": divmod(2 * code + 1, prose)}
    assert "2 lanes of 'code', 1 lanes of 'prose'" in repr(plan)


def make_parts():
    rng = np.random.default_rng(0)
    parts, value = {}, 0
    for name, lengths in LENGTHS.items():
        parts[name] = [
            {"x": rng.normal(size=(n, 2)).astype("float32"), "y": value + i}
            for i, n in enumerate(lengths)
        ]
        value += 100
    return parts


def train(loader, rnn, epochs=2, states=None, first=0):
    """The outputs of a stateful model: (epoch, batch, part, lane of the part) -> its output."""
    states, found = states or LaneStates(), {}
    for _ in range(first, epochs):
        for batch in loader:
            state = states.take(batch)
            out, state = states.run(rnn, batch, "x", state)
            states.put(batch, state)
            for row, lane in enumerate(batch.lanes.tolist()):
                if batch.weight[row] > 0:
                    found[batch.epoch, batch.number, lane] = out[row, : batch.lengths[row]].detach()
    return found


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_stateful_model_is_that_of_each_part_alone(kind):
    torch.manual_seed(0)
    rnn, parts = torch.nn.LSTM(2, 3, batch_first=True), make_parts()
    mix = Mix({"code": TBPTT(2, 3, **kind), "prose": TBPTT(1, 3, **kind)})
    count = len(Loader(parts, mix))
    mixed = train(Loader(parts, mix), rnn, epochs=1)
    before = 0
    for name, policy in mix.policies.items():
        own = Loader(parts[name], policy, seed=derive_part_seed(0, name))
        found = train(own, rnn, epochs=3)
        steps = {}
        for epoch, number, lane in found:
            steps[epoch * len(own) + number, lane] = found[epoch, number, lane]
        for (step, lane), out in steps.items():
            if step < count:
                torch.testing.assert_close(mixed[0, step, before + lane], out)
        assert {key[1:] for key in mixed if before <= key[2] < before + policy.lanes} == {
            (step, before + lane) for step, lane in steps if step < count
        }
        before += policy.lanes
    assert len(mixed) > count


@pytest.mark.parametrize("kind", KINDS[:3], ids=str)
def test_rows_name_their_part_and_never_change_it(kind):
    parts = make_parts()
    mix = Mix({"code": TBPTT(2, 3, **kind), "prose": TBPTT(2, 4, **kind)})
    for rank in range(2):
        loader = Loader(parts, mix, world=World(rank, 2))
        for _ in range(2):
            for batch in loader:
                names = [("code", "code", "prose", "prose")[lane] for lane in batch.lanes.tolist()]
                assert batch.part == names
                is_prose = torch.tensor([name == "prose" for name in names])
                live = batch.lengths > 0
                assert ((batch["y"] >= 100) == is_prose)[live].all()
                assert (batch.number > 0) | bool(batch.reset[live].all())


def test_a_run_resumes_on_another_world_with_the_states_of_lanes():
    torch.manual_seed(0)
    rnn, parts = torch.nn.LSTM(2, 3, batch_first=True), make_parts()
    mix = Mix({"code": 1, "prose": 1}, TBPTT(4, 3))
    whole = train(Loader(parts, mix), rnn)
    loader, states = Loader(parts, mix), LaneStates()
    batches, seen = iter(loader), {}
    for _ in range(3):
        batch = next(batches)
        state = states.take(batch)
        _, state = states.run(rnn, batch, "x", state)
        states.put(batch, state)
    saved, lanes = loader.state_dict(), states.state_dict()
    for rank in range(2):
        again = Loader(parts, mix, world=World(rank, 2))
        again.load_state_dict(saved)
        own = LaneStates()
        own.load_state_dict(lanes)
        seen |= train(again, rnn, states=own)
    rest = {key: out for key, out in whole.items() if key[0] or key[1] >= 3}
    assert seen.keys() == rest.keys()
    for key, out in rest.items():
        torch.testing.assert_close(seen[key], out)


def test_a_shift_and_an_uneven_world():
    parts = {name: [{"x": row["x"][:, 0]} for row in rows] for name, rows in make_parts().items()}
    mix = Mix({"code": TBPTT(2, 3, continuous=True), "prose": TBPTT(1, 3, continuous=True)})
    for batch in Loader(parts, mix, shift=1):
        for row, length in enumerate(batch.lengths.tolist()):
            inputs, targets = batch["x"][row, :length], batch["targets"][row, :length]
            assert torch.equal(inputs[1:], targets[:-1])
    with pytest.warns(SeqDataWarning, match="3 lanes on 2 ranks"):
        steps = [len(list(Loader(parts, mix, world=World(rank, 2)))) for rank in range(2)]
    assert steps[0] == steps[1]
    data = SequenceDataModule(train=parts, batching=mix, shift=1)
    assert len(list(data.train_dataloader())) == steps[0]
    assert data.replay(epoch=1, batch=2).part == ["code", "code", "prose"]


BOTH = (
    r"policy 'mix': all parts of a mixture must have lanes, or none, but part 'prose' has none, "
    r"and others have: Fixed makes independent batches\. Give it a policy with lanes, e\.g\. "
    r"TBPTT\(lanes, chunk\), or the others one without"
)


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ({"code": TBPTT(2, 3), "prose": TBPTT(2, 3)}, {"by": "timesteps"}, "`by='timesteps'` can"),
        ({"code": 1, "prose": 1}, {"policy": TBPTT(2, 3), "rows": True}, "`rows=True` cannot be"),
        ({"code": 1, "prose": 1}, {"policy": TBPTT(1, 3)}, "each of 2 parts must have a lane, but"),
        (
            {"code": TBPTT(2, 3, continuous=True), "prose": TBPTT(2, 3)}, {},
            "all or none be `continuous`, but are",
        ),
        ({"code": TBPTT(2, 3, 2), "prose": TBPTT(2, 3)}, {}, "same overlap .*'code': 'overlap 1"),
        (
            {"code": TBPTT(2, 3, segments=True, jitter=True), "prose": TBPTT(2, 3)}, {},
            "part 'code' must be without `jitter`",
        ),
        ({"code": TBPTT(2, lambda epoch: 3), "prose": TBPTT(2, 3)}, {}, "same number of steps"),
        (
            {"code": Fixed(2), "prose": 1}, {},
            r"part 'code' must have a weight, but is Fixed\(.*Write Part\(weight, policy\)",
        ),
        ({"code": TBPTT(2, 3), "prose": Fixed(2)}, {}, BOTH),
        ({"prose": Fixed(2), "code": Part(2, TBPTT(2, 3))}, {}, BOTH),
        ({"code": TBPTT(2, 3), "prose": Part(1, Fixed(2))}, {}, BOTH),
    ],
)  # fmt: skip
def test_lanes_that_cannot_be_mixed_are_refused(parts, options, message):
    with pytest.raises(ConfigError, match=message):
        Mix(parts, **options)


def test_an_empty_part_and_segments_are_refused():
    mix = Mix({"code": TBPTT(2, 3), "prose": TBPTT(1, 3)})
    with pytest.raises(PlanError, match="part 'prose' must have a sequence to draw, but its"):
        mix.plan(index_of({"code": [3], "prose": [0]}), seed=0, epoch=0)
    loader = Loader(make_parts(), Segments(mix, batches=2))
    with pytest.raises(ConfigError, match="weights of a mixture of lanes must not change, since"):
        list(loader)
    loader = Loader(make_parts(), Segments(mix, batches=2))
    with pytest.raises(ConfigError, match="weights of a mixture of lanes must not change, since"):
        loader.set_weights({"code": 1, "prose": 2})
