"""Going on from errors in the data under the Trainer: as many steps, and a list of ids."""

import json
import os
from pathlib import Path

import pytest
import torch

from tests.lightning.crashing import BAD, FAILING, poor
from tests.lightning.harness import Run, data_of, fit


@pytest.mark.parametrize("on_error", ["mask", "replace"])
def test_a_fit_takes_as_many_steps_and_lists_what_it_went_on_from(tmp_path, on_error):
    whole = fit(data_of(), max_epochs=2)
    data = data_of(transform=poor, on_error=on_error)
    run = fit(data, max_epochs=2, default_root_dir=".")
    assert run.log.steps == whole.log.steps
    assert run.log.validations() == whole.log.validations()
    (path,) = tmp_path.rglob("seqdata-errors-rank0.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines
    assert {line["error"] for line in lines} == {"ValueError"}
    assert {"sequence", "epoch", "batch"} <= set(lines[0])
    assert {line["loader"] for line in lines} == {"train"}


def bad(folder: Path, *, ckpt=None, epochs: int = 3, logs: Path | None = None, **options) -> Run:
    """Fit over data of which some sequences fail; saves to ``folder`` after every step."""
    data = data_of(40, transform=poor, on_error="mask", **options)
    return fit(
        data,
        folder=folder,
        every=1,
        ckpt=ckpt,
        max_epochs=epochs,
        default_root_dir=os.path.relpath(logs or folder),
    )


def counted(path: Path) -> int:
    return torch.load(path)["SequenceDataModule"]["errors"]


def listed(folder: Path) -> list[tuple[int, int, int]]:
    (path,) = folder.rglob("seqdata-errors-rank0.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["epoch"], line["batch"], line["sequence"]) for line in lines]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("whole")


def whole_in(kept: Path) -> Path:
    """Return the folder of a run of three epochs to which nothing else happened."""
    if not any(kept.iterdir()):  # played by a test: what goes wrong in a fixture is no failure
        bad(kept)
    return kept


def test_the_count_in_a_state_is_of_the_batches_that_are_trained(kept):
    whole = whole_in(kept)
    found = listed(whole)
    assert len(found) == len(set(found)) == 3 * FAILING
    for step in range(1, 31):
        place = divmod(step, 10)
        before = sum(entry[:2] < place for entry in found)
        assert counted(whole / f"step={step}.ckpt") == before
    assert counted(whole / "step=30.ckpt") == 3 * FAILING


@pytest.mark.parametrize("prefetch", [0, 4])
@pytest.mark.slow
def test_a_resumed_run_counts_on_and_lists_what_is_new(kept, tmp_path, prefetch):
    whole = whole_in(kept)
    parts = tmp_path / "parts"
    bad(parts / "0", epochs=2, logs=parts, prefetch=prefetch)
    for number, step in enumerate((13, 20), 1):  # in mid-epoch, and at the end of one
        path = parts / str(number - 1) / f"step={step}.ckpt"
        bad(parts / str(number), ckpt=path, logs=parts, prefetch=prefetch)
    last = parts / "2"
    assert counted(last / "step=30.ckpt") == counted(whole / "step=30.ckpt")
    assert sorted(listed(parts)) == sorted(listed(whole))  # each once
    other = tmp_path / "other folder"
    bad(other, ckpt=parts / "1" / "step=20.ckpt")
    assert counted(other / "step=30.ckpt") == 3 * FAILING
    assert sorted(listed(other)) == [one for one in sorted(listed(whole)) if one[0] == 2]


def test_the_cap_holds_over_resumes(kept, tmp_path):
    whole = whole_in(kept)
    bad(tmp_path / "0", max_errors=3 * FAILING - 1, epochs=1)
    path = tmp_path / "0" / "step=7.ckpt"
    wanted = {"max_errors": 3 * FAILING - 1, "ckpt": path, "prefetch": 0}
    with pytest.raises(ValueError, match="nine is too many") as caught:
        bad(tmp_path / "1", **wanted)
    wanted = (
        f"{3 * FAILING} errors in the data, more than `max_errors` allows "
        f"({3 * FAILING - 1}). Repair"
    )
    assert wanted in "\n".join(caught.value.__notes__)
    (place,) = [one for one in listed(tmp_path / "1") if one == max(listed(whole))]
    assert place[0] == 2


def test_another_run_in_the_same_folder_begins_to_count_anew(tmp_path):
    for _ in range(2):
        bad(tmp_path, max_errors=3 * FAILING)
    assert counted(tmp_path / "step=30-v1.ckpt") == 3 * FAILING


def test_a_sequence_that_fails_in_every_validation_counts_once(tmp_path):
    val = [[[0.5]] * length for length in (9, 3, 4, 9)]
    data = data_of(val=val, transform=poor, on_error="mask", max_errors=2 + 5 * BAD)
    run = fit(data, max_epochs=5, default_root_dir=".")
    assert len(run.log.validations()) == 5
    assert len(listed(tmp_path)) == 2 + 5 * BAD


def test_without_a_folder_no_list_is_written_and_the_log_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    data = data_of(transform=poor, on_error="mask")
    run = fit(data, max_epochs=1, default_root_dir=None)
    assert run.trainer.global_step == 6
    assert list(tmp_path.iterdir()) == []
    said = [record.getMessage() for record in caplog.records if record.name == "seqdata"]
    wanted = (
        "datamodule: no folder was set for the run, so that errors in the data are logged and "
        "counted, but not listed in a file. Pass `default_root_dir`, such as '.', or a "
        "logger to the Trainer"
    )
    assert said.count(wanted) == 1
    assert any(message.startswith("loader: skipped error 1 of at most 100") for message in said)
    caplog.clear()
    fit(data_of(), max_epochs=1, default_root_dir=None)
    assert wanted not in caplog.messages
