"""A fit that stops and goes on calls every hook, validation and scheduler once, in order."""

import itertools

import pytest

from tests.lightning.tracing import assert_continues, fit_traced, list_cuts

STEPS = 6  # of an epoch
TRIGGERS = ("steps", "steps_2", "time", "batch_end", "epoch_end", "validation_end")
VALIDATIONS = {
    "epoch": {},
    "interval": {"val_check_interval": 2},
    "odd_interval": {"val_check_interval": 4},
    "fraction": {"val_check_interval": 0.5},
    "second_epoch": {"check_val_every_n_epoch": 2, "max_epochs": 4},
    "over_epochs": {"val_check_interval": 4, "check_val_every_n_epoch": None},
    "none": {"limit_val_batches": 0},
}
MID_UPDATE = "ignore:.*inside an update.*:seqdata.errors.SeqDataWarning"
UNKNOWN = "ignore:ReduceLROnPlateau conditioned on metric val.*:RuntimeWarning"
OF_AN_UPDATE = "ignore:.*not a multiple of the.*:seqdata.errors.SeqDataWarning"


GRID = list(itertools.product(TRIGGERS, VALIDATIONS, (1, 2, 4)))
AT_EVERY_CHANGE = {
    ("steps", "interval", 1), ("steps_2", "over_epochs", 2), ("time", "second_epoch", 1),
    ("batch_end", "odd_interval", 4), ("epoch_end", "epoch", 1), ("epoch_end", "fraction", 4),
    ("validation_end", "epoch", 2), ("validation_end", "odd_interval", 1), ("batch_end", "none", 1),
}  # fmt: skip


@pytest.mark.parametrize(
    ("trigger", "validation", "accumulate"),
    [
        pytest.param(*one, marks=() if one in AT_EVERY_CHANGE else pytest.mark.nightly)
        for one in GRID
    ],
)
@pytest.mark.slow
@pytest.mark.filterwarnings(MID_UPDATE, OF_AN_UPDATE, UNKNOWN)
def test_a_resumed_fit_does_once_what_the_whole_fit_does_after_its_checkpoint(
    trigger, validation, accumulate, tmp_path
):
    options = {**VALIDATIONS[validation], "accumulate_grad_batches": accumulate}
    whole = fit_traced(trigger=trigger, folder=tmp_path, **options)
    for path, before, steps in list_cuts(tmp_path, options.get("max_epochs", 3)):
        rest = fit_traced(ckpt=path, **options)
        is_in_update = steps % STEPS % accumulate != 0
        assert_continues(whole, before, rest, is_in_update=is_in_update)
