"""Layers over processes, time over processes, and both with data: as one process trains."""

from __future__ import annotations

import functools
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from seqdata import (
    ConfigError,
    Fixed,
    LaneStates,
    Loader,
    Packed,
    ResumeError,
    Windows,
    World,
)
from seqdata_testing.waiting import patient

sys.path.insert(0, str(Path(__file__).parent))
from mesh_processes import start
from parallel_cases import CASES, difference, make_model, make_updates, train, train_by_hand
from seqdata_models.parallel import Mesh, Ring, TorchWavefront, Wavefront
from seqdata_models.parallel.deferred import DeferredLayer, DeferredLinear, WeightGradients
from seqdata_models.parallel.engine import run_pipeline
from seqdata_models.parallel.slices import split_rows, split_time
from seqdata_models.parallel.stack import dropout_mask

KINDS = ["wave", "ring", "fed"]
KEYS = 20  # two of each barrier, for there are seven, and signs of life
BOUNDS = {"float64": 1e-14, "float32": 1e-6, "autocast": torch.finfo(torch.bfloat16).eps}
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")


def play(world: int, folder: Path, spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Run processes to their end; return what each has saved."""
    processes = start(world, folder, spec)
    errors = [process.communicate(timeout=patient(120))[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * world, "\n".join(errors)[-5000:]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]


@functools.cache
def train_alone(kind: str, case: str, dtype: str) -> dict[str, Any]:
    """Train by an engine of one process."""
    return train(kind, case, getattr(torch, dtype), Mesh(1))


@functools.cache
def train_as_module(case: str, dtype: str) -> dict[str, Any]:
    """Train the module itself."""
    return train_by_hand(case, getattr(torch, dtype))


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(kind, case, marks=[pytest.mark.nightly] * is_long)
        for kind in ("wave", "ring", "wave+split")
        for case in CASES
        if case != "dropout"
        for is_long in [kind == "wave+split" and case not in ("segments", "frozen", "initial")]
    ],
)
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.nightly)])
def test_an_engine_of_one_process_trains_as_the_module_does(kind, case, dtype):
    whole = train_alone(kind, case, dtype)
    assert len(whole["losses"]) > 1
    assert difference(whole, train_as_module(case, dtype)) <= BOUNDS[dtype]


def grid(world: int, size: int, kinds: list[str], **spec: Any) -> Any:
    """Return what runs at night: each kind with each case."""
    name = f"{world // size}x{size} {' '.join(kinds)}"
    spec = {"size": size, "kinds": kinds, **spec}
    return pytest.param(world, spec, marks=pytest.mark.nightly, id=name)


SPLIT = ["wave+split", "ring+split", "torch+GPipe", "torch+1F1B"]
TWO = [  # kind, case, type, groups of lanes: each of them once at least
    ("wave", "lanes"), ("wave", "dropout"), ("wave", "frozen"), ("ring", "gru"),
    ("ring", "whole rows"), ("ring", "autocast", "float32"), ("fed", "projection"), ("fed", "tied"),
    ("fed", "lstm", "float32"), ("wave+split", "deep", "float64", 1),
    ("ring+split", "dropout", "float64", 5), ("torch+GPipe", "tied", "float64", 5),
    ("torch+1F1B", "frozen", "float64", 1), ("torch+ZBV", "deep", "float32", 1),
    ("wave", "initial"), ("ring", "initial"),
]  # fmt: skip
MORE = [
    ("wave", "lstm"), ("ring", "segments"), ("fed", "whole rows"),
    ("wave", "whole rows", "float32"), ("ring", "lstm", "float32"),
    ("wave+split", "gru", "float64", 5), ("ring+split", "tied", "float64", 5),
    ("torch+1F1B", "dropout", "float64", 5), ("torch+ZBV", "deep", "float64", 1),
    ("ring", "frozen"), ("wave", "autocast", "float32"),
    ("torch+1F1B", "autocast", "float32", 1), ("wave+split", "autocast", "float32"),
    ("torch+GPipe", "initial", "float64", 5), ("ring+split", "initial", "float64", 5),
]  # fmt: skip
THREE = [
    ("wave+split", "segments", "float64", 1), ("ring+split", "segments", "float64", 1),
    ("fed", "segments"), ("torch+1F1B", "segments", "float64", 1),
]  # fmt: skip
if not torch.ops.mkldnn._is_mkldnn_bf16_supported():  # torch's LSTM takes none on such a processor
    TWO, MORE = ([run for run in runs if run[1] != "autocast"] for runs in (TWO, MORE))
FOUR = [
    ("fed", "segments"), ("wave", "empty", "float64", 1), ("ring", "empty", "float64", 1),
    ("wave", "segments"), ("torch+1F1B", "lstm", "float64", 1), ("wave", "frozen"),
]  # fmt: skip


@pytest.mark.distributed
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("world", "spec"),
    [
        pytest.param(2, {"size": 2, "runs": TWO}, id="2, split, torch, float32, deep"),
        pytest.param(2, {"size": 2, "runs": MORE}, id="2, more", marks=pytest.mark.nightly),
        pytest.param(
            3, {"size": 3, "runs": THREE}, id="3, split, torch", marks=pytest.mark.nightly
        ),
        pytest.param(4, {"size": 2, "runs": FOUR}, id="2x2, empty, torch"),
        grid(2, 2, KINDS),
        grid(2, 2, KINDS, cases=["lstm", "whole rows"], dtypes=["float32"]),
        grid(2, 2, SPLIT, cases=["gru", "dropout", "tied"], lane_groups=5),
        grid(2, 2, ["wave+split", "torch+ZBV"], cases=["deep"], lane_groups=1,
             dtypes=["float64", "float32"]),
        grid(3, 3, KINDS, cases=["gru", "segments", "dropout"]),
        grid(3, 3, ["wave+split", "ring+split", "fed+split", "torch+1F1B"], cases=["segments"],
             lane_groups=1),
        grid(4, 2, KINDS, cases=["lstm", "segments", "whole rows"]),
        grid(4, 2, ["wave", "ring", "torch+1F1B"], cases=["empty", "lstm"], lane_groups=1),
    ],
)  # fmt: skip
def test_several_processes_train_as_one_does(world, spec, tmp_path):
    found = play(world, tmp_path, spec)
    keys = [int((tmp_path / f"{rank}.keys").read_text()) for rank in range(world)]
    assert max(keys) <= KEYS * world  # of the store on rank 0, however many values have travelled
    for name in found[0]:
        kind, case, dtype, _ = name.split("/")
        engine = "wave" if kind.startswith("torch") else kind.replace("fed", "ring")
        alone = train_alone(engine, case, dtype)
        bound = BOUNDS[dtype] if kind == "wave" else BOUNDS.get(case, BOUNDS[dtype])
        for rank, results in enumerate(found):
            saved = results[name]
            for part in ("model", "optimizer"):
                assert difference(saved[part], alone[part]) <= bound, (name, part, rank)
            assert difference(saved["losses"], alone["losses"]) <= bound, (name, rank)
            if world == spec["size"]:  # else each replica has its own lanes
                assert difference(saved["lanes"], alone["lanes"]) <= bound, (name, rank)


@pytest.mark.parametrize(
    ("schedule", "lane_groups", "chunks", "message"),
    [
        ("1F1B", 2, 4, r"must have the 2 rows of the first with engine='torch', but chunk 0, rows "
         r"2 to 4, has 3\. Use engine='seqdata', which takes ragged shapes"),
        ("1F1B", 1, 0, r"at least 1 micro-batches .* with schedule='1F1B', but has 0\. Use"),
        ("ZBV", 1, 2, r"at least 3 micro-batches .* with schedule='ZBV', but has 2\. Use engine="),
    ],
)  # fmt: skip
def test_torchs_engine_refuses_shapes_that_are_not_static(schedule, lane_groups, chunks, message):
    mesh = Mesh(1)
    mesh.size = 2  # as if there were another process
    wave = TorchWavefront(make_model("deep", torch.float32), mesh, lane_groups, schedule=schedule)
    with pytest.raises(ConfigError, match=message):
        wave.update(make_updates("deep")[0][:chunks])


def simulate(items: int, stages: int, *, split: bool) -> float:
    """Return the speedup of an update by the slots that its stages take; a forward has one."""
    orders: list[list[tuple[str, int]]] = []
    for position in range(stages):
        counts = {"F": 0, "B": 0, "W": 0}
        orders.append([])

        def do(kind: str, counts: dict[str, int] = counts, order: Any = orders[-1]) -> None:
            order.append((kind, counts[kind]))
            counts[kind] += 1

        later = partial(do, "W") if split else None
        run_pipeline(range(items), position, stages, lambda _: do("F"), partial(do, "B"), later)
        assert counts == {"F": items, "B": items, "W": items if split else 0}
    ends: dict[tuple[str, int, int], int] = {}
    clocks, places = [0] * stages, [0] * stages
    while any(place < len(order) for place, order in zip(places, orders, strict=True)):
        for stage, order in enumerate(orders):
            if places[stage] == len(order):
                continue
            kind, item = order[places[stage]]
            awaited = {"F": stage - 1, "B": stage + 1}.get(kind, -1)
            if awaited in range(stages):
                if (kind, item, awaited) not in ends:
                    continue
                clocks[stage] = max(clocks[stage], ends[kind, item, awaited])
            clocks[stage] += 2 if kind == "B" and not split else 1
            ends[kind, item, stage] = clocks[stage]
            places[stage] += 1
    return 3 * items * stages / max(clocks)


@pytest.mark.parametrize(("stages", "items"), [(2, 8), (4, 16), (2, 1), (3, 7)])
def test_the_order_of_work_reaches_the_speedup_of_the_formula(stages, items):
    whole = simulate(items, stages, split=False)
    assert whole == pytest.approx(items * stages / (items + stages - 1))
    split = simulate(items, stages, split=True)
    if items >= stages:
        assert split == pytest.approx(3 * items * stages / (3 * items + stages - 1))
    else:
        assert split >= whole


def test_split_backward_gives_upstream_no_weight_gradient_and_adds_it_later():
    torch.manual_seed(0)
    layer, weights = nn.LSTM(3, 4, batch_first=True), WeightGradients()
    x = torch.randn(2, 5, 3, requires_grad=True)
    out, _ = DeferredLayer(layer, weights)(x, None)
    out.sum().backward()
    assert x.grad is not None
    assert layer.weight_ih_l0.grad is layer.weight_hh_l0.grad is None
    layer.bias_hh_l0.requires_grad_(False)
    add = weights.take()
    add()
    found = {name: weight.grad for name, weight in layer.named_parameters()}
    layer.zero_grad()
    layer(x)[0].sum().backward()
    assert found.pop("bias_hh_l0") is None
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, getattr(layer, name).grad)


def test_dropout_is_the_same_however_rows_are_grouped_and_is_not_none():
    found = [
        train("wave", "dropout", torch.float64, Mesh(1), lane_groups=groups) for groups in (1, 3)
    ]
    assert difference(*found) <= BOUNDS["float64"]
    plain = train("wave", "segments", torch.float64, Mesh(1))
    assert difference(plain["model"], found[0]["model"]) > 0.01


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_parts_of_rows_are_together_the_whole_batch(groups, parts):
    """Values, weights, what is scored, places in the sequence and new beginnings, each once."""
    rows = [{"x": np.arange(n) + 100.0 * n, "mass": float(n)} for n in (7, 1, 4, 9)]
    (batch,) = Loader(rows, Fixed(4, shuffle=False), fields=("x", "mass"))
    batch.burn_in = torch.tensor([3, 0, 4, 1])
    batch.reset = torch.tensor([True, False, True, False])
    batch.weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    batch.start = torch.tensor([0, 5, 0, 2])
    mask = batch.score
    found: dict[str, list[list[float]]] = {"x": [], "scored": [], "weight": [], "mass": []}
    for group in split_rows(batch, groups):
        first, stop = group.rows
        for row in range(first, stop):
            own = [split_time(group, number, parts).batch for number in range(parts)]
            at = row - first
            lengths = [int(part.lengths[at]) for part in own]
            cut = list(zip(own, lengths, strict=True))
            found["x"].append([v for part, n in cut for v in part["x"][at, :n].tolist()])
            scored = [v for part, n in cut for v in part.score[at, :n].tolist()]
            found["scored"].append(scored)
            starts = [int(part.start[at]) - int(batch.start[row]) for part in own]
            assert starts == [sum(lengths[:number]) for number in range(parts)]
            assert [bool(part.reset[at]) for part in own][1:] == [False] * (parts - 1)
            assert bool(own[0].reset[at]) == bool(batch.reset[row])
            assert all(int(part.burn_in[at]) >= 0 for part in own)
            assert {float(part.weight[at]) for part in own} == {float(batch.weight[row])}
            assert {float(part["mass"][at]) for part in own} == {float(batch["mass"][row])}
    whole = list(enumerate(batch.lengths.tolist()))
    assert found["x"] == [batch["x"][row, :n].tolist() for row, n in whole]
    assert found["scored"] == [mask[row, :n].tolist() for row, n in whole]


@pytest.mark.parametrize(("first", "restarts"), [(7, False), (6, False), (5, True)])
def test_a_slice_restarts_only_where_a_sequence_begins_with_it(first, restarts):
    """Otherwise the state before it is that of the sequence that it cuts."""
    rows = [np.arange(float(first)), np.arange(10.0 - first)]
    batch = next(iter(Loader(rows, Packed(1, 10, shuffle=False))))
    (group,) = split_rows(batch, 1)
    found = [split_time(group, number, 2).restarts.tolist() for number in range(2)]
    assert found == [[False], [restarts]]


def test_without_lanes_rows_of_one_sequence_have_masks_of_their_own_however_they_are_split():
    batch = next(iter(Loader([np.arange(49)], Windows(12, 12, batch_size=4), shift=1)))
    assert batch.ids.tolist() == [0] * 4
    assert batch.lanes is None

    def draw(groups: int, parts: int) -> torch.Tensor:
        """Return the masks of the whole batch, (r, T, 8), as processes draw them by parts."""
        rows = [
            [split_time(part, number, parts) for number in range(parts)]
            for part in split_rows(batch, groups)
        ]
        return torch.cat([
            torch.cat([
                dropout_mask(p, (len(p.batch), int(p.batch.lengths[0]), 8), 0.5, (0, 1)) for p in ps
            ], dim=1)
            for ps in rows
        ])  # fmt: skip

    whole = draw(1, 1)
    assert len({row.numpy().tobytes() for row in whole}) == 4
    for groups, parts in [(1, 3), (3, 1), (4, 2)]:
        assert torch.equal(draw(groups, parts), whole)


def test_a_ring_refuses_another_part_than_its_own():
    ring = Ring(make_model("whole rows", torch.float32), Mesh(1))
    for world in (World(0, 1, 0, 2), World(0, 1, 1, 2)):
        with pytest.raises(ConfigError, match="must hold part 0 of 1 of its rows' timesteps"):
            ring.update(make_updates("whole rows", world)[0])


def test_what_cannot_be_split_is_refused():
    model = make_model("lstm", torch.float32)
    with pytest.raises(ConfigError, match="`stages` must be at most 3, the number"):
        Wavefront(model, Mesh(1)).stack.cut(4)
    with pytest.raises(
        ConfigError, match="`lane_groups` must be an integer of at least 1, but is 0"
    ):
        Ring(model, Mesh(1), 0)
    model.rnn = nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True)
    for engine in (Wavefront, Ring):
        with pytest.raises(ConfigError, match="must read forward only, but is bidirectional"):
            engine(model, Mesh(1))
    with pytest.raises(ConfigError, match="`schedule` must be one of 'GPipe', '1F1B', 'ZBV', but"):
        TorchWavefront(model, Mesh(1), schedule="zero")
    with pytest.raises(ConfigError, match="`stages` must be at least 2 with engine='torch', but"):
        TorchWavefront(model, Mesh(1))
    with pytest.raises(ConfigError, match="Linear must have `parallel_stages`"):
        Wavefront(nn.Linear(2, 2), Mesh(1))
    with pytest.raises(ConfigError, match="number of processes must be a multiple of 2"):
        Mesh(2)
    with pytest.raises(ConfigError, match=r"must be 2 x 2 \(data x stages or parts\), but is 1"):
        Mesh(2, 2)
    with pytest.raises(
        ConfigError, match="`stages or parts` must be an integer of at least 1, but is 0"
    ):
        Mesh(0)


def test_a_checkpoint_that_would_lack_a_stage_is_refused():
    model = make_model("lstm", torch.float32)
    wave = Wavefront(model, Mesh(1))
    wave.update(make_updates("lstm")[0])
    wave.mesh.size = 2  # as if there were another process
    wave.update([])
    with pytest.raises(ResumeError, match="must hold all stages, but this process has updated"):
        model.state_dict()
    with pytest.raises(ResumeError, match="must have the weights of all stages, but this process"):
        model(make_updates("lstm")[0][0])
    wave.close()
    model.state_dict()
    model(make_updates("lstm")[0][0])


def test_gradients_are_clipped_by_the_norm_of_those_that_are_named():
    norms = []
    for named in (False, True):
        model = make_model("lstm", torch.float64)
        wave = Wavefront(model, Mesh(1))
        wave.update(make_updates("lstm")[0])
        head = list(model.head.parameters())
        if named:
            norms.append(wave.clip_gradients(0.01, head))
        else:
            norms.append(torch.nn.utils.clip_grad_norm_(head, 0.01))
        norms.append(torch.stack([p.grad.norm() for p in model.parameters()]))
    torch.testing.assert_close(norms[2:], norms[:2])


def test_gradients_below_the_norm_stay_as_they_are():
    model = make_model("lstm", torch.float64)
    wave = Wavefront(model, Mesh(1))
    wave.update(make_updates("lstm")[0])
    before = [parameter.grad.clone() for parameter in model.parameters()]
    norm = wave.clip_gradients(1e6)
    assert 0 < norm < 1e6
    for gradient, parameter in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=0)


class Outer(nn.Module):
    """A model that has another one, whose lane states are not its own attributes."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        for name in ("parallel_stages", "parallel_inputs", "parallel_nll"):
            setattr(self, name, getattr(inner, name))


def test_lane_states_are_found_in_submodules():
    inner = make_model("lstm", torch.float32)
    assert Wavefront(Outer(inner), Mesh(1)).stack.lanes is inner.lanes
    lanes, inner.lanes = inner.lanes, None
    inner.held = {"recurrent": [lanes]}
    assert Wavefront(Outer(inner), Mesh(1)).stack.lanes is lanes
    inner.more = LaneStates()
    with pytest.raises(ConfigError, match=r"Outer must have one LaneStates, .* but has 2"):
        Wavefront(Outer(inner), Mesh(1))
    outer = Outer(inner)
    del outer.parallel_nll
    with pytest.raises(ConfigError, match=r"but lacks `parallel_nll`. Name its parts"):
        Wavefront(outer, Mesh(1))


def test_a_sequential_is_its_parts_and_parts_that_differ_by_split_are_refused():
    model = make_model("dropout", torch.float32)
    plain = model.parallel_stages()
    model.parallel_stages = lambda: [nn.Sequential(*plain[:2]), plain[2], nn.Sequential(*plain[3:])]
    steps = Wavefront(model, Mesh(1)).stack.steps
    assert [step.drop for step in steps] == [0, 0.3, 0, 0.3, 0, 0.3, 0, 0.3, 0]
    hidden = nn.Module()
    hidden.drop = nn.Dropout(0.1)
    for part, message in [
        (nn.BatchNorm1d(4), "itself, but there is a BatchNorm1d. Use nn.LayerNorm"),
        (hidden, "so that its masks can be seeded, but one is inside a Module. Split that part"),
    ]:
        model.parallel_stages = lambda part=part: [*plain, part]
        with pytest.raises(ConfigError, match=message):
            Ring(model, Mesh(1))
    model.parallel_stages = lambda: plain
    nn.utils.parametrizations.weight_norm(model.rnn, "weight_hh_l0")
    with pytest.raises(ConfigError, match="its parameters, but `weight_hh_l0` is computed"):
        Ring(model, Mesh(1))


def test_parts_that_are_compiled_are_cut_as_they_are():
    model = make_model("dropout", torch.float32)
    plain, wrap = model.parallel_stages(), functools.partial(torch.compile, backend="eager")
    model.parallel_stages = lambda: [wrap(part) for part in plain]
    stack = Wavefront(model, Mesh(1), split_backward=True).stack
    assert [step.drop for step in stack.steps] == [0, 0.3, 0, 0.3, 0, 0.3, 0, 0.3, 0]
    assert isinstance(stack.steps[-1].deferred, DeferredLinear)
    model.parallel_stages = lambda: [wrap(nn.Sequential(*plain))]
    assert len(Ring(model, Mesh(1)).stack.steps) == len(stack.steps)


def test_parts_whose_gradients_others_sum_are_refused():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = make_model("lstm", torch.float32)
        plain = model.parallel_stages()
        model.parallel_stages = lambda: [*plain[:-1], nn.Sequential(DDP(plain[-1]))]
        with pytest.raises(
            ConfigError, match="must not contain DistributedDataParallel, but a Seq"
        ):
            Ring(model, Mesh(1))
    finally:
        torch.distributed.destroy_process_group()


def test_batches_of_another_kind_are_refused():
    with pytest.raises(ConfigError, match=r"must be SequenceBatch, but one is dict\. Use a `Seq"):
        Ring(make_model("lstm", torch.float32), Mesh(1)).update([{"x": torch.zeros(2, 3)}])


def test_stages_are_cut_where_their_costs_are_most_alike():
    model = make_model("lstm", torch.float32)
    model.rnn = nn.LSTM(4, 6, 4, batch_first=True)
    stages = Wavefront(model, Mesh(1)).stack.cut(2)
    layers = [[step.layer for step in stage if step.layer is not None] for stage in stages]
    assert layers == [[0, 1], [2, 3]]
    assert [len(stage) for stage in stages] == [4, 4]  # embedding and dropout; dropout and head


@pytest.mark.parametrize("changed", ["epoch", "number", "seed", "step", "row", "timestep"])
@pytest.mark.parametrize("drop", [0.2, 0.5])
def test_dropout_hides_other_activations_in_each_place_of_a_run(changed, drop):
    """Masks are new in every epoch, batch, part of the stack, row and timestep, and come back."""
    x = [torch.ones(6, 1) for _ in range(3)]

    def draw(seed=0, step=1, **place):
        (batch,) = Loader(x, Fixed(3, shuffle=False))
        for name, value in place.items():
            setattr(batch, name, value)
        part = split_time(split_rows(batch, 1)[0], 0, 1)
        return dropout_mask(part, (3, 6, 8), drop, (seed, step))

    mask = draw()
    assert torch.equal(mask, draw())
    assert set(mask.unique().tolist()) == {0.0, 1 / (1 - drop)}
    others = {
        "epoch": [draw(epoch=number) for number in (1, 2)],
        "number": [draw(number=number) for number in (1, 2)],
        "seed": [draw(seed=number) for number in (1, 2)],
        "step": [draw(step=number) for number in (0, 2)],
        "row": [mask.roll(number, 0) for number in (1, 2)],
        "timestep": [mask.roll(number, 1) for number in (1, 2)],
    }[changed]
    assert not torch.equal(mask, others[0])
    assert not torch.equal(mask, others[1])
    assert not torch.equal(others[0], others[1])
