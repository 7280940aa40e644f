"""``seqdata fit``: models and data of a YAML file, by short names, with sizes from the data."""

import sys
import types

import lightning.pytorch as pl
import pytest
import torch
import yaml
from click.testing import CliRunner

from seqdata import ForecastDataModule
from seqdata.cli.app import app
from seqdata.collators.padded import Padded
from seqdata.suite import cli
from tests.suite.samples import hours

pytest.importorskip("jsonargparse")

TRAINER = {
    "max_epochs": 1, "accelerator": "cpu", "logger": False, "enable_progress_bar": False,
    "enable_model_summary": False, "enable_checkpointing": False, "num_sanity_val_steps": 0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["seqdata"])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    hours().to_parquet("load.parquet", index=False)


def write(**parts):
    """Write a configuration file of forecasting, with other parts."""
    data = {
        "source": "load.parquet", "id": "site", "time": "time", "target": "load", "static": "region",  # noqa: E501
        "context": 24, "horizon": 6, "split": {"train": "..2024-01-08", "val": "2024-01-08.."},
    }  # fmt: skip
    config = {
        "seed_everything": 1,
        "data": {"class_path": "ForecastDataModule", "init_args": data},
        "model": {"class_path": "LSTMForecaster", "init_args": {"hidden": 4}},
        "trainer": TRAINER,
        **parts,
    }
    with open("config.yaml", "w") as file:
        yaml.safe_dump(config, file)


@pytest.mark.slow
def test_a_forecaster_is_trained_from_a_file():
    write()
    made = cli.run_cli(["fit", "--config", "config.yaml"])
    assert isinstance(made.datamodule, ForecastDataModule)
    assert made.model.horizon == 6
    assert made.model.static == ("region",)
    assert made.model.encoder.hidden_size == 4
    assert "val_mse" in made.trainer.callback_metrics


@pytest.mark.slow
def test_the_command_shows_all_arguments_and_says_what_is_wrong():
    write()
    done = CliRunner().invoke(app, ["fit", "--config", "config.yaml", "--print_config"])
    assert done.exit_code == 0, done.output
    shown = yaml.safe_load(done.stdout)
    assert shown["data"]["init_args"]["missing"] == "mask"
    assert shown["model"]["init_args"]["layers"] == 1
    write(data={"class_path": "ForecastDataModul", "init_args": {}})
    done = CliRunner().invoke(app, ["fit", "--config", "config.yaml"])
    assert done.exit_code == 2
    assert "ForecastDataModul" in done.output


class Plain(pl.LightningModule):
    """A model without ``for_data``."""

    def __init__(self):
        super().__init__()
        self.level = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch):
        return (self.level - batch["load"]).square().mean().float()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.slow
def test_short_names_of_policies_collators_and_classes_of_packages(monkeypatch):
    module = types.ModuleType("some_package")
    module.Plain = Plain
    Plain.__module__ = "some_package"
    monkeypatch.setitem(sys.modules, "some_package", module)

    class Point:
        name, value, group = "PlainModel", "some_package:Plain", cli.CLASSES

        @staticmethod
        def load():
            return Plain

    monkeypatch.setattr(cli, "find_classes", lambda: [Point])
    data = {
        "train": "load.parquet", "group": "site", "order": "time",
        "statistics": {"load": {"class_path": "Robust", "init_args": {"by": "site"}}},
        "batching": {"class_path": "windows", "init_args": {"size": 24, "stride": 6, "random": True}},  # noqa: E501
        "collator": {"class_path": "Padded"},
        "split": {"train": "..2024-01-08", "along": "time"},
    }  # fmt: skip
    write(
        data={"class_path": "SequenceDataModule", "init_args": data},
        model={"class_path": "PlainModel"},
    )
    made = cli.run_cli(["fit", "--config", "config.yaml"])
    assert isinstance(made.datamodule._options.collator, Padded)
    assert made.datamodule.statistics["load"].by == "site"
    assert type(made.model) is Plain


def test_a_class_of_a_package_that_is_broken_is_named(monkeypatch):
    class Point:
        name, value = "Broken", "broken:Broken"

        @staticmethod
        def load():
            raise ImportError("no module")

    monkeypatch.setattr(cli, "find_classes", lambda: [Point])
    with pytest.raises(
        cli.PluginError, match=r"the class 'Broken' .broken:Broken. cannot be imported"
    ):
        cli.import_classes()


def test_fit_without_jsonargparse_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonargparse", None)
    result = CliRunner().invoke(app, ["fit", "--config", "config.yaml"])
    assert result.exit_code == 2
    assert "pip install 'jsonargparse[signatures]'" in result.output
