"""Going on from errors in the data under the Trainer: as many steps, and a list of ids."""

import json

import pytest

from tests.lightning.harness import data_of, fit


def fails(sequence, rng):
    if len(sequence["x"]) == 9:
        raise ValueError("no such tone")
    return sequence


@pytest.mark.parametrize("on_error", ["mask", "replace"])
def test_a_fit_takes_as_many_steps_and_lists_what_it_went_on_from(tmp_path, on_error):
    whole = fit(data_of(), max_epochs=2)
    data = data_of(transform=fails, on_error=on_error)
    run = fit(data, max_epochs=2, default_root_dir=tmp_path)
    assert run.log.steps == whole.log.steps
    assert run.log.validations() == whole.log.validations()
    (path,) = tmp_path.rglob("seqdata-errors-rank0.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines
    assert {line["error"] for line in lines} == {"ValueError"}
    assert {"sequence", "epoch", "batch"} <= set(lines[0])
