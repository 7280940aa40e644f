"""What ``predict_step`` returns becomes rows: padding rows and padding left out, all else named."""

import numpy as np
import pytest
import torch

from seqdata import TBPTT, Fixed, Loader, Packed, SequenceDataModule, Windows, World
from seqdata.errors import ConfigError
from seqdata.lightning.predictions.outputs import (
    PredictionField,
    PredictionSpec,
    check_same_fields,
    choose_names,
    extract_rows,
    make_ambiguity_error,
)
from tests.lightning.harness import sequences
from tests.lightning.predictions.predicting import Predictor, predict

ROWS = [{"x": np.arange(size, dtype=np.float32)} for size in (2, 4, 3)]
ALL = PredictionSpec(None, None)
NESTED = torch.nested.nested_tensor([torch.zeros(2)] * 3, layout=torch.jagged)


@pytest.fixture(scope="module")
def batch():
    return next(iter(Loader(ROWS, Fixed(3, shuffle=False))))


def extract(outputs, batch, spec=ALL, earlier=None, **options):
    return extract_rows(outputs, batch, spec, earlier or {}, **options)


def test_timesteps_are_written_without_padding(batch):
    rows = extract({"steps": batch["x"] * 2, "sum": batch["x"].sum(1)}, batch)
    assert rows.spans.tolist() == [[0, 0, 2], [1, 0, 4], [2, 0, 3]]
    assert rows.values["steps"].tolist() == [0, 2, 0, 2, 4, 6, 0, 2, 4]
    assert rows.values["sum"].tolist() == [1, 6, 3]
    assert [rows.fields[name].per for name in ("steps", "sum")] == ["timestep", "sequence"]
    assert rows.guessed_names == ("steps",)
    assert extract(batch["x"], batch, PredictionSpec(None, "timestep")).guessed_names == ()


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_unsigned_predictions_are_written(batch, dtype):
    top = np.iinfo(dtype).max
    steps = torch.from_numpy(np.full((3, 4), top, dtype=dtype))
    rows = extract({"steps": steps, "one": steps[:, 0]}, batch)
    assert rows.values["steps"].tolist() == [top] * 9
    assert {field.dtype for field in rows.fields.values()} == {dtype}


def test_a_tensor_has_one_name(batch):
    assert list(extract(batch["x"], batch).values) == ["prediction"]
    assert list(extract(batch["x"], batch, PredictionSpec(("y",), None)).values) == ["y"]


def test_a_width_by_chance_is_known_from_an_earlier_batch(batch):
    four = torch.zeros(3, 4)
    earlier = {"prediction": PredictionField("float32", (4,), "sequence")}
    assert extract(four, batch).fields["prediction"].per == "timestep"
    assert extract(four, batch, earlier=earlier).fields["prediction"].per == "sequence"


def test_dummy_rows_are_left_out():
    batches = list(Loader(ROWS, Fixed(2, shuffle=False), world=World(1, 2)))
    dummy = [batch for batch in batches if not bool((batch.weight > 0).any())]
    if dummy:
        assert extract(dummy[0]["x"], dummy[0]) is None
    batch = batches[0]
    real = int((batch.weight > 0).sum())
    assert len(extract(batch["x"].sum(1)[batch.weight > 0], batch).spans) == real


def test_small_floats_are_widened(batch):
    rows = extract(batch["x"].sum(1).bfloat16(), batch)
    assert rows.values["prediction"].dtype == np.float32
    assert extract(batch["x"].sum(1).half(), batch).values["prediction"].dtype == np.float16


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        (torch.tensor(1.0), "must be a padded tensor with a row for each row .* a number"),
        ([1, 2, 3], "must be a padded tensor .* a list"),
        (NESTED, "must be a padded tensor .* a nested tensor"),
        (torch.zeros(5), r"must have 3 rows like the batch, or 3 like .* shape \(5,\)"),
        (torch.zeros(3, dtype=torch.complex64), "the dtype of prediction .* must be one of bool"),
        (torch.zeros(3, 0), r"must have a number in each row, but has shape \(3, 0\)"),
        (
            {"id": torch.zeros(3)},
            "name of a prediction must be a non-empty string other than id, position",
        ),
        ({3: torch.zeros(3)}, "the name of a prediction must be a non-empty string"),
    ],
)
def test_what_cannot_be_written_is_named(outputs, text, batch):
    with pytest.raises(ConfigError, match=text):
        extract(outputs, batch)


