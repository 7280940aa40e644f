"""The dtypes in which this processor runs an LSTM under autocast.

Torch runs an LSTM over rows of equal length by oneDNN if autocast makes it bfloat16 or float16, and
oneDNN has no kernel for that on older processors. Packed rows, other dtypes, ``bf16-true`` and GRUs
run everywhere.
"""

from __future__ import annotations

import functools

import torch
from torch import nn

from seqdata.errors import ConfigError, must_be

DTYPES = (torch.bfloat16, torch.float16)
_FEATURES = {torch.bfloat16: "AVX-512", torch.float16: "AVX-512 FP16"}


def check_autocast(module: nn.Module, device: torch.device | str) -> None:
    """Raise if an LSTM of a module cannot run on the CPU in the dtype of the active autocast.

    Args:
        module: The LSTM, or a module that contains it.
        device: Device that it runs on; any LSTM runs on a device other than the CPU.

    Raises:
        ConfigError: If the processor has no kernel for the dtype.

    Examples:
        >>> check_autocast(nn.LSTM(4, 8), "cpu")  # no autocast: nothing to refuse
    """
    if torch.device(device).type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return
    dtype = torch.get_autocast_dtype("cpu")
    names = (name for name, submodule in module.named_modules() if _goes_to_onednn(submodule))
    name = next(names, None)
    if name is None or can_run(dtype):
        return
    short = str(dtype).removeprefix("torch.")
    raise ConfigError(
        must_be(
            f"precision: the LSTM{name and f' {name!r}'} under autocast",
            "in float32",
            f"in {short}, for which oneDNN has no kernel on this processor "
            f"({describe_processor()}; it needs {_FEATURES.get(dtype, 'another one')})",
            "Pass precision='32-true' or 'bf16-true' to the Trainer, or use a GRU or a GPU",
        )
    )


def can_run(dtype: torch.dtype) -> bool:
    """Return whether an LSTM of float32 runs on this processor under autocast to a dtype."""
    return _try(dtype, torch._C._get_mkldnn_enabled())


def describe_processor() -> str:
    """Return the instruction set that torch uses on this processor, such as ``AVX2``."""
    return torch.backends.cpu.get_cpu_capability()


def _goes_to_onednn(module: nn.Module) -> bool:
    return (
        isinstance(module, nn.LSTM)
        and not module.proj_size
        and any(weight.dtype == torch.float32 for weight in module.parameters())
    )


@functools.cache
def _try(dtype: torch.dtype, is_enabled: bool) -> bool:
    """Return whether one timestep runs, without changing torch's random state."""
    del is_enabled  # of oneDNN
    zeros = functools.partial(torch.zeros, dtype=torch.float32, device="cpu")
    x, state = zeros(1, 1, 1), zeros(1, 1, 1)
    weights = [zeros(4, 1), zeros(4, 1), zeros(4), zeros(4)]
    try:
        with torch.no_grad(), torch.autocast("cpu", dtype):
            torch.lstm(x, (state, state), weights, True, 1, 0.0, False, False, True)
    except RuntimeError:  # torch has no class of its own for what oneDNN cannot do
        return False
    return True
