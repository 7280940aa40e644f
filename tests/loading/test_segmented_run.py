"""Weights that a loop sets between segments: where it may, and how it continues."""

import json

import numpy as np
import pytest

from seqdata.errors import ConfigError, PlanError, ResumeError
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.segments import Segments
from seqdata.policies.weighted import Weighted
from seqdata.sharing import World

DATA = [np.arange(length, dtype=np.float64) for length in range(1, 25)]
POLICY = Segments(Weighted(Fixed(2), draws=48), 6)
FEW = (np.arange(24) < 3).astype(float)


def loader_of(policy=POLICY, world=None, **options):
    return Loader(DATA, policy, world=world, **options)


def play(loader, count):
    """Return an iterator over an epoch, and the ids of its first batches."""
    batches = iter(loader)
    return batches, [next(batches).ids.tolist() for _ in range(count)]


@pytest.mark.parametrize("options", [{"prefetch": 0}, {}, {"num_workers": 1}], ids=str)
def test_what_is_read_ahead_ends_with_the_segment(options):
    loader = loader_of(**options)
    batches, _ = play(loader, 6)
    loader.set_weights(FEW)
    assert max(max(batch.ids.tolist()) for batch in batches) < 3
    loader.shutdown()


@pytest.mark.parametrize("count", [1, 5, 7, 11])
def test_within_a_segment_weights_are_refused(count):
    loader = loader_of()
    play(loader, count)
    following = count // 6 * 6 + 6
    message = (
        f"weights must be set where a segment begins, but batch {count} of epoch 0 lies within "
        f"one. Set them before batch {following} is drawn"
    )
    with pytest.raises(ConfigError, match=message):
        loader.set_weights(FEW)


def test_a_policy_without_segments_has_no_weights_to_set():
    loader = Loader(DATA, Weighted(Fixed(2)))
    with pytest.raises(ConfigError, match=r"a policy `Segments` for weights .*, but is Weighted"):
        loader.set_weights(FEW)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], "must have a value for each of 24 sequences, but has 1"),
        ([float("nan")] * 24, "must be finite and at least 0, but is nan for sequence 0"),
        ([0.0] * 24, "must be above 0 for at least one sequence, but all are 0"),
    ],
)
def test_invalid_weights_are_refused_where_they_are_set(weights, message):
    with pytest.raises(ConfigError, match=message):
        loader_of().set_weights(weights)


def test_the_state_has_the_digest_and_the_weights_are_passed_again():
    loader = loader_of()
    loader.set_weights(FEW)
    batches, _ = play(loader, 3)
    state = json.loads(json.dumps(loader.state_dict()))
    assert len(json.dumps(state)) < 1_000
    expected = [batch.ids.tolist() for batch in batches]

    resumed = loader_of()
    resumed.load_state_dict(state, weights=FEW)
    assert [batch.ids.tolist() for batch in resumed] == expected
    assert resumed.state_dict()["weights"] == state["weights"]

    with pytest.raises(ResumeError, match=f"must be the weights of digest {state['weights']}"):
        loader_of().load_state_dict(state)
    with pytest.raises(ResumeError, match=f"the digest of `weights` must be {state['weights']}"):
        loader_of().load_state_dict(state, weights=1 - FEW)


def test_a_run_that_set_no_weights_has_a_state_without_them():
    state = loader_of().state_dict()
    assert "weights" not in state
    with pytest.raises(ResumeError, match="must be None, since the saved run had set none"):
        loader_of().load_state_dict(state, weights=FEW)


def test_an_update_lies_in_one_segment():
    with pytest.raises(ConfigError, match=r"6 batches of a segment must be a multiple of the 4 of"):
        next(iter(loader_of(world=World(0, 4))))
    with pytest.raises(ConfigError, match=r"\(1 ranks, 5 steps\), but are not. Pass batches=10"):
        next(iter(loader_of(accumulate=5)))


