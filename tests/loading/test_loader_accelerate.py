"""Accelerate's ``accumulate`` ends an update with the epoch of a Loader."""

import gc

import numpy as np
import pytest
import torch

from seqdata import Fixed, Loader, World

accelerate = pytest.importorskip("accelerate")

DATA = [np.ones((1 + number % 3, 4), "float32") for number in range(20)]


@pytest.fixture
def accelerator():
    made = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    yield made
    made.free_memory()
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def find_ends(accelerator, loader, epochs=2, inside=list):
    """Return the epoch and number of each batch after which an optimizer steps."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, prepared = accelerator.prepare(model, optimizer, loader)
    ends = []
    for _ in range(epochs):
        for batch in prepared:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch["x"].mean(1)).square().mean())
                optimizer.step()
                optimizer.zero_grad()
                inside()
                assert accelerator.sync_gradients == batch.ends_update
                if accelerator.sync_gradients:
                    ends.append((batch.epoch, batch.number))
    return ends


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_update_ends_with_the_epoch(accelerator, prefetch):
    loader = Loader(DATA, Fixed(2), accumulate=4, prefetch=prefetch)
    assert find_ends(accelerator, loader) == [(e, n) for e in (0, 1) for n in (3, 7, 9)]
    assert not accelerator.gradient_state.in_dataloader


@pytest.mark.parametrize("leaves", [False, True])
def test_an_evaluation_within_the_loop_changes_nothing(accelerator, leaves):
    def evaluate():
        for _ in Loader(DATA, Fixed(10)):
            if leaves:
                break
        gc.collect()

    ends = find_ends(accelerator, Loader(DATA, Fixed(2), accumulate=4), 1, evaluate)
    assert ends == [(0, 3), (0, 7), (0, 9)]


def test_a_loop_that_was_left_is_not_known_any_more(accelerator):
    for _ in Loader(DATA, Fixed(2)):
        assert accelerator.gradient_state.in_dataloader
        break
    assert not accelerator.gradient_state.in_dataloader


@pytest.mark.parametrize(("ranks", "remainder"), [(1, 0), (3, -1)])
def test_no_row_is_cut_off_the_last_batch(accelerator, ranks, remainder):
    """Padding rows are known by their weight: gathered rows are not cut at a count."""
    for batch in Loader(DATA, Fixed(2), world=World(0, ranks)):
        assert accelerator.gradient_state.remainder == remainder
        assert len(accelerator.gather_for_metrics(batch.weight)) == 2


def test_set_epoch_of_a_prepared_loader(accelerator):
    loader = accelerator.prepare(Loader(DATA, Fixed(2), seed=1))
    loader.set_epoch(3)
    assert next(iter(loader)).epoch == 3
