"""The run file: what a fit writes, and that batches come back from it bit by bit."""

import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from seqdata.api import concat, open_store, write_store
from seqdata.errors import ConfigError, SeqDataError
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.runs.class_paths import make_call
from seqdata.runs.locations import open_view
from seqdata.runs.run_file import NAME, RunFile
from seqdata.storage.views import take
from seqdata_testing.waiting import patient
from tests.lightning.crashing import Crashing, noisy, poor, told
from tests.lightning.harness import Recorder, fit, quietly, sequences
from tests.preloaded import python
from tests.runs.run_files import make_run_file, read_run_file, remake


@pytest.fixture
def store(tmp_path) -> str:
    """Forty short sequences."""
    rows = ({"id": f"s{i}", "x": x} for i, x in enumerate(sequences(40)))
    write_store(tmp_path / "store", rows)
    return str(tmp_path / "store")


@pytest.mark.slow
def test_the_batch_that_crashed_a_run_is_made_again_in_another_process(store):
    data = SequenceDataModule(train=store, batching=Bucketed(4), seed=3, transform=noisy)
    run = fit(data, model=Crashing(epoch=1, step=6), max_epochs=2)
    (note,) = run.error.__notes__
    found = re.fullmatch(
        r"in epoch (\d+), batch (\d+) \(step 6, rank 0 of 1\)\. See it: (seqdata replay .*)", note
    )
    assert (int(found[1]), int(found[2])) == (1, 6)
    command = shlex.split(found[3])[1:]
    done = subprocess.run(
        [python(), "-m", "seqdata", *command, "--save", "batch.pt"],
        capture_output=True, text=True, timeout=patient(150), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "epoch 1, batch 6 (step 6, rank 0 of 1): 4 rows" in done.stdout
    saved, kept = torch.load("batch.pt", weights_only=True), run.model.kept
    assert saved["data"]["x"].numpy().tobytes() == kept["data"]["x"]
    assert saved["ids"].numpy().tobytes() == kept["ids"]
    assert (saved["loss_scale"], saved["epoch"], saved["number"]) == (kept["loss_scale"], 1, 6)
    assert told(data.replay(epoch=1, batch=6)) == kept


def test_an_error_outside_of_steps_names_no_batch(store):
    class Late(Recorder):
        def on_validation_epoch_end(self):
            raise OSError("told to fail at the end")

    data = SequenceDataModule(train=store, val=store, batching=Bucketed(4), seed=3)
    run = fit(data, model=Late(), max_epochs=1)
    assert str(run.error) == "told to fail at the end"
    assert not [note for note in getattr(run.error, "__notes__", ()) if "See it" in note]


def test_a_transform_that_crashes_is_met_again(store):
    data = SequenceDataModule(train=store, batching=Bucketed(4), seed=3, transform=poor)
    with pytest.raises(ValueError, match="nine is too many") as crashed:
        fit(data, max_epochs=1)
    place = crashed.value.__notes__[-1]
    batch = int(re.search(r"--epoch 0 --batch (\d+)$", place)[1])
    assert place.endswith(f"See it: seqdata replay {NAME} --epoch 0 --batch {batch}")
    with pytest.raises(ValueError, match="nine is too many") as met:
        remake(batch)
    assert met.value.__notes__[:1] == crashed.value.__notes__[:1]


def test_an_error_in_the_data_ends_with_the_command(store):
    shard = Path(store) / "part-00000.arrow"
    content = bytearray(shard.read_bytes())
    at = content.find(sequences(40)[7].tobytes())
    content[at] ^= 1
    shard.write_bytes(content)
    with pytest.raises(SeqDataError) as found:
        fit(SequenceDataModule(train=store, batching=Fixed(4, shuffle=False)), max_epochs=1)
    command = f"See it: seqdata replay {NAME} --epoch 0 --batch 1"
    place = (
        r"\n  epoch 0, batch 1 \(step 1, rank 0 of 1\)\. Verify: seqdata verify \S+ --shard 0\. "
    )
    assert re.search(place + re.escape(command) + "$", str(found.value))
    assert found.value.details["batch"] == 1
    with pytest.raises(type(found.value), match=r'sequence 7 \("s7"\)'):
        remake(1)


def test_validation_has_the_command_of_its_own_data(store):
    val = {"clean": open_store(store), "other": take(open_store(store), [5, 3, 8, 0, 1])}
    data = SequenceDataModule(
        train=store, val=val, batching=Bucketed(4), transform=poor, eval_batching=Fixed(2)
    )
    kept = data.replay(epoch=0, batch=0, kind="val", name="other")
    with pytest.raises(ValueError, match="nine is too many") as crashed:
        fit(data, max_epochs=1, num_sanity_val_steps=-1)
    assert "See it: data.replay(epoch=0, batch=" in crashed.value.__notes__[-1]
    assert crashed.value.__notes__[-1].endswith(", kind='val', name='clean')")
    good = SequenceDataModule(train=store, val=val, batching=Bucketed(4), eval_batching=Fixed(2))
    fit(good, max_epochs=1)
    assert told(remake(0, kind="val", name="other")) == told(kept)
    command = good._run_record.make_command("val", "other", 0, 2)
    assert command == f"seqdata replay {NAME} --epoch 0 --batch 2 --kind val --name other"


def test_a_batch_has_the_scales_of_its_rank_and_update(store):
    data = SequenceDataModule(
        train=store, batching=Bucketed(4), seed=3, batches_per_update=4, transform=noisy
    )
    run = fit(data, model=Crashing(step=9), max_epochs=1, limit_train_batches=10)
    assert told(remake(9)) == run.model.kept
    assert read_run_file()["run"]["accumulate"] == 4
    assert run.model.kept["update_num_tokens"] > run.model.kept["num_tokens"]


def test_a_second_fit_that_abandons_an_epoch_says_where_it_begins(store):
    data = SequenceDataModule(train=store, batching=Bucketed(4), seed=3)
    run = fit(data, max_epochs=3, max_steps=4)
    run.trainer.fit_loop.epoch_loop.max_steps = 30
    with quietly():
        run.trainer.fit(Recorder(), datamodule=data)
    assert (read_run_file()["run"]["epoch"], read_run_file()["run"]["position"]) == (1, 0)


def test_a_run_of_a_view_needs_no_file_for_its_numbers(store):
    data = SequenceDataModule(train=take(open_store(store), range(5, 30)), batching=Bucketed(4))
    run = fit(data, model=Crashing(step=2), max_epochs=1)
    assert read_run_file()["data"]["train"] == make_call(open_view, base=store, first=5, stop=30)
    assert told(remake(2)) == run.model.kept


def test_fields_that_were_chosen_and_several_paths_are_replayed(store, tmp_path):
    rows = open_store(store)
    more = str(tmp_path / "more")
    write_store(more, rows.take(range(9)))
    named = rows.rename({"x": "load"}).select("load").rename({"load": "x"})
    view, other = (make_call(open_view, base=path, names={"x": "x"}) for path in (store, more))
    for train, plain in (
        (named, view),
        ([store, store], [store, store]),
        (concat([named, more_of(more)]), [view, other]),
        (
            concat([store, more]).take(range(3, 40)),
            make_call(open_view, base=[store, more], first=3, stop=40),
        ),
    ):
        data = SequenceDataModule(train=train, batching=Bucketed(4))
        run = fit(data, model=Crashing(step=2), max_epochs=1)
        assert read_run_file()["data"]["train"] == plain
        assert told(remake(2)) == run.model.kept


def more_of(path):
    return open_store(path).select("x")


def test_what_lies_in_memory_is_named_and_replayed_where_it_is():
    data = SequenceDataModule(
        train=sequences(20), batching=Bucketed(4), transform=lambda sequence, rng: sequence
    )
    run = fit(data, model=Crashing(step=2), max_epochs=1)
    call = "data.replay(epoch=0, batch=2)"
    assert run.error.__notes__ == [f"in epoch 0, batch 2 (step 2, rank 0 of 1). See it: {call}"]
    assert told(data.replay(epoch=0, batch=2)) == run.model.kept
    assert data.replay_command(epoch=0, batch=2) == call
    assert read_run_file()["not_replayable"] == [
        "train: data in memory (20 in a list) has no path",
        "transform: a lambda has no import path; define it in a module",
    ]
    message = (
        r"seqdata-run\.yaml: `train` cannot be restored: data in memory .* has no path. In "
        r"the program that trains, call data\.replay\(epoch=, batch=\)"
    )
    with pytest.raises(ConfigError, match=message):
        remake(2)


def test_only_what_a_kind_needs_keeps_it_from_being_replayed(store):
    data = SequenceDataModule(
        train=store, val=sequences(4), batching=Bucketed(4), eval_batching=Odd(lambda: 2)
    )
    run = fit(data, model=Crashing(step=1), max_epochs=1)
    assert told(remake(1)) == run.model.kept
    assert data.replay_command(epoch=0, batch=1) == f"seqdata replay {NAME} --epoch 0 --batch 1"
    command = data._run_record.make_command("val", None, 0, 1)
    assert command == "data.replay(epoch=0, batch=1, kind='val')"
    assert [line.partition(":")[0] for line in read_run_file()["not_replayable"]] == [
        "val", "eval_batching",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["val", "test", "predict"])
def test_evaluation_cannot_be_replayed_without_its_policy(store, kind):
    data = SequenceDataModule(
        train=store, val=store, batching=Bucketed(4), eval_batching=Odd(lambda: 2)
    )
    fit(data, model=Crashing(step=1), max_epochs=1)
    run_file = RunFile.read(Path(NAME))
    assert run_file.list_missing("train") == []
    (line,) = run_file.list_missing(kind)
    assert line.startswith("eval_batching: ")


@dataclass(frozen=True)
class Odd:
    """A policy with a function that has no import path."""

    rows: Callable[[], int]
    axis: str = "time"

    def plan(self, index, *, seed, epoch):
        return Fixed(self.rows()).plan(index, seed=seed, epoch=epoch)

    def num_batches(self, index):
        return Fixed(self.rows()).num_batches(index)


def test_a_quick_look_writes_no_file(store):
    data = SequenceDataModule(train=store, batching=Bucketed(4))
    fit(data, fast_dev_run=True)
    assert not Path(NAME).exists()
    assert data.replay_command(epoch=0, batch=1) == "data.replay(epoch=0, batch=1)"


def in_block(*lines):
    return "\n".join(["a: 1", "# /// seqdata-run", *(f"# {line}" for line in lines), "# ///", ""])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"run\.yaml: cannot be read \(No such file or directory\). Pass the seqdata-run"),
        ("a: [", r"run\.yaml: not a run file, since it is not YAML \("),
        ("- 1", r"run\.yaml: not a run file, since it has no mapping"),
        (
            "seqdata_run: 1",
            r"not a run file of version 2 \(its version is 1\). Pass the seqdata-run",
        ),
        ("data: {train: a}", r"not a run file of version 2 \(its version is None\)"),
        (in_block("version: 9"), r"not a run file of version 2 \(its version is 9\)"),
        ("!!python/object/apply:os.getcwd []", r"not YAML \(could not determine a constructor"),
        (in_block("version: 2"), r"run\.yaml: is damaged \(KeyError: 'run'\). Restore it"),
        (
            in_block("version: 2", "run: {plan: a, seed: x}"),
            r"\(TypeError: `run` must hold integers, but is ",
        ),
        (
            in_block("version: 2", "run: {plan: a, world_size: 0}"),
            r"\(ValueError: `run.world_size` must be at least 1, but is 0\)",
        ),
        (
            in_block("version: 2", "run: {plan: a, accumulate: null}"),
            r"\(ValueError: `run.accumulate` must be at least 1, but is None\)",
        ),
        (
            in_block("version: 2", "run: {plan: a, position: -1}"),
            r"\(ValueError: `run.position` must be at least 0, but is -1\)",
        ),
        (in_block("version: 2", "run: {plan: a, color: 1}"), r"is damaged \(TypeError: .*'color'"),
        ("#" * (1 << 20) + "#", r"has more than 1048576 bytes and is not a run file"),
    ],
)
def test_what_is_no_run_file_is_refused(content, message):
    if content is not None:
        Path("run.yaml").write_text(content)
    with pytest.raises(ConfigError, match=message):
        RunFile.read(Path("run.yaml"))


