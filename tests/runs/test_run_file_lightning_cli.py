"""A run file is a configuration file of LightningCLI: it trains on the same batches."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from seqdata import MeanStd, open_store, split, write_store
from seqdata import fit as fit_statistics
from seqdata.collators.padded import Padded
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.loading.measure_lengths import measure_lengths
from seqdata.policies.fixed import Bucketed
from seqdata.policies.mix import Mix
from seqdata.policies.weighted import Weighted
from seqdata.runs.run_file import NAME
from tests.lightning.crashing import noisy
from tests.lightning.harness import QUIET, Recorder, fit, quietly, sequences

cli = pytest.importorskip("lightning.pytorch.cli")
pytest.importorskip("jsonargparse")


@dataclass(frozen=True)
class Scaled:
    """A transform with arguments, one of which is a function."""

    scales: tuple[float, ...]
    inner: Any = None

    def __call__(self, sequence, rng):
        inner = self.inner(sequence, rng) if self.inner is not None else sequence
        return {**inner, "x": inner["x"] * self.scales[0]}


def shorten(sequence, rng, kept):
    return {**sequence, "x": sequence["x"][:kept]}


@pytest.fixture
def store(tmp_path) -> str:
    """Forty short sequences."""
    write_store(tmp_path / "store", [{"id": f"s{i}", "x": x} for i, x in enumerate(sequences(40))])
    return str(tmp_path / "store")


def make_options(store):
    parts = split(open_store(store), {"a": 0.5, "b": 0.5})
    mix = Mix({"a": 2, "b": 1}, Bucketed(3), batches=12)
    measured = measure_lengths(store, functools.partial(shorten, kept=2), cache=False)
    fitted = fit_statistics(store, {"x": MeanStd()}).transform()
    return {
        "functions": {"train": store, "transform": noisy, "collator": Padded({"x": -1.0})},
        "dataclasses": {"train": store, "transform": Scaled((2.0, 3.0), inner=noisy)},
        "statistics": {"train": store, "transform": fitted},
        "views": {"train": parts["a"].select("x"), "val": {"b": parts["b"], "all": store}},
        "several": {"train": [parts["b"], open_store(store)]},
        "a mixture": {"train": parts, "batching": mix},
        "weights": {"train": store, "batching": Weighted(Bucketed(4), [1.0] * 30 + [5.0] * 10)},
        "lengths of a transform": {"train": measured},
    }


@pytest.mark.parametrize(
    "form",
    [
        "functions", "dataclasses", "statistics", "views", "several", "a mixture", "weights",
        "lengths of a transform",
    ],
)  # fmt: skip
@pytest.mark.slow
def test_lightning_cli_trains_on_the_batches_of_a_run_file(store, monkeypatch, form):
    data = SequenceDataModule(**{"batching": Bucketed(4), "seed": 3, **make_options(store)[form]})
    first = fit(data, max_epochs=1)
    monkeypatch.setattr("sys.argv", ["train.py"])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # what Lightning itself calls
    options = {"seed_everything_default": False, "save_config_callback": None}
    again = Path(NAME).rename("config.yaml")
    with quietly():
        made = cli.LightningCLI(
            Recorder, SequenceDataModule, args=["fit", "--config", str(again)],
            trainer_defaults={**QUIET, "max_epochs": 1, "enable_checkpointing": False},
            **options,
        )  # fmt: skip
    assert made.model.log_of.train == first.model.log_of.train
    assert made.model.log_of.train
