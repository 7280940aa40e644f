"""What is out of memory, and what is not."""

import pytest
import torch

from seqdata.lightning.callbacks.memory_monitor import is_out_of_memory


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("any text"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (MemoryError(), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_is_out_of_memory_and_what_is_not(error, expected):
    assert is_out_of_memory(error) is expected
