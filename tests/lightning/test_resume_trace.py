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


REPEATED_FROM = {
    "on_train_epoch_start": "on_train_epoch_start", "on_train_batch_start": "on_train_batch_start",
    "training_step": "on_train_batch_start", "on_train_epoch_end": "on_train_epoch_end",
    "on_validation_start": "on_validation_start",
    "on_validation_epoch_start": "on_validation_start",
    "on_validation_batch_start": "on_validation_start",
    "on_validation_batch_end": "on_validation_start",
    "on_validation_epoch_end": "on_validation_start", "on_validation_end": "on_validation_start",
}  # fmt: skip
"""Hook that failed -> the one from which a resumed fit repeats a step, a validation or an end."""


def find_rest(entries, failed):
    """Return what a fit has to do after a hook of it has failed."""
    hook = entries[failed][1]
    if hook == "on_train_batch_end":  # the update is made, and the hook counts as done
        return list(itertools.dropwhile(lambda entry: entry[1] == hook, entries[failed:]))
    first = ("callback", REPEATED_FROM[hook])
    begin = max(n for n, entry in enumerate(entries[: failed + 1]) if entry[:2] == first)
    return entries[begin:]


@pytest.fixture(scope="module", params=["epoch", "interval"])
def whole(request):
    options = VALIDATIONS[request.param]
    return options, fit_traced(**options)


FAILED = [*itertools.product([*REPEATED_FROM, "on_train_batch_end"], ("callback", "module"))]
FAILED_AT_EVERY_CHANGE = {
    ("training_step", "module"), ("on_train_epoch_end", "module"), ("on_validation_end", "module"),
    ("on_validation_batch_start", "callback"), ("on_train_batch_end", "callback"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("hook", "owner"),
    [
        pytest.param(*one, marks=() if one in FAILED_AT_EVERY_CHANGE else pytest.mark.nightly)
        for one in FAILED
    ],
)
@pytest.mark.slow
def test_what_failed_is_repeated_as_a_whole(whole, hook, owner, tmp_path):
    options, done = whole
    owner = "module" if hook == "training_step" else owner
    places = [n for n, entry in enumerate(done.entries) if entry[:2] == (owner, hook)]
    places = [n for n in places if done.entries[n][3]]  # none is saved before the first update
    for failed in {places[0], places[len(places) // 2]}:
        folder = tmp_path / str(failed)
        fit_traced(trigger="exception", folder=folder, fail_at=failed, **options)
        (path,) = folder.glob("*.ckpt")
        rest = fit_traced(ckpt=path, **options)
        assert rest.entries == find_rest(done.entries, failed)
        assert rest.rate == done.rate


LIMITS_AT_EVERY_CHANGE = {("steps", 8, 2), ("steps", 6, 1.0), ("validation_end", 8, 2)}


@pytest.mark.parametrize(
    ("trigger", "max_steps", "interval"),
    [
        pytest.param(*one, marks=() if one in LIMITS_AT_EVERY_CHANGE else pytest.mark.nightly)
        for one in itertools.product(("steps", "validation_end"), (6, 8), (2, 3, 1.0))
    ],
)
@pytest.mark.slow
def test_a_fit_that_reached_its_steps_ends_as_the_whole_one(trigger, max_steps, interval, tmp_path):
    options = {"max_steps": max_steps, "max_epochs": -1, "val_check_interval": interval}
    whole = fit_traced(trigger=trigger, folder=tmp_path, **options)
    cuts = list(list_cuts(tmp_path))
    for path, before, _ in cuts[-3:]:
        rest = fit_traced(ckpt=path, **options)
        assert_continues(whole, before, rest)
    done = fit_traced(trigger="epoch_end", folder=tmp_path / "done", **options)
    (path,) = (tmp_path / "done").glob(f"step={max_steps}-*.ckpt")
    assert not fit_traced(ckpt=path, **options).entries  # nothing is left
    assert done.entries == whole.entries


@pytest.mark.parametrize("every", [1, 2])
def test_a_resumed_fit_does_not_save_the_update_again_from_which_it_resumes(every, tmp_path):
    trigger = {1: "steps", 2: "steps_2"}[every]
    options = {"accumulate_grad_batches": 2}
    fit_traced(trigger=trigger, folder=tmp_path / "whole", **options)
    path = min((tmp_path / "whole").glob("step=2-*.ckpt"))
    fit_traced(trigger=trigger, folder=tmp_path / "rest", ckpt=path, **options)
    names = {path.name for path in (tmp_path / "whole").glob("*.ckpt")}
    done = {f"step={update}-epoch=0.ckpt" for update in (1, 2)}
    assert {path.name for path in (tmp_path / "rest").glob("*.ckpt")} == names - done
