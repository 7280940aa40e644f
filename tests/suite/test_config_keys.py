"""Misspelt keys and classes of a file for ``seqdata fit`` end in one short error."""

import copy

import pytest
import yaml
from click.testing import CliRunner

from seqdata.cli.app import app
from seqdata.suite.cli import shorten_error
from tests.suite.config_samples import FORECAST, SEQUENCES, change
from tests.suite.samples import hours

pytestmark = pytest.mark.usefixtures("without_other_classes")

pytest.importorskip("jsonargparse")

CLASS_KEYS = "Choose one of class_path, init_args, dict_kwargs"
OF_DATA = "data.init_args"
WINDOWS = f"{OF_DATA}.batching.init_args"


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["seqdata"])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")


def fit(config, *options, name="fit.yaml"):
    """Run the command on a file and return its exit status and output."""
    with open(name, "w") as file:
        yaml.safe_dump(config, file)
    done = CliRunner().invoke(app, ["fit", "--config", name, *options])
    return done.exit_code, done.output


@pytest.mark.slow
@pytest.mark.parametrize(("config", "path", "new", "expected"), [
    (FORECAST, "trainer", "trainr", "there is no key 'trainr'; did you mean 'trainer'? Choose"),
    (FORECAST, "seed_everything", "seed", "no key 'seed'. Choose one of config, seed_everything,"),
    (FORECAST, "trainer/max_epochs", "max_epoch",
     "trainer: there is no key 'max_epoch'; did you mean 'max_epochs'?\n"),
    (FORECAST, "data/init_args", "init_arg",
     f"data: there is no key 'init_arg'; did you mean 'init_args'? {CLASS_KEYS}"),
    (FORECAST, "data/class_path", "clas_path",
     f"data: there is no key 'clas_path'; did you mean 'class_path'? {CLASS_KEYS}"),
    (FORECAST, "data/init_args/horizon", "horizn",
     f"{OF_DATA}: ForecastDataModule has no argument 'horizn'; did you mean 'horizon'?\n"),
    (FORECAST, "data/init_args/horizon", "zzz",
     f"{OF_DATA}: ForecastDataModule has no argument 'zzz'. Choose one of source, id, time,"),
    (FORECAST, "model/init_args/hidden", "hiden",
     "model.init_args: LSTMForecaster has no argument 'hiden'; did you mean 'hidden'?"),
    (SEQUENCES, "data/init_args/batching/init_args/size", "siz",
     f"{WINDOWS}: Windows has no argument 'siz'; did you mean 'size'?\n"),
    (SEQUENCES, "data/init_args/batching/init_args", "init_arg",
     f"{OF_DATA}.batching: there is no key 'init_arg'; did you mean 'init_args'? {CLASS_KEYS}"),
])  # fmt: skip
def test_a_misspelt_key_is_named_with_its_file_and_the_nearest_key(config, path, new, expected):
    status, output = fit(change(config, path, new))
    assert status == 2
    assert output.startswith("error: fit.yaml: ")
    assert expected in output
    assert len(output.splitlines()) == 1


PATH = {"class_path": "seqdata.Windows", "init_args": {"strid": 2}}
NESTED = {"class_path": "Segments", "init_args": {"policy": PATH, "batches": 2}}
CALLBACK = {"class_path": "ModelCheckpoint", "init_args": {"monitr": "x"}}


@pytest.mark.slow
@pytest.mark.parametrize(("config", "path", "value", "expected"), [
    (SEQUENCES, "data/init_args/batching", PATH,
     f"{WINDOWS}: Windows has no argument 'strid'; did you mean 'stride'?"),
    (SEQUENCES, "data/init_args/batching", NESTED,
     f"{WINDOWS}.policy.init_args: Windows has no argument 'strid'; did you mean 'stride'?"),
    (FORECAST, "trainer/callbacks", [CALLBACK],
     "trainer.callbacks[0].init_args: ModelCheckpoint has no argument 'monitr'; did you mean"),
    (FORECAST, "data/class_path", "ForecastDataModul",
     "data.class_path: there is no class 'ForecastDataModul'; did you mean 'ForecastDataModule'?"),
    (SEQUENCES, "data/init_args/batching/class_path", "window",
     f"{OF_DATA}.batching.class_path: there is no class 'window'; did you mean 'windows'?"),
])  # fmt: skip
def test_a_misspelt_class_or_argument_of_a_nested_class_is_named(config, path, value, expected):
    status, output = fit(change(config, path, "", value))
    assert status == 2
    assert output.startswith(f"error: fit.yaml: {expected}")
    assert len(output.splitlines()) == 1


