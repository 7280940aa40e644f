"""The list of errors in a file: each line for itself."""

import json

import numpy as np
import pytest

from seqdata.errors import ConfigError
from seqdata.loading.error_log import ErrorLog, read_error_list
from seqdata.loading.step_requests import StepRequest


def test_a_line_that_was_cut_off_loses_neither_the_next_nor_those_behind_it(tmp_path):
    path = tmp_path / "errors.jsonl"

    def listed(number):
        tally = ErrorLog(100, path)
        request = StepRequest(np.array([[5, 0, 2], [6, 0, 2]]), np.array([0, number]), epoch=4)
        tally.add(ValueError(f"error {number}"), request, 1, loader="train", epoch=4, batch=3)
        return len(tally)

    assert listed(1) == 1
    with path.open("a") as file:
        file.write('{"cut off')  # by the end of its process
    assert listed(2) == 2
    lines = path.read_text("utf-8").splitlines()
    assert [line[:9] for line in lines] == ['{"error":', '{"cut off', '{"error":']
    assert json.loads(lines[2]) == {
        "error": "ValueError", "message": "error 2", "loader": "train", "sequence": 2, "epoch": 4,
        "batch": 3,
    }  # fmt: skip
    assert listed(3) == 3  # what lies behind the torn line is read, too
    assert listed(2) == 3
    assert len(path.read_text("utf-8").splitlines()) == 4


class Foreign(Exception):
    """An error that has facts of its own, which JSON does not know."""

    facts = {"value": np.int64(3)}  # noqa: RUF012


def test_facts_of_errors_that_are_not_ours_are_not_listed(tmp_path):
    log = ErrorLog(100, tmp_path / "errors.jsonl")
    request = StepRequest(np.array([[5, 0, 2]]), np.array([7]), epoch=4)
    log.add(Foreign("broken"), request, 0, loader="train", epoch=4, batch=3)
    (entry,) = read_error_list(tmp_path / "errors.jsonl")
    assert entry == log.entries[0]
    assert list(entry) == ["error", "message", "loader", "sequence", "epoch", "batch"]


@pytest.mark.parametrize("path", [3, True, ["errors.jsonl"]])
def test_the_list_is_a_path(path):
    with pytest.raises(ConfigError, match="loader: `error_log` must be a path or None, but is "):
        ErrorLog(100, path)


def test_a_list_is_not_named_as_another_table(tmp_path):
    with pytest.raises(ConfigError, match=r"`error_log` must be a path that ends in \.jsonl"):
        ErrorLog(100, tmp_path / "errors.csv")
    ErrorLog(100, tmp_path / "errors.ndjson")
