"""Callback that checks that all ranks have the same model, bit for bit.

If the gradients of a rank are not averaged, or if ranks have different states, training would
otherwise continue with wrong results.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from seqdata.batch.batch import SequenceBatch
from seqdata.errors import ConfigError, RanksDifferError, must_be, warn
from seqdata.lightning import adapter
from seqdata.lightning.ranks.collect import GatherGroup

# Number of elements of a tensor that are digested at once.
_SLICE_ELEMENTS = 1 << 20
_STEP, _FIRST, _SECOND = -7046029254386353131, -49064778989728563, -4265267296055464877
_BIT_DTYPES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest_tensors(tensors: Sequence[Tensor]) -> list[int]:
    """Return a digest of each tensor, with one synchronization."""
    if not tensors:
        return []
    digests = [_digest_tensor(tensor.detach()) for tensor in tensors]
    numbers: list[int] = torch.stack([digest.to(digests[0].device) for digest in digests]).tolist()
    return numbers


def _digest_tensor(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    bits = tensor.contiguous().reshape(-1).view(_BIT_DTYPES[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for first in range(0, bits.numel(), _SLICE_ELEMENTS):
        values = bits[first : first + _SLICE_ELEMENTS].to(torch.int64)
        indices = torch.arange(first, first + values.numel(), device=bits.device)
        mixed = (values ^ (indices * _STEP)) * _FIRST  # wraps around, equally everywhere
        mixed = (mixed ^ (mixed >> 32)) * _SECOND
        total += (mixed ^ (mixed >> 29)).sum()
    return total


@dataclass(frozen=True, slots=True)
class SeenBatch:
    """Digest of a rank's batch.

    Attributes:
        replica: Data-parallel rank; ranks of one replica must have the same batch.
        digest: Digest of its batch; empty if it has only padding rows.
    """

    replica: int
    digest: tuple[int, ...]


def digest_batch(batch: Any) -> tuple[int, ...]:
    """Return digests of a batch's strided tensors (no nested or sparse ones); empty for padding."""
    tensors: list[Tensor] = []
    if isinstance(batch, Mapping):
        return tuple(digest for part in batch.values() for digest in digest_batch(part))
    if isinstance(batch, SequenceBatch):
        if not bool((batch.weight > 0).any()):
            return ()
        tensors = [batch.ids, batch.start]
        batch = batch.data
    apply_to_collection(batch, Tensor, tensors.append)
    return tuple(digest_tensors([tensor for tensor in tensors if tensor.layout == torch.strided]))


def describe_duplicates(ranks: Sequence[SeenBatch]) -> str:
    """Return a message about replicas that have the same batch; empty if there are none."""
    ranks_by_digest: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank, seen_batch in enumerate(ranks):
        if seen_batch.digest:
            ranks_by_digest[seen_batch.digest].append(rank)
    duplicated = [
        ranks_of_batch
        for ranks_of_batch in ranks_by_digest.values()
        if len({ranks[rank].replica for rank in ranks_of_batch}) > 1
    ]
    if not duplicated:
        return ""
    ranks_text = "; ".join(", ".join(map(str, ranks_of_batch)) for ranks_of_batch in duplicated)
    return (
        f"in the first step ranks {ranks_text} have the same batch, so they repeat each other's "
        "work. Pass a SequenceDataModule, or shard the data by rank"
    )


_SHARDED_STRATEGIES = (DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy)
_RUNNING_STATISTICS = ("running_mean", "running_var")
Digests = dict[str, int]


