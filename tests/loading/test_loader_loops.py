"""Loops of plain PyTorch and Fabric over the Loader: exact on any number of ranks."""

import gc
import weakref
from collections import Counter

import numpy as np
import pytest
import torch

from seqdata.loading.loader import Loader
from seqdata.policies.bucketed import Bucketed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.token_budget import TokenBudget
from seqdata.sharing import World
from seqdata.storage.memory import MemoryStore
from seqdata_testing.waiting import until
from tests.loading.loaders import ZIP, make_zip_data

LENGTHS = np.random.default_rng(1).integers(1, 40, size=101)
STORE = MemoryStore.of(
    [np.arange(n, dtype=np.int32) + 100 * number for number, n in enumerate(LENGTHS)]
)
POLICY = Bucketed(8, balance_ranks=4)  # 13 batches, in one order on any world


def loader(policy=POLICY, **options):
    return Loader(STORE, policy, **{"prefetch": 0, **options})


def train(world_sizes, accumulate=1, stop=None):
    """Train a linear model over simulated ranks as DDP would: by the mean of the gradients."""
    torch.manual_seed(0)
    weight = torch.zeros(40, dtype=torch.float64, requires_grad=True)
    state = None
    for size in world_sizes:
        per_rank = accumulate // size
        ranks = [
            loader(world=World(rank, size), accumulate=per_rank, fields=["x"], shift=1)
            for rank in range(size)
        ]
        if state is not None:
            for rank in ranks:
                rank.load_state_dict(state)
        updates = 0
        steps = -(-(13 - ranks[0].state_dict()["position"]) // size)
        for step, batches in enumerate(zip(*ranks, strict=True)):
            for batch in batches:
                inputs = (batch["x"] % 100).long()
                nll = (weight[inputs] - (batch["targets"] % 7)).square()
                loss = (nll * batch.score).sum() * batch.loss_scale
                (loss / size).backward()  # DDP takes the mean over ranks
            if (step + 1) % per_rank == 0 or step + 1 == steps:
                with torch.no_grad():
                    weight -= 0.1 * weight.grad
                weight.grad = None
                updates += 1
            if updates == stop and size is not world_sizes[-1]:
                break
        state = ranks[0].state_dict()
    return weight.detach()


def test_a_plain_loop_trains_the_same_on_any_number_of_ranks():
    one = train([1], accumulate=4)
    assert one.abs().sum() > 1
    for worlds in ([2], [4], [4, 1], [1, 4, 2]):
        torch.testing.assert_close(train(worlds, 4, stop=1), one, rtol=1e-12, atol=1e-12)


def test_a_fabric_loop_trains():
    fabric = pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(10_200, 2)
    model, optimizer = fabric.setup(embedding, torch.optim.SGD(embedding.parameters(), lr=1.0))
    made = loader(TokenBudget(200), world=World(fabric.global_rank, fabric.world_size))
    losses = []
    for _ in range(made.epoch, 2):
        for batch in made:
            batch = fabric.to_device(batch)
            loss = (model(batch["x"]).sum(-1).square() * batch.score).sum() * batch.loss_scale
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert len(losses) == 2 * len(made)
    assert sum(losses[-len(made) :]) < sum(losses[: len(made)])


def test_evaluation_with_score_is_exact_on_any_number_of_ranks():
    def total(size):
        ranks = [loader(world=World(rank, size)) for rank in range(size)]
        sums = [
            (batch["x"].double()[batch.score].sum().item(), int(batch.score.sum()))
            for rank in ranks
            for batch in rank
        ]
        return sum(part for part, _ in sums), sum(count for _, count in sums)

    assert total(1) == total(3) == total(8)
    assert total(3)[1] == LENGTHS.sum()


def test_exact_on_any_world_with_weight_in_a_tuple():
    seen = Counter()
    for rank in range(4):
        for _, numbers, weight in loader(world=World(rank, 4), as_tuple=("x", "ids", "weight")):
            seen.update(numbers[weight > 0].tolist())
    assert seen == Counter(range(101))


@pytest.mark.parametrize(
    ("store", "policy", "options"),
    [
        (STORE, POLICY, {}),
        (STORE, POLICY, {"prefetch": 2}),
        (STORE, POLICY, {"num_workers": 1, "prefetch": 2}),
        (STORE, POLICY, {"transform": lambda sequence, rng: sequence, "on_error": "mask"}),
        (STORE, TBPTT(lanes=4, chunk=16), {"shift": 1}),
        (make_zip_data(), ZIP, {}),
        (make_zip_data(), ZIP, {"prefetch": 2}),
    ],
    ids=["plain", "thread", "worker", "mask", "lanes", "zip", "zip, thread"],
)
def test_a_batch_that_the_loop_drops_is_freed_before_the_next_is_made(store, policy, options):
    batches = iter(Loader(store, policy, **{"prefetch": 0, **options}))
    count = 0
    gc.disable()  # nothing may need it
    try:
        for _ in range(5):
            batch = next(batches)
            held = [weakref.ref(one) for one in (batch.values() if policy is ZIP else [batch])]
            del batch
            assert until(lambda held=held: not any(one() for one in held), 5)
            count += 1
    finally:
        gc.enable()
        batches.close()
    assert count == 5
