"""The checks of loaders find loaders that break a promise, and say which."""

import copy
import functools
import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from seqdata.policies.fixed import Bucketed
from seqdata.sharing import World
from seqdata.storage.memory import MemoryStore
from seqdata_testing import ConformanceError
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
from seqdata_testing.recorder import LoaderFactory, play_rank, record_rows

STORE = MemoryStore.from_sequences(
    [{"x": np.arange(1, 2 + k), "y": k, "name": f"n{k}"} for k in range(7)]
)
GOOD = LoaderFactory(STORE, Bucketed(2), prefetch=0)
LANES = LoaderFactory(STORE, FewLanes(5, 2), prefetch=0)
ALONE = World(0, 1)


@dataclass
class Wrong:
    """A loader that is wrong on one rank, in one place."""

    loader: Any
    told: dict[str, Any] = field(default_factory=dict)

    def __len__(self):
        return self.told.get("len", len(self.loader))

    def __iter__(self):
        for number, batch in enumerate(itertools.islice(self.loader, self.told.get("stop"))):
            if number == self.told.get("at", 0):
                batch = copy.copy(batch)
                for name, change in self.told.get("change", {}).items():
                    setattr(batch, name, change(getattr(batch, name)))
            yield batch

    def state_dict(self):
        return self.told.get("state", self.loader.state_dict())

    def load_state_dict(self, state):
        self.loader.load_state_dict({**state, **self.told.get("load", {})})

    def shutdown(self):
        self.loader.shutdown()


def bent(make, world=ALONE, **told):
    """Make one rank of one world wrong."""
    return lambda asked: Wrong(make(asked), told) if asked == world else make(asked)


def test_good_loaders_pass():
    check_content(GOOD, STORE, size=2)
    check_steps(GOOD, (1, 3))
    check_worlds(GOOD, (2, 3), epochs=2)
    check_totals(GOOD, 3)
    check_resumes(GOOD, 3, [1, 1, 9])
    check_changing_worlds(GOOD, [(2, 1), (3, 1), (1, 0)])
    check_no_short_epoch(GOOD)
    check_lane_flags(LANES, 1)


def test_rows_are_recorded_with_their_content():
    batches = list(GOOD(World(0, 1)))
    rows = [row for batch in batches for row in record_rows(batch)]
    assert rows == play_rank(GOOD, World(0, 1))
    assert sorted((row.id, row.start, row.length) for row in rows) == [
        (k, 0, k + 1) for k in range(7)
    ]
    assert len({row.digest for row in rows}) == 7
    assert all(not record_rows(batch) for batch in list(GOOD(World(2, 3)))[1:])  # a padding row


def data_with(**values):
    return lambda data: {**data, **{name: change(data[name]) for name, change in values.items()}}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("x", lambda x: x.index_fill(1, x.new_tensor([0]), 9)),
        ("y", lambda y: y + 1),
        ("name", lambda names: ["?"] * len(names)),
    ],
)
def test_content_that_differs_from_the_store_is_found(name, change):
    make = bent(GOOD, change={"data": data_with(**{name: change})})
    message = f"loader: batch .*: row 0 of field '{name}' differs from sequence .* of the store"
    with pytest.raises(ConformanceError, match=message):
        check_content(make, STORE)


def test_padding_that_is_not_zero_is_found():
    first = next(iter(GOOD(World(0, 1))))
    at = next(k for k, b in enumerate(GOOD(World(0, 1))) if len(set(b.lengths.tolist())) > 1)
    assert len(first)
    make = bent(GOOD, at=at, change={"data": data_with(x=lambda x: x.masked_fill(x == 0, 5))})
    with pytest.raises(ConformanceError, match=r"of field 'x' differs .*, or its padding is not 0"):
        check_content(make, STORE)


def test_uneven_ranks_are_found():
    with pytest.raises(ConformanceError, match=r"on 2 ranks `len` is \[2, 9\] and \[2, 2\]"):
        check_steps(bent(GOOD, World(1, 2), len=9), (2,))
    with pytest.raises(
        ConformanceError, match=r"ranks \[1\] of 2 end before step 1, but must have as"
    ):
        check_worlds(bent(GOOD, World(1, 2), stop=1), (2,))


def test_other_rows_are_found():
    make = bent(GOOD, World(1, 2), change={"ids": lambda ids: ids + 1})
    with pytest.raises(ConformanceError, match=r"epoch 0 on 2 ranks: 7 rows come, row . is .*must"):
        check_worlds(make, (2,))
    with pytest.raises(ConformanceError, match=r"worlds of \[2, 1\] ranks: 7 rows come, row . is"):
        check_changing_worlds(make, [(2, 1), (1, 0)])


def test_wrong_totals_are_found():
    make = bent(GOOD, World(1, 2), change={"num_tokens": lambda count: count + 1})
    with pytest.raises(
        ConformanceError, match=r"step 0 on 2 ranks has num_tokens .*, but must have"
    ):
        check_totals(make, 2)
    make = bent(GOOD, World(1, 2), change={"global_num_tokens": lambda count: count + 1})
    with pytest.raises(ConformanceError, match=r"and global_num_tokens .*, but must have"):
        check_totals(make, 2)


def test_lanes_that_do_not_say_where_sequences_begin_are_found():
    with pytest.raises(ConformanceError, match="rank 0 of 1, step 0 has no lanes, but must have"):
        check_lane_flags(GOOD, 1)
    make = bent(LANES, change={"reset": lambda reset: ~reset})
    with pytest.raises(
        ConformanceError, match=r"step 0 has `reset` .*, but must be .*: at timestep 0"
    ):
        check_lane_flags(make, 1)
    last = len(LANES(World(0, 1))) - 1
    make = bent(LANES, at=last, change={"weight": lambda weight: weight + 1})
    with pytest.raises(
        ConformanceError, match=r"has weights .*, but must be 0 where a lane is idle"
    ):
        check_lane_flags(make, 1)


def test_a_resume_with_other_rows_is_found():
    make = bent(GOOD, World(1, 2), load={"position": 0})
    with pytest.raises(ConformanceError, match=r"rank 1 of 2, step 1, resumed at step 1: . rows"):
        check_resumes(make, 2, [1])


def test_a_state_that_plays_an_epoch_again_is_found():
    state = GOOD(World(0, 1)).state_dict()
    make = bent(GOOD, state=state)
    with pytest.raises(ConformanceError, match=r"of the end of epoch 0 continues with .* next"):
        check_resumes(make, 1, [])


def test_ranks_that_save_different_states_are_found():
    make = bent(GOOD, World(1, 2), state={"epoch": 4})
    with pytest.raises(ConformanceError, match=r"ranks must save the same state, but save"):
        check_resumes(make, 2, [1])


class Quiet(Wrong):
    """Ends as if all were delivered when it is shut down."""

    def __iter__(self):
        self.told["open"] = True
        for batch in list(self.loader):
            if not self.told["open"]:
                return
            yield batch

    def shutdown(self):
        self.told["open"] = False


def test_an_epoch_that_ends_early_in_silence_is_found():
    make = functools.partial(lambda world: Quiet(GOOD(world), {}))
    with pytest.raises(
        ConformanceError, match="ends after 1 of 4 batches, but must raise Incomplete"
    ):
        check_no_short_epoch(make)
