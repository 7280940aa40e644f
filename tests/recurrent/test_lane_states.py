"""LaneStates: what is taken, run and put back."""

import copy
import pickle

import pytest
import torch
from torch import nn

from seqdata.policies.tbptt import TBPTT
from seqdata.recurrent.lane_states import LaneStates
from seqdata.recurrent.lane_table import NO_BATCH
from seqdata.sharing import World
from tests.recurrent.harness import (
    SIZE,
    Leaky,
    batch_of,
    batches,
    chunked,
    module_of,
    pair,
    series,
    states_for,
)

RAGGED = series([20, 7, 13, 16, 5])


def test_nothing_is_known_at_first():
    assert LaneStates().take(batch_of()) is None


def test_a_state_is_taken_as_it_was_put_and_detached():
    states = LaneStates()
    one, two = (part.requires_grad_() * 2 for part in pair(1.0))
    states.put(batch_of(), (one, two))
    taken = states.take(batch_of(1))
    assert isinstance(taken, tuple)
    assert torch.equal(taken[0], one)
    assert torch.equal(taken[1], two)
    assert all(part.grad_fn is None and not part.requires_grad for part in taken)


def test_a_lane_begins_anew_exactly_where_it_is_reset():
    states = LaneStates()
    states.put(batch_of(), pair(float("nan")))
    states.put(batch_of(), pair(2.0))
    taken, _ = states.take(batch_of(1, start=[4, 0], ids=[0, 7]))
    assert taken[0, :, 0].tolist() == [2.0, 0.0]


def test_nothing_of_a_broken_state_is_left_after_a_reset():
    states = LaneStates()
    states.put(batch_of(), pair(float("nan")))
    taken, _ = states.take(batch_of(1, start=[4, 0], ids=[0, 7]))
    assert torch.isnan(taken[:, 0]).all()
    assert not taken[:, 1].any()


def test_batch_0_begins_anew():
    states = LaneStates()
    states.put(batch_of(), pair(1.0))
    assert states.take(batch_of(0)) is None


@pytest.mark.parametrize(
    "state",
    [
        torch.ones(1, 2, 3),
        [torch.ones(1, 2, 3), torch.ones(1, 2, 4)],
        {"h": torch.ones(1, 2, 3), "deep": ({"c": torch.ones(4, 2)},)},
    ],
)
def test_a_state_may_be_any_tree_of_tensors(state):
    states = LaneStates()
    states.put(batch_of(), state)
    taken = states.take(batch_of(1, start=[4, 0], ids=[0, 7]))
    assert type(taken) is type(state)
    for leaf in torch.utils._pytree.tree_leaves(taken):
        assert leaf[:, 0].all()
        assert not leaf[:, 1].any()


def test_rows_may_lie_in_any_dimension():
    states = LaneStates(dim=0)
    states.put(batch_of(), torch.ones(2, 3))
    assert states.take(batch_of(1, start=[4, 0], ids=[0, 7])).tolist() == [[1, 1, 1], [0, 0, 0]]


def test_idle_and_dummy_rows_keep_what_they_had():
    states = LaneStates()
    states.put(batch_of(), pair(1.0))
    states.put(batch_of(1, lengths=[4, 0]), pair(2.0))
    taken, _ = states.take(batch_of(2, start=[8, 4]))
    assert taken[0, :, 0].tolist() == [2.0, 1.0]
    states.put(batch_of(2, start=[8, 4], weight=[0.0, 1.0]), pair(3.0))
    taken, _ = states.take(batch_of(3, start=[12, 8]))
    assert taken[0, :, 0].tolist() == [2.0, 3.0]


def test_a_masked_row_that_begins_a_sequence_leaves_nothing_of_the_one_before():
    states = LaneStates()
    states.put(batch_of(), pair(1.0))
    states.put(batch_of(1, start=[4, 0], ids=[0, 7], weight=[1.0, 0.0]), pair(2.0))
    taken, _ = states.take(batch_of(2, start=[8, 4], ids=[0, 7]))
    assert taken[0, :, 0].tolist() == [2.0, 0.0]


