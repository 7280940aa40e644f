"""Loops of plain PyTorch and Fabric over the Loader: exact on any number of ranks."""

import gc
import itertools
import weakref
from collections import Counter

import numpy as np
import pytest
import torch

from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Bucketed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.token_budget import TokenBudget
from seqdata.sharing import World
from seqdata.storage.memory import MemoryStore
from seqdata_testing.waiting import until
from tests.loading.loaders import ZIP, make_zip_data

LENGTHS = np.random.default_rng(1).integers(1, 40, size=101)
STORE = MemoryStore.from_sequences(
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


@pytest.mark.parametrize("policy", [POLICY, TBPTT(6, chunk=8)], ids=["bucketed", "lanes"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [1, 2, 4, 5, 100])
@pytest.mark.parametrize("done", [0, 3])
def test_ends_update_says_where_the_optimizer_steps_on_every_rank_and_after_a_resume(
    policy, ranks, accumulate, done
):
    """A loop that goes by it makes each update a mean, that of a short last window, too."""
    options = {"fields": ["x"], "accumulate": accumulate}
    loaders = [loader(policy, world=World(rank, ranks), **options) for rank in range(ranks)]
    iterators = [iter(each) for each in loaders]
    for _, each in itertools.product(range(done), iterators):
        next(each)
    resumed = [loader(policy, world=World(rank, ranks), **options) for rank in range(ranks)]
    for one, other in zip(loaders, resumed, strict=True):
        other.load_state_dict(one.state_dict())
    for epoch in range(2):
        weight, ends, steps = 0.0, [], len(resumed[0])
        for step, batches in enumerate(zip(*resumed, strict=True), 0 if epoch else done):
            weight += sum(float(b.weight.sum()) * b.sequence_scale for b in batches) / ranks
            assert len({batch.ends_update for batch in batches}) == 1
            if batches[0].ends_update:
                ends.append(step)
                if epoch or step // accumulate > done // accumulate or not done % accumulate:
                    assert weight == pytest.approx(1)
                weight = 0.0
        assert weight == 0
        expected = sorted({*range(accumulate - 1, steps, accumulate), steps - 1})
        assert ends == [step for step in expected if epoch or step >= done]


def test_ends_update_may_be_part_of_a_tuple_and_stays_with_a_copy():
    batches = list(loader(accumulate=5, as_tuple=["x", "ends_update"]))
    assert [ends for _, ends in batches] == [False] * 4 + [True] + [False] * 4 + [
        True,
        False,
        False,
        True,
    ]
    for batch in loader(accumulate=5):
        copies = batch.to("cpu"), batch.real(), batch.as_layout("varlen")
        assert {copy.ends_update for copy in copies} == {batch.ends_update}


def test_parts_that_are_zipped_end_their_update_together():
    for step, parts in enumerate(Loader(make_zip_data(), ZIP, accumulate=3), 1):
        assert {batch.ends_update for batch in parts.values()} == {step % 3 == 0}
        if step == 6:
            break


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