def test_a_resumed_step_lies_in_one_segment():
    loader = loader_of()
    play(loader, 1)
    resumed = loader_of(world=World(0, 3))
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(PlanError, match="3 ranks must divide the 5 batches from batch 1"):
        next(iter(resumed))


def test_a_loader_that_is_shut_down_begins_no_segment():
    loader = loader_of()
    begun = []
    loader._engine.segments.history.on_begin = lambda *place: begun.append(place)
    batches, _ = play(loader, 2)
    loader.shutdown()
    with pytest.raises(Exception, match="shut down"):
        list(batches)
    assert begun == [(0, 0)]


def test_weights_that_are_passed_to_a_mixture_are_compared():
    def mixed():
        parts = {name: [{"x": np.ones(3)}] * 40 for name in "ab"}
        return Loader(parts, Segments(Mix({"a": 1, "b": 1}, Bucketed(8)), batches=5))

    loader = mixed()
    loader.set_weights({"a": 0.9, "b": 0.1})
    state = loader.state_dict()
    mixed().load_state_dict(state)
    mixed().load_state_dict(state, weights={"a": 0.9, "b": 0.1})
    with pytest.raises(ResumeError, match="the digest of `weights` must be"):
        mixed().load_state_dict(state, weights={"a": 0.1, "b": 0.9})


def test_a_policy_without_segments_takes_no_weights():
    loader = Loader([np.ones(3)] * 8, Bucketed(4))
    with pytest.raises(ResumeError, match="must be None, since the policy has no segments, but"):
        loader.load_state_dict(loader.state_dict(), weights=[1.0] * 8)


def set_back(loader, state, earlier, weights):
    """Continue from a state with weights that are set there; return the rest of the epoch."""
    loader.load_state_dict(state, weights=earlier)
    loader.set_weights(weights)
    return [(batch.part, batch.ids.tolist()) for batch in loader]


@pytest.mark.parametrize("kind", ["weighted", "mixture"])
def test_a_loader_that_has_gone_on_is_set_back_as_a_new_one(kind):
    """To any of its states, again and again; weights are set where each of them is."""
    if kind == "weighted":
        data, policy, first, second = DATA, POLICY, FEW, FEW[::-1]
    else:
        data = {"a": DATA[:12], "b": DATA[12:]}
        policy = Segments(Mix({"a": 1, "b": 2}, Fixed(2), batches=24), 6)
        first, second = {"a": 1, "b": 0}, {"a": 1, "b": 9}
    loader = Loader(data, policy, prefetch=0)
    batches, states = iter(loader), []
    for segment in range(3):
        for _ in range(6):
            next(batches)
        states.append((loader.state_dict(), first if segment and kind == "weighted" else None))
        if segment < 2:
            loader.set_weights(first)
    list(batches)
    for number in (2, 1, 0, 1, 2, 0):
        due = set_back(Loader(data, policy, prefetch=0), *states[number], second)
        assert len(due) == 24 - 6 * (number + 1)
        assert set_back(loader, *states[number], second) == due


def test_weights_that_are_passed_to_a_mixture_are_those_of_the_last_change():
    data = {"a": DATA[:12], "b": DATA[12:]}
    policy = Segments(Mix({"a": 1, "b": 2}, Fixed(2), batches=24), 6)
    loader, changes = Loader(data, policy, prefetch=0), [{"a": 1, "b": 0}, {"a": 1, "b": 9}]
    batches = iter(loader)
    for weights in changes:
        for _ in range(6):
            next(batches)
        loader.set_weights(weights)
    state, rest = loader.state_dict(), [batch.ids.tolist() for batch in batches]
    for weights in (None, changes[1]):
        again = Loader(data, policy, prefetch=0)
        again.load_state_dict(state, weights=weights)
        assert [batch.ids.tolist() for batch in again] == rest
    with pytest.raises(ResumeError, match="the digest of `weights` must be"):
        Loader(data, policy, prefetch=0).load_state_dict(state, weights=changes[0])
