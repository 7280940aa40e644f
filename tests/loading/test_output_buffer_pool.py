"""Recycled memory: never lent twice at once, never more than its cap."""

import gc
import threading

import numpy as np
import pytest
import torch

from seqdata.loading.output import BufferPool
from seqdata_testing.waiting import patient

SMALL = 1 << 10
SHAPE = (40, 100)  # float32: 16,000 bytes, in a block of 16 KiB


def pool_of(blocks=4):
    return BufferPool(capacity=blocks << 14, min_bytes=SMALL)


def lent(pool, value=1.0):
    """A tensor over the pool's memory, as a collator makes one."""
    array = pool.allocate(SHAPE, np.float32)
    array[:] = value
    return torch.from_numpy(array)


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def test_an_array_is_writable_contiguous_and_of_its_shape():
    array = pool_of().allocate((3, 5000), np.dtype("u2"))
    assert array.shape == (3, 5000)
    assert array.dtype == np.uint16
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert type(array) is np.ndarray


def test_a_block_is_lent_again_when_its_tensor_is_gone():
    pool = pool_of()
    first = address(lent(pool))
    assert address(lent(pool)) == first
    assert pool.total_bytes == 1 << 14


def test_the_block_that_came_back_last_is_lent_first():
    pool = pool_of()
    one, other = lent(pool), lent(pool)
    places = [address(one), address(other)]
    del one
    del other
    assert address(lent(pool)) == places[1]


VIEWS = {
    "the tensor itself": lambda tensor: tensor,
    "detach": lambda tensor: tensor.detach(),
    "numpy": lambda tensor: tensor.numpy(),
    "a numpy slice": lambda tensor: tensor.numpy()[3:5],
    "view": lambda tensor: tensor.view(-1),
    "one row": lambda tensor: tensor[7],
    "shifted views": lambda tensor: (tensor[:, :-1], tensor[:, 1:]),
    "unbind": lambda tensor: tensor.unbind(0)[3],
    "another dtype": lambda tensor: tensor.view(torch.int32),
    "a numpy view of the memory": lambda tensor: np.frombuffer(tensor.numpy(), np.uint8),
    "dlpack": lambda tensor: torch.from_dlpack(tensor),
    "an autograd graph": lambda tensor: (tensor * torch.ones(100, requires_grad=True)).sum(),
    "a parameter": lambda tensor: torch.nn.Parameter(tensor),
    "a reference cycle": lambda tensor: cycle_of(tensor),
}


def cycle_of(tensor):
    cycle = [tensor]
    cycle.append(cycle)
    return cycle


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_block_is_not_lent_while_any_view_lives(view):
    pool = pool_of()
    tensor = lent(pool, 7.0)
    place = address(tensor)
    kept = view(tensor)
    del tensor
    others = [lent(pool, 0.0) for _ in range(6)]
    assert place not in {address(other) for other in others}
    is_cycle = isinstance(kept, list)
    del kept
    if is_cycle:
        gc.collect()
    assert place in {address(other) for other in [lent(pool) for _ in range(6)]}


def test_gradients_are_right_while_blocks_are_recycled():
    pool = pool_of()
    weight = torch.ones(100, requires_grad=True)
    losses = []
    for step in range(3):
        losses.append((lent(pool, float(step)) * weight).sum())
        lent(pool, 1e9)
    sum(losses).backward()
    assert weight.grad.tolist() == [40 * (0 + 1 + 2)] * 100


def test_a_slice_kept_for_an_epoch_keeps_its_values():
    pool = pool_of(blocks=3)
    kept = [lent(pool, float(step))[step : step + 1] for step in range(20)]
    assert [row.unique().tolist() for row in kept] == [[float(step)] for step in range(20)]


def test_memory_is_capped_and_what_is_beyond_is_ordinary():
    pool = pool_of(blocks=2)
    kept = [lent(pool, float(step)) for step in range(5)]
    assert pool.total_bytes == 2 << 14
    assert [tensor[0, 0].item() for tensor in kept] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert len({address(tensor) for tensor in kept}) == 5


def test_free_blocks_that_are_too_small_make_room():
    pool = pool_of(blocks=2)
    kept = [lent(pool), lent(pool)]
    kept.clear()
    large = pool.allocate((8000,), np.float32)
    assert pool.total_bytes == 1 << 15
    assert large.base is not None


def test_a_free_block_that_is_larger_is_better_than_a_new_one():
    pool = pool_of(blocks=8)
    place = pool.allocate((8000,), np.float32).ctypes.data
    assert address(lent(pool)) == place
    assert pool.total_bytes == 1 << 15
    kept = [lent(pool), lent(pool)]
    assert pool.total_bytes == (1 << 15) + (1 << 14)
    del kept


def test_small_outputs_are_ordinary_arrays():
    pool = pool_of()
    assert pool.allocate((SMALL // 4,), np.float32).base is None
    assert pool.allocate((0, 40), np.float32).shape == (0, 40)
    assert pool.total_bytes == 0


def test_an_output_beyond_the_cap_is_an_ordinary_array():
    assert pool_of(blocks=1).allocate((8000,), np.float32).base is None


def test_clear_gives_free_blocks_back_and_leaves_lent_ones():
    pool = pool_of()
    kept = lent(pool, 5.0)
    lent(pool)
    pool.clear()
    assert pool.total_bytes == 1 << 14
    assert kept.unique().tolist() == [5.0]
    del kept
    pool.clear()
    assert pool.total_bytes == 0


def test_a_lent_block_outlives_its_pool():
    kept = lent(pool_of(), 5.0)
    gc.collect()
    assert kept.sum() == 5.0 * 4000


def test_blocks_may_come_back_in_any_thread():
    pool = pool_of()
    wrong = []

    def work(value):
        for _ in range(200):
            tensor = lent(pool, value)
            if tensor.unique().tolist() != [value]:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=patient())
    assert not wrong
    assert pool.total_bytes <= 4 << 14
