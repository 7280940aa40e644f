"""What doctor sees of a machine: its traps, and that they are not there."""

import torch

from seqdata.cli._doctor import machine
from seqdata.cli._doctor.machine import check_machine, inspect_machine
from seqdata.recurrent import autocast
from tests.cli.commands import find_one


def test_a_kernel_that_was_chosen_is_unset(monkeypatch):
    monkeypatch.setenv("SEQDATA_KERNEL", "numpy")
    found = find_one(check_machine(inspect_machine(), shards=1, workers=0), "kernel")
    assert (found.state, found.fix) == ("warn", "unset SEQDATA_KERNEL")


def test_the_machine_is_looked_at():
    here = inspect_machine()
    assert here.cores >= 1
    assert here.kernel in ("c", "numpy")
    assert "spawn" in here.methods
    assert here.processor == torch.backends.cpu.get_cpu_capability()
    assert ("bfloat16" in here.autocast) == autocast.can_run(torch.bfloat16)


def test_without_torch_nothing_is_said_of_it(monkeypatch):
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    found = [one.name for one in check_machine(inspect_machine(), shards=1, workers=0)]
    assert "LSTM on the CPU" not in found
