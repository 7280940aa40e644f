"""The public Loader: positions, states, resumes and worlds, as plain PyTorch loops use it."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import write_store
from seqdata.collators.padded import Padded
from seqdata.errors import (
    ConfigError,
    DecodeError,
    PlanError,
    PluginError,
    ResumeError,
    SeqDataWarning,
)
from seqdata.loading.loader import Loader
from seqdata.planning.policy import balance_ranks
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.token_budget import TokenBudget
from seqdata.sharing import World
from tests.loading.loaders import LENGTHS, POLICY, STORE, make_loader, resume_loader, start_loader
from tests.properties.counts import examples


def ids(batches):
    return [batch.real().ids.tolist() for batch in batches]


def epochs(count, **options):
    made = make_loader(**options)
    return [ids(made) for _ in range(count)]


def test_iter_alone_does_nothing():
    made = make_loader()
    iter(made), iter(made)
    assert made.epoch == 0
    assert ids(made) == epochs(1)[0]


def test_epochs_follow_one_another():
    made = make_loader()
    seen = []
    for epoch in range(made.epoch, 3):
        assert made.epoch == epoch
        seen.append(ids(made))
    assert seen == epochs(3)
    assert seen[0] != seen[1] != seen[2]
    assert ids(make_loader(epoch=2)) == seen[2]


def test_set_epoch_is_the_epoch_of_the_next_iteration():
    made, expected = make_loader(), epochs(5)
    for epoch in (3, 0, 0, np.int64(4), 1):
        made.set_epoch(epoch)
        assert made.epoch == made.state_dict()["epoch"] == epoch
        assert ids(made) == expected[epoch]
    iterator = iter(made)  # of epoch 2
    next(iterator)
    made.set_epoch(4)  # the running iteration goes on, and is what the state is about
    assert (made.state_dict()["epoch"], made.state_dict()["position"]) == (2, 1)
    assert ids(iterator) == expected[2][1:]
    assert made.state_dict()["epoch"] == 4
    assert ids(made) == expected[4]


def test_set_epoch_keeps_a_loaded_position_of_its_epoch_and_says_that_it_leaves_another():
    made = make_loader()
    made.load_state_dict(start_loader(5, epoch=2)[0].state_dict())
    made.set_epoch(2)
    assert ids(made) == epochs(3)[2][5:]
    made.load_state_dict(start_loader(5, epoch=2)[0].state_dict())
    match = r"set_epoch\(0\) discards the loaded position, batch 5 of epoch 2"
    with pytest.warns(SeqDataWarning, match=match):
        made.set_epoch(0)
    assert ids(made) == epochs(1)[0]


@pytest.mark.parametrize("epoch", [-1, 1.5, "2", None, True])
def test_set_epoch_takes_whole_numbers(epoch):
    with pytest.raises(ConfigError, match="`epoch` must be an integer from 0"):
        make_loader().set_epoch(epoch)


def test_the_length_is_known_and_kept():
    assert len(make_loader()) == len(epochs(1)[0]) == 13
    assert len(start_loader(5)[0]) == 13
    assert len(make_loader(world=World(1, 4))) == 4


def test_breaking_abandons_the_epoch():
    made = make_loader()
    for _ in made:
        break
    assert made.epoch == 1
    assert ids(made) == epochs(2)[1]


def test_a_state_taken_before_the_break_goes_on_with_the_rest():
    made = make_loader()
    for number, _ in enumerate(made):
        if number == 4:
            break
    again = resume_loader(made.state_dict())
    assert again.epoch == 0
    assert ids(again) == epochs(1)[0][5:]
    assert ids(again) == epochs(2)[1]


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("count", range(14))
def test_a_resume_at_any_batch_is_the_rest_and_all_that_follows(count, prefetch):
    made, _ = start_loader(count, prefetch=prefetch)
    again = resume_loader(made.state_dict(), prefetch=prefetch)
    whole = epochs(2)
    expected = [whole[0][count:], whole[1]] if count < 13 else [whole[1]]
    assert [ids(again) for _ in expected] == expected


def test_a_state_counts_what_was_delivered_and_not_what_was_made_ahead():
    made, _ = start_loader(3, prefetch=7)
    state = made.state_dict()
    assert (state["epoch"], state["position"]) == (0, 3)


def test_after_the_last_batch_the_state_is_the_next_epoch():
    made, items = start_loader(13)
    for _ in range(2):
        state = made.state_dict()
        assert (state["epoch"], state["position"]) == (1, 0)
        assert made.epoch == 1
        assert next(items, None) is None


def test_a_state_is_small_plain_and_the_same_on_every_rank():
    states = [start_loader(2, world=World(rank, 3))[0].state_dict() for rank in range(3)]
    assert states[0] == states[1] == states[2]
    assert len(json.dumps(states[0])) < 1000
    assert all(type(value) in (int, str) for value in states[0].values())
    assert states[0]["position"] == 6
    assert states[0]["world_size"] == 3


@dataclass(frozen=True)
class Wordy:
    """A policy with much to say."""

    batch_size: int
    words: str
    axis: str = "time"

    def plan(self, index, *, seed, epoch):
        return Fixed(self.batch_size).plan(index, seed=seed, epoch=epoch)

    def num_batches(self, index):
        return Fixed(self.batch_size).num_batches(index)


def test_a_state_is_small_whatever_the_policy_says():
    state = make_loader(Wordy(8, "a" * 5000)).state_dict()
    assert len(json.dumps(state)) < 1000
    again = resume_loader(state, policy=Wordy(8, "a" * 5000))
    assert again.epoch == 0
    with pytest.raises(ResumeError, match=r"`policy` was .Wordy"):
        resume_loader(state, policy=Wordy(8, "a" * 4999 + "b"))


@examples(1, here=25)
@given(
    worlds=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    cuts=st.lists(st.integers(0, 13), min_size=3, max_size=3),
    budget=st.booleans(),
)
@pytest.mark.slow
def test_the_world_may_change_in_the_middle_of_an_epoch(worlds, cuts, budget):
    first = worlds[0]
    policy = TokenBudget(200) if budget else POLICY
    state, seen = make_loader(policy, world=World(0, first)).state_dict(), []
    for number, size in enumerate(worlds):
        ranks = [
            resume_loader(state, policy=policy, world=World(rank, size)) for rank in range(size)
        ]
        cut = cuts[number] if number + 1 < len(worlds) else None
        for step, batches in enumerate(zip(*ranks, strict=True)):
            seen += [sequence for batch in batches for sequence in batch.real().ids.tolist()]
            if step == cut:
                break
        states = [rank.state_dict() for rank in ranks]
        assert all(state == states[0] for state in states)
        state = states[0]
        if state["epoch"] == 1:
            break
    assert (state["epoch"], state["position"]) == (1, 0)
    order = balance_ranks(policy, first)  # of the ranks with which it began
    assert seen == [sequence for batch in ids(make_loader(order)) for sequence in batch]


def test_the_newest_iteration_moves_the_state():
    made, old = start_loader(5)
    new = iter(made)
    next(new)
    assert (made.state_dict()["epoch"], made.state_dict()["position"]) == (1, 1)
    next(old)
    assert (made.state_dict()["epoch"], made.state_dict()["position"]) == (1, 1)


def test_an_iteration_that_is_still_held_does_not_move_a_loaded_state():
    made, old = start_loader(5)
    made.load_state_dict(make_loader(epoch=3).state_dict())
    next(old)
    assert made.epoch == 3
    assert made.state_dict()["epoch"] == 3


def test_a_state_can_be_loaded_again_and_again():
    state = start_loader(4)[0].state_dict()
    made = resume_loader(state)
    first = ids(made)
    made.load_state_dict(state)
    assert ids(made) == first


def test_a_position_at_the_end_of_the_plan_is_an_epoch_without_steps():
    state = {**make_loader().state_dict(), "position": 13}
    made = resume_loader(state)
    assert ids(made) == []
    assert (made.epoch, made.state_dict()["epoch"]) == (1, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"store": STORE.take(range(100))}, "`data` was '.*', but is '.*'"),
        (
            {"policy": Bucketed(9)},
            r"`policy` was 'Bucketed\(batch_size=8\)', but is 'Bucketed\(batch_size=9\)'.*",
        ),
        ({"seed": 1}, "`seed` was 0, but is 1"),
        ({"shift": 1}, "`shift` was 0, but is 1"),
    ],
)
def test_a_state_of_something_else_is_refused_with_the_reason(options, message):
    state = start_loader(4)[0].state_dict()
    made = make_loader(**options)
    advice = ", pass on_changed='next_epoch' to begin the next epoch over the changed data"
    middle = r" \(batch 4 of epoch 0 is next\), continue from the end of an epoch, with .*"
    advice = {"store": advice, "shift": ""}.get(next(iter(options)), middle)
    with pytest.raises(
        ResumeError,
        match=rf"loader: {message}\. A state .* restore what changed{advice}, or begin a new run\.",
    ):
        made.load_state_dict(state)
    assert made.epoch == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"version": 2},
            "the state must have version 1, but has 2. Continue with the release of seqdata",
        ),
        ({"version": None}, "the state must have version 1, but has None"),
        ({"epoch": -1}, "`epoch` of the state must be an integer of at least 0, but is -1"),
        ({"epoch": True}, "`epoch` of the state must be an integer of at least 0, but is True"),
        (
            {"position": "3"},
            "`position` of the state must be an integer of at least 0, but is '3'. The state is",
        ),
        (
            {"position": 14},
            "`position` of the state must be at most 13, the batches of epoch 0, but is 14",
        ),
        (
            {"fingerprint": "f"},
            "the plan of epoch 0 must have the saved fingerprint 'f', but has '.*'. Continue with",
        ),
        ({"data": None}, "`data` of the state must be a string, but is None"),
    ],
)
def test_a_damaged_state_is_refused(change, message):
    with pytest.raises(ResumeError, match=f"loader: {message}"):
        make_loader().load_state_dict({**make_loader().state_dict(), **change})


def test_what_is_no_state_is_refused():
    with pytest.raises(ResumeError, match=r"the state must be a dict, as .*, but is a str"):
        make_loader().load_state_dict("x")


def test_a_state_that_leaves_unmarked_dummy_rows_to_this_world_is_refused():
    state = start_loader(1)[0].state_dict()
    made = make_loader(world=World(0, 13), as_tuple=("x",))
    with pytest.raises(ConfigError, match="12 batches on 13 ranks leave 1 without one"):
        made.load_state_dict(state)
    assert made.epoch == made.state_dict()["position"] == 0


def test_an_error_leaves_the_state_before_the_batch():
    def broken(sequence, rng):
        return {"x": sequence["x"][:2]} if sequence["id"] == "s50" else {"x": sequence["x"]}

    made = make_loader(transform=broken)
    with pytest.raises(DecodeError, match=r"'s50'.*(.|\n)*epoch 0, batch \d+"):
        list(made)
    state = made.state_dict()
    assert 50 in epochs(1)[0][state["position"]]
    assert made.epoch == 1
    with pytest.warns(SeqDataWarning, match="`transform` was .*broken .*, but is now none"):
        again = resume_loader(state)
    assert ids(again) == epochs(1)[0][state["position"] :]


def test_the_store_may_be_a_location_a_store_or_sequences(tmp_path):
    arrays = [np.arange(n, dtype=np.int32) for n in LENGTHS]
    write_store(tmp_path / "store", [{"x": array} for array in arrays])
    made = [
        make_loader(store=store) for store in (tmp_path / "store", str(tmp_path / "store"), arrays)
    ]
    assert ids(made[0]) == ids(made[1]) == ids(made[2]) == epochs(1)[0]
    assert made[0].store.keys([3]) == ["3"]
    for batch in made[0]:
        for row, number in enumerate(batch.ids.tolist()):
            assert batch["x"][row, : batch.lengths[row]].tolist() == arrays[number].tolist()


def test_policy_and_collator_may_be_given_by_name():
    with pytest.raises(ConfigError, match=r"policy 'bucketed': missing .* `batch_size`"):
        make_loader("bucketed")
    with pytest.raises(PluginError, match="unknown policy 'bucketd'; did you mean 'bucketed'"):
        make_loader("bucketd")
    assert (
        ids(make_loader(collator="padded")) == ids(make_loader(collator=Padded(7))) == epochs(1)[0]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_workers": -1},
            r"`num_workers` must be an integer in \[0, 2\*\*31\), 0 for no processes, but is -1",
        ),
        (
            {"start_method": "thread"},
            "`start_method` must be one of fork, spawn, forkserver, or None.*, but is 'thread'",
        ),
        (
            {"stall_timeout": 0},
            "`stall_timeout` must be a number of seconds above 0.*, but is 0",
        ),
        ({"epoch": -1}, "`epoch` must be an integer from 0.*, but is -1"),
        ({"epoch": 0.5}, "`epoch` must be an integer.*, but is 0.5"),
        ({"accumulate": 0}, "`accumulate` must be an integer of at least 1.*, but is 0"),
        ({"fields": ("z",)}, "`fields`: no field 'z'"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused(options, message):
    with pytest.raises(ConfigError, match=f"loader: {message}"):
        make_loader(**options)


def test_an_empty_data_set_is_an_error():
    with pytest.raises(PlanError, match="none of the 1 sequences is left"):
        make_loader(store=[np.zeros(0)])
    with pytest.raises(PlanError, match="none of the 100 sequences is left"):
        make_loader(Fixed(2, max_length=1, too_long="drop"), store=STORE.where(STORE.lengths > 1))


def test_a_shutdown_leaves_a_loader_that_can_be_used():
    made, _ = start_loader(2, prefetch=2)
    made.shutdown()
    assert ids(made) == epochs(2)[1]


def test_batching_is_given_by_position_or_by_name():
    assert ids(Loader(STORE, batching=POLICY)) == ids(Loader(STORE, POLICY))
    with pytest.raises(
        ConfigError, match=r"`batching` must be a policy or its name, but is None. Pass e.g. Buck"
    ):
        Loader(STORE)