@pytest.mark.parametrize(("carry", "wanted"), [(False, [2.0, 0.0, 0.0]), (True, [2.0, 1.0, 1.0])])
def test_a_masked_row_of_several_sequences_leaves_nothing_of_the_first(carry, wanted):
    states = LaneStates()
    states.put(batch_of(lengths=[4] * 3, ids=[0, 1, 2]), pair(1.0, 3))
    spans = [[0, 0, 4, 8], [1, 1, 4, 6], [1, 5, 0, 2], [2, 2, 4, 5], [2, 6, 0, 2], [2, 7, 0, 1]]
    given = {"lengths": [4] * 3, "ids": [0, 1, 2], "segments": torch.tensor(spans), "carry": carry}
    states.put(batch_of(1, weight=[1.0, 0.0, 0.0], **given), pair(2.0, 3))
    rest = batch_of(2, lengths=[4] * 3, start=[8, 2, 1], ids=[0, 5, 7], carry=carry)
    assert states.take(rest)[0][0, :, 0].tolist() == wanted


def test_a_lane_that_was_masked_from_the_first_batch_on_begins_late_as_it_would_have():
    states = LaneStates(initial=lambda: (torch.full((1, 3), 9.0), torch.full((1, 5), 9.0)))
    states.put(batch_of(weight=[1.0, 0.0]), pair(1.0))
    taken, _ = states.take(batch_of(1))
    assert taken[0, :, 0].tolist() == [1.0, 9.0]


def test_tables_of_loaders_do_not_touch_each_other():
    states = LaneStates()
    states.put(batch_of(), pair(1.0))
    states.put(batch_of(loader="val"), pair(2.0))
    assert states.take(batch_of(1))[0][0, 0, 0] == 1.0
    assert states.take(batch_of(1, loader="val"))[0][0, 0, 0] == 2.0
    assert states.take(batch_of(1, loader="val"), table="train")[0][0, 0, 0] == 1.0
    states.put(batch_of(loader="val"), pair(3.0), table="mine")
    assert states.take(batch_of(1), table="mine")[0][0, 0, 0] == 3.0


def test_a_view_of_something_large_is_not_kept_alive():
    states = LaneStates()
    large = torch.zeros(1, 2, 1000)
    states.put(batch_of(), large[..., -3:])
    assert states.take(batch_of(1)).untyped_storage().nbytes() == 1 * 2 * 3 * 4


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="PyTorch's LSTM takes no bfloat16 under autocast on this processor",
)
def test_under_autocast_states_are_float32():
    module, states = module_of("lstm", torch.float32), LaneStates()
    for batch in batches(series([12, 12, 12, 12], "float32"), TBPTT(4, 4)):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            given = states.take(batch)
            out, state = states.run(module, batch, "x", given)
            assert given is None or all(one.dtype == torch.float32 for one in given)
            assert out.dtype == state[0].dtype == torch.bfloat16
            states.put(batch, state)
    saved = states.state_dict()["tables"]["train"]["state"]
    assert [one.dtype for one in saved] == [torch.float32] * 2


def test_a_module_of_another_dtype_keeps_its_own():
    for dtype in (torch.bfloat16, torch.float64):
        module, states = module_of("lstm", dtype), LaneStates()
        made = chunked(module, series([12, 7, 9, 12], "float32"), TBPTT(4, 4), states)
        assert made[0].dtype == states.state_dict()["tables"]["train"]["state"][0].dtype == dtype


