"""``seqdata stats`` of dates and of strings per timestep."""

import json

import numpy as np
from click.testing import CliRunner

from seqdata import write_store
from seqdata.cli.app import app


def run(*arguments):
    done = CliRunner().invoke(app, ["stats", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_dates_are_shown_by_their_range_and_strings_by_their_vocabulary(tmp_path):
    dates = np.array(["2024-01-31T10", "2024-02-29T11", "2023-12-31T12"], "M8[s]")
    words = [f"w{number}" for number in range(8)]
    rows = [
        {"at": dates[:2], "word": words[:2], "born": np.datetime64("1999-01-01")},
        {"at": dates[2:], "word": words[2:3], "born": np.datetime64("2000-01-01")},
        {"at": dates[:0], "word": [], "born": np.datetime64("2001-01-01")},
    ]
    write_store(tmp_path / "store", rows)
    told = run(tmp_path / "store")
    assert "timestamp[s]" in told
    assert "at: 2023-12-31T12:00:00 to 2024-02-29T11:00:00" in told
    assert "born: 1999-01-01 to 2001-01-01" in told
    assert "word: 3 strings: 'w0', 'w1', 'w2'" in told
    plain = json.loads(run(tmp_path / "store", "--json"))
    assert plain["dates"]["born"] == {"first": "1999-01-01", "last": "2001-01-01"}
    assert plain["fields"]["word"]["logical"] == {"type": "categories", "values": words[:3]}
    assert "at: 2023" not in run(tmp_path / "store", "--no-values")


def test_a_field_of_dates_without_any_has_no_range(tmp_path):
    rows = [{"x": [1], "at": np.zeros(0, "M8[s]")}]
    write_store(tmp_path / "store", rows, axes={"x": "time", "at": "events"})
    assert "at: " not in run(tmp_path / "store")
