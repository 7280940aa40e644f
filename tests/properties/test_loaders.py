"""I1 to I5 and I7 with real loaders over real stores, in one process and in a pool of two."""

import itertools
import json
import multiprocessing
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from seqdata.errors import ResumeError, SeqDataWarning
from seqdata.index import SequenceIndex
from seqdata.policies.fixed import Bucketed
from seqdata.policies.token_budget import TokenBudget
from seqdata.sharing import World
from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.memory import MemoryStore
from seqdata.storage.views import View
from seqdata_testing.contract import sample_sequences
from seqdata_testing.generators import lane_policies, lengths, policies
from seqdata_testing.lanes import FewLanes
from seqdata_testing.loaders import (
    check_changing_worlds,
    check_content,
    check_lane_flags,
    check_no_short_epoch,
    check_resumes,
    check_steps,
    check_totals,
    check_worlds,
)
from seqdata_testing.recorder import LoaderFactory, play_rank
from seqdata_testing.waiting import patient
from tests.properties.counts import AT_NIGHT, examples

CASES = settings().max_examples  # of the profile: 50 in CI, 2,000 at night
ROUNDS = max(1, CASES // 100)  # of other processes
MOST_STEPS = 10_000 if CASES > AT_NIGHT else 250  # of an epoch that is drawn
POLICIES = [Bucketed(4), TokenBudget(1_000), FewLanes(5, 16)]
pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore::seqdata.errors.SeqDataWarning"),  # uneven lanes
]


@st.composite
def makers(draw, tails=("fill",)):
    """Draw a loader over up to 60 sequences in memory, or a view of them, not all dropped."""
    sizes = draw(st.integers(1, 60).flatmap(lengths))
    store = MemoryStore.from_sequences(
        [np.arange(size) + 1_000 * k for k, size in enumerate(sizes)]
    )
    if draw(st.booleans()):
        numbers = draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=30))
        store = store.take(np.arange(len(sizes))[::-1]).take(numbers)
    policy = draw(st.one_of(policies(), policies(), lane_policies()))
    tail = draw(st.sampled_from(tails))
    count = policy.num_batches(SequenceIndex.from_lengths(store.lengths))
    assume((8 if tail == "drop" else 1) <= count <= MOST_STEPS)
    seed, prefetch = draw(st.integers(0, 1 << 40)), draw(st.sampled_from((0, 1, 3)))
    return LoaderFactory(store, policy, seed=seed, tail=tail, prefetch=prefetch)


@pytest.mark.shows("I1", "I2", "I7", by="loaders")
@examples(0.6, here=12)
@given(makers(("fill", "drop", "repeat")), st.integers(1, 8))
@pytest.mark.slow
def test_ranks_deliver_equally_many_batches_with_the_stores_content(make, size):
    check_steps(make, (1, size))
    check_content(make, make.store.base if isinstance(make.store, View) else make.store, size=size)
    check_totals(make, size)


@pytest.mark.shows("I1", "I3", "I7", by="loaders")
@examples(0.6, here=12)
@given(makers(), st.integers(2, 8), st.sampled_from((0, 1, 3)))
@pytest.mark.slow
def test_any_world_and_prefetch_deliver_the_same_rows_in_one_order(make, size, prefetch):
    rows = [play_rank(made, World(0, 1)) for made in (make, replace(make, prefetch=prefetch))]
    assert rows[0] == rows[1]
    check_worlds(make, (size,), epochs=2)


@pytest.mark.shows("I4", "I7", by="loaders")
@examples(0.4, here=10)
@given(
    makers(("fill", "drop", "repeat")),
    st.integers(1, 5),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.integers(0, 2),
)
@pytest.mark.slow
def test_new_loaders_go_on_where_others_were_left(make, size, stops, epoch):
    steps = len(make(World(0, size)))
    check_resumes(make, size, sorted(int(stop * steps) for stop in stops), epoch=epoch)


@pytest.mark.shows("I5", "I7", by="loaders")
@examples(0.25, here=12)
@given(makers(), st.lists(st.tuples(st.integers(1, 8), st.integers(0, 6)), min_size=2, max_size=4))
def test_worlds_that_take_over_from_each_other_deliver_each_row_once(make, legs):
    check_changing_worlds(make, legs)


@pytest.mark.shows("I7", by="loaders")
@examples(0.25, here=12)
@given(makers())
def test_an_epoch_cut_short_is_never_mistaken_for_a_whole_one(make):
    check_no_short_epoch(make)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    sequences = sample_sequences(40)
    return write_arrow(tmp_path_factory.mktemp("store") / "data", sequences, shard_bytes=4_000)