@pytest.mark.parametrize("policy", [TBPTT(3, 6), TBPTT(3, 6, segments=True), TBPTT(7, 6)])
def test_a_learned_start_is_where_every_sequence_begins_and_gets_its_gradient(policy):
    module = module_of("gru")
    start = nn.Parameter(torch.randn(1, 8, dtype=torch.float64))
    states = LaneStates(initial=lambda: start)
    made = chunked(module, RAGGED, policy, states)
    for one, sequence in zip(made, RAGGED, strict=True):
        x = torch.from_numpy(sequence)[None]
        assert (one - module(x, start[:, None])[0][0]).abs().max() <= 1e-14
    sum((one[:1] ** 2).sum() for one in made).backward()  # within the first chunk, everywhere
    found, start.grad = start.grad, None
    wholes = [module(torch.from_numpy(one)[None], start[:, None])[0][0] for one in RAGGED]
    sum((one[:1] ** 2).sum() for one in wholes).backward()
    assert (found - start.grad).abs().max() <= 1e-13


def test_a_learned_start_may_be_given_as_parameters():
    start = nn.Parameter(torch.ones(1, 3)), nn.Parameter(torch.ones(1, 5))
    taken = LaneStates(initial=start).take(batch_of())
    assert [tuple(one.shape) for one in taken] == [(1, 2, 3), (1, 2, 5)]


def test_a_learned_start_is_in_the_graph_of_every_step():
    start = nn.Parameter(torch.ones(1, 3))
    states = LaneStates(initial=start)
    states.put(batch_of(), torch.ones(1, 2, 3))
    states.take(batch_of(1)).sum().backward()  # else DDP waits for its gradient
    assert start.grad.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("kind", ["lstm", "gru", "callable"])
@pytest.mark.parametrize("learned", [False, True])
def test_where_all_rows_are_idle_the_module_still_has_a_gradient(kind, learned):
    module = module_of(kind)
    start = nn.Parameter(torch.randn(1, 8, dtype=torch.float64))
    states = states_for(module, initial=start if learned and kind == "gru" else None)
    batch = batch_of(lengths=[0, 0])
    batch.data["x"] = torch.full((2, 1, SIZE), float("nan"), dtype=torch.float64)
    out, state = states.run(module, batch, "x", states.take(batch))
    states.put(batch, state)
    out.sum().backward()
    assert out.shape[:2] == (2, 1)
    assert not out.any()
    given = [*module.parameters(), *([start] if states._initial is not None else [])]
    assert all(one.grad is not None and not one.grad.any() for one in given)


def test_dummy_rows_of_a_rank_without_lanes_is_left_out_and_has_no_state():
    module, states = module_of("lstm"), LaneStates()
    with pytest.warns(UserWarning, match="2 lanes on 4 ranks"):
        given = list(batches(RAGGED, TBPTT(2, 6), world=World(0, 4)))  # lanes 0 and 1: of 1, 3
    for batch in given:
        out, state = states.run(module, batch, "x", states.take(batch))
        states.put(batch, state)
        assert not out.any()
    assert states.state_dict()["tables"]["train"]["put"].tolist() == [NO_BATCH]


def test_where_rows_are_full_the_module_is_called_once():
    module = Leaky().double()
    chunked(module, series([12, 12, 12]), TBPTT(3, 4))
    assert module.calls == 3


def test_a_callable_is_called_once_for_each_length():
    module = Leaky().double()
    chunked(module, series([3, 3, 2, 1]), TBPTT(4, 4))
    assert module.calls == 3


def test_a_field_of_one_value_per_timestep_is_taken_by_a_module_of_one_input():
    states, module = LaneStates(), nn.LSTM(1, 2, batch_first=True)
    batch = batch_of()
    batch.data["x"] = torch.arange(8, dtype=torch.int16).view(2, 4)
    out, _ = states.run(module, batch, "x", None)
    assert torch.equal(out, module(batch["x"].float()[..., None])[0])


