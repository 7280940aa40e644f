"""What ``--model`` names: a class with literals, a function, a module, a checkpoint."""

import pytest
import torch
from torch import nn

from seqdata.cli._doctor.parallel import load_model
from seqdata.errors import ConfigError

CODE = """
from torch import nn
made = nn.LSTM(2, 3)
number = 4
def make(): return nn.GRU(2, 3)
def fail(): raise ValueError("no data here")
class Outer:
    Inner = nn.LSTM
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    (tmp_path / "models_of_mine.py").write_text(CODE)
    (tmp_path / "broken_models.py").write_text("import package_that_is_not_there")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    return tmp_path


def test_classes_functions_and_modules_are_found(code):
    assert load_model("torch.nn:LSTM(2, 3, num_layers=2)").num_layers == 2
    assert load_model("models_of_mine:Outer.Inner(2, 5)").hidden_size == 5
    assert isinstance(load_model("models_of_mine:make"), nn.GRU)
    assert isinstance(load_model("models_of_mine:make()"), nn.GRU)
    assert load_model("models_of_mine:made").hidden_size == 3


@pytest.mark.parametrize("wrap", [lambda weights: weights, lambda weights: {"state_dict": weights}])
def test_weights_of_a_checkpoint_are_read(code, wrap):
    torch.save(wrap(nn.LSTM(2, 3).state_dict()), code / "a.ckpt")
    found = load_model(str(code / "a.ckpt"))
    assert found["weight_ih_l0"].shape == (12, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("StatefulLM", "must be 'package.module:Class"),
        ("no_such_package:Model", "must be importable, but is not: 'no_such_package'"),
        ("broken_models:Model", "No module named 'package_that_is_not_there'"),
        ("models_of_mine:maker", r"of 'models_of_mine', but is 'maker'\. did you mean 'make'\?$"),
        ("models_of_mine:number", "must be a class, function or module, but is 4"),
        ("models_of_mine:fail", r"but is fail\(\), which raises ValueError: no data here"),
        ("torch.nn:LSTM", r"but is LSTM\(\), which raises TypeError"),
        ("torch.nn:LSTM(exit())", r"of literals, such as numbers and strings, but is \(exit\(\)\)"),
        ("torch.nn:LSTM(2,", "must be 'package.module:Class"),
        ("builtins:dict", "must be a torch.nn.Module, but is a dict"),
        ("none.ckpt", "must be a file that exists, but is 'none.ckpt'"),
    ],
)
def test_what_names_no_model_is_refused(code, text, message):
    with pytest.raises(ConfigError, match=message):
        load_model(text)


def test_a_checkpoint_that_would_run_code_is_refused(code):
    torch.save({"state_dict": {}, "hook": print}, code / "a.pt")
    with pytest.raises(ConfigError, match="must be a checkpoint of tensors, but is one that"):
        load_model(str(code / "a.pt"))
