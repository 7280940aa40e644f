"""Pinning copies what is handed out; here with a stand-in for pinned memory, as with no device."""

import numpy as np
import pytest
import torch

from seqdata import Fixed, Loader, World
from seqdata.errors import ConfigError
from seqdata.loading.options import EngineOptions
from seqdata.runs.data_sources import RunContext
from tests.lightning.harness import data_of

DATA = [{"x": np.arange(n, dtype=np.float32)} for n in (3, 1, 2, 4)]
DEVICE = pytest.mark.skipif(not torch.cuda.is_available(), reason="pinning needs an accelerator")


@pytest.fixture
def marked(monkeypatch):
    """Let pinning mark a copy, and a CUDA device be there."""
    kept = []

    def pin(tensor, device=None):
        kept.append(tensor.clone())
        return kept[-1]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    return lambda tensor: any(tensor is one for one in kept)


def loader(**options):
    return Loader(DATA, Fixed(2, shuffle=False), pin_memory=True, **options)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_device_gets_is_pinned_and_the_rest_is_not(marked, prefetch, workers):
    made = loader(prefetch=prefetch, num_workers=workers, start_method="fork" if workers else None)
    plain = list(Loader(DATA, Fixed(2, shuffle=False)))
    batches = list(made)
    made.shutdown()
    assert [batch["x"].tolist() for batch in batches] == [batch["x"].tolist() for batch in plain]
    for batch in batches:
        assert marked(batch["x"])
        assert marked(batch.weight)
        assert not marked(batch.lengths)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_chosen_parts_and_what_a_collate_fn_makes_are_pinned(marked, prefetch):
    for batch in loader(as_dict=("x", "weight"), prefetch=prefetch):
        assert marked(batch["x"])
        assert marked(batch["weight"])
    for x, _ in loader(as_tuple=("x", "ids"), prefetch=prefetch):
        assert marked(x)
    collate = lambda rows: {"sum": torch.tensor([float(row["x"].sum()) for row in rows])}  # noqa: E731
    for made in loader(collator=collate, prefetch=prefetch):
        assert marked(made["sum"])


def test_nothing_is_pinned_unless_it_is_asked_for(marked):
    assert not any(marked(batch["x"]) for batch in Loader(DATA, Fixed(2)))


@pytest.mark.parametrize(("asked", "cuda", "due"), [
    (None, True, True), (None, False, False), (False, True, False), (True, False, True),
])  # fmt: skip
def test_under_a_trainer_it_goes_by_the_device(marked, asked, cuda, due):
    data = data_of(pin_memory=asked)
    there = RunContext(world=World(), seed=0, overfit=False, is_on_cuda=cuda)
    (player,) = data._sources.prepare_engines("train", there)
    assert player.options.pin_memory is due


@pytest.mark.skipif(torch.cuda.is_available(), reason="it may be pinned there")
def test_to_pin_where_there_is_no_device_is_refused():
    message = "`pin_memory` must be False without a CUDA device, but is True. Under a Trainer"
    with pytest.raises(ConfigError, match=message):
        loader()


def test_whether_to_pin_is_yes_or_no():
    with pytest.raises(ConfigError, match=r"`pin_memory` must be True or False.*, but is 'auto'"):
        EngineOptions(pin_memory="auto")


@DEVICE
@pytest.mark.parametrize("prefetch", [0, 2])
def test_on_a_device_what_is_handed_out_lies_in_pinned_memory(prefetch):
    for batch in loader(prefetch=prefetch):
        assert batch["x"].is_pinned()
        assert not batch.lengths.is_pinned()
        assert batch.to("cuda")["x"].device.type == "cuda"
