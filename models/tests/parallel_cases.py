"""Small models and batches that tests train on one process and on several."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from seqdata_models import ByteLM, StatefulLM, StatefulTagger
from seqdata_models.parallel import Engine, Mesh, Ring, TorchWavefront, Wavefront
from torch import nn

from seqdata import TBPTT, Fixed, LaneStates, Loader, SequenceBatch, World

TOKENS, CHUNKS, UPDATES = 7, 4, 2
CASES = (
    "lstm", "gru", "segments", "lanes", "dropout", "projection", "tied", "whole rows", "frozen",
    "initial",
)  # fmt: skip
LAYERS = 3


class Projected(StatefulLM):
    def __init__(self) -> None:
        super().__init__(TOKENS, 4, 6, LAYERS)
        self.rnn = nn.LSTM(4, 6, LAYERS, batch_first=True, proj_size=3)
        self.head = nn.Linear(3, TOKENS)


def make_model(case: str, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    if case == "projection":
        model: nn.Module = Projected()
    elif case == "lanes":
        model = StatefulTagger(3, 3, hidden=5, layers=LAYERS)
    elif case == "whole rows":
        model = ByteLM(4, 6, LAYERS)
    elif case == "tied":
        model = StatefulLM(TOKENS, None, 5, LAYERS)
    else:
        cell = "gru" if case == "gru" else "lstm"
        drop = 0.3 if case in ("dropout", "deep") else 0.0
        layers = 4 if case == "deep" else LAYERS  # two stages each for two processes
        model = StatefulLM(TOKENS, 4, 6, layers, cell=cell, dropout=drop)
    if case == "frozen":  # the lower stages whole
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith("head") or name.endswith(f"l{LAYERS - 1}"))
    if case == "initial":  # of a sequence, learned
        model.initial = nn.ParameterList(torch.randn(LAYERS, 6) for _ in range(2))
        model.lanes = LaneStates(initial=tuple(model.initial))
    return model.to(dtype)


def make_updates(case: str, world: World = World()) -> list[list[SequenceBatch]]:  # noqa: B008
    """Return the batches of each update; ragged rows, idle lanes and resets are among them."""
    random = np.random.default_rng(1)
    lengths = random.integers(1, 40, 24)
    texts: list[Any] = [random.integers(0, TOKENS, n).astype(np.uint8) for n in lengths]
    options: dict[str, Any] = {"shift": 1}
    batching: Any = TBPTT(5, 6, segments=case in ("segments", "dropout", "tied", "deep"))
    if case == "whole rows":
        batching = Fixed(4)
    elif case in ("lstm", "gru", "projection"):
        batching = TBPTT(5, 6, continuous=True)
    elif case == "empty":  # of two replicas one has an idle lane only
        batching, texts = TBPTT(2, 2), texts[:1]
    elif case == "lanes":
        batching, options = TBPTT(3, 8), {}
        texts = [
            {"x": random.normal(size=(n, 3)), "y": random.integers(0, 3, n)} for n in lengths[:11]
        ]
    accumulate = (
        CHUNKS // world.size if case == "whole rows" else CHUNKS
    )  # lanes are shared out, too
    loader = Loader(texts, batching, world=world, accumulate=accumulate, seed=3, **options)
    return list(group(iter(loader), accumulate))[:UPDATES]


def group(batches: Iterator[SequenceBatch], size: int) -> Iterator[list[SequenceBatch]]:
    while update := list(itertools.islice(batches, size)):
        yield update


def make_optimizer(model: nn.Module, dtype: torch.dtype) -> torch.optim.Optimizer:
    """Return Adam; in float32 SGD, for Adam makes small gradients' rounding large."""
    if dtype == torch.float64:
        return torch.optim.Adam(model.parameters(), 0.05)
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)


def make_engine(kind: str, model: nn.Module, mesh: Mesh, lane_groups: int) -> Engine:
    """Return an engine: ``wave``, ``ring``, ``fed``, or with ``+split``; ``torch+`` a schedule."""
    name, _, option = kind.partition("+")
    if name == "torch" and mesh.size > 1:
        return TorchWavefront(model, mesh, lane_groups, schedule=option, seed=5)
    engine = Ring if name in ("ring", "fed") else Wavefront
    return engine(model, mesh, lane_groups, seed=5, split_backward=option == "split")


def train(
    kind: str, case: str, dtype: torch.dtype, mesh: Mesh, *, lane_groups: int = 2, clip: float = 0.5
) -> dict[str, Any]:
    """Train; return losses and, from the whole model, weights and lane states.

    Args:
        kind: ``wave``; ``ring``, whose processes read whole rows; ``fed``, one whose processes read
            their parts only.
        case: What is trained on.
        dtype: Of the weights.
        mesh: Of processes.
        lane_groups: Of the engine.
        clip: Norm to which gradients are clipped.
    """
    model = make_model(case, dtype)
    engine = make_engine(kind, model, mesh, lane_groups)
    optimizer = make_optimizer(model, dtype)
    losses = []
    part = (mesh.position, mesh.size) if kind.startswith("fed") else (0, 1)
    for batches in make_updates(case, World(mesh.replica, mesh.data, *part)):
        with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
            total, count = engine.update(batches)
        losses.append(float(total / count))
        engine.clip_gradients(clip)
        optimizer.step()
    engine.synchronize()
    saved = {
        "losses": losses,
        "model": model.state_dict(),
        "optimizer": engine.gather_optimizer(optimizer),
        "lanes": model.lanes.state_dict() if hasattr(model, "lanes") else None,
    }
    engine.close()
    return saved


def iter_runs(spec: dict[str, Any]) -> Iterator[tuple[str, str, str, int]]:
    """Yield kind, case, dtype and number of lane groups of each run: ``runs``, else a grid."""
    if "runs" in spec:
        for kind, case, *more in spec["runs"]:
            yield (kind, case, *more, *("float64", 2)[len(more) :])
        return
    for kind, case in itertools.product(spec["kinds"], spec.get("cases", CASES)):
        for dtype in spec.get("dtypes", ["float64"]):
            yield kind, case, dtype, spec.get("lane_groups", 2)


def train_by_hand(case: str, dtype: torch.dtype, clip: float = 0.5) -> dict[str, Any]:
    """Train the module itself, without an engine."""
    model = make_model(case, dtype)
    optimizer = make_optimizer(model, dtype)
    losses = []
    for batches in make_updates(case):
        optimizer.zero_grad()
        total = 0.0
        for batch in batches:
            if case == "whole rows":
                nll = model.nll(batch).sum()
            else:
                nll = model.parallel_nll(model(batch), batch).sum()
            (nll * batch.loss_scale).backward()
            total += float(nll.detach())
        losses.append(total / sum(batch.num_tokens for batch in batches))
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return {
        "losses": losses,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "lanes": model.lanes.state_dict() if hasattr(model, "lanes") else None,
    }


def difference(left: Any, right: Any) -> float:
    """Return the largest difference of numbers in two trees; digests are dropped."""
    if isinstance(left, torch.Tensor):
        assert left.shape == right.shape
        return float((left.double() - right.double()).abs().max()) if left.numel() else 0.0
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        return max((difference(left[n], right[n]) for n in left if n != "digest"), default=0.0)
    if isinstance(left, list | tuple):
        assert len(left) == len(right)
        return max((difference(*pair) for pair in zip(left, right, strict=True)), default=0.0)
    return abs(left - right) if isinstance(left, float) else float(left != right)
