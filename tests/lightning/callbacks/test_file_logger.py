"""RankFileLogger: a whole line for each step and exception, of whatever steps give."""

import json
import re
import resource
import time
import warnings

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from seqdata import ConfigError, DecodeError, RankFileLogger, SeqDataWarning
from tests.lightning.harness import Recorder, data_of, fit


class Giving(Recorder):
    """Gives what it is told with its loss."""

    def __init__(self, given):
        super().__init__()
        self.given = given

    def training_step(self, batch, batch_idx):
        return {"loss": self.layer.weight.sum(), **self.given}


def lines(folder, name="ranks.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_each_step_is_a_line_with_its_place_and_loss(tmp_path):
    begun = time.time()
    run = fit(data_of(val=None), max_epochs=2, default_root_dir=".", callbacks=(RankFileLogger(),))
    found = lines(tmp_path)
    assert [(one["epoch"], one["batch"], one["step"]) for one in found] == [
        (epoch, batch, batch) for epoch in (0, 1) for batch in range(6)
    ]
    assert [one["update"] for one in found] == list(range(12))
    assert {(one["rank"], one["event"]) for one in found} == {(0, "step")}
    assert begun <= found[0]["time"] <= found[-1]["time"] <= time.time()
    assert [list(one["values"]) for one in found] == [["loss"]] * 12
    assert found[0]["values"]["loss"] > found[-1]["values"]["loss"]
    of_epoch = sum(one["tokens"] for one in found[:6])
    assert of_epoch == run.data._get_engines("train")[0].index.lengths.sum()
    assert all(one["padded"] >= one["tokens"] for one in found)


def test_the_file_lies_where_the_trainer_logs(tmp_path):
    callback = RankFileLogger("rank-{rank}.jsonl", every_n_steps=4)
    logger = CSVLogger(tmp_path, name="runs", version="one")
    fit(data_of(val=None), max_epochs=1, callbacks=(callback,), logger=logger, log_every_n_steps=1)
    assert callback.path == tmp_path / "runs" / "one" / "rank-0.jsonl"
    assert [one["step"] for one in lines(callback.path.parent, "rank-0.jsonl")] == [0, 4]


def test_every_single_number_that_a_step_gives_is_written(tmp_path):
    given = {
        "error": torch.tensor([0.5]), "rows": 4, "rate": 0.25, "logits": torch.ones(3),
        "name": "x", "nan": torch.tensor(float("nan")), "inf": float("-inf"),
    }  # fmt: skip
    fit(
        data_of(4, val=None), model=Giving(given), max_epochs=1, default_root_dir=".",
        callbacks=(RankFileLogger(),),
    )  # fmt: skip
    text = (tmp_path / "ranks.jsonl").read_text()
    values = json.loads(text, parse_constant=pytest.fail)["values"]
    loss = values.pop("loss")
    assert isinstance(loss, float)
    assert values == {"error": 0.5, "rows": 4.0, "rate": 0.25, "nan": "nan", "inf": "-inf"}


def test_a_loss_is_what_the_step_gave_however_many_make_an_update(tmp_path):
    class Constant(Recorder):
        def training_step(self, batch, batch_idx):
            return {"loss": 0 * self.layer.weight.sum() + 1.0, "extra": 3.0}

    fit(
        data_of(val=None), model=Constant(), max_epochs=1, default_root_dir=".",
        accumulate_grad_batches=4, callbacks=(RankFileLogger(),),
    )  # fmt: skip
    assert [one["values"] for one in lines(tmp_path)] == [{"loss": 1.0, "extra": 3.0}] * 6


def test_a_step_that_gives_nothing_has_no_values(tmp_path):
    class Nothing(Recorder):
        def training_step(self, batch, batch_idx):
            return None

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*`training_step` returned `None`.*")
        fit(
            data_of(4, val=None), model=Nothing(), max_epochs=1, default_root_dir=".",
            callbacks=(RankFileLogger(),),
        )  # fmt: skip
    assert [one["values"] for one in lines(tmp_path)] == [{}]


def test_an_exception_is_a_line_with_its_facts(tmp_path):
    class Failing(Recorder):
        def training_step(self, batch, batch_idx):
            if batch.number == 2:
                error = DecodeError.at("field 'x' is bad", shard=7, sequence=11)
                error.add_note("a note")
                raise error
            return super().training_step(batch, batch_idx)

    with pytest.raises(DecodeError):
        fit(
            data_of(val=None), model=Failing(), max_epochs=1, default_root_dir=".",
            callbacks=(RankFileLogger(),),
        )  # fmt: skip
    *steps, last = lines(tmp_path)
    assert [one["step"] for one in steps] == [0, 1]
    trace = last.pop("traceback")
    assert trace.startswith("Traceback")
    assert "in training_step" in trace
    del last["time"]
    notes = last.pop("notes")
    assert "a note" in notes
    assert last.pop("tokens") > 0
    assert last.pop("padded") > 0
    assert last == {
        "rank": 0, "event": "exception", "epoch": 0, "batch": 2, "step": 2, "update": 2,
        "stage": "train", "error": "DecodeError", "message": "field 'x' is bad",
        "details": {"shard": 7, "sequence": 11},
    }  # fmt: skip


def test_a_long_message_is_cut(tmp_path):
    callback = RankFileLogger()
    run = fit(
        data_of(val=None), max_epochs=1, model=Recorder(fail_at=0), default_root_dir=".",
        callbacks=(callback,),
    )  # fmt: skip
    callback.on_exception(run.trainer, run.model, OSError("x" * 100_000))
    told = lines(tmp_path)
    assert [(one["error"], one["details"]) for one in told] == [("OSError", {})] * 2
    assert told[0]["message"] == "told to fail"
    assert told[1]["message"] == "x" * 8_000


def test_a_user_writes_lines_of_their_own(tmp_path):
    callback = RankFileLogger()
    callback.record("early", {"nowhere": 1})  # there is no file yet: nothing happens
    fit(data_of(4, val=None), max_epochs=1, default_root_dir=".", callbacks=(callback,))
    callback.record("mine", {"values": {"a": [1, float("inf")]}, "path": tmp_path})
    last = lines(tmp_path)[-1]
    assert last["event"] == "mine"
    assert last["values"] == {"a": [1, "inf"]}
    assert last["path"] == str(tmp_path)
    assert len(lines(tmp_path)) == 2


def test_a_file_that_cannot_be_written_is_warned_of_once_and_training_goes_on(tmp_path):
    (tmp_path / "ranks.jsonl").mkdir()
    wanted = (
        "RankFileLogger: rank 0 cannot write ranks.jsonl (Is a directory). "
        "Training continues; lines that cannot be written are counted"
    )
    missing = "RankFileLogger: 6 lines of rank 0 could not be written to ranks.jsonl and are lost"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", SeqDataWarning)
        run = fit(
            data_of(val=None), max_epochs=1, default_root_dir=".",
            callbacks=(RankFileLogger(),),
        )  # fmt: skip
    assert [str(one.message) for one in said if one.category is SeqDataWarning] == [
        wanted, missing,
    ]  # fmt: skip
    assert run.trainer.global_step == 6


def test_a_line_that_was_cut_off_by_a_full_disk_is_warned_of(tmp_path):
    (tmp_path / "ranks.jsonl").symlink_to("/dev/full")
    with (
        pytest.warns(SeqDataWarning, match="1 lines of rank 0 could not be written to ranks.jsonl"),
        pytest.warns(SeqDataWarning, match=re.escape("(No space left on device)")),
    ):
        fit(
            data_of(4, val=None), max_epochs=1, default_root_dir=".",
            callbacks=(RankFileLogger(),),
        )  # fmt: skip


def test_a_line_of_which_only_a_part_was_written_is_warned_of(tmp_path):
    callback = RankFileLogger()
    fit(data_of(4, val=None), max_epochs=1, default_root_dir=".", callbacks=(callback,))
    size = callback.path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
    try:
        with pytest.warns(SeqDataWarning, match=r"\(10 of \d+ bytes were written\). Training"):
            callback.record("mine", {})
        callback.record("mine", {})  # it is warned of once
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    callback.record("last", {})
    *_, torn, last = callback.path.read_text().splitlines()
    assert len(torn) == 10
    assert json.loads(last)["event"] == "last"
    with pytest.warns(
        SeqDataWarning, match="2 lines of rank 0 could not be written to ranks.jsonl"
    ):
        callback.teardown(None, None, "fit")


def test_a_run_without_a_folder_is_refused_and_a_trial_writes_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = (
        "RankFileLogger: the Trainer's log folder must be a folder of this machine that was set, "
        "but is None. Pass `default_root_dir`, such as '.', or a logger that writes to a folder."
    )
    options = {"max_epochs": 1, "callbacks": (RankFileLogger(),)}
    with pytest.raises(ConfigError, match=f"^{re.escape(wanted)}$"):
        fit(data_of(val=None), **options, default_root_dir=None)
    fit(data_of(val=None), **options, default_root_dir=None, fast_dev_run=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a/b.jsonl", "..", 3])
def test_the_name_must_be_that_of_a_file(name):
    wanted = (
        f"RankFileLogger: `name` must be the name of a file, but is {name!r}. It is written to "
        "the Trainer's log folder."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(wanted)}$"):
        RankFileLogger(name)


@pytest.mark.parametrize("every", [0, 1.5])
def test_steps_must_be_a_count(every):
    wanted = f"RankFileLogger: `every_n_steps` must be an integer of at least 1, but is {every!r}"
    with pytest.raises(ConfigError, match=f"^{wanted}$"):
        RankFileLogger(every_n_steps=every)