@pytest.fixture(scope="module", params=["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def pool(request):
    # What is spawned imports torch again; one such process has its own hashes, as two have.
    size = 1 if request.param == "spawn" and CASES <= AT_NIGHT else 2
    with ProcessPoolExecutor(size, multiprocessing.get_context(request.param)) as made:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads, on purpose
            # the children are there before any test
            list(made.map(abs, range(8), timeout=patient()))
        yield made


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@pytest.mark.slow
def test_loaders_of_a_store_on_disk_keep_every_promise(stored, policy):
    make = LoaderFactory(stored, policy, seed=5)
    check_content(make, stored, size=3)
    check_steps(make, (1, 2, 3, 16))
    check_worlds(make, (2, 3, 16), epochs=2)
    check_totals(make, 3)
    check_resumes(make, 2, [0, 1, 2, 4], epoch=1)
    check_changing_worlds(make, [(2, 2), (3, 1), (1, 1), (4, 0)])


@pytest.mark.shows("I3", by="processes")
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@pytest.mark.slow
def test_other_processes_deliver_the_same_rows(pool, stored, policy, record_property):
    for seed in range(10 * CASES // 100):
        make = LoaderFactory(stored, policy, seed=seed)
        rank = World(1, 2)
        told = [pool.submit(play_rank, make, World(0, 2)), pool.submit(play_rank, make, rank)]
        rows = [one.result(timeout=patient()) for one in told]
        assert rows == [play_rank(make, World(0, 2)), play_rank(make, rank)]
        assert rows[0] != rows[1]
    record_property("cases", seed + 1)


def gone_on(pool, stored, policy, *, seed, cut, before, after):
    """Leave an epoch after some steps; assert that other processes play the rest of it."""
    make = LoaderFactory(stored, policy, seed=seed)
    whole = [row for rank in range(before) for row in play_rank(make, World(rank, before))]
    loader = make(World(0, before))
    cut = min(cut, len(loader) - 1)  # at the end of an epoch the next one follows
    list(itertools.islice(loader, cut))
    state = json.loads(json.dumps(loader.state_dict()))
    worlds = [World(rank, after) for rank in range(after)]
    told = [pool.submit(play_rank, make, world, state) for world in worlds]
    rest = [row for one in told for row in one.result(timeout=patient())]
    done = cut if isinstance(policy, FewLanes) else cut * before
    assert sorted(rest) == sorted(row for row in whole if row.number >= done)


@pytest.mark.shows("I4", by="processes")
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_other_processes_go_on_from_a_state(pool, stored, policy, record_property):
    ways = list(itertools.product(range(ROUNDS), range(4), (1, 2)))
    for seed, cut, size in ways:
        gone_on(pool, stored, policy, seed=seed, cut=cut, before=size, after=size)
    record_property("cases", len(ways))


@pytest.mark.shows("I5", by="processes")
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_other_processes_go_on_from_a_state_on_any_world(pool, stored, policy, record_property):
    worlds = [(1, 3), (2, 3), (2, 1), (3, 2)]
    ways = list(itertools.product(range(ROUNDS), range(1, 3), worlds))
    for seed, cut, (before, after) in ways:
        gone_on(pool, stored, policy, seed=seed, cut=cut, before=before, after=after)
    record_property("cases", len(ways))


def test_lanes_say_where_sequences_begin_and_which_are_idle(stored):
    for size in (1, 2, 3, 7):
        check_lane_flags(LoaderFactory(stored, FewLanes(5, 16)), size)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"seed": 6}, "seed"), ({"policy": Bucketed(5)}, "policy"), ({"store": [[1, 2]]}, "data")],
    ids=["seed", "policy", "data"],
)
def test_a_state_of_another_run_is_refused(stored, change, named):
    make = LoaderFactory(stored, Bucketed(4), seed=5)
    loader = make(World(0, 1))
    next(iter(loader))
    with pytest.raises(ResumeError, match=f"`{named}` was .*, but is "):
        replace(make, **change)(World(0, 1)).load_state_dict(loader.state_dict())


def test_uneven_lanes_are_said_once_per_share(stored):
    with pytest.warns(SeqDataWarning, match=r"5 lanes on 2 ranks: the load is uneven"):
        next(iter(LoaderFactory(stored, FewLanes(5, 16))(World(0, 2))))
