"""An LSTM under autocast runs on this processor, or is refused by name before its first step."""

import re

import pytest
import torch
from torch import nn

from seqdata.errors import ConfigError
from seqdata.policies.tbptt import TBPTT
from seqdata.recurrent import autocast
from seqdata.recurrent.autocast import DTYPES, can_run, check_autocast
from tests.recurrent.harness import SIZE, chunked, series

EQUAL, RAGGED = series([8, 8], "float32"), series([8, 5], "float32")


@pytest.fixture
def lacking(monkeypatch):
    """Be on a processor without kernels for narrow dtypes."""
    monkeypatch.setattr(autocast, "can_run", lambda dtype: False)
    monkeypatch.setattr(autocast, "describe_processor", lambda: "AVX2")


def runs(dtype, training):
    """Return whether torch runs an ordinary LSTM, and its backward."""
    lstm = nn.LSTM(16, 32, 2, batch_first=True)
    try:
        with torch.autocast("cpu", dtype), torch.set_grad_enabled(training):
            out, _ = lstm(torch.zeros(3, 5, 16))
        if training:
            out.float().sum().backward()
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_timestep_tells_what_an_lstm_can_do(dtype, training):
    assert can_run(dtype) == runs(dtype, training)


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
def test_without_onednn_torch_runs_it_itself():
    with torch.backends.mkldnn.flags(enabled=False):
        assert can_run(torch.bfloat16)


def test_no_random_number_is_drawn():
    before = torch.get_rng_state()
    autocast._try.__wrapped__(torch.bfloat16, True)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("sequences", [EQUAL, RAGGED], ids=["full rows", "ragged"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_lanes_run_under_autocast_or_say_why_not(dtype, sequences):
    def play():
        lstm = nn.LSTM(SIZE, 3, batch_first=True)
        with torch.autocast("cpu", dtype):
            return chunked(lstm, sequences, TBPTT(2, 4))

    if can_run(dtype):
        assert all(bool(one.isfinite().all()) for one in play())
    else:
        with pytest.raises(ConfigError, match="for which oneDNN has no kernel on this processor"):
            play()


@pytest.mark.usefixtures("lacking")
def test_the_message_names_layer_dtype_processor_and_ways_out():
    model = nn.ModuleDict({"head": nn.Linear(1, 1), "rnn": nn.LSTM(3, 4)})
    text = (
        "precision: the LSTM 'rnn' under autocast must be in float32, but is in bfloat16, for "
        "which oneDNN has no kernel on this processor (AVX2; it needs AVX-512). Pass "
        "precision='32-true'"
    )
    with torch.autocast("cpu"), pytest.raises(ConfigError, match=re.escape(text)):
        check_autocast(model, "cpu")
    with torch.autocast("cpu", torch.float16), pytest.raises(ConfigError, match="AVX-512 FP16"):
        check_autocast(model["rnn"], "cpu")


@pytest.mark.usefixtures("lacking")
@pytest.mark.parametrize(
    "layer",
    [nn.GRU(3, 4), nn.LSTM(3, 4).double(), nn.LSTM(3, 4).bfloat16(), nn.LSTM(3, 4, proj_size=2)],
    ids=["gru", "float64", "bfloat16", "projected"],
)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_what_torch_runs_everywhere_is_taken(layer):
    x = torch.zeros(2, 5, 3, dtype=next(layer.parameters()).dtype)
    with torch.autocast("cpu"):
        check_autocast(layer, "cpu")
        if layer.weight_ih_l0.dtype != torch.bfloat16:
            layer(x)


@pytest.mark.usefixtures("lacking")
def test_without_autocast_and_elsewhere_nothing_is_checked():
    check_autocast(nn.LSTM(3, 4), "cpu")
    with torch.autocast("cpu"):
        check_autocast(nn.LSTM(3, 4), "meta")