def test_a_run_file_makes_the_folders_that_it_lies_in(tmp_path):
    path = tmp_path / "runs" / "today" / NAME
    for _ in range(2):  # the second time they are there
        make_run_file({"train": "/data"}).write(path)
    assert RunFile.read(path).data == {"train": "/data"}


def test_a_run_file_that_was_damaged_or_edited_is_refused_while_it_has_its_seal(caplog):
    path, elsewhere = Path(NAME), Path("copy.yaml")
    make_run_file({"train": "/data"}).write(path)
    assert RunFile.read(path).data == {"train": "/data"}
    path.rename(elsewhere)  # it may be named and lie as one likes
    assert RunFile.read(elsewhere).data == {"train": "/data"}
    changed = elsewhere.read_bytes().replace(b"/data", b"/date")
    elsewhere.write_bytes(changed)
    with pytest.raises(ConfigError, match=r"as a fit wrote it, but its checksum .* remove the"):
        RunFile.read(elsewhere)
    elsewhere.write_bytes(b"".join(changed.splitlines(keepends=True)[:-1]))
    assert RunFile.read(elsewhere).data == {"train": "/date"}
    assert "copy.yaml has no checksum; it is accepted as an older or edited file" in caplog.text


@pytest.mark.parametrize(
    ("data", "kind", "name", "message"),
    [
        ({}, "val", None, "must be of data that the run had, but 'val' had none. Choose another"),
        ({"train": "a"}, "train", "b", "must be left out, since `train` has one location, but is"),
        (
            {"val": {"a": None}},
            "val",
            None,
            "`name` must be one of a, the loc.*, but is None",
        ),
        (
            {"train": 5},
            "train",
            None,
            "`train` must be a location.*, but is 5. Restore the file as the",
        ),
    ],
)
def test_data_that_a_run_did_not_have_is_refused(data, kind, name, message):
    with pytest.raises(ConfigError, match=message):
        make_run_file(data).make_options(Path(NAME), kind, name)


def test_a_file_of_another_release_names_what_it_lacks(store):
    file = make_run_file({"train": store, "batching": "bucketed"})
    with pytest.raises(
        ConfigError, match=r"must have all arguments, but has no `data\.eval_batching`"
    ):
        file.make_options(Path(NAME), "train", None)
