"""Ranks that were given something else are told so by its name, before anything is trained."""

import inspect

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import Callback, RichProgressBar, TQDMProgressBar

from seqdata.lightning.callbacks.preemption import Preemption
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.lightning.ranks.collect import describe_differences
from seqdata.lightning.ranks.settings import describe_settings
from seqdata.loading.loader import Loader
from tests.lightning.harness import QUIET, quietly
from tests.lightning.ranks.differing import (
    DATA,
    DATA_FREE,
    LOADER,
    LOADER_FREE,
    ROWS,
    TRAINER,
    TRAINER_FREE,
    UNSET,
    Adding,
    Items,
    list_cases,
    make_loader,
    make_options,
)

STAGES = {"test": "test", "predict": "predict"}


def make_trainer(**options):
    quiet = {**QUIET, "enable_checkpointing": False, "strategy": "ddp"}
    if "barebones" in options:
        del quiet["num_sanity_val_steps"]
    with quietly():
        return pl.Trainer(**{**quiet, **options})


def describe_trainer(name, value):
    extra = {"gradient_clip_val": 1.0} if name == "gradient_clip_algorithm" else {}
    callbacks = {"enable_checkpointing": True} if name == "callbacks" else {}
    return describe_settings(make_trainer(**{**extra, **callbacks, **make_options(name, value)}))


def describe_data(name, value):
    options = {"train": ROWS, "val": ROWS[:5], "batching": DATA["batching"][0][0], "seed": 0}
    if name == "val" and value is UNSET:
        del options["val"]
    if name == "lengths":
        options["train"] = Items()
    data = SequenceDataModule(**{**options, **make_options(name, value)})
    return data._prepare(STAGES.get(name, "fit"))


OF_THE_SOURCE = {
    "rates", "axes", "whole", "group", "order", "id", "backend", "remote", "split", "statistics",
    "where", "rename", "prepare", "missing",
}  # fmt: skip
"""Arguments that say how data is opened: what they make of it is compared by its fingerprint."""


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("rename", {"x": "a"}, {"x": "b"}),
        ("where", {"length": "..4"}, {"length": "..5"}),
        ("rates", {"x": 100}, {"x": 200}),
        ("split", {"train": 0.5, "val": 0.5}, {"train": 0.6, "val": 0.4}),
    ],
)
def test_what_ranks_make_of_a_source_is_compared(name, one, other):
    values = []
    for value in (one, other, one):
        data = SequenceDataModule(
            train=ROWS, batching=DATA["batching"][0][0], seed=0, **{name: value}
        )
        values.append(data._prepare("fit").fixed)
    found = describe_differences(values[:2])
    assert f"`{name}" in found or "data of train 0" in found
    assert not describe_differences(values[::2])


@pytest.mark.parametrize(
    ("of", "cases", "free"),
    [
        (pl.Trainer, TRAINER, TRAINER_FREE),
        (SequenceDataModule, DATA, DATA_FREE),
        (Loader, LOADER, LOADER_FREE),
    ],
)
def test_each_argument_is_compared_or_may_differ(of, cases, free):
    names = set(inspect.signature(of).parameters)
    assert set(cases) | set(free) == names - OF_THE_SOURCE
    assert not set(cases) & set(free)


@pytest.mark.parametrize(("name", "number"), list_cases(DATA))
def test_an_argument_of_the_datamodule_that_differs_is_named(name, number):
    one, other, named = DATA[name][number]
    values = [describe_data(name, one).fixed, describe_data(name, other).fixed]
    assert f"`{named}" in describe_differences(values)
    assert not describe_differences([values[0], describe_data(name, one).fixed])


@pytest.mark.parametrize(("name", "number"), list_cases(LOADER))
def test_an_argument_of_the_loader_that_differs_is_named(name, number):
    one, other, named = LOADER[name][number]
    values = [make_loader(name, value)._describe() for value in (one, other, one)]
    assert f"`{named}" in describe_differences(values[:2])
    assert not describe_differences(values[::2])


@pytest.mark.parametrize("name", LOADER_FREE)
def test_how_a_loader_reads_may_differ(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = [make_loader(name, value)._describe() for value in LOADER_FREE[name]]
    assert not describe_differences(values)


@pytest.mark.parametrize(("name", "number"), list_cases(TRAINER))
def test_a_setting_of_the_trainer_that_differs_is_named(name, number):
    one, other, named = TRAINER[name][number]
    values = [describe_trainer(name, one).fixed, describe_trainer(name, other).fixed]
    assert f"`{named}" in describe_differences(values)
    assert not describe_differences([values[0], describe_trainer(name, one).fixed])


@pytest.mark.parametrize("name", DATA_FREE)
def test_how_a_rank_reads_may_differ(name):
    assert describe_data(name, DATA_FREE[name][0]) == describe_data(name, DATA_FREE[name][1])


@pytest.mark.parametrize("name", TRAINER_FREE)
def test_what_a_rank_shows_may_differ(name):
    one, other = TRAINER_FREE[name]
    assert describe_trainer(name, one) == describe_trainer(name, other)


class Own(Callback):
    """A callback of a user."""


class Local(Callback):
    """A callback that says that it is of some ranks."""

    is_rank_local = True


@pytest.mark.parametrize("callback", [Local, Preemption, TQDMProgressBar, RichProgressBar])
def test_callbacks_that_do_not_wait_may_be_on_some_ranks(callback):
    options = {**QUIET, "enable_progress_bar": True}
    with quietly():
        one, other = (pl.Trainer(**options, callbacks=given) for given in ([callback()], []))
    assert describe_settings(one) == describe_settings(other)


def test_callbacks_of_users_on_some_ranks_are_a_warning():
    one, other = describe_trainer("callbacks", [Own()]), describe_trainer("callbacks", [])
    assert one.fixed == other.fixed
    assert one.changing == {**other.changing, "callback Own": "given"}


def test_callbacks_that_come_after_one_of_some_ranks_are_compared():
    one, other = (describe_trainer("callbacks", [Local(), Own()]) for _ in range(2))
    assert one == other
    assert "callback Own" in one.changing


def test_options_are_described_before_they_are_used():
    transform = Adding(1)
    data = SequenceDataModule(train=ROWS, transform=transform, seed=0)
    before = data._prepare("fit")
    transform.by = 2  # as a transform may that counts
    assert data._prepare("fit") == before
