"""E1 to E8, E12: chunk by chunk is the same as whole, where models.md section 2 says so."""

import numpy as np
import pytest
import torch

from seqdata.policies.tbptt import TBPTT
from seqdata.recurrent.lane_states import LaneStates
from seqdata.recurrent.trees import iter_leaves
from tests.recurrent.harness import (
    MODULES,
    SIZE,
    alone,
    batches,
    chunked,
    module_of,
    series,
    states_for,
    whole,
)

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")
T = 150
EQUAL = series([T] * 4)
RAGGED = series([40, 7, 23, 16, 5, 31, 1, 12])
DTYPES = {torch.float32: np.float32, torch.float64: np.float64}
CLOSE = {torch.float32: 1e-6, torch.float64: 1e-14}  # kernels sum other numbers of rows otherwise


def gradients(module, loss):
    for one in module.parameters():
        one.grad = None
    loss.backward()
    return torch.cat([one.grad.flatten() for one in module.parameters()])


def as_type(sequences, dtype):
    return [one.astype(DTYPES[dtype]) for one in sequences]


def farthest(one, other):
    return max(float((a - b).detach().abs().max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk", [1, 7, 64, 128, T - 1])
def test_e1_chunks_give_what_the_whole_gives(chunk, dtype):
    module, given = module_of("lstm", dtype), as_type(EQUAL, dtype)
    with torch.no_grad():
        made = chunked(module, given, TBPTT(4, chunk, shuffle=False))
        assert farthest(made, whole(module, given)) <= CLOSE[dtype]


@pytest.mark.parametrize("kind", sorted(MODULES))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunk", [64, T - 1])
def test_e1_holds_for_every_recurrent_module(kind, chunk, dtype):
    module, given = module_of(kind, dtype), as_type(EQUAL, dtype)
    with torch.no_grad():
        made = chunked(module, given, TBPTT(4, chunk, shuffle=False))
        assert farthest(made, whole(module, given)) <= CLOSE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_e2_the_gradient_of_one_chunk_is_that_of_the_whole(dtype):
    module, given = module_of("lstm", dtype), as_type(EQUAL, dtype)
    made = torch.stack(chunked(module, given, TBPTT(4, T + 5, shuffle=False)))
    found = gradients(module, (made**2).sum())
    wanted = gradients(module, (whole(module, given) ** 2).sum())
    assert float((found - wanted).norm() / wanted.norm()) <= CLOSE[dtype]


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_e3_chunks_that_are_not_detached_have_the_whole_gradient(dtype, close):
    module, given = module_of("lstm", dtype), as_type(EQUAL, dtype)
    states, state, made = LaneStates(), None, []
    for batch in batches(given, TBPTT(4, 32, shuffle=False)):
        out, state = states.run(module, batch, "x", state)
        made.append(out)
    found = gradients(module, (torch.cat(made, dim=1) ** 2).mean())
    wanted = gradients(module, (whole(module, given) ** 2).mean())
    assert float((found - wanted).norm() / wanted.norm()) <= close


@pytest.mark.parametrize("chunk", [8, 32])
def test_e4_detached_chunks_have_another_gradient(chunk):
    module = module_of("lstm")
    with torch.no_grad():
        for name, one in module.named_parameters():
            if "weight_hh" in name:
                one.mul_(2.0)  # a memory that reaches over a chunk's edge
    made = torch.stack(chunked(module, EQUAL, TBPTT(4, chunk, shuffle=False)))
    found = gradients(module, (made**2).sum())
    wanted = gradients(module, (whole(module, EQUAL) ** 2).sum())
    assert float((found - wanted).norm() / wanted.norm()) > 0.01


@pytest.mark.parametrize(
    ("chunk", "advance", "dtype"),
    [
        (32, 16, torch.float32),
        (20, 1, torch.float64),
        (50, 49, torch.float32),
        (64, 40, torch.float64),
        pytest.param(32, 16, torch.float64, marks=pytest.mark.nightly),
        pytest.param(20, 1, torch.float32, marks=pytest.mark.nightly),
        pytest.param(50, 49, torch.float64, marks=pytest.mark.nightly),
        pytest.param(64, 40, torch.float32, marks=pytest.mark.nightly),
    ],
)
def test_e5_with_burn_in_new_timesteps_are_those_of_the_whole(chunk, advance, dtype):
    module, given = module_of("lstm", dtype), as_type(EQUAL, dtype)
    with torch.no_grad():
        made = chunked(module, given, TBPTT(4, chunk, advance=advance, shuffle=False))
        assert farthest(made, whole(module, given)) <= CLOSE[dtype]


@pytest.mark.parametrize("kind", ["lstm", "gru", "callable", "time first"])
@pytest.mark.parametrize(("chunk", "advance"), [(8, 5), (6, 1), (40, 3)])
def test_e5_holds_for_rows_that_end_apart(kind, chunk, advance):
    module = module_of(kind)
    made = chunked(module, RAGGED, TBPTT(3, chunk, advance=advance))
    assert farthest(made, alone(module, RAGGED)) <= 1e-14


def test_e5_the_gradient_reaches_over_the_whole_window_and_no_further():
    module, states = module_of("lstm"), LaneStates()
    for batch in batches(EQUAL, TBPTT(4, 20, advance=12, shuffle=False)):
        x = batch["x"].clone().requires_grad_()
        given = states.take(batch)
        out, state = states.run(module, batch, x, given)
        states.put(batch, state)
        if batch.number == 1:
            out[:, -1].sum().backward()
            assert (x.grad.abs().sum(-1) > 0).all()  # from the last timestep to the first
            assert all(not one.requires_grad for one in given)


def test_e5_with_continuous_lanes_context_is_carried_over_the_ends_of_sequences():
    module = module_of("lstm")
    stream = np.concatenate(RAGGED)
    states, made = LaneStates(), []
    policy = TBPTT(1, 16, advance=6, continuous=True, shuffle=False)
    for batch in batches(RAGGED, policy):
        out, state = states.run(module, batch, "x", states.take(batch))
        states.put(batch, state)
        made.append(out[0][batch.score[0]])
    assert farthest([torch.cat(made)], alone(module, [stream])) <= 1e-14


@pytest.mark.parametrize("kind", sorted(MODULES))
@pytest.mark.parametrize("dtype", DTYPES)
def test_e6_a_row_is_what_it_is_alone(kind, dtype):
    module, given = module_of(kind, dtype), as_type(RAGGED, dtype)
    made = chunked(module, given, TBPTT(3, 8))
    assert farthest(made, alone(module, given)) <= CLOSE[dtype]


@pytest.mark.parametrize("kind", ["lstm", "callable"])
def test_e6_the_gradient_is_the_sum_over_rows_alone(kind):
    module = module_of(kind)
    made = chunked(module, RAGGED, TBPTT(3, 40))
    found = gradients(module, sum((one**2).sum() for one in made))
    wanted = gradients(module, sum((one**2).sum() for one in alone(module, RAGGED)))
    assert float((found - wanted).norm() / wanted.norm()) <= 1e-14


@pytest.mark.parametrize("kind", ["lstm", "callable"])
@pytest.mark.parametrize(
    "policy", [TBPTT(3, 8), TBPTT(3, 8, advance=5), TBPTT(9, 8), TBPTT(3, 8, segments=True)]
)
def test_e7_what_stands_in_padding_changes_no_output_and_no_gradient(kind, policy):
    module = module_of(kind)

    def played(padding):
        states, found = states_for(module), []
        for batch in batches(RAGGED, policy):
            x = batch["x"].masked_fill(~batch.mask[..., None], padding)
            out, state = states.run(module, batch, x, states.take(batch))
            states.put(batch, state)
            found.append(out)
        return found, gradients(module, sum((out**2).sum() for out in found))

    outs, gradient = played(float("nan"))
    zeros, wanted = played(0.0)
    assert all(torch.equal(one, other) for one, other in zip(outs, zeros, strict=True))
    assert torch.equal(gradient, wanted)


@pytest.mark.parametrize("kind", ["lstm", "gru", "callable", "projected"])
@pytest.mark.parametrize("chunk", [4, 16, 200])
def test_e8_every_segment_of_a_row_is_its_sequence_alone(kind, chunk):
    module = module_of(kind)
    made = chunked(module, RAGGED, TBPTT(3, chunk, segments=True))
    assert farthest(made, alone(module, RAGGED)) <= 1e-14


@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_e8_lanes_begin_anew_with_each_sequence(lanes):
    module = module_of("lstm")
    for epoch in range(2):
        made = chunked(module, RAGGED, TBPTT(lanes, 6), epoch=epoch)
        assert farthest(made, alone(module, RAGGED)) <= 1e-14


@pytest.mark.parametrize("lanes", [1, 3])
def test_continuous_lanes_carry_their_state_over_the_ends_of_sequences(lanes):
    module, stream = module_of("lstm"), np.concatenate(RAGGED)
    policy = TBPTT(lanes, 16, continuous=True, shuffle=False)
    states, made = LaneStates(), [[] for _ in range(lanes)]
    for batch in batches(RAGGED, policy):
        out, state = states.run(module, batch, "x", states.take(batch))
        states.put(batch, state)
        for lane in range(lanes):
            made[lane].append(out[lane, : int(batch.lengths[lane])])
    edges = [lane * len(stream) // lanes for lane in range(lanes + 1)]
    columns = [stream[edges[lane] : edges[lane + 1]] for lane in range(lanes)]
    assert farthest([torch.cat(one) for one in made], alone(module, columns)) <= 1e-14


@pytest.mark.parametrize(
    "policy",
    [TBPTT(3, 8), TBPTT(3, 8, advance=3), TBPTT(9, 8), TBPTT(3, 8, segments=True)],
)
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.filterwarnings("ignore:.*the load is uneven")
def test_e12_every_timestep_is_scored_once(policy, world):
    from seqdata.sharing import World

    seen = [np.zeros(len(one), dtype=int) for one in RAGGED]
    for rank in range(world):
        for batch in batches(RAGGED, policy, world=World(rank, world)):
            spans = batch.segments
            if spans is None:
                rows = torch.arange(len(batch))
                spans = torch.stack([rows, batch.ids, batch.start, batch.start + batch.lengths], 1)
            at = [0] * len(batch)
            for row, sequence, start, stop in spans.tolist():
                scored = batch.score[row, at[row] : at[row] + stop - start].numpy()
                seen[sequence][start:stop] += scored
                at[row] += stop - start
    assert all((one == 1).all() for one in seen)


@pytest.mark.parametrize("kind", ["lstm", "gru", "callable", "time first"])
def test_e6_the_state_is_that_of_a_row_at_its_own_end(kind):
    module, states = module_of(kind), states_for(module_of(kind))
    for batch in batches(RAGGED, TBPTT(8, 20)):
        out, state = states.run(module, batch, "x", states.take(batch))
        states.put(batch, state)
        if batch.number:
            break
        assert len(set(batch.lengths.tolist())) > 2
        assert not out[~batch.mask].any()
        for row, length in enumerate(batch.lengths.tolist()):
            x = batch["x"][row, :length][None]
            turned = kind == "time first"
            _, wanted = module(x.transpose(0, 1) if turned else x, None)
            for one, other in zip(iter_leaves(state), iter_leaves(wanted), strict=True):
                assert torch.allclose(one.select(states._dim, row), other.select(states._dim, 0))


class Embedding(torch.nn.Module):
    """A callable that takes tokens as they are stored."""

    def __init__(self):
        super().__init__()
        self.cell = module_of("callable")

    def forward(self, x, state):
        return self.cell(x.long()[..., None] / torch.ones(SIZE, dtype=torch.float64), state)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_unsigned_tokens_reach_a_callable_as_they_are_stored(dtype):
    rows = [np.arange(1, length + 1).astype(dtype) for length in (9, 4, 6)]
    module = Embedding()
    for policy in (TBPTT(2, 4), TBPTT(2, 4, segments=True)):
        given, signed = (
            chunked(module, each, policy, LaneStates(dim=0))
            for each in (rows, [row.astype("int64") for row in rows])
        )
        assert all(map(torch.equal, given, signed))
