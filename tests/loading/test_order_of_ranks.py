"""Steps are balanced for the ranks with which an epoch begins, also when it goes on with others."""

import pickle
import re
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata import Bucketed, Fixed, Loader, Mix, TokenBudget, World, Zip, open_store, write_store
from seqdata.errors import ResumeError, SeqDataWarning
from seqdata.plan import PLAN_VERSION
from seqdata.policies.curriculum import Curriculum
from seqdata.policies.weighted import Weighted
from seqdata.storage.remote.options import Remote

LENGTHS = np.random.default_rng(3).integers(1, 60, 151)
DATA = [np.full(length, number) for number, length in enumerate(LENGTHS)]
POLICIES = [Bucketed(3), TokenBudget(150), Weighted(Bucketed(3)), Fixed(3)]


def loader_of(policy, rank, size, data=DATA, **options):
    return Loader(data, policy, world=World(rank, size), prefetch=0, **options)


def plan_of(loader, epoch):
    return loader._engine.plan(epoch)


def ids_of(batch):
    """The sequences that a batch trains, those of part "b" after those of "a"."""
    first = 100 if batch.part == "b" else 0
    return [int(number) + first for number in batch.ids[batch.weight > 0]]


def play(policy, size, state, steps, data=DATA):
    """Train some steps on all ranks; return what was drawn, and the state after them."""
    drawn, states = [], []
    for rank in range(size):
        loader = loader_of(policy, rank, size, data)
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        for _ in range(steps):
            batch = next(batches, None)
            if batch is None:
                break
            drawn += ids_of(batch)
        states.append(loader.state_dict())
    assert all(other == states[0] for other in states)
    return drawn, states[0]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_an_epoch_begun_on_4_ranks_goes_on_with_2_and_then_3(policy):
    first, state = play(policy, 4, None, 3)
    second, state = play(policy, 2, state, 4)
    assert state["balance_ranks"] == 4
    third, state = play(policy, 3, state, 1_000)
    assert sorted(first + second + third) == list(range(len(DATA)))
    assert (state["epoch"], state["position"]) == (1, 0)
    assert state["balance_ranks"] == 3
    later, _ = play(policy, 3, state, 1_000)
    assert sorted(later) == list(range(len(DATA)))


def test_the_epoch_that_is_resumed_keeps_its_order_and_the_next_has_its_own():
    before = loader_of(Bucketed(3), 0, 4)
    next(iter(before))
    after = loader_of(Bucketed(3), 1, 2)
    after.load_state_dict(before.state_dict())
    assert plan_of(after, 0).fingerprint == plan_of(before, 0).fingerprint
    assert plan_of(after, 1).fingerprint == plan_of(loader_of(Bucketed(3), 0, 2), 1).fingerprint
    assert plan_of(after, 1).fingerprint != plan_of(before, 1).fingerprint


def test_a_state_between_epochs_begins_the_next_one_with_the_present_ranks():
    before = loader_of(Bucketed(3), 0, 4)
    list(before)
    after = loader_of(Bucketed(3), 0, 2)
    after.load_state_dict(before.state_dict())
    assert plan_of(after, 1).fingerprint == plan_of(loader_of(Bucketed(3), 0, 2), 1).fingerprint


@given(st.integers(1, 8), st.integers(1, 8))
def test_a_declared_number_is_the_same_order_on_any_world(size, other):
    policy = Bucketed(3, balance_ranks=4)
    orders = [plan_of(loader_of(policy, 0, ranks), 1).spans.tolist() for ranks in (size, other)]
    assert orders[0] == orders[1]


