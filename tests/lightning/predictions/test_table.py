"""Predictions as a table: every row joins the row of the data that it is of."""

import lightning as L
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from seqdata import (
    Fixed,
    Labels,
    MeanStd,
    PredictionWriter,
    SequenceDataModule,
    TokenBudget,
    Windows,
    fit,
    open_store,
    split,
    write_store,
)
from seqdata.errors import ConfigError, UnknownNameError
from seqdata.lightning.predictions.table import TableOptions, make_table


class Echo(L.LightningModule):
    """Predict what the batch holds: the data itself."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def predict_step(self, batch, batch_idx):
        del batch_idx
        return self.make(batch)


def make_frame(sizes, seed=0, unit="us"):
    rng = np.random.default_rng(seed)
    total = sum(sizes)
    starts = np.datetime64("2024-01-01T00", unit) + np.arange(len(sizes)).astype("m8[D]")
    return pd.DataFrame(
        {
            "series_id": np.repeat([f"s{number}" for number in range(len(sizes))], sizes),
            "when": np.concatenate(
                [
                    start + np.arange(n).astype("m8[h]")
                    for start, n in zip(starts, sizes, strict=True)
                ]
            ),
            "load": rng.normal(5, 3, total).astype("float32"),
        }
    )


def predict(tmp_path, source, make, batching, transform=None, per=None):
    data = SequenceDataModule(predict=source, batching=batching, transform=transform)
    trainer = L.Trainer(
        logger=False, enable_progress_bar=False, accelerator="cpu",
        callbacks=[PredictionWriter(tmp_path / "out", per=per, overwrite=True)],
    )  # fmt: skip
    trainer.predict(Echo(make), data, return_predictions=False)
    return open_store(tmp_path / "out")


def test_a_view_of_a_part_of_a_split_joins_the_table_it_is_of(tmp_path):
    frame = make_frame([30, 50, 40])
    base = open_store(frame, group="series_id", order="when")
    part = split(base, {"a": "..2024-01-02T10", "b": "2024-01-02T10.."}, along="when")["b"]
    view = part.take([1, 0, 1]).rename({"load": "value", "when": "at"})
    statistics = fit(base.rename({"load": "value"}), {"value": MeanStd()})
    found = predict(
        tmp_path, view, lambda batch: {"value": batch["value"]}, Fixed(2), statistics.transform(),
        per="timestep",
    )  # fmt: skip
    options = TableOptions(id_name="series_id", statistics=statistics)
    table = make_table(found, view, options)
    assert table.column_names == ["series_id", "at", "position", "timestep", "value_pred"]
    assert table.schema.field("at").type == pa.timestamp("us")
    rows = table.to_pandas()
    joined = frame.merge(rows, left_on=["series_id", "when"], right_on=["series_id", "at"])
    assert len(joined) == len(rows) == int(view.lengths.sum())
    np.testing.assert_allclose(joined["value_pred"], joined["load"], rtol=1e-5)
    assert ("s" + joined["position"].astype(str) == joined["series_id"]).all()
    step = frame.groupby("series_id").cumcount().rename("timestep")
    again = pd.concat([frame["series_id"], frame["when"], step], axis=1)
    assert len(again.merge(rows, left_on=["series_id", "when", "timestep"],
                           right_on=["series_id", "at", "timestep"])) == len(rows)  # fmt: skip


def test_700_000_rows_join_one_to_one(tmp_path):
    sizes = np.random.default_rng(1).integers(1, 1400, 1000).tolist()
    frame = make_frame([*sizes, 700_000 - sum(sizes)] if sum(sizes) < 700_000 else sizes)
    base = open_store(frame, group="series_id", order="when")
    found = predict(tmp_path, base, lambda batch: {"load": batch["load"]}, TokenBudget(1 << 19))
    rows = make_table(found, base, TableOptions(id_name="series_id")).to_pandas()
    joined = frame.merge(rows, on=["series_id", "when"], validate="one_to_one")
    assert len(joined) == len(rows) == len(frame) >= 700_000
    assert (joined["load"] == joined["load_pred"]).all()


@pytest.mark.parametrize("horizon", [1, 3])
def test_a_forecast_has_a_row_per_step_at_its_date(tmp_path, horizon):
    frame = make_frame([30, 9, 40])
    base = open_store(frame, group="series_id", order="when")
    found = predict(
        tmp_path, base, lambda batch: {"load": batch.future["load"]},
        Windows(5, 2, 4, horizon=horizon), per="span",
    )  # fmt: skip
    rows = make_table(found, base, TableOptions(id_name="series_id", horizon=horizon)).to_pandas()
    joined = frame.merge(rows, on=["series_id", "when"])
    assert len(joined) == len(rows) == len(found) * horizon
    assert (joined["load"] == joined["load_pred"]).all()
    assert rows["step"].tolist() == list(range(1, horizon + 1)) * len(found)
    origin = rows["timestep"] - rows["step"]
    assert (origin % 2 == 0).all()  # windows of 5 begin at every second timestep


def test_predictions_per_sequence_have_a_row_each(tmp_path):
    base = open_store(make_frame([3, 9, 4]), group="series_id", order="when")
    view = base.take([2, 1])
    found = predict(
        tmp_path, view, lambda batch: {"n": batch.lengths * 1.0}, Fixed(2), per="sequence"
    )
    rows = make_table(found, view, TableOptions()).to_pandas()
    assert rows.to_dict("list") == {"id": ["s2", "s1"], "position": [2, 1], "n": [4.0, 9.0]}


def test_predictions_per_sequence_are_repeated_beside_those_per_timestep(tmp_path):
    base = open_store(make_frame([2, 3]), group="series_id", order="when")
    found = predict(
        tmp_path, base, lambda batch: {"load": batch["load"], "n": batch.lengths}, Fixed(2),
        per={"load": "timestep", "n": "sequence"},
    )  # fmt: skip
    assert make_table(found, base, TableOptions())["n"].to_pylist() == [2, 2, 3, 3, 3]


def test_groups_that_are_encoded_are_decoded_for_the_inverse(tmp_path):
    frame = make_frame([20, 30, 10])
    base = open_store(frame, group="series_id", order="when")
    statistics = fit(base, {"load": MeanStd(by="series_id"), "series_id": Labels()})
    found = predict(
        tmp_path, base, lambda batch: {"load": batch["load"]}, Fixed(2), statistics.transform()
    )
    rows = make_table(found, base, TableOptions(statistics=statistics)).to_pandas()
    np.testing.assert_allclose(rows["load_pred"], frame["load"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("unit", "type_"), [("D", pa.date32()), ("s", pa.timestamp("s"))])
def test_dates_keep_their_unit_and_vectors_are_lists(tmp_path, unit, type_):
    rows = [{"id": "a", "t": np.array([3, 5], f"M8[{unit}]"), "x": np.ones((2, 4), np.float32)}]
    store = write_store(tmp_path / "store", rows)
    found = predict(tmp_path, store, lambda batch: {"x": batch["x"]}, Fixed(1), per="timestep")
    table = make_table(found, store, TableOptions(time="t"))
    assert table.schema.field("t").type == type_
    assert table["x_pred"].to_pylist() == [[1.0] * 4] * 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"time": "load"},
            ConfigError,
            "`time` must be a field with a date per timestep along 'ti",
        ),
        ({"time": "wen"}, UnknownNameError, "no field 'wen'; did you mean 'when'"),
        ({"id_name": "load_pred"}, ConfigError, "different names, but two are named 'load_pred'"),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path, options, error, message):
    base = open_store(make_frame([2, 3]), group="series_id", order="when")
    found = predict(tmp_path, base, lambda batch: {"load": batch["load"]}, Fixed(2), per="timestep")
    with pytest.raises(error, match=message):
        make_table(found, base, TableOptions(**options))


def test_the_written_store_has_positions_and_timesteps_of_the_data(tmp_path):
    base = open_store([{"x": np.arange(n, dtype=np.float32)} for n in (4, 6, 8)])
    part = split(base, {"a": "..2", "b": "2.."}, along="time")["b"].take([2, 0])
    found = predict(tmp_path, part, lambda batch: {"x": batch["x"]}, Fixed(2), per="timestep")
    assert [each["position"] for each in found] == [2, 0]
    assert [each["spans"].tolist() for each in found] == [[[2, 8]], [[2, 4]]]
    assert torch.equal(torch.as_tensor(found[0]["x"]), torch.arange(2.0, 8.0))