class RankConsistency(Callback):
    """Callback that compares parameters and buffers over ranks, and raises if they differ.

    Before the first step and after every ``every_n_steps`` steps, each rank computes a digest of
    each tensor on its device, and the ranks exchange the digests. Running statistics of batch and
    instance norms are not compared, because they differ between ranks until the next forward pass
    of DDP. Synchronized batch norms are compared.

    In the first step, the callback also compares batches, and rank 0 warns about ranks with equal
    batches. ``WavefrontStrategy`` raises an error if this callback is used, because its ranks train
    different layers.

    Args:
        every_n_steps: Number of steps between comparisons.
        ignore: Names of parameters and buffers that may differ, or prefixes of such names.

    Raises:
        ConfigError: If an argument is invalid, or, in ``setup``, if the strategy shards parameters.
        RanksDifferError: In training, on all ranks, if a tensor differs. The message names the
            first such tensor and the ranks.

    Examples:
        >>> check = RankConsistency(every_n_steps=200)
    """

    def __init__(self, every_n_steps: int = 100, ignore: Sequence[str] = ()) -> None:
        if not isinstance(every_n_steps, int) or every_n_steps < 1:
            raise ConfigError(
                must_be(
                    "RankConsistency: `every_n_steps`",
                    "an integer of at least 1",
                    repr(every_n_steps),
                )
            )
        if isinstance(ignore, str):
            raise ConfigError(
                must_be(
                    "RankConsistency: `ignore`",
                    "a tuple of names",
                    repr(ignore),
                    f"Pass ({ignore!r},)",
                )
            )
        self._every_n_steps = every_n_steps
        self._ignored = tuple(ignore)
        self._gather_group = GatherGroup()
        self._steps = 0
        self._has_compared_batches = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raise in a fit if the strategy shards parameters.

        Raises:
            ConfigError: If the strategy of a fit is DeepSpeed, FSDP or model parallel.
        """
        del pl_module
        if stage == "fit" and isinstance(trainer.strategy, _SHARDED_STRATEGIES):
            raise ConfigError(
                "RankConsistency: the strategy must give all ranks the same parameters, as DDP "
                f"does, but is a {type(trainer.strategy).__name__}, which shards them. Leave the "
                "callback out."
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the ranks before the first step.

        Raises:
            RanksDifferError: If a parameter or buffer differs.
        """
        self._gather_group.open()
        self._steps = 0
        self._has_compared_batches = False
        self._compare(trainer, pl_module)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Warn, in the first step, if ranks have equal batches."""
        del pl_module, batch_idx
        if self._has_compared_batches or trainer.world_size == 1:
            return
        self._has_compared_batches = True
        own_batch = SeenBatch(adapter.get_world(trainer).rank, digest_batch(batch))
        duplicates_text = describe_duplicates(self._gather_group.all_gather(own_batch))
        if duplicates_text and trainer.is_global_zero:
            warn(f"RankConsistency: {duplicates_text}")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Compare the ranks every ``every_n_steps`` steps.

        Raises:
            RanksDifferError: If a parameter or buffer differs.
        """
        del outputs, batch, batch_idx
        self._steps += 1
        if self._steps % self._every_n_steps == 0:
            self._compare(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the process group."""
        del trainer, pl_module
        self._gather_group.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Leave the process group."""
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
    """Yield the names and tensors to compare: initialised parameters, then buffers."""
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
    """Return the names of all ranks, in order."""
    return {name: None for rank in ranks for name in rank}


def _make_difference_error(
    name: str, ranks: Sequence[Digests], updates: int, buffers: dict[str, Tensor]
) -> RanksDifferError:
    values = [rank.get(name) for rank in ranks]
    # Of equally frequent values, the value of the lowest rank.
    common_value = Counter(values).most_common(1)[0][0]
    odd_ranks = [rank for rank, value in enumerate(values) if value != common_value]
    others = ", ".join(str(rank) for rank, value in enumerate(values) if value == common_value)
    kind, hint = (
        "parameter",
        (
            "change it in the same steps on every rank, by gradients that DDP averages: with "
            "the optimizer only, and within the module that the Trainer received"
        ),
    )
    if name in buffers:
        kind, hint = (
            "buffer",
            (
                "DDP overwrites it with that of rank 0; keep a rank's own values in a plain "
                "attribute"
            ),
        )
    if None in values:
        hint = "it does not exist on all ranks; build the same model on every rank"
    return RanksDifferError.at(
        f"RankConsistency: {kind} {name!r} after {updates} updates differs on rank"
        f"{'s' if len(odd_ranks) > 1 else ''} {', '.join(map(str, odd_ranks))} from {others}: "
        f"{hint}, or name it in `ignore`",
        rank=odd_ranks[0],
    )
