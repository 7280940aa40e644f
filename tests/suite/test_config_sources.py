"""Wrong options and files of ``seqdata fit`` end in a line or two, with exit status 2."""

import os
import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner

from seqdata.cli.app import app
from tests.suite.config_samples import FORECAST, SEQUENCES, change
from tests.suite.samples import hours

pytestmark = pytest.mark.usefixtures("without_other_classes")

pytest.importorskip("jsonargparse")

TEXT = yaml.safe_dump(FORECAST, sort_keys=False)
HIDEN = "LSTMForecaster has no argument 'hiden'; did you mean 'hidden'?"
HORIZN = "ForecastDataModule has no argument 'horizn'; did you mean 'horizon'?"
DATA = ", ".join(
    f"{kind}DataModule" for kind in ("Event", "Forecast", "LongSequence", "Sequence", "Speech")
)


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["seqdata"])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    hours().to_parquet("load.parquet", index=False)
    write("fit.yaml", TEXT)
    write("sequences.yaml", yaml.safe_dump(SEQUENCES))


def write(name, text):
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    with open(name, "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def dump(name, config):
    write(name, yaml.safe_dump(config, sort_keys=False))


def without(config, key):
    return {name: each for name, each in config.items() if name != key}


def fail(*options):
    """Run the command and return its error, of at most two lines."""
    done = CliRunner().invoke(app, ["fit", *options])
    assert done.exit_code == 2, done.output
    error = done.output.rstrip("\n").split("\nerror: ")[-1].removeprefix("error: ")
    assert len(error.splitlines()) <= 2
    return error


@pytest.mark.slow
@pytest.mark.parametrize(("options", "expected"), [
    ("--data.horizn 5", f"--data.horizn: {HORIZN}"),
    ("--data.horizn=5", f"--data.horizn: {HORIZN}"),
    ("--data.init_args.horizn 5", f"--data.init_args.horizn: {HORIZN}"),
    ("--model.hiden 3", f"--model.hiden: {HIDEN}"),
    ("--optimizer Adam --optimizer.lrr 1",
     "--optimizer.lrr: Adam has no argument 'lrr'; did you mean 'lr'? Choose one of lr, betas,"),
    ("--trainer.callbacks+=ModelCheckpoint --trainer.callbacks.monitr x",
     "--trainer.callbacks.monitr: ModelCheckpoint has no argument 'monitr'; did you mean 'monit"),
    ("--trainer.max_epchs 3",
     "--trainer.max_epchs: there is no such option; did you mean '--trainer.max_epochs'?"),
    ("--trainr.max_epochs 3",
     "--trainr.max_epochs: there is no such option; did you mean '--trainer.max_epochs'?"),
    ("--max_epochs 3", "--max_epochs: there is no such option; did you mean '--trainer.max_epochs"),
    ("--horizon 3", "--horizon: there is no such option; did you mean '--data.horizon'?"),
    ("--print_confg", "--print_confg: there is no such option; did you mean '--print_config'?"),
    ("--zzz.yyy 3", "--zzz.yyy: there is no key 'zzz'. Choose one of config, seed_everything, tra"),
    ("--trainer.help", "--trainer.help: there is no such option. --print_config shows all keys"),
    ("--trainer 5", "--trainer: must have keys (accelerator, strategy, "),
    ("-x 3", "-x: there is no key 'x'. Choose one of config, seed_everything, trainer, model"),
])  # fmt: skip
def test_a_misspelt_option_is_named_with_the_nearest_one(options, expected):
    assert fail("--config", "fit.yaml", *options.split()).startswith(expected)


@pytest.mark.slow
@pytest.mark.parametrize(("options", "expected"), [
    ("--data.horizon abc", "--data.horizon: must be an integer, but is 'abc'"),
    ("--data.horizon=", "--data.horizon: must be an integer, but is ''"),
    ("--data.horizon", "--data.horizon: must have a value, but has none"),
    ("--data.horizon --data.context 3", "--data.horizon: must have a value, but has none"),
    ("--trainer.max_epochs=-3 --trainer.min_epochs x",
     "--trainer.min_epochs: must be an integer or null, but is 'x'"),
    ("--trainer.max_epochs -3 --trainer.min_epochs x",
     "--trainer.min_epochs: must be an integer or null, but is 'x'"),
    ("--trainer.max_epoch 3 --trainer.min_epochs x",  # argparse takes the abbreviation
     "--trainer.min_epochs: must be an integer or null, but is 'x'"),
    ("--data.id 5 --data.horizon abc", "--data.horizon: must be an integer, but is 'abc'"),
    ("--data.scale standart",
     "--data.scale: must be 'standard', 'robust', 'log1p' or null, but is 'standart'"),
    ("--data.init_args {a:", "--data.init_args: must be a dict of arguments, but is '{a:'"),
    ("--data ForecastDataModul",
     f"--data: there is no class 'ForecastDataModul'; did you mean 'ForecastDataModule'? Choose one of {DATA}"),  # noqa: E501
    ("--data seqdata.ForecastDataModul", "--data: there is no class 'seqdata.ForecastDataModul'; "
     "did you mean 'seqdata.ForecastDataModule'?"),
    ("--data.help ForecastDataModul", "--data.help: there is no class 'ForecastDataModul'; did"),
    ("--data LSTMForecaster", "--data: must be a LightningDataModule, but 'LSTMForecaster' is "
     f"none. Choose one of {DATA}"),
    ("--data TextDataModule",
     "--data: TextDataModule needs the argument tokenizer, which is missing"),
    ("--trainer.callbacks ModelCheckpont", "--trainer.callbacks: there is no class "
     "'ModelCheckpont'; did you mean 'ModelCheckpoint'?"),
    ("--trainer.callbacks EarlyStopping",
     "--trainer.callbacks: EarlyStopping needs the argument monitor (a string), which is missing"),
    ("--optimizer Adam --lr_scheduler StepLR",
     "--lr_scheduler: StepLR needs the argument step_size (an integer), which is missing"),
    ("extra", "seqdata fit: must have options (--KEY VALUE), but has 'extra'"),
    ("--data nothere.yaml", "nothere.yaml: must be a YAML file, but does not exist"),
    ("--config", "--config: must have a file, but has none"),
    ("-config fit.yaml", "-config: must be -c FILE or --config FILE"),
    ("--conf=f.yaml", "f.yaml: must be a YAML file, but does not exist; did you mean 'fit.yaml'?"),
    ("-cf.yaml", "-cf.yaml: must be -c FILE or --config FILE"),
    ("-cfit.yaml --data.horizn 5", f"--data.horizn: {HORIZN}"),
    ("--config {data:{init_args:{horizn:1}}}", f"--config: data.init_args: {HORIZN}"),
    ("--config .", ".: must be a YAML file, but cannot be read (Is a directory)"),
])  # fmt: skip
def test_a_wrong_value_of_an_option_is_told(options, expected):
    each = [option.replace(":", ": ") for option in options.split()]
    assert (
        fail("--config", "fit.yaml", *each)
        .replace(": ", ":")
        .startswith(expected.replace(": ", ":"))
    )


@pytest.mark.slow
def test_options_below_a_policy_are_those_of_its_class():
    config = ("--config", "sequences.yaml")
    error = fail(*config, "--data.batching.siz", "3")
    assert error.startswith("--data.batching.siz: Windows has no argument 'siz'; did you mean 's")
    error = fail(*config, "--data.batching", "window", "--data.batching.size", "3")
    assert error == "--data.batching: there is no class 'window'; did you mean 'windows'?"
    error = fail(*config, "--data.batching.size", "x")
    assert error == (
        "--data.batching.size: must be an integer, a list of 2 items or null, but is 'x'"
    )


@pytest.mark.slow
def test_a_command_line_without_a_class_names_the_classes():
    assert fail().startswith(
        "seqdata fit without --config FILE: the key 'data' is required, but missing. Its class is "
        f"one of {DATA}"
    )
    assert fail("--data.horizon", "3").startswith(
        f"--data.horizon: the class_path of 'data' is missing. It is one of {DATA}"
    )
    assert fail("fit.yaml") == (
        "seqdata fit: a file must come after --config: seqdata fit --config fit.yaml"
    )
    assert fail("--config", "{trainer: {max_epochs: 3}}").startswith("--config: the key 'data' is")


@pytest.mark.slow
@pytest.mark.parametrize(("key", "path", "expected"), [
    ("data", "data/init_args/horizon", "init_args: ForecastDataModule has no argument 'horizn'"),
    ("trainer", "trainer/max_epochs", "there is no key 'horizn'. Choose one of accelerator, stra"),
])  # fmt: skip
def test_a_file_in_place_of_a_section_is_named(key, path, expected):
    dump("parts/d.yaml", change(FORECAST, path, "horizn")[key])
    dump("parts/nested.yaml", {**FORECAST, key: "d.yaml"})
    dump("rest.yaml", without(FORECAST, key))
    assert fail("--config", "parts/nested.yaml").startswith(f"parts/d.yaml: {expected}")
    assert fail("--config", "rest.yaml", f"--{key}=parts/d.yaml").startswith(
        f"parts/d.yaml: {expected}"
    )


@pytest.mark.slow
def test_a_file_in_place_of_a_section_is_used():
    dump("parts/d.yaml", FORECAST["data"])
    dump("parts/nested.yaml", {**FORECAST, "data": "d.yaml"})
    done = CliRunner().invoke(app, ["fit", "--config", "parts/nested.yaml", "--print_config"])
    assert yaml.safe_load(done.stdout)["data"]["init_args"]["horizon"] == 6


@pytest.mark.slow
@pytest.mark.parametrize(("text", "expected"), [
    ("", "must be a YAML file with keys (data, model, trainer), but is empty"),
    ("# nothing", "must be a YAML file with keys (data, model, trainer), but is empty"),
    ("- a", "must be a YAML file with keys (data, model, trainer), but is \"['a']\""),
    (TEXT.replace("  accel", "\taccel"),
     "line 19: must be indented by spaces, but has a tab. Replace it by spaces"),
    (TEXT.replace("max_epochs: 1", "max_epochs: [1"), "line 19, column 14: must be YAML, but did "
     "not find expected ',' or ']', while parsing a flow sequence of line 18"),
    (TEXT.replace("max_epochs: 1", "max_epochs 1"),
     "line 19, column 14: must be YAML, but mapping values are not allowed in this context"),
    (f"{TEXT}---\na: 1\n", "line 21, column 1: must be YAML, but found another document, expected"),
    ("a: \0", "must be YAML, but"),
    (TEXT.replace("    horizon: 6\n", "    horizon: 6\n    horizon: 12\n"),
     "line 11: data.init_args.horizon: must be given once, but is in line 10, too. Remove one"),
    (f"{TEXT}trainer: {{}}\n", "line 21: trainer: must be given once, but is in line 17, too."),
    (f"{TEXT}x: [{{a: 1, a: 2}}]\n", "line 21: x[0].a: must be given once, but is in line 21,"),
    (TEXT.encode().replace(b"LSTM", b"\n\xfc"),
     "must be a YAML file in UTF-8, but line 15 is not UTF-8. Save it as UTF-8"),
])  # fmt: skip
def test_a_file_that_is_not_yaml_with_keys_is_told_with_its_line(text, expected):
    write("it.yaml", text)
    assert fail("--config", "it.yaml").startswith(f"it.yaml: {expected}")


@pytest.mark.slow
def test_dicts_that_are_merged_or_hold_themselves_are_no_repeated_keys():
    base = "  <<: {max_epochs: 3}\n  <<: {min_epochs: 1}\n"
    write("it.yaml", TEXT.replace("trainer:\n", f"trainer:\n{base}"))
    done = CliRunner().invoke(app, ["fit", "--config", "it.yaml", "--print_config"])
    assert yaml.safe_load(done.stdout)["trainer"]["max_epochs"] == 1
    assert yaml.safe_load(done.stdout)["trainer"]["min_epochs"] == 1
    write("it.yaml", "x: &a {y: [*a, *a]}\n")
    assert fail("--config", "it.yaml") == (
        "it.yaml: line 1: x.y[0]: must not hold itself, but has an alias of a dict or list "
        "around it"
    )
    write("it.yaml", "x: &a [1]\ny: [*a, *a]\n")
    assert fail("--config", "it.yaml").startswith("it.yaml: there is no key 'x'")


@pytest.mark.slow
def test_an_invalid_argument_of_the_trainer_is_told():
    assert fail("--config", "fit.yaml", "--trainer.accelerator", "gpuu").startswith(
        "seqdata fit: trainer: You selected an invalid accelerator name"
    )


@pytest.mark.slow
def test_an_invalid_argument_of_a_nested_class_is_its_own_message():
    dump("it.yaml", change(SEQUENCES, "data/init_args/batching", "", {"class_path": "windows"}))
    assert fail("--config", "it.yaml") == (
        "policy 'windows': `size` must be an integer of at least 1, but is None"
    )


@pytest.mark.slow
def test_a_model_that_needs_another_datamodule_says_so():
    assert fail("--config", "sequences.yaml") == (
        "forecaster: the data must be a ForecastDataModule, which names targets and horizon, but "
        "is a SequenceDataModule. Choose it, or another model"
    )


@pytest.mark.slow
def test_the_command_itself_reads_its_own_arguments():
    """It is started as users start it: its arguments are those of the process."""
    code = "from seqdata.cli.app import app; app(prog_name='seqdata')"
    done = subprocess.run(
        [sys.executable, "-c", code, "fit", "--config", "fit.yaml", "--data.horizn", "5"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"error: --data.horizn: {HORIZN}"