@pytest.mark.slow
def test_the_class_of_a_file_may_be_named_in_an_earlier_file():
    fit(FORECAST, name="first.yaml")
    second = {"model": {"init_args": {"hiden": 3}}}
    with open("second.yaml", "w") as file:
        yaml.safe_dump(second, file)
    done = CliRunner().invoke(app, ["fit", "-c", "first.yaml", "--config=second.yaml"])
    assert done.exit_code == 2
    assert done.output.startswith("error: second.yaml: model.init_args: LSTMForecaster has no")


@pytest.mark.slow
@pytest.mark.parametrize(("new", "expected"), [
    ("model.init_args.hiden", "model.init_args: LSTMForecaster has no argument 'hiden'"),
    ("model.init_args.hidden", "trainer: there is no key 'max_epoch'; did you mean"),
])  # fmt: skip
def test_keys_with_dots_are_those_of_sections(new, expected):
    """``{"a.b": 1}`` is ``{"a": {"b": 1}}`` to the parser."""
    config = change(FORECAST, "trainer/max_epochs", "max_epoch")
    status, output = fit({**config, new: 1})
    assert status == 2
    assert output.startswith(f"error: fit.yaml: {expected}")


@pytest.mark.slow
@pytest.mark.parametrize(("value", "expected"), [
    ("mine.MyForecastr", "fit.yaml: data.class_path: there is no class 'mine.MyForecastr'; did you "
     "mean 'mine.MyForecaster'?"),
    ("..mine.MyForecaster", "fit.yaml: data.class_path: the class '..mine.MyForecaster' cannot be "
     "imported (TypeError: "),
    ("yours.MyForecaster", "fit.yaml: data.class_path: the class 'yours.MyForecaster' cannot be "
     "imported (No module named 'yours')\n"),
    ("seqdta.MyForecaster", "fit.yaml: data.class_path: the class 'seqdta.MyForecaster' cannot be "
     "imported (No module named 'seqdta'; did you mean 'seqdata'?)"),
    ("broken.MyForecaster", "fit.yaml: data.class_path: the class 'broken.MyForecaster' cannot be "
     "imported (SyntaxError: "),
    ("needy.MyForecaster", "fit.yaml: data.class_path: the class 'needy.MyForecaster' cannot be "
     "imported (No module named 'seqdta')\n"),
    ("seqdata.TBPTT", "fit.yaml: data.class_path: must be a LightningDataModule, but "
     "'seqdata.TBPTT' is none. Choose one of EventDataModule,"),
])  # fmt: skip
def test_a_misspelt_class_of_the_users_own_module_is_named(value, expected, monkeypatch):
    with open("mine.py", "w") as file:
        file.write("from seqdata import ForecastDataModule\n")
        file.write("class MyForecaster(ForecastDataModule):\n    pass\n")
    for name, text in {"broken": "class :", "needy": "import seqdta"}.items():
        with open(f"{name}.py", "w") as file:
            file.write(text)
    monkeypatch.syspath_prepend(".")
    status, output = fit(change(FORECAST, "data/class_path", "", value))
    assert status == 2
    assert output.startswith(f"error: {expected}")


@pytest.mark.slow
@pytest.mark.parametrize(("value", "told"), [(None, "is empty"), ([1], "is [1]"), (5, "is 5")])
def test_a_section_of_the_trainer_without_keys_is_told(value, told, tmp_path):
    hours(2, 240).to_parquet(tmp_path / "load.parquet", index=False)
    status, output = fit({**FORECAST, "trainer": value})
    assert status == 2
    assert "error: fit.yaml: trainer: must have keys (accelerator, strategy, devices, " in output
    assert output.endswith(f"but {told}\n")