def test_a_batch_may_lie_otherwise():
    states, module = LaneStates(), module_of("lstm")
    batch = batch_of(lengths=[4, 2])
    wanted, _ = states.run(module, batch, "x", None)
    found, _ = states.run(module, batch.as_layout("varlen"), "x", None)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("lstm", TBPTT(3, 6)),
        ("lstm", TBPTT(3, 6, segments=True)),
        ("lstm", TBPTT(3, 6, advance=4)),
        ("lstm", TBPTT(9, 6)),
        ("gru", TBPTT(3, 6)),
        ("gru", TBPTT(3, 6, segments=True)),
        ("callable", TBPTT(3, 6)),
        ("callable", TBPTT(3, 6, advance=4)),
        pytest.param("gru", TBPTT(3, 6, advance=4), marks=pytest.mark.nightly),
        pytest.param("gru", TBPTT(9, 6), marks=pytest.mark.nightly),
        pytest.param("callable", TBPTT(3, 6, segments=True), marks=pytest.mark.nightly),
        pytest.param("callable", TBPTT(9, 6), marks=pytest.mark.nightly),
    ],
)
@pytest.mark.slow
def test_nothing_is_read_from_the_device(kind, policy):
    """A device without values raises where one is asked for: a GPU would be waited for."""
    module = module_of(kind).to("meta")
    start = nn.Parameter(torch.zeros(1, 8, device="meta")) if kind == "gru" else None
    states = states_for(module, initial=start)
    for host in batches(RAGGED, policy):
        batch = host.to("meta")
        assert batch.reset.device.type == "meta"
        out, state = states.run(module, batch, "x", states.take(batch))
        states.put(batch, state)
        assert out.device.type == "meta"
        with pytest.raises((RuntimeError, NotImplementedError)):
            bool(out.sum() > 0)


def test_what_is_on_the_cpu_goes_along_to_a_device_until_it_is_replaced():
    batch = batch_of().to("meta")
    assert batch.on_cpu("weight").tolist() == [1.0, 1.0]
    assert batch.on_cpu("lanes").tolist() == [0, 1]
    batch.weight = torch.zeros(2)
    assert batch.on_cpu("weight").tolist() == [0.0, 0.0]
    assert batch_of().real().on_cpu("reset").tolist() == [True, True]


@pytest.mark.parametrize("segments", [False, True])
def test_a_chunk_that_cannot_be_read_is_masked_and_its_lane_goes_on(segments):
    broken = []

    def breaking(sequence, rng):
        x = sequence["x"]
        if len(x) and x[0, 0] in broken:
            raise ValueError("told to fail")
        return sequence

    broken.extend([RAGGED[0][6, 0], RAGGED[3][0, 0]])  # a second chunk, and a first one
    module, states = module_of("lstm"), LaneStates()
    policy = TBPTT(2, 6, segments=segments, shuffle=False)
    masked = 0
    for batch in batches(RAGGED, policy, transform=breaking, on_error="mask"):
        given = states.take(batch)
        out, state = states.run(module, batch, "x", given)
        states.put(batch, state)
        for row in (batch.weight == 0).nonzero().flatten().tolist():
            masked += int(batch.lengths[row]) > 0
            assert not out[row].any()
    assert masked == 2


def test_lane_states_may_be_copied_and_pickled():
    states = LaneStates()
    states.put(batch_of(), tuple(part.requires_grad_() * 2 for part in pair(1.0)))
    for other in (copy.deepcopy(states), pickle.loads(pickle.dumps(states))):
        assert other.take(batch_of(1))[0].tolist() == states.take(batch_of(1))[0].tolist()


def test_lane_states_are_found_by_paths_that_stay():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.lanes = LaneStates()

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.all = []  # what is an attribute, too, has the path of that
            self.inner = Inner()
            self.mine = self.also = LaneStates()
            self.all += [self.mine, LaneStates(), self.inner.lanes, {"a": (0, LaneStates())}]
            self.all.append(self.all)

    outer = Outer()
    assert LaneStates.find_in(outer) == {
        "mine": outer.mine, "inner.lanes": outer.inner.lanes, "all[1]": outer.all[1],
        "all[3]['a'][1]": outer.all[3]["a"][1],
    }  # fmt: skip
    outer._hparams_initial = {"lanes": LaneStates()}  # as Lightning copies hyperparameters
    assert "_hparams_initial['lanes']" not in LaneStates.find_in(outer)
    assert not list(outer.buffers())
    assert not any("lanes" in name for name in outer.state_dict())
