"""RankConsistency: digests that see every bit, and the message of what differs."""

import re

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.strategies import ModelParallelStrategy

from seqdata import ConfigError, RankConsistency
from seqdata.lightning.callbacks.consistency import _iterate_tensors, _make_difference_error
from tests.lightning.harness import QUIET, data_of, fit


def test_parameters_come_first_then_buffers_without_running_statistics():
    module = pl.LightningModule()
    module.norm = torch.nn.BatchNorm1d(2)
    module.synced = torch.nn.SyncBatchNorm(2)
    module.each = torch.nn.InstanceNorm1d(2, track_running_stats=True)
    module.lazy = torch.nn.LazyLinear(2)
    module.register_buffer("count", torch.zeros(1))
    assert [name for name, _ in _iterate_tensors(module)] == [
        "norm.weight", "norm.bias", "synced.weight", "synced.bias", "count",
        "norm.num_batches_tracked", "synced.running_mean", "synced.running_var",
        "synced.num_batches_tracked", "each.num_batches_tracked",
    ]  # fmt: skip


def test_the_rank_that_differs_is_the_one_unlike_most():
    ranks = [{"a": 1, "b": number} for number in (5, 5, 7, 5)]
    assert str(_make_difference_error("b", ranks, 40, {})) == (
        "RankConsistency: parameter 'b' after 40 updates differs on rank 2 from 0, 1, 3: change "
        "it in the same steps on every rank, by gradients that DDP averages: with the optimizer "
        "only, and within the module that the Trainer received, or name it in `ignore`"
    )


def test_a_buffer_that_differs_is_told_what_ddp_does_with_it():
    error = _make_difference_error("b", [{"b": 2}, {"b": 1}, {"b": 3}], 1, {"b": torch.zeros(1)})
    assert str(error) == (
        "RankConsistency: buffer 'b' after 1 updates differs on ranks 1, 2 from 0: DDP "
        "overwrites it with that of rank 0; keep a rank's own values in a plain attribute, or "
        "name it in `ignore`"
    )
    assert error.details == {"rank": 1}


def test_what_a_rank_lacks_is_named():
    error = _make_difference_error("b", [{"a": 2, "b": 1}, {"a": 2}], 0, {})
    assert str(error).endswith(
        "differs on rank 1 from 0: it does not exist on all ranks; build the "
        "same model on every rank, or name it in `ignore`"
    )


def test_one_process_is_consistent_with_itself():
    fit(data_of(), max_epochs=1, callbacks=(RankConsistency(every_n_steps=1),))


def test_strategies_that_shard_parameters_are_refused():
    trainer = pl.Trainer(**{**QUIET, "strategy": ModelParallelStrategy()}, max_epochs=1)
    wanted = (
        "RankConsistency: the strategy must give all ranks the same parameters, as DDP "
        "does, but is a ModelParallelStrategy, which shards them. Leave the callback out."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(wanted)}$"):
        RankConsistency().setup(trainer, pl.LightningModule(), "fit")


@pytest.mark.parametrize("every", [0, "2"])
def test_steps_must_be_a_count(every):
    wanted = f"RankConsistency: `every_n_steps` must be an integer of at least 1, but is {every!r}"
    with pytest.raises(ConfigError, match=f"^{wanted}$"):
        RankConsistency(every_n_steps=every)


def test_ignored_names_must_not_be_one_text():
    wanted = "RankConsistency: `ignore` must be a tuple of names, but is 'head'. Pass ('head',)."
    with pytest.raises(ConfigError, match=f"^{re.escape(wanted)}$"):
        RankConsistency(ignore="head")
