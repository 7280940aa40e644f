"""A mean whose value does not depend on the number of processes.

The mean of the ranks' means is wrong if ranks have different numbers of rows or timesteps; the
quotient of sums and counts in float64 is correct.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqdata.errors import ConfigError


class ExactMean:
    """Quotient of a sum and a count, both float64, over batches and, once, over ranks.

    Make it a plain attribute of a module: DDP would overwrite a buffer.

    Examples:
        >>> mean = ExactMean()
        >>> mean.update(torch.tensor(3.0), 2)
        >>> mean.update(torch.tensor(1.0), 2)
        >>> mean.compute()
        1.0
    """

    __slots__ = ("_count", "_total")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset the sum and the count."""
        self._total: Tensor | float = 0.0
        self._count: Tensor | float = 0.0

    def update(self, total: Tensor | float, count: Tensor | float) -> None:
        """Add the sum and the count of a batch, without waiting for a device.

        Args:
            total: Sum (), of any dtype, such as ``(score * loss).sum()``.
            count: Count (), of any dtype, such as ``score.sum()``.

        Raises:
            ConfigError: If one of them is not a single number.
        """
        self._total = self._total + _check_scalar("total", total)
        self._count = self._count + _check_scalar("count", count)

    def compute(self) -> float:
        """Return the mean over all ranks; 0.0 if the count is 0.

        With a process group it is a collective operation: call it on every rank, at the epoch's
        end. Ranks with the same rows (tensor parallel) do not change the mean.
        """
        pair = [float(self._total), float(self._count)]
        sums = torch.tensor(pair, dtype=torch.float64, device="cpu")
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            if torch.distributed.get_backend() == "nccl":
                sums = sums.cuda()
            torch.distributed.all_reduce(sums)
        total, count = sums.tolist()
        return total / count if count else 0.0


def _check_scalar(name: str, value: Tensor | float) -> Tensor | float:
    if not isinstance(value, Tensor):
        return float(value)
    if value.dim():
        raise ConfigError(
            f"ExactMean: `{name}` must be a single number, but has shape {tuple(value.shape)}. "
            "Sum it."
        )
    value = value.detach()
    return (value.cpu() if value.device.type == "mps" else value).double()  # mps has no float64
