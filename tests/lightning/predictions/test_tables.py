"""Predictions become the table that the suffix of the location says, which others read."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from seqdata.api import open_store
from seqdata.errors import ConfigError
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.policies.fixed import Bucketed
from seqdata.policies.windows import Windows
from tests.lightning.harness import sequences
from tests.lightning.predictions.predicting import Predictor, predict, read

COUNT = 23
DATA = sequences(COUNT)
IDS = [f'utt "{number:03}", ü' for number in range(COUNT)]
NAMED = [{"id": name, "x": one} for name, one in zip(IDS, DATA, strict=True)]


def read_lines(path):
    return pa.Table.from_pylist([json.loads(line) for line in path.read_text("utf-8").splitlines()])


READERS = {
    ".parquet": pa.parquet.read_table,
    ".pq": pa.parquet.read_table,
    ".arrow": pa.feather.read_table,
    ".feather": pa.feather.read_table,
    ".ipc": pa.feather.read_table,
    ".jsonl": read_lines,
    ".ndjson": read_lines,
    ".csv": pa.csv.read_csv,
}
NESTED = [suffix for suffix in READERS if suffix != ".csv"]


def data_of(given=NAMED, batching=None):
    return SequenceDataModule(predict=given, batching=batching or Bucketed(4))


class Total(Predictor):
    """Predicts one number per sequence."""

    def predict_step(self, batch, batch_idx):
        return {"total": batch["x"].sum(dim=(1, 2)), "count": batch.lengths}


@pytest.mark.parametrize("suffix", NESTED)
def test_a_table_has_the_columns_of_the_store_in_the_order_of_the_data(tmp_path, suffix):
    predict(data_of(), tmp_path / "out")
    predict(data_of(), tmp_path / f"p{suffix}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", f"p{suffix}"]
    due, found = read(tmp_path / "out"), READERS[suffix](tmp_path / f"p{suffix}").to_pydict()
    assert list(found) == list(due)
    assert found["id"] == IDS
    assert found["position"] == list(range(COUNT))
    for name in ("steps", "sum", "spans"):
        assert [np.ravel(row).tolist() for row in found[name]] == [
            np.ravel(row).tolist() for row in due[name]
        ]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".feather"])
def test_a_table_opens_as_a_store_of_the_same_predictions(tmp_path, suffix):
    predict(data_of(), tmp_path / "out")
    predict(data_of(), tmp_path / f"p{suffix}")
    due, found = open_store(tmp_path / "out"), open_store(tmp_path / f"p{suffix}")
    assert found.keys([3, 1]) == due.keys([3, 1])
    assert {name: field.shape for name, field in found.fields.items()} == {
        name: field.shape for name, field in due.fields.items()
    }
    assert all(np.array_equal(found[n]["steps"], due[n]["steps"]) for n in range(COUNT))
    assert found.fields["steps"].dtype == due.fields["steps"].dtype


@pytest.mark.parametrize("suffix", READERS)
def test_a_join_with_the_data_by_id_is_right(tmp_path, suffix):
    order = np.random.default_rng(5).permutation(COUNT).tolist()
    path = tmp_path / f"p{suffix}"
    predict(data_of([NAMED[number] for number in order]), path, model=Total())
    frame = READERS[suffix](path).to_pandas()
    original = pd.DataFrame({"id": IDS, "due": [one.sum() for one in DATA], "size": map(len, DATA)})
    joined = original.merge(frame, on="id", validate="one_to_one")
    assert len(joined) == COUNT
    np.testing.assert_allclose(joined["total"].astype(float), joined["due"], rtol=1e-5)
    assert joined["count"].tolist() == joined["size"].tolist()


def test_csv_has_a_number_per_cell(tmp_path):
    predict(data_of(), tmp_path / "p.csv", model=Total())
    frame = pl.read_csv(tmp_path / "p.csv")
    assert frame.columns == ["id", "position", "total", "count", "start", "stop"]
    assert frame["id"].to_list() == IDS
    assert frame["stop"].to_list() == [len(one) for one in DATA]
    assert set(frame["start"]) == {0}


def test_lists_are_refused_for_csv_with_what_has_them(tmp_path):
    with pytest.raises(
        ConfigError, match=r"'steps' must be one number per row to be written as CSV.*\.parquet"
    ):
        predict(data_of(), tmp_path / "p.csv")
    assert not list(tmp_path.iterdir())


def test_windows_have_a_row_each(tmp_path):
    class Last(Predictor):
        def predict_step(self, batch, batch_idx):
            return batch.context["x"][:, -1, 0]

    data = data_of(batching=Windows(2, 2, 4, horizon=1))
    predict(data, tmp_path / "p.csv", model=Last(), field="last", per="span", partial=True)
    predict(data, tmp_path / "out", model=Last(), field="last", per="span", partial=True)
    due, frame = read(tmp_path / "out"), pl.read_csv(tmp_path / "p.csv")
    assert frame["id"].to_list() == due["id"]
    assert frame["last"].to_list() == pytest.approx(due["last"])
    assert list(map(list, zip(frame["start"], frame["stop"], strict=True))) == [
        span for (span,) in due["spans"]
    ]


def test_data_sets_become_files_of_their_names(tmp_path):
    data = SequenceDataModule(predict={"dev": NAMED[:5], "eval": NAMED[5:]}, batching=Bucketed(4))
    predict(data, tmp_path / "p.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "p-dev.parquet", "p-eval.parquet",
    ]  # fmt: skip
    assert pa.parquet.read_table(tmp_path / "p-eval.parquet")["id"].to_pylist() == IDS[5:]


def test_an_existing_file_is_replaced_only_on_request(tmp_path):
    path = tmp_path / "p.parquet"
    path.write_text("mine")
    with pytest.raises(ConfigError, match=r"must not exist, but does. Pass `overwrite=True`"):
        predict(data_of(), path)
    assert path.read_text() == "mine"
    predict(data_of(), path, overwrite=True)
    assert pa.parquet.read_table(path)["id"].to_pylist() == IDS
    (tmp_path / "q.parquet").mkdir()
    with pytest.raises(ConfigError, match=r"must be a file, as its suffix says.* is a folder"):
        predict(data_of(), tmp_path / "q.parquet", overwrite=True)


def test_another_suffix_is_a_store(tmp_path):
    predict(data_of(), tmp_path / "p.v2")
    assert len(open_store(tmp_path / "p.v2")) == COUNT
