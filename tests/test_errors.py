import inspect
import pickle
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel
from torch.utils.data import DataLoader

from seqdata import Fixed, SequenceDataModule, errors, open_store
from seqdata.errors import ConfigError, SeqDataWarning, check_flags, must_be
from seqdata_testing.waiting import patient


def test_details_survive_pickling():
    error = errors.CorruptShardError.at(
        "store: shard 17 is cut off", shard=17, file="part-17.arrow"
    )
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.CorruptShardError
    assert str(again) == "store: shard 17 is cut off"
    assert again.details == {"shard": 17, "file": "part-17.arrow"}


class Damaged(torch.utils.data.Dataset):
    """A Dataset whose items cannot be decoded."""

    def __len__(self):
        return 1

    def __getitem__(self, number):
        raise errors.DecodeError.at("store: bad", sequence=3, field="x")


@pytest.mark.parametrize("workers", [0, 1])
def test_details_survive_the_workers_of_a_torch_dataloader(workers):
    with pytest.raises(errors.DecodeError, match="store: bad") as caught:
        list(DataLoader(Damaged(), num_workers=workers))
    assert caught.value.details == {"sequence": 3, "field": "x"}


def test_details_are_not_in_the_traceback_that_a_user_reads():
    error = errors.DecodeError.at("store: bad", sequence=3, field="x")
    assert "".join(traceback.format_exception(error)) == "seqdata.errors.DecodeError: store: bad\n"


def test_a_message_stays_clean_of_its_details():
    assert str(errors.DataError.at("store: bad", shard=None)) == "store: bad"
    assert errors.DataError.at("store: bad", shard=None).details == {}


def test_a_broken_trailer_is_text():
    assert errors.DataError("bad\nseqdata: {no json").details == {}


@pytest.mark.parametrize(
    "name", [name for name in dir(errors) if name.endswith("Error") and name != "SeqDataError"]
)
def test_every_error_is_a_seqdata_error(name):
    assert issubclass(getattr(errors, name), errors.SeqDataError)


LINE = errors.format_step(epoch=2, batch=4711, step=1177, rank=3, size=4, worker=1)


def test_a_line_of_the_run_comes_before_the_command_that_helps():
    error = errors.DecodeError.at(
        "store shard 17: bad\n  Verify: seqdata verify store --shard 17.", shard=17, rank=0
    )
    error.add_note("said by a transform")
    again = error.with_place(LINE, epoch=2, rank=3)
    assert type(again) is errors.DecodeError
    assert str(again) == (
        "store shard 17: bad\n"
        "  epoch 2, batch 4711 (step 1177, rank 3 of 4, worker 1). "
        "Verify: seqdata verify store --shard 17."
    )
    assert again.details == {"shard": 17, "epoch": 2, "rank": 3}
    assert again.__notes__ == [
        "said by a transform",
    ]
    assert pickle.loads(pickle.dumps(again)).details == again.details


def test_without_a_command_the_line_is_the_last():
    line = errors.format_step(epoch=0, batch=1, step=1, rank=0, size=1)
    again = errors.DecodeError("memory: bad").with_place(line)
    assert str(again) == "memory: bad\n  epoch 0, batch 1 (step 1, rank 0 of 1)"
    assert again.details == {}


class OfAPlugin(errors.DecodeError):
    """An error of somebody else that knows more than details."""


def test_notes_and_fields_of_subclasses_travel_between_processes():
    error = OfAPlugin.at("wrong", shard="a")
    error.add_note("seen on a Monday")
    error.frame = 7
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.details, again.frame) == (
        OfAPlugin,
        "wrong",
        {"shard": "a"},
        7,
    )
    assert again.__notes__ == error.__notes__


def test_details_are_added_and_notes_stay():
    error = errors.DecodeError.at("wrong", shard="a", field="x")
    error.add_note("seen on a Monday")
    made = error.with_details(shard="b", worker=1)
    assert (str(made), made.details) == ("wrong", {"shard": "b", "field": "x", "worker": 1})
    assert "seen on a Monday" in made.__notes__


def test_a_message_says_what_must_be_what_is_and_what_to_do():
    found = must_be("loader: `prefetch`", "an integer", "'two'", "Pass 2")
    assert found == "loader: `prefetch` must be an integer, but is 'two'. Pass 2."
    assert must_be("`x`", "at least 1", "0") == "`x` must be at least 1, but is 0"


@pytest.mark.parametrize("value", ["false", 1, None, np.True_])
def test_a_flag_is_true_or_false(value):
    with pytest.raises(ConfigError, match="any: `shuffle` must be True or False, but is"):
        check_flags("any", exact=True, shuffle=value)
    check_flags("any", exact=True, shuffle=False)


TIED = pd.DataFrame({"id": list("aabb"), "time": [1, 1, 1, 2], "x": [1.0, 2.0, 3.0, 4.0]})


def list_lines(caught):
    return [(warning.filename, warning.lineno) for warning in caught if "equal" in str(warning)]


def test_a_warning_names_the_line_that_the_user_wrote():
    with pytest.warns(SeqDataWarning) as caught:
        open_store(TIED, group="id", order="time")
    assert list_lines(caught) == [(__file__, inspect.currentframe().f_lineno - 1)]


def test_a_warning_in_a_trainer_names_the_line_that_starts_it():
    data = SequenceDataModule(train=TIED, group="id", order="time", batching=Fixed(2))
    model = BoringModel()
    model.training_step = lambda batch, batch_idx: model.layer.weight.sum()
    model.validation_step = None
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(max_steps=1, accelerator="cpu", enable_checkpointing=False, **quiet)
    with pytest.warns(SeqDataWarning) as caught:
        trainer.fit(model, data)
    assert list_lines(caught) == [(__file__, inspect.currentframe().f_lineno - 1)]


def test_a_warning_in_a_thread_of_no_user_is_issued_all_the_same():
    with pytest.warns(SeqDataWarning) as caught, ThreadPoolExecutor(1) as pool:
        pool.submit(open_store, TIED, group="id", order="time").result(patient())
    assert len(list_lines(caught)) == 1
