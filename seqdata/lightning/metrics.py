"""Mean whose value does not depend on the number of processes.

The mean of the means of ranks is wrong if ranks have different numbers of rows or timesteps. The
quotient of the sums and counts of all ranks, in float64, is correct.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqdata.errors import ConfigError


class ExactMean:
    """Mean over batches and ranks: the quotient of a sum and a count, both in float64.

    Ranks communicate only in ``compute``. The object is not a buffer of a module, which DDP would
    overwrite, but a plain attribute.

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
        """Add the sum and the count of a batch, without synchronizing with a CUDA device.

        Args:
            total: Sum of the values, () of any dtype, such as ``(score * loss).sum()``.
            count: Number of values, () of any dtype, such as ``score.sum()``.

        Raises:
            ConfigError: If an argument is a tensor with dimensions.
        """
        self._total = self._total + _check_scalar("total", total)
        self._count = self._count + _check_scalar("count", count)

    def compute(self) -> float:
        """Return the mean over all ranks; 0.0 if the count is 0.

        With a process group, it is a collective operation that every rank must call, for example at
        the end of an epoch. The mean does not change if several ranks have the same rows (tensor
        parallel), as long as all rows are on the same number of ranks.
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
