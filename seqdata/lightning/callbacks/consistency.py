"""Looks whether all ranks hold the same model, bit by bit.

Where they do not, training goes on and is wrong: gradients that one rank did not average, a state
that each keeps for itself. Place in the flow: beside the model. Reads: parameters and buffers.
Makes: nothing, or the same error on every rank.
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
from seqdata.lightning.callbacks._support.digests import digests_of
from seqdata.lightning.callbacks._support.duplicates import Held, digest_of, duplicates
from seqdata.lightning.ranks.gather_group import Gathering

_SHARDED = (DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy)
_RUNNING = ("running_mean", "running_var")
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
        self._every = every_n_steps
        self._ignored = tuple(ignore)
        self._gathering = Gathering()
        self._steps = 0
        self._looked = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse parameters that no two ranks share."""
        del pl_module
        if stage == "fit" and isinstance(trainer.strategy, _SHARDED):
            raise ConfigError(
                f"RankConsistency: the strategy is a {type(trainer.strategy).__name__}, which "
                "gives each rank other parameters, must be one that gives all the same, as DDP "
                "does; leave the callback out"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare what the ranks begin with."""
        self._gathering.open()
        self._steps = 0
        self._looked = False
        self._compare(trainer, pl_module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Look once whether ranks have the same batch."""
        del pl_module, batch_idx
        if self._looked or trainer.world_size == 1:
            return
        self._looked = True
        mine = Held(adapter.world_of(trainer).rank, digest_of(batch))
        same = duplicates(self._gathering.gather(mine))
        if same and trainer.is_global_zero:
            warnings.warn(f"RankConsistency: {same}", SeqDataWarning, stacklevel=2)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Compare, every so many steps."""
        del outputs, batch, batch_idx
        self._steps += 1
        if self._steps % self._every == 0:
            self._compare(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the other ranks."""
        del trainer, pl_module
        self._gathering.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the other ranks."""
        del trainer, pl_module, exception
        self._gathering.close()

    def _compare(self, trainer: Trainer, module: LightningModule) -> None:
        if trainer.world_size == 1:
            return
        named = {name: one for name, one in _tensors(module) if not name.startswith(self._ignored)}
        mine = dict(zip(named, digests_of(list(named.values())), strict=True))
        ranks = self._gathering.gather(mine)
        name = next(
            (one for one in _names(ranks) if len({rank.get(one) for rank in ranks}) > 1), None
        )
        if name is not None:
            raise _difference(name, ranks, trainer.global_step, dict(module.named_buffers()))


def _tensors(module: LightningModule) -> Iterator[tuple[str, Tensor]]:
    """Give parameters, then buffers, by name; without those that are not there yet."""
    own = {
        f"{name}.{running}" if name else running
        for name, part in module.named_modules()
        for running in _RUNNING
        if isinstance(part, _BatchNorm | _InstanceNorm)
        and not isinstance(part, torch.nn.SyncBatchNorm)
    }
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        lazy = torch.nn.parameter.is_lazy(tensor)
        if name not in own and not lazy and tensor.layout == torch.strided:
            yield name, tensor


def _names(ranks: Sequence[Digests]) -> dict[str, None]:
    """Give every name that a rank has, in order."""
    return {name: None for rank in ranks for name in rank}


def _difference(
    name: str, ranks: Sequence[Digests], updates: int, buffers: dict[str, Tensor]
) -> RanksDifferError:
    values = [rank.get(name) for rank in ranks]
    usual = Counter(values).most_common(1)[0][0]  # of those that are equally many, rank 0's
    odd = [rank for rank, value in enumerate(values) if value != usual]
    others = ", ".join(str(rank) for rank, value in enumerate(values) if value == usual)
    what, hint = (
        "parameter",
        (
            "let every rank change it in the same steps, by gradients that DDP averages: by the "
            "optimizer alone, and within the module that the Trainer was given"
        ),
    )
    if name in buffers:
        what, hint = (
            "buffer",
            ("DDP puts rank 0's in its place; keep what is a rank's own in a plain attribute"),
        )
    if None in values:
        hint = "it is not there on all; build the same model on every rank"
    return RanksDifferError.at(
        f"RankConsistency: {what} {name!r} after {updates} updates is another on rank"
        f"{'s' if len(odd) > 1 else ''} {', '.join(map(str, odd))} than on {others}, must be equal "
        f"on all; {hint}, or name it in `ignore`",
        rank=odd[0],
    )
