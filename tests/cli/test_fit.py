"""``seqdata fit``: its help and completions name options of LightningCLI, which is not imported."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from seqdata.cli.app import app
from seqdata.cli.fit import _OPTIONS, fit
from seqdata_testing.waiting import patient
from tests.suite.config_samples import FORECAST
from tests.suite.samples import hours


def complete(typed):
    return [item.value for item in fit.shell_complete(click.Context(fit), typed)]


def test_help_lists_the_options_of_lightning_and_its_own_once():
    text = CliRunner().invoke(app, ["fit", "--help"], terminal_width=80).output
    assert text.startswith("Usage: app fit --config FILE [OPTIONS]\n")
    rows = [line[2:] for line in text.splitlines() if line.startswith("  -")]
    assert [row.split("  ")[0] for row in rows] == [*_OPTIONS, "-h, --help"]


def test_options_whose_key_is_still_to_be_typed_are_not_completed():
    assert complete("--data.") == ["--data.help"]
    assert complete("--c") == ["--config", "--ckpt_path"]
    assert complete("--trainer") == []
    assert set(complete("--")) > {"--config", "--seed_everything", "--print_config", "--help"}


@pytest.mark.slow
def test_help_imports_neither_lightning_nor_torch():
    code = """
import sys
from seqdata.cli.app import app
app(["fit", "--help"], standalone_mode=False)
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patient(), check=True
    )
    assert not set(done.stdout.split()) & {"torch", "lightning", "jsonargparse"}


@pytest.mark.slow
@pytest.mark.parametrize("option", _OPTIONS)
def test_options_that_the_help_names_are_those_of_lightning(option, monkeypatch):
    pytest.importorskip("jsonargparse")
    monkeypatch.setattr("sys.argv", ["seqdata"])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    hours().to_parquet("load.parquet", index=False)
    Path("config.yaml").write_text(yaml.safe_dump(FORECAST))
    name, value = option.removeprefix("-c, ").partition(" ")[::2]
    found = {
        "--data.KEY": "--data.batch_size=64", "--model.KEY": "--model.hidden=128",
        "--trainer.KEY": "--trainer.max_epochs=3", "--data.help": "--data.help=ForecastDataModule",
        "--model.help": "--model.help=LSTMForecaster", "--print_config": "--print_config",
    }.get(name) or f"{name}={'config.yaml' if value == 'FILE' else 3}"  # fmt: skip
    is_help = name.endswith(".help")
    options = ["--config", "config.yaml", found, *([] if is_help else ["--print_config"])]
    done = CliRunner().invoke(app, ["fit", *options])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("usage:" if is_help else "# lightning")
