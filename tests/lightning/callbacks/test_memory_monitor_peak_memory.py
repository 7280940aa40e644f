"""The most memory that a process ever had."""

import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from seqdata.lightning.callbacks.memory_monitor import get_peak_bytes

MIB = 1 << 20


@pytest.mark.slow
def test_the_peak_of_a_process_is_the_most_it_ever_had():
    before = get_peak_bytes(torch.device("cpu"))
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    held = np.ones(before - resident + 64 * MIB, dtype=np.int8)
    assert get_peak_bytes(torch.device("cpu")) >= before + 32 * MIB
    del held
    assert get_peak_bytes(torch.device("cpu")) >= before + 32 * MIB
