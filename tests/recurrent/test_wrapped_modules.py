"""Recurrent modules within wrappers: run as the bare ones, refused as they are, or not at all."""

import copy
import re

import pytest
import torch
import torch.distributed
from lightning.fabric import Fabric
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.nn.utils.parametrizations import weight_norm
from torch.optim.swa_utils import AveragedModel

from seqdata.errors import ConfigError
from seqdata.policies.tbptt import TBPTT
from seqdata.recurrent.cells import make_cell, unwrap_module
from seqdata.recurrent.lane_states import LaneStates
from tests.recurrent.harness import SIZE, batch_of, chunked, series

LANES = 4
EQUAL, RAGGED = series([16] * LANES, "float32"), series([16, 3, 9, 5], "float32")


def compiled(module):
    return torch.compile(module, backend="eager")


def in_fabric(module):
    return Fabric(accelerator="cpu", devices=1).setup_module(module)


def in_ddp(module):
    return nn.parallel.DistributedDataParallel(module)


def in_fsdp(module):
    return FullyShardedDataParallel(
        module, device_id=torch.device("cpu"), sharding_strategy=ShardingStrategy.NO_SHARD
    )


WRAPPERS = {
    "compiled": compiled,
    "compiled twice": lambda module: compiled(compiled(module)),
    "compiled in place": lambda module: module.compile(backend="eager") or module,
    "compiled forward": lambda module: compiled(module.forward),
    "forward": lambda module: module.forward,
    "Fabric": in_fabric,
    "Fabric, compiled": lambda module: in_fabric(compiled(module)),
    "DDP": in_ddp,
    "Fabric, DDP": lambda module: in_fabric(in_ddp(module)),
    "DDP, compiled": lambda module: in_ddp(compiled(module)),
    "DataParallel": nn.DataParallel,
    "FSDP": in_fsdp,
    "fully_shard": lambda module: fully_shard(module, mesh=init_device_mesh("cpu", (1,))) or module,
    "checkpointed": checkpoint_wrapper,
    "averaged": AveragedModel,
}


@pytest.fixture(autouse=True)
def _group():
    """Be the only rank of a group, which DDP and FSDP need."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def time_first(kind=nn.LSTM, **options):
    torch.manual_seed(0)
    return kind(SIZE, 3, **options)


@pytest.mark.parametrize("sequences", [EQUAL, RAGGED], ids=["full rows", "ragged"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_module_gives_what_the_bare_one_gives(wrapper, sequences):
    policy = TBPTT(LANES, LANES, shuffle=False)  # as many timesteps as rows: no shape tells
    bare = chunked(time_first(), sequences, policy)
    wrapped = chunked(WRAPPERS[wrapper](time_first()), sequences, policy)
    for one, other in zip(bare, wrapped, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_module_that_reads_from_both_ends_is_refused(wrapper):
    module = WRAPPERS[wrapper](time_first(batch_first=True, bidirectional=True))
    with pytest.raises(ConfigError, match=r"lanes: \w*LSTM must not be bidirectional"):
        LaneStates().run(module, batch_of(), "x", None)


class Normed(nn.GRU):
    """A subclass."""


@pytest.mark.parametrize("module", [time_first(Normed), weight_norm(time_first(), "weight_hh_l0")])
def test_subclasses_and_parametrized_modules_are_torchs(module):
    assert make_cell(module, 1).layer is module


class Thin(nn.Module):
    """A wrapper that nobody knows."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x, state=None):
        return self.rnn(x, state)


def traced(module):
    return torch.jit.trace(module, torch.zeros(2, 2, SIZE), check_trace=False)


def exported(module):
    return torch.export.export(module, (torch.zeros(2, 2, SIZE),)).module()


def quantized(module):
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(module), {nn.LSTM})[0]


OPAQUE = {
    "scripted": torch.jit.script,
    "traced": traced,
    "exported": exported,
    "quantized": quantized,
    "thin": Thin,
    "thin, compiled": lambda module: compiled(Thin(compiled(module))),
    "thin, scripted": lambda module: Thin(torch.jit.script(module)),
}


@pytest.mark.filterwarnings("ignore")  # of torch, about forms that it will give up
@pytest.mark.parametrize("form", OPAQUE)
@pytest.mark.parametrize("options", [{}, {"batch_first": True, "bidirectional": True}])
def test_a_module_that_cannot_be_seen_through_is_refused(form, options):
    module = OPAQUE[form](time_first(**options))
    text = f"but is a {type(unwrap_module(module)).__name__}, through which its layout and"
    with pytest.raises(ConfigError, match=re.escape(text)) as error:
        LaneStates().run(module, batch_of(), "x", None)
    assert "lambda x, state: rnn(x, state)" in str(error.value)


def test_a_thin_module_over_rows_first_is_taken_and_so_is_a_function():
    rnn = time_first(batch_first=True)
    policy = TBPTT(LANES, LANES, shuffle=False)
    expected = torch.stack(chunked(rnn, EQUAL, policy))
    for same in (Thin(copy.deepcopy(rnn)), lambda x, state: rnn(x, state)):
        torch.testing.assert_close(torch.stack(chunked(same, EQUAL, policy)), expected)


def test_a_module_of_several_parts_is_taken_at_its_word():
    class Deep(Thin):
        def __init__(self):
            super().__init__(nn.LSTM(SIZE, 3))
            self.head = nn.Linear(3, 3)

    assert make_cell(Deep(), 1).layer is None
    assert unwrap_module(len) is len
