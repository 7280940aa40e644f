"""``seqdata replay``: what it shows and saves of a batch."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from seqdata.api import open_store, write_store
from seqdata.cli.app import app
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.packed import Packed
from seqdata.runs.locate_batch import FitGeometry
from seqdata.runs.run_file import NAME, RunFile
from tests.cli.commands import read_rows

VALUES = [[1.0, 2.0, np.nan], [4.0], [np.inf, -5.0], [6.0, 7.0, 8.0, 9.0]]


@pytest.fixture
def store(tmp_path) -> str:
    rows = (
        {"id": f"s{i}", "x": np.array(x), "n": i, "words": f"text {i}", "raw": b"\0" * i}
        for i, x in enumerate(VALUES)
    )
    write_store(tmp_path / "store", rows)
    return str(tmp_path / "store")


def described(
    store: str, *, geometry: FitGeometry | None = None, path=NAME, **options
) -> SequenceDataModule:
    """Write the run file of a fit without fitting."""
    options.setdefault("batching", Fixed(2, shuffle=False))
    data = SequenceDataModule(train=store, **options)
    player = data.train_dataloader().engine
    geometry = geometry or FitGeometry()
    RunFile.from_options(
        data._options, geometry, Path(), fingerprints={"train": [player.index.fingerprint]},
        plan=player.fingerprint(geometry.epoch), versions={}, trainer={},
    ).write(Path(path))  # fmt: skip
    return data


def run(*arguments, code=0):
    done = CliRunner().invoke(app, ["replay", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


def test_rows_and_fields_are_shown(store):
    described(store)
    text = run(NAME, "--epoch", 0, "--batch", 0)
    assert "epoch 0, batch 0 (step 0, rank 0 of 1): 2 rows of up to 3 timesteps" in text
    assert "4 timesteps, 6 with padding: 33.33 % is padding; 4 count, of 4 in the step" in text
    cells = read_rows(text)
    assert ["row", "id", "start", "length", "weight", "key"] in cells
    assert ["0", "0", "0", "3", "1.0", "s0"] in cells
    assert ["x", "float64", "[2, 3]", "1", "2.33333", "4", "1", "0"] in cells
    assert ["n", "int64", "[2]", "0", "0.5", "1", "0", "0"] in cells
    assert ["words", "str", "[2]", *"-----"] in cells


def test_the_same_as_json(store):
    described(store)
    facts = json.loads(run(NAME, "--epoch", 0, "--batch", 1, "--json"))
    assert (facts["epoch"], facts["number"], facts["rows"], facts["filler"]) == (0, 1, 2, 0)
    assert (facts["timesteps"], facts["padded"], facts["num_tokens"]) == (6, 8, 6)
    assert facts["sequences"][1] == {
        "row": 1, "id": 3, "key": "s3", "start": 0, "length": 4, "weight": 1.0,
    }  # fmt: skip
    assert facts["fields"]["x"] == {
        "dtype": "float64", "shape": [2, 4], "nan": 0, "inf": 1, "min": -5.0, "max": 9.0,
        "mean": 5.0,
    }  # fmt: skip
    assert facts["error"] is None


def test_a_filler_of_a_rank_is_shown_as_one(store):
    described(store, geometry=FitGeometry(world_size=3))
    facts = json.loads(run(NAME, "--epoch", 0, "--step", 0, "--rank", 2, "--json"))
    assert (facts["rank"], facts["world"], facts["rows"], facts["filler"]) == (2, 3, 1, 1)
    assert "1 rows of up to 3 timesteps, 1 of weight 0" in run(
        NAME, "--epoch", 0, "--step", 0, "--rank", 2
    )
    other = json.loads(run(NAME, "--epoch", 0, "--step", 1, "--world", 1, "--json"))
    assert (other["number"], other["world"]) == (1, 1)
    late = ("--epoch", 0, "--step", 1, "--world", 1, "--from", 1, "--json")
    assert json.loads(run(NAME, *late))["number"] == 1


def test_packed_rows_show_each_of_their_sequences(store):
    described(store, batching=Packed(1, 6), collator="varlen", fields=("x",))
    facts = json.loads(run(NAME, "--epoch", 0, "--batch", 0, "--json"))
    spans = facts["sequences"]
    assert len(spans) > facts["rows"]
    assert [one["key"] for one in spans] == [f"s{one['id']}" for one in spans]


@pytest.mark.parametrize("collator", ["padded", "packed", "jagged", "varlen"])
def test_every_layout_is_summed_up_and_saved(store, collator):
    described(store, collator=collator, fields=("x", "n"))
    facts = json.loads(run(NAME, "--epoch", 0, "--batch", 0, "--json", "--save", "b.pt"))
    figures = facts["fields"]["x"]
    assert (figures["min"], figures["max"], figures["nan"]) == (1.0, 4.0, 1)
    saved = torch.load("b.pt", weights_only=True)
    run(NAME, "--epoch", 0, "--batch", 0, "--save", "b.npz")
    with np.load("b.npz") as arrays:
        assert arrays["ids"].tolist() == [0, 1] == saved["ids"].tolist()
        assert arrays["keys"].tolist() == ["s0", "s1"] == saved["keys"]
        part = {"padded": "x", "varlen": "x", "packed": "x.data", "jagged": "x.values"}[collator]
        name, _, key = part.partition(".")
        value = saved["data"][name][key] if key else saved["data"][name]
        assert arrays[f"data.{part}"].tobytes() == value.numpy().tobytes()


def test_texts_and_bytes_are_saved_as_arrays(store):
    described(store)
    assert "saved: b.npz" in run(NAME, "--epoch", 0, "--batch", 1, "--save", "b.npz")
    with np.load("b.npz") as arrays:
        assert arrays["data.words"].tolist() == ["text 2", "text 3"]
        assert arrays["data.raw.bytes"].tobytes() == b"\0" * 5
        assert arrays["data.raw.lengths"].tolist() == [2, 3]
        assert (int(arrays["epoch"]), int(arrays["number"])) == (0, 1)


def as_lists(samples):
    return [{"x": sample["x"].bfloat16(), "pair": (True, None)} for sample in samples]


def as_objects(samples):
    return {"x": samples[0]["x"], "odd": object()}


def test_what_a_collate_fn_makes_is_summed_up_and_saved(store):
    described(store, collator=as_lists, fields=("x",))
    facts = json.loads(run(NAME, "--epoch", 0, "--batch", 0, "--json", "--save", "b.npz"))
    assert facts["fields"]["collated.0.x"]["dtype"] == "bfloat16"
    assert facts["fields"]["collated.1.pair.1"] == {"dtype": "NoneType", "first": "None"}
    with np.load("b.npz") as arrays:
        assert arrays["data.collated.1.x"].tolist() == [4.0]


def test_what_is_neither_tensor_nor_text_is_not_saved(store):
    described(store, collator=as_objects, fields=("x",))
    message = run(NAME, "--epoch", 0, "--batch", 0, "--save", "b.pt", code=2)
    assert (
        "replay: odd must be tensors, strings or numbers to be saved, but is a object. Call"
        in message
    )
    assert not Path("b.pt").exists()


def test_another_ending_is_refused(store):
    described(store)
    message = run(NAME, "--epoch", 0, "--batch", 0, "--save", "b.txt", code=2)
    assert (
        "replay: `--save` must be a file that ends in .pt (tensors) or .npz (arrays), but "
        "is 'b.txt'"
    ) in message


def failing(sequence, rng):
    if len(sequence["x"]) == 4:
        raise ValueError("four is too many")
    return sequence


def test_a_batch_that_cannot_be_made_shows_its_plan_and_the_error(store):
    described(store, transform=failing)
    asked = ["replay", NAME, "--epoch", "0", "--batch", "1"]
    done = CliRunner().invoke(app, asked)
    assert (done.exit_code, str(done.exception)) == (1, "four is too many")
    assert "epoch 0, batch 1 (step 1, rank 0 of 1): 2 rows of up to 4 timesteps" in done.stdout
    assert "s3" in done.stdout
    done = CliRunner().invoke(app, [*asked, "--json"])
    facts = json.loads(done.stdout)
    assert done.exit_code == 1
    assert facts["error"]["type"] == "ValueError"
    assert facts["error"]["notes"][0] == "in the transform of sequence 's3'"
    assert facts["fields"] == {}
    assert [one["key"] for one in facts["sequences"]] == ["s2", "s3"]


def test_damage_is_a_line_and_an_exit_code(store):
    described(store)
    shard = Path(store) / "part-00000.arrow"
    content = bytearray(shard.read_bytes())
    content[content.find(np.array(VALUES[3]).tobytes())] ^= 1
    shard.write_bytes(content)
    message = run(NAME, "--epoch", 0, "--batch", 1, code=1)
    assert message.startswith("error: ")
    assert 'sequence 3 ("s3"), field "x"' in message


def test_sequences_that_the_run_skipped_are_shown(store):
    described(store, transform=failing, on_error="mask")
    text = run(NAME, "--epoch", 0, "--batch", 1)
    assert "2 rows of up to 4 timesteps, 1 of weight 0" in text
    assert "skipped: ValueError: four is too many" in text


def test_long_batches_are_cut_short_for_people_only(store):
    described(open_store(store).take([0] * 40), batching=Bucketed(40))
    assert "and 8 more; --json has all" in run(NAME, "--epoch", 0, "--batch", 0)
    assert len(json.loads(run(NAME, "--epoch", 0, "--batch", 0, "--json"))["sequences"]) == 40


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.yaml", "--epoch", 0, "--batch", 0], 2, "none.yaml: cannot be read (No such file"),
        ([NAME, "--batch", 0], 2, "Missing option '--epoch'"),
        ([NAME, "--epoch", 0], 2, "--batch is None and --step is None, but exactly one must"),
        (
            [NAME, "--epoch", 0, "--batch", 2],
            1,
            "--batch must be below 2, the number of batches of the plan, but is 2",
        ),
        ([NAME, "--epoch", 0, "--batch", 0, "--kind", "val"], 2, "data that the run had, but"),
        ([NAME, "--epoch", 0, "--batch", 0, "--kind", "dev"], 2, "'dev' is not one of"),
    ],
)
def test_bad_arguments_are_a_message_and_an_exit_code(store, arguments, code, message):
    described(store)
    assert message in run(*arguments, code=code)


def test_help_has_examples():
    text = CliRunner().invoke(app, ["replay", "--help"]).output
    assert "seqdata replay logs/version_0/seqdata-run.yaml --epoch 2 --batch 4711" in text
    assert "trust it as you trust code" in " ".join(text.split())
