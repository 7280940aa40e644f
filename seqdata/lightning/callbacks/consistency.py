"""Looks whether all ranks hold the same model, bit by bit.

Where they do not, training goes on and is wrong: gradients that one rank did not average, a state
that each keeps for itself.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from seqdata.errors import ConfigError, RanksDifferError, SeqDataWarning
from seqdata.lightning import adapter
from seqdata.lightning.callbacks._support.digests import digest_tensors
from seqdata.lightning.callbacks._support.duplicates import (
    SeenBatch,
    describe_duplicates,
    digest_batch,
)
from seqdata.lightning.ranks.collect import GatherGroup

_SHARDED_STRATEGIES = (DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy)
_RUNNING_STATISTICS = ("running_mean", "running_var")
Digests = dict[str, int]


class RankConsistency(Callback):
    """Compares parameters and buffers over ranks, and raises on all of them where one differs.

    Before the first step and after every so many, each rank makes a number of each tensor, where it
    lies, and the ranks tell each other these numbers. Running statistics of batch and instance
    norms are left out: each rank has its own, until DDP's next forward pass.

    In the first step batches are compared, too: ranks that have the same are warned of, on rank 0.

    Args:
        every_n_steps: After how many steps.
        ignore: Names of parameters and buffers that may differ, or the beginnings of such names.

    Raises:
        ConfigError: If an argument cannot be meant, or the strategy shards parameters.
        RanksDifferError: While training: if ranks differ, with the first name and these ranks.

    Examples:
        >>> check = RankConsistency(every_n_steps=200)
    """

    def __init__(self, every_n_steps: int = 100, ignore: Sequence[str] = ()) -> None:
        if not isinstance(every_n_steps, int) or every_n_steps < 1:
            raise ConfigError(
                f"RankConsistency: `every_n_steps` is {every_n_steps!r}, must be an integer of at "
                "least 1"
            )
        if isinstance(ignore, str):
            raise ConfigError(
                f"RankConsistency: `ignore` is {ignore!r}, must be a tuple of names; pass "
                f"({ignore!r},)"
            )
        self._every_n_steps = every_n_steps
        self._ignored = tuple(ignore)
        self._gather_group = GatherGroup()
        self._steps = 0
        self._has_compared_batches = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse parameters that no two ranks share."""
        del pl_module
        if stage == "fit" and isinstance(trainer.strategy, _SHARDED_STRATEGIES):
            raise ConfigError(
                f"RankConsistency: the strategy is a {type(trainer.strategy).__name__}, which "
                "gives each rank other parameters, must be one that gives all the same, as DDP "
                "does; leave the callback out"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare what the ranks begin with."""
        self._gather_group.open()
        self._steps = 0
        self._has_compared_batches = False
        self._compare(trainer, pl_module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Look once whether ranks have the same batch."""
        del pl_module, batch_idx
        if self._has_compared_batches or trainer.world_size == 1:
            return
        self._has_compared_batches = True
        own_batch = SeenBatch(adapter.get_world(trainer).rank, digest_batch(batch))
        duplicates_text = describe_duplicates(self._gather_group.all_gather(own_batch))
        if duplicates_text and trainer.is_global_zero:
            warnings.warn(f"RankConsistency: {duplicates_text}", SeqDataWarning, stacklevel=2)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Compare, every so many steps."""
        del outputs, batch, batch_idx
        self._steps += 1
        if self._steps % self._every_n_steps == 0:
            self._compare(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the other ranks."""
        del trainer, pl_module
        self._gather_group.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the other ranks."""
        del trainer, pl_module, exception
        self._gather_group.close()

    def _compare(self, trainer: Trainer, module: LightningModule) -> None:
        if trainer.world_size == 1:
            return
        tensors = {
            name: tensor
            for name, tensor in _iterate_tensors(module)
            if not name.startswith(self._ignored)
        }
        own_digests = dict(zip(tensors, digest_tensors(list(tensors.values())), strict=True))
        ranks = self._gather_group.all_gather(own_digests)
        name = next(
            (
                tensor
                for tensor in _collect_names(ranks)
                if len({rank.get(tensor) for rank in ranks}) > 1
            ),
            None,
        )
        if name is not None:
            raise _make_difference_error(
                name, ranks, trainer.global_step, dict(module.named_buffers())
            )


def _iterate_tensors(module: LightningModule) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters, then buffers, by name; without those that are not there yet."""
    rank_own_names = {
        f"{name}.{running}" if name else running
        for name, submodule in module.named_modules()
        for running in _RUNNING_STATISTICS
        if isinstance(submodule, _BatchNorm | _InstanceNorm)
        and not isinstance(submodule, torch.nn.SyncBatchNorm)
    }
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        is_lazy = torch.nn.parameter.is_lazy(tensor)
        if name not in rank_own_names and not is_lazy and tensor.layout == torch.strided:
            yield name, tensor


def _collect_names(ranks: Sequence[Digests]) -> dict[str, None]:
    """Return every name that a rank has, in order."""
    return {name: None for rank in ranks for name in rank}


def _make_difference_error(
    name: str, ranks: Sequence[Digests], updates: int, buffers: dict[str, Tensor]
) -> RanksDifferError:
    values = [rank.get(name) for rank in ranks]
    common_value = Counter(values).most_common(1)[0][0]  # of those that are equally many, rank 0's
    odd_ranks = [rank for rank, value in enumerate(values) if value != common_value]
    others = ", ".join(str(rank) for rank, value in enumerate(values) if value == common_value)
    kind, hint = (
        "parameter",
        (
            "let every rank change it in the same steps, by gradients that DDP averages: by the "
            "optimizer alone, and within the module that the Trainer was given"
        ),
    )
    if name in buffers:
        kind, hint = (
            "buffer",
            ("DDP puts rank 0's in its place; keep what is a rank's own in a plain attribute"),
        )
    if None in values:
        hint = "it is not there on all; build the same model on every rank"
    return RanksDifferError.at(
        f"RankConsistency: {kind} {name!r} after {updates} updates is another on rank"
        f"{'s' if len(odd_ranks) > 1 else ''} {', '.join(map(str, odd_ranks))} than on {others}, "
        "must be equal "
        f"on all; {hint}, or name it in `ignore`",
        rank=odd_ranks[0],
    )
