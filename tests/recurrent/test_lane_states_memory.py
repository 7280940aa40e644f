"""Rows 22 and 26: what a chunk keeps alive is freed with it, however long sequences are."""

import gc
import weakref

import pytest
import torch

from seqdata.policies.tbptt import TBPTT
from seqdata.recurrent.lane_states import LaneStates
from tests.recurrent.harness import batches, module_of, series


class Peak:
    """Counts the bytes of activations that a backward waits for, and the most at once."""

    def __init__(self):
        self.now = self.most = 0

    def pack(self, tensor):
        kept = _Kept(tensor.detach())  # an output in its own graph would be a cycle
        self.now += tensor.nbytes
        self.most = max(self.most, self.now)
        weakref.finalize(kept, self._freed, tensor.nbytes)
        return kept

    def _freed(self, count):
        self.now -= count


class _Kept:
    def __init__(self, tensor):
        self.tensor = tensor


def peak_of(length, *, detached=True):
    module, states, peak = module_of("gru"), LaneStates(), Peak()
    optimizer, state = torch.optim.SGD(module.parameters(), lr=1e-3), None
    with torch.autograd.graph.saved_tensors_hooks(peak.pack, lambda kept: kept.tensor):
        total = 0.0
        for batch in batches(series([length] * 2), TBPTT(2, 50)):
            state = states.take(batch) if detached else state
            out, state = states.run(module, batch, "x", state)
            if detached:
                states.put(batch, state)
                (out**2).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            else:
                total = total + (out**2).sum()
            del out
    gc.collect()
    return peak.most


@pytest.mark.slow
def test_row_22_peak_memory_of_activations_is_that_of_a_chunk():
    short, long = peak_of(300), peak_of(900)
    assert short * 0.9 <= long <= short * 1.1
    assert peak_of(300, detached=False) > 3 * short  # what is measured would show it


@pytest.mark.nightly
def test_row_22_holds_for_100_000_timesteps():
    short, long = peak_of(10_000), peak_of(100_000)
    assert short * 0.9 <= long <= short * 1.1


def test_row_26_the_graph_of_a_chunk_is_gone_once_the_next_one_is_taken():
    module, states, peak = module_of("lstm"), LaneStates(), Peak()
    with torch.autograd.graph.saved_tensors_hooks(peak.pack, lambda kept: kept.tensor):
        for batch in batches(series([40, 40]), TBPTT(2, 8)):
            state = states.take(batch)
            assert state is None or all(one.grad_fn is None for one in state)
            out, state = states.run(module, batch, "x", state)
            states.put(batch, state)
            assert peak.now > 0
            del out, state
            assert peak.now == 0
