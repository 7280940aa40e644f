"""LightningCLI takes policies by their short names, with their options."""

import sys
import typing

import lightning.pytorch as pl
import pytest

from seqdata.errors import SeqDataError
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.lightning.policy_names import find_import_path
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.token_budget import TokenBudget
from tests.lightning.harness import QUIET

cli = pytest.importorskip("lightning.pytorch.cli")
pytest.importorskip("jsonargparse")
ENDS = {"seed_everything_default": False, "run": False, "save_config_callback": None}


@pytest.fixture(autouse=True)
def _no_arguments(monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py"])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # what Lightning itself calls


def parsed(tmp_path, *arguments, **config):
    """The DataModule's batching, of arguments or of lines in a configuration file."""
    options = [f"--data.{name}" for name in arguments]
    if config:
        (tmp_path / "config.yaml").write_text("data:\n" + config["data"])
        options = ["--config", str(tmp_path / "config.yaml"), *options]
    made = cli.LightningCLI(
        pl.LightningModule, SequenceDataModule, args=options, trainer_defaults=QUIET, **ENDS
    )
    return made.datamodule._options.batching


@pytest.mark.parametrize("name", ["token-budget", "TokenBudget"])
@pytest.mark.slow
def test_a_policy_is_named_on_the_command_line(tmp_path, name):
    made = parsed(tmp_path, f"batching={name}", "batching.max_tokens=64", "batching.shuffle=false")
    assert made == TokenBudget(64, shuffle=False)


@pytest.mark.parametrize("name", ["token-budget", "TokenBudget", "seqdata.TokenBudget"])
@pytest.mark.slow
def test_a_policy_is_named_in_a_configuration_file(tmp_path, name):
    lines = f"  batching:\n    class_path: {name}\n    init_args:\n      max_tokens: 64\n"
    assert parsed(tmp_path, data=lines) == TokenBudget(64)


def test_all_of_the_cores_policies_have_short_names():
    for name, policy in (("Fixed", Fixed), ("bucketed", Bucketed), ("tbptt", TBPTT)):
        assert find_import_path(name) == f"{policy.__module__}.{policy.__name__}"


def test_other_names_are_left_to_the_data_module(tmp_path):
    data = SequenceDataModule(train=[[1.0]], batching=parsed(tmp_path, "batching=token-budgets"))
    with pytest.raises(SeqDataError, match="unknown policy 'token-budgets'; did you mean 'token-b"):
        data.train_dataloader()


@pytest.mark.slow
def test_an_option_that_is_missing_or_unknown_is_an_error(tmp_path, capsys):
    for arguments, said in (
        (["batching=fixed"], "batch_size"),
        (["batching=fixed", "batching.batchsize=3"], "batchsize"),
    ):
        with pytest.raises(SystemExit):
            parsed(tmp_path, *arguments)
        assert said in capsys.readouterr().err


def test_type_aliases_hold_no_forward_references():
    """For each of them jsonargparse searches all modules: a YAML was read in 8 s, not in 2."""
    aliases = {
        f"{module.__name__}.{name}": value
        for module in [m for key, m in sys.modules.items() if key.startswith("seqdata")]
        for name, value in vars(module).items()
        if typing.get_origin(value) is not None
    }
    assert "seqdata.protocols.Columns" in aliases
    late = {
        name
        for name, value in aliases.items()
        if any(isinstance(part, str | typing.ForwardRef) for part in typing.get_args(value))
        and typing.get_origin(value) is not typing.Literal
    }
    assert not late
