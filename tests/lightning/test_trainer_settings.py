"""Limits of a Trainer that other ranks, or another clock, would meet after other batches."""

import lightning.pytorch as pl
import pytest

from seqdata.errors import ResumeError, SeqDataWarning
from seqdata.lightning.trainer_settings import check_limits
from tests.lightning.harness import QUIET, data_of, fit, quietly


def make_trainer(**options):
    with quietly():
        return pl.Trainer(**QUIET, max_epochs=1, **options)


@pytest.mark.parametrize("name", ["limit_train_batches", "val_check_interval"])
def test_a_limit_in_steps_is_refused_on_other_ranks(name):
    with pytest.raises(
        ResumeError, match=f"`{name}` must be a fraction, but is 4 steps, which have"
    ):
        check_limits(make_trainer(**{name: 4}), 2, 1)
    check_limits(make_trainer(**{name: 0.5}), 2, 1)


def test_validations_within_an_update_or_by_the_clock_are_warned_of():
    options = {"folder": None, "max_epochs": 1, "accumulate_grad_batches": 2}
    with pytest.warns(SeqDataWarning, match="every 3 steps is not a multiple of the 2 steps of an"):
        fit(data_of(), val_check_interval=3, **options)
    with pytest.warns(SeqDataWarning, match=r"is a time of 60 seconds: .*Pass steps or a fraction"):
        fit(data_of(), val_check_interval="00:00:01:00", **options)
    fit(data_of(), val_check_interval=4, **options)