def test_names_must_be_there(batch):
    with pytest.raises(ConfigError, match=r"PredictionWriter: .*'z'"):
        extract({"y": batch["x"]}, batch, PredictionSpec(("z",), None))
    with pytest.raises(ConfigError, match=r"`per`: .*'z'"):
        extract({"y": batch["x"]}, batch, PredictionSpec(None, {"z": "span"}))
    with pytest.raises(
        ConfigError, match="must return a dict for the fields a, b, but returned a T"
    ):
        extract(batch["x"], batch, PredictionSpec(("a", "b"), None))
    with pytest.raises(ConfigError, match="`per` must be 'sequence', 'timestep', 'span' or None"):
        PredictionSpec(None, "row")
    with pytest.raises(ConfigError, match="must be a non-empty string other than"):
        PredictionSpec(("spans",), None)


def test_timesteps_have_the_width_of_the_batch(batch):
    with pytest.raises(
        ConfigError, match=r"must have shape \(rows, 4, …\) to be per timestep of a"
    ):
        extract(torch.zeros(3, 5), batch, PredictionSpec(None, "timestep"))


def test_a_row_per_sequence_needs_whole_sequences():
    batch = next(iter(Loader(ROWS, Windows(2, batch_size=9, shuffle=False))))
    with pytest.raises(ConfigError, match=r"has timesteps .* only\. Pass `per='span'`"):
        extract(torch.zeros(len(batch)), batch)
    spans = extract(torch.zeros(len(batch)), batch, PredictionSpec(None, "span")).spans
    assert [1, 2, 4] in spans.tolist()
    assert extract(torch.zeros(len(batch)), batch, is_last_kept=True) is not None


@pytest.mark.parametrize("batch", [None, {"x": torch.zeros(2)}, (torch.zeros(2),)])
def test_a_batch_must_know_its_sequences(batch):
    with pytest.raises(ConfigError, match="the batch must be a SequenceBatch, which has the ids"):
        extract(torch.zeros(2), batch)


def test_predictions_are_alike_in_all_batches():
    one = {"y": PredictionField("float32", (2,), "timestep")}
    check_same_fields(one, dict(one), "in batch 1")
    with pytest.raises(ConfigError, match=r"are z in batch 1, and y elsewhere\. Name"):
        check_same_fields(one, {"z": one["y"]}, "in batch 1")
    other = {"y": PredictionField("float32", (2,), "sequence")}
    text = (
        r"'y' must have one dtype, shape and `per`, but is float32 \(2,\) per sequence on rank 1, "
        r"and float32 \(2,\) per timestep elsewhere"
    )
    with pytest.raises(ConfigError, match=text):
        check_same_fields(one, other, "on rank 1")
    assert "of prediction 'y' is 4, as is the width" in str(make_ambiguity_error("y", 4))


def test_one_option_names_the_fields():
    assert choose_names(None, None) is None
    assert choose_names("y", None) == ("y",)
    assert choose_names(None, ["y", "z"]) == ("y", "z")
    with pytest.raises(ConfigError, match="`field` and `fields` cannot both be given"):
        choose_names("y", ["z"])
    for fields in ("y", []):
        with pytest.raises(ConfigError, match="`fields` must be a tuple of names, or None for all"):
            choose_names(None, fields)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batching": TBPTT(2, 4, continuous=True)}, r"such as TBPTT\(lanes, chunk\) without"),
        ({"batching": Packed(2, 40)}, r"such as Bucketed\(32\)"),
        (
            {"on_error": "replace"},
            "`on_error` of the DataModule must be 'raise' or 'mask', but is 'replace'",
        ),
    ],
)
def test_what_has_no_prediction_for_each_sequence_is_refused(options, said, tmp_path):
    data = SequenceDataModule(predict=sequences(6), **options)
    with pytest.raises(ConfigError, match=said):
        predict(data, tmp_path / "out", model=Predictor("flags"))