def test_the_ranks_of_a_step_have_like_lengths_and_one_rank_has_a_random_order():
    def uneven(size):
        longest = plan_of(loader_of(Bucketed(3), 0, size), 1).measures.longest
        steps = longest[: len(longest) // 4 * 4].reshape(-1, 4)
        return steps.max(axis=1).sum() / steps.mean(axis=1).sum()

    assert uneven(4) < 1.1 < 1.4 < uneven(1)


def test_a_copy_of_a_loader_keeps_the_order():
    before = loader_of(Bucketed(3), 0, 4)
    next(iter(before))
    after = loader_of(Bucketed(3), 1, 2)
    after.load_state_dict(before.state_dict())
    copy = pickle.loads(pickle.dumps(after))
    assert plan_of(copy, 0).fingerprint == plan_of(before, 0).fingerprint


PARTS = {"a": DATA[:100], "b": DATA[100:]}
MIX = Mix({"a": 1, "b": 1}, Bucketed(2))


def test_a_mixture_goes_on_in_the_order_with_which_the_run_began():
    before = loader_of(MIX, 0, 4, PARTS)
    list(before)
    next(iter(before))
    state = before.state_dict()
    after = loader_of(MIX, 0, 2, PARTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # 2 divides 4: steps are even
        after.load_state_dict(state)
    for epoch in (1, 5):
        assert plan_of(after, epoch).fingerprint == plan_of(before, epoch).fingerprint
    assert after.state_dict()["balance_ranks"] == 4
    with pytest.warns(SeqDataWarning, match="in the order for 4 ranks with which the run began"):
        loader_of(MIX, 0, 3, PARTS).load_state_dict(state)


def test_the_parts_of_a_mixture_go_through_their_epochs_once_over_changes_of_ranks():
    state, drawn = None, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SeqDataWarning)
        for size, steps in ((4, 9), (3, 7), (1, 40), (2, 1_000), (2, 1_000), (3, 1_000)):
            ids, state = play(MIX, size, state, steps, PARTS)
            drawn.append(ids)
    seen = np.bincount([number for ids in drawn for number in ids], minlength=len(DATA))
    for part in (seen[:100], seen[100:]):
        assert part.max() - part.min() <= 1


def test_zipped_parts_and_stages_keep_the_order_of_the_run_too():
    stages = Curriculum(Bucketed(2), max_length=[(0, 30), (3, None)], batches=20)
    for policy, data in ((Zip({"a": Bucketed(2), "b": Bucketed(3)}), PARTS), (stages, DATA)):
        before = loader_of(policy, 0, 4, data)
        list(before)
        after = loader_of(policy, 0, 2, data)
        after.load_state_dict(before.state_dict())
        for epoch in (1, 3):
            assert plan_of(after, epoch).spans.tolist() == plan_of(before, epoch).spans.tolist()


def test_a_state_of_older_rules_is_refused_unless_the_next_epoch_may_begin():
    before = loader_of(Bucketed(3), 0, 1)
    next(iter(before))
    state = before.state_dict()
    assert state["plan_version"] == PLAN_VERSION
    old = {**state, "policy": "Bucketed(batch_size=3)", "fingerprint": "0" * 32}
    del old["plan_version"], old["balance_ranks"]
    after = loader_of(Bucketed(3), 0, 1)
    with pytest.raises(ResumeError, match=r"plan version 1.*version 2.*on_changed='next_epoch'"):
        after.load_state_dict(old)
    with pytest.warns(SeqDataWarning, match="epoch 0 is left after 1 batches, and the next one"):
        after.load_state_dict(old, on_changed="next_epoch")
    assert (after.epoch, after.state_dict()["position"]) == (1, 0)
    with pytest.raises(ResumeError, match="`seed` was 0, but is 5"):
        loader_of(Bucketed(3), 0, 1, seed=5).load_state_dict(old, on_changed="next_epoch")


def test_a_state_that_does_not_fit_leaves_the_loaded_one_as_it_was():
    before = loader_of(Bucketed(3), 0, 4)
    next(iter(before))
    after = loader_of(Bucketed(3), 0, 2)
    after.load_state_dict(before.state_dict())
    order = plan_of(after, 0).fingerprint
    with pytest.raises(ResumeError, match="`seed`"):
        after.load_state_dict({**before.state_dict(), "seed": 9, "balance_ranks": 8})
    assert plan_of(after, 0).fingerprint == order == plan_of(before, 0).fingerprint
    assert after.state_dict()["balance_ranks"] == 4


def test_a_state_that_does_not_fit_leaves_the_order_as_it_was():
    before = loader_of(Bucketed(3), 0, 4)
    next(iter(before))
    after = loader_of(Bucketed(3), 0, 2, seed=1)
    order = plan_of(after, 0).fingerprint
    with pytest.raises(ResumeError, match="`seed`"):
        after.load_state_dict(before.state_dict())
    assert plan_of(after, 0).fingerprint == order


@pytest.mark.parametrize(
    ("cache", "policy", "says"),
    [
        (3_000, Fixed(8), r"an epoch fetches the data about \d+ times.*remote='ranges'"),
        (3_000, Fixed(8, shuffle="blocks"), None),
        (3_000, Fixed(8, shuffle=False), None),
        (1 << 30, Fixed(8), None),
    ],
)
def test_a_cache_smaller_than_the_data_is_said_before_the_first_batch(
    tmp_path, cache, policy, says
):
    location = f"memory://{tmp_path.name}-{cache}-{policy.shuffle}"
    write_store(location, DATA, shard_bytes=2_000, remote=Remote(cache_dir=tmp_path / "written"))
    store = open_store(location, remote=Remote(cache_dir=tmp_path / "cache", cache_bytes=cache))
    loader = Loader(store, policy, prefetch=0)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        next(iter(loader))
        next(iter(loader))
    texts = [str(each.message) for each in found if issubclass(each.category, SeqDataWarning)]
    fetching = [text for text in texts if "fetches" in text]
    assert len(fetching) == (says is not None)
    if says is not None:
        assert re.search(says, fetching[0])
