"""``seqdata doctor --model``: a report for people, one as JSON, and its errors."""

import json
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from seqdata.api import write_store
from seqdata.cli.app import app
from tests.cli.commands import read_rows

LM = "seqdata_models:StatefulLM(50, 8, 16, 4)"
LANES = ("--lanes", "16", "--chunk", "32")


def run(*arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "120"})
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def read(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_a_report_for_people_begins_with_the_table_and_the_code_to_paste():
    text = run("--model", LM, *LANES, "--devices", "4")
    assert ["rnn.l0", "lstm", "8", "16"] in [row[:4] for row in read_rows(text)]
    assert "layers: speedup N S / (N + S - 1) = 8 x 4 / 11; gives up an update is 8 batches" in text
    assert "data x time: speedup W M D / (M + D - 1) = 2 x 4 x 2 / 5" in text
    for name in ("more lanes", "cuDNN", "FlashRNN", "minLSTM"):
        assert f"  {name}" in text
    rows = read_rows(text)
    assert rows[0] == ["split", "devices", "speedup", "idle", "memory", "sent an update"]
    assert rows[8][0].startswith("Use: data")
    assert rows[9] == [
        'Trainer(accelerator="cpu", devices=4, strategy="ddp", accumulate_grad_batches=8)'
    ]


def test_json_has_the_same_figures():
    found = read("--model", LM, *LANES, "--devices", "2", "--chunks", "4")
    assert found["update"] == {"rows": 16, "timesteps": 32, "batches": 4, "is_carried": True}
    layers = found["options"][2]
    assert (layers["axis"], layers["devices"], layers["why_not"]) == ("layers", 2, "")
    assert "WavefrontStrategy(2, chunks=4)" in layers["code"]
    assert found["recommended"]["option"] == 1
    assert [part["cell"] for part in found["model"]["parts"]] == ["", *["lstm"] * 4, ""]
    assert len(found["one_device"]) == 4


def test_few_rows_make_layers_the_choice():
    found = read("--model", LM, "--lanes", "1", "--chunk", "32", "--devices", "2")
    assert found["options"][found["recommended"]["option"]]["axis"] == "layers"
    assert "from seqdata_models.parallel import WavefrontStrategy\n" in found["recommended"]["code"]


def test_rows_of_whole_sequences_are_as_long_as_the_longest_of_the_store(tmp_path):
    write_store(tmp_path / "store", [np.zeros(n, "uint8") for n in (3, 41, 7)])
    model = ("--model", "seqdata_models:ByteLM(8, 16, 2)", "--batch-size", "4")
    found = read(str(tmp_path / "store"), *model)
    assert found["update"]["timesteps"] == 41
    assert found["update"]["is_carried"] is False
    assert read(*model, "--max-length", "9")["update"]["timesteps"] == 9
    assert "the length of rows must be known, but is not given" in run(*model, code=2)


def test_a_bidirectional_model_is_split_by_data_only():
    text = run("--model", "seqdata_models:LSTMTagger(3, 4, bidirectional=True)", *LANES,
               "--devices", "2")  # fmt: skip
    assert text.count("not here: bidirectional: the backward direction begins where") == 2
    assert 'strategy="ddp"' in text


def test_a_machine_of_one_device_is_said(monkeypatch):
    monkeypatch.setattr("seqdata.cli._doctor.parallel._inspect_cores", lambda: (1, None))
    text = run("--model", LM, *LANES)
    assert "this machine: 1 device (cpu); figures for 2" in text
    assert text.count("not here: this machine has 1 device\n") == 3
    assert "Use: one device\n" in text


def test_a_measurement_adds_a_column_and_decides(monkeypatch):
    module = "seqdata.cli._doctor.stack_counts.StackTimer._measure"
    monkeypatch.setattr(module, lambda self, part, rows: 1.0)  # as on a device that is not busy
    found = read("--model", LM, *LANES, "--devices", "4", "--measure")
    data, layers = found["options"][1:3]
    assert data["measured_speedup"] == pytest.approx(1.0)
    assert layers["measured_speedup"] > 2
    assert found["options"][found["recommended"]["option"]]["axis"] == "layers"
    assert "measured" in run("--model", LM, *LANES, "--devices", "4", "--measure")


def test_timesteps_are_really_run():
    model = "seqdata_models:StatefulTagger(3, 2, hidden=4)"
    found = read("--model", model, "--lanes", "2", "--chunk", "4", "--measure")
    assert all(option["measured_speedup"] > 0 for option in found["options"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", LM), "must be given by either --lanes and --chunk, or --batch-size"),
        (
            ("--model", LM, *LANES, "--batch-size", "3"),
            "but is given by --lanes and --chunk and --batch-size",
        ),
        (("--model", LM, "--lanes", "0", "--chunk", "3"), "--lanes must be at least 1, but is 0"),
        (("--lanes", "3"), "--model must be given with --lanes, but is missing"),
        (("--model", "torch.nn:Linear(2, 2)", *LANES), "a model with a recurrent part"),
        (("--model", "nothing:here", *LANES), "--model must be importable, but is not"),
    ],
)
def test_what_cannot_be_counted_is_an_error(arguments, message):
    assert message in run(*arguments, code=2)