@pytest.mark.slow
@pytest.mark.parametrize(("config", "path", "value", "expected"), [
    (FORECAST, "trainer/max_epochs", "two",
     "trainer.max_epochs: must be an integer or null, but is 'two'"),
    (FORECAST, "seed_everything", "x",
     "seed_everything: must be true or false or an integer, but is 'x'"),
    (FORECAST, "data", 5, "data: must be a LightningDataModule (class_path, init_args), but is 5"),
    (FORECAST, "data", "ForecastDataModule", "data: ForecastDataModule needs the arguments source, "
     "id, time, target, context, horizon, split, which are missing"),
    (FORECAST, "data/class_path", 7,
     "data.class_path: must be the name or import path of a class, but is 7"),
    (FORECAST, "data/init_args", [1], f"{OF_DATA}: must be a dict of arguments, but is [1]"),
    (FORECAST, "data/init_args/horizon", "abc",
     f"{OF_DATA}.horizon: must be an integer, but is 'abc'"),
    (FORECAST, "data/init_args/split", "train", f"{OF_DATA}.split: must be a dict, but is 'train'"),
    (SEQUENCES, "data/init_args/batching", 24, f"{OF_DATA}.batching: must be a Policy "
     "(class_path, init_args), a string or null, but is 24"),
    (SEQUENCES, "data/init_args/batching/init_args/size", "x",
     f"{WINDOWS}.size: must be an integer, a list of 2 items or null, but is 'x'"),
    (FORECAST, "trainer/logger", "CSVLogger", "trainer.logger: CSVLogger needs the argument "
     "save_dir (a string or a path), which is missing"),
    (FORECAST, "trainer/callbacks", [{"class_path": "EarlyStopping"}],
     "trainer.callbacks[0]: EarlyStopping needs the argument monitor (a string), which is missing"),
])  # fmt: skip
def test_a_value_of_a_wrong_type_is_told_with_its_key(config, path, value, expected):
    status, output = fit(change(config, path, "", value))
    assert status == 2
    assert output == f"error: fit.yaml: {expected}\n"


@pytest.mark.slow
def test_what_is_missing_is_told_with_the_file():
    config = copy.deepcopy(FORECAST)
    del config["data"]["init_args"]["horizon"]
    assert fit(config) == (2, "error: fit.yaml: data: ForecastDataModule needs the argument "
                           "horizon (an integer), which is missing\n")  # fmt: skip
    del config["data"]["class_path"]
    status, output = fit(config)
    assert status == 2
    assert output.startswith("error: fit.yaml: the class_path of 'data' is missing. It is one of ")
    del config["data"]
    status, output = fit(config)
    assert status == 2
    assert output.startswith("error: fit.yaml: the key 'data' is required, but missing. Its class")


@pytest.mark.slow
def test_an_argument_may_be_given_later():
    config = copy.deepcopy(FORECAST)
    del config["data"]["init_args"]["horizon"]
    status, output = fit(config, "--data.horizon", "6", "--trainer.min_epochs", "x")
    assert status == 2
    assert output.startswith("error: --trainer.min_epochs: must be an integer")


def test_what_the_parser_says_is_shortened():
    text = (
        'Parser key "data":\n  Does not validate against any of the Union subtypes\n  Subtypes: '
        "[int, None]\n  Errors:\n    - Expected a <class 'int'>\n    - Expected a <class "
        "'NoneType'>\n  Given value type: <class 'str'>\n  Given value: x"
    )
    assert shorten_error(ValueError(text)) == "Parser key \"data\": Expected a <class 'int'>"


@pytest.mark.slow
def test_an_invalid_value_of_a_datamodule_is_told_as_elsewhere():
    hours().to_parquet("load.parquet", index=False)
    status, output = fit(change(FORECAST, "data/init_args/horizon", "", -1))
    assert status == 2
    assert output.splitlines()[-1] == (
        "error: forecast: `horizon` must be an integer of at least 1, but is -1"
    )
    statistics = {"load": {"class_path": "Robst"}}
    status, output = fit(change(SEQUENCES, "data/init_args/statistics", "", statistics))
    assert status == 2
    assert "did you mean 'Robust'?" in output.splitlines()[-1]
