"""States that are saved go on, in the same world and in another."""

import re

import pytest
import torch

from seqdata.errors import ResumeError
from seqdata.loading.loader import Loader
from seqdata.policies.tbptt import TBPTT
from seqdata.recurrent.lane_states import STATE_VERSION, LaneStates
from seqdata.sharing import World
from tests.damage import damaged
from tests.recurrent.harness import module_of, series, states_for

SEQUENCES = series([30, 26, 9, 17, 12, 3, 21])
POLICIES = {
    "rows": TBPTT(3, 6),
    "overlapping": TBPTT(3, 6, advance=4),
    "segments": TBPTT(3, 6, segments=True),
    "stream": TBPTT(3, 6, continuous=True),
}


class Run:
    """A plain loop: what comes out of each step's rows, by lane."""

    def __init__(self, policy, kind="lstm", world=None, **options):
        self.module = module_of(kind)
        self.states = states_for(self.module)
        self.loader = Loader(SEQUENCES, policy, world=world, seed=4, prefetch=0, **options)
        self.outs = {}

    def play(self, stop=None):
        for batch in self.loader:
            out, state = self.states.run(self.module, batch, "x", self.states.take(batch))
            self.states.put(batch, state)
            for row, lane in enumerate(batch.lanes.tolist()):
                if batch.weight[row]:
                    key = batch.epoch, batch.number, lane
                    self.outs[key] = out[row, : int(batch.lengths[row])].detach()
            if batch.number + 1 == stop:
                return self
        return self

    def save(self):
        return {"loader": self.loader.state_dict(), "lanes": self.states.state_dict()}

    def load(self, state):
        self.loader.load_state_dict(state["loader"])
        self.states.load_state_dict(state["lanes"])
        return self


def equal(found, wanted):
    return found.keys() <= wanted.keys() and all(
        torch.equal(one, wanted[key]) for key, one in found.items()
    )


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        ("lstm", 0),
        ("callable", 1),
        *(pytest.param(*one, marks=pytest.mark.nightly) for one in (("lstm", 1), ("callable", 0))),
    ],
)
def test_e9_a_loop_goes_on_bitwise_from_every_step(policy, kind, workers, tmp_path):
    wanted = Run(policy, kind).play().outs
    steps = max(number for _, number, _ in wanted)
    for stop in range(1, steps, 3 if workers else 1):
        options = {"num_workers": workers, "start_method": "fork"} if workers else {}
        begun = Run(policy, kind, **options).play(stop)
        torch.save(begun.save(), tmp_path / "state.pt")
        saved = torch.load(tmp_path / "state.pt", weights_only=True)
        gone_on = Run(policy, kind).load(saved).play()
        begun.loader.shutdown()
        assert len(gone_on.outs) + len(begun.outs) == len(wanted)
        assert equal(gone_on.outs, wanted)


@pytest.mark.parametrize(
    ("policy", "before", "after"),
    [
        pytest.param(
            policy, *worlds, id=f"{name}-{worlds[0]}-{worlds[1]}",
            marks=pytest.mark.nightly if name != "rows" and 1 in worlds else [],
        )
        for name, policy in POLICIES.items()
        for worlds in [(2, 1), (1, 2), (3, 2), (2, 4)]
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*the load is uneven")
def test_e10_states_of_one_world_go_on_in_another(policy, before, after):
    wanted = Run(policy).play().outs
    begun = [Run(policy, world=World(rank, before)).play(3) for rank in range(before)]
    tables = [one.states.state_dict()["tables"][""] for one in begun]
    joined = begun[0].states.joined(tables)
    saved = {
        "loader": begun[0].loader.state_dict(),
        "lanes": {"version": STATE_VERSION, "tables": {"": joined}},
    }
    gone_on = [Run(policy, world=World(rank, after)).load(saved).play() for rank in range(after)]
    outs = {key: one for run in gone_on for key, one in run.outs.items()}
    assert len(outs) + sum(len(one.outs) for one in begun) == len(wanted)
    assert all((one - wanted[key]).abs().max() <= 1e-14 for key, one in outs.items())


def test_without_ranks_gathered_states_are_those_of_this_process():
    run = Run(POLICIES["rows"]).play(3)
    found, wanted = run.states.gathered(), run.states.state_dict()
    assert found["tables"][""]["lanes"].tolist() == wanted["tables"][""]["lanes"].tolist()


def test_what_is_saved_is_of_the_batch_before_the_one_that_failed():
    run = Run(POLICIES["rows"]).play(3)
    before = run.states.saved("", 0, 2)
    assert before["number"] == 1
    assert run.states.saved("", 0, 3)["number"] == 2
    assert run.states.saved("", 0, 4) is None
    assert run.states.saved("", 1, 3) is None
    assert run.states.saved("other", 0, 3) == {}


def test_states_that_are_lost_are_forgiven_once_said():
    run = Run(POLICIES["rows"]).play(3)
    lost = Run(POLICIES["rows"])
    lost.loader.load_state_dict(run.loader.state_dict())
    with pytest.raises(ResumeError, match="has no state"):
        lost.play()
    lost.loader.load_state_dict(run.loader.state_dict())
    lost.states.forgive("", 0, 3)
    wanted = Run(POLICIES["rows"]).play().outs
    found = lost.play().outs
    assert found.keys() == {key for key in wanted if key[1] >= 3}
    assert not equal(found, wanted)


def test_states_of_ranks_at_different_batches_are_refused():
    one, two = (Run(POLICIES["rows"]).play(stop).states for stop in (2, 3))
    with pytest.raises(ResumeError, match=re.escape("but is [(0, 1), (0, 2)] (epoch")):
        one.joined([each.state_dict()["tables"][""] for each in (one, two)])


@pytest.mark.parametrize("version", [1, None])
def test_states_of_another_version_are_refused(version):
    with pytest.raises(ResumeError, match=r"lanes: the version of the saved states must be 2"):
        LaneStates().load_state_dict({"version": version, "tables": {}})


@pytest.mark.parametrize("state", [None, {}, [1]])
def test_what_is_no_saved_states_is_refused(state):
    with pytest.raises(ResumeError, match="must be the result of `state_dict` or `gathered`, but"):
        LaneStates().load_state_dict(state)


@pytest.mark.parametrize("table", [None, {}, {"epoch": 1}])
def test_a_damaged_table_is_refused(table):
    with pytest.raises(ResumeError, match=r"lanes: the saved table 'train' must have epoch"):
        LaneStates().load_state_dict({"version": STATE_VERSION, "tables": {"train": table}})


def test_every_damage_of_saved_states_is_refused():
    state = Run(POLICIES["rows"]).play(3).states.state_dict()
    tried = 0
    for _, broken in damaged(state):
        if broken.get("tables") == {}:  # a state of nothing
            continue
        with pytest.raises(ResumeError, match="lanes: "):
            LaneStates().load_state_dict(broken)
        tried += 1
    assert tried > 200


def test_states_with_rows_in_another_dimension_are_refused():
    state = Run(POLICIES["rows"]).play(3).states.state_dict()
    with pytest.raises(
        ResumeError, match=r"must have its 3 lanes in dimension 0, but has states of shape"
    ):
        LaneStates(dim=0).load_state_dict(state)
