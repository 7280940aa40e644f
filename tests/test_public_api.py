"""What ``import seqdata`` shows, and how little it loads."""

import ast
import dataclasses
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import seqdata
from seqdata import errors
from seqdata_testing.waiting import patient

FRONT = Path(seqdata.__file__)
ERRORS = [
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, Exception)
]
# What is promised, as far as it is built.
NAMES = [
    "SEQDATA_API",
    "Axis",
    "Bucketed",
    "Curriculum",
    "DataMonitor",
    "ExactMean",
    "Fixed",
    "LaneStates",
    "Labels",
    "MeanStd",
    "Robust",
    "Log1p",
    "ForecastDataModule",
    "EventDataModule",
    "LongSequenceDataModule",
    "SpeechDataModule",
    "TextDataModule",
    "Quantiles",
    "Statistics",
    "Vocabulary",
    "fit",
    "Jitter",
    "Loader",
    "LossRecord",
    "Mix",
    "Packed",
    "Part",
    "Plan",
    "PluginHost",
    "PredictionWriter",
    "Preemption",
    "Ragged",
    "RandomStreams",
    "RankConsistency",
    "RankFileLogger",
    "RankMemoryMonitor",
    "Remote",
    "RescaleLearningRate",
    "SequenceBatch",
    "SequenceDataModule",
    "SequenceIndex",
    "SequenceStore",
    "Sorted",
    "TBPTT",
    "TokenBudget",
    "Feedback",
    "Segments",
    "Weighted",
    "Windows",
    "World",
    "Zip",
    "balanced",
    "batch_size_fn",
    "check_autocast",
    "columnar",
    "concat",
    "folds",
    "hookimpl",
    "length_fn",
    "measure_lengths",
    "open_store",
    "share",
    "split",
    "unwrap_module",
    "write_store",
    "__version__",
    *ERRORS,
]


def modules_after(code):
    """Return the modules that a new process has loaded after some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=patient(),
        check=True,
    )
    return set(done.stdout.split())


def test_the_public_names_are_those_that_are_promised():
    assert sorted(NAMES) == sorted(seqdata.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_resolves(name):
    assert getattr(seqdata, name) is not None


def test_dir_shows_every_public_name():
    assert set(NAMES) <= set(dir(seqdata))


@pytest.mark.parametrize(
    ("name", "hint"), [("Dataset", "$"), ("Loder", r"; did you mean 'Loader'\?$")]
)
def test_an_unknown_name_is_an_attribute_error(name, hint):
    with pytest.raises(AttributeError, match=f"module 'seqdata' has no attribute '{name}'{hint}"):
        getattr(seqdata, name)


def test_the_version_is_that_of_the_installed_package():
    assert seqdata.__version__ == importlib.metadata.version("lightning-seqdata")


def test_names_are_imported_from_where_they_are_defined():
    for name in set(NAMES) - {"SEQDATA_API", "__version__", "hookimpl"}:
        thing = getattr(seqdata, name)
        assert getattr(sys.modules[thing.__module__], thing.__name__) is thing


def test_type_checkers_see_what_is_imported_lazily():
    tree = ast.parse(FRONT.read_text("utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom)
            for alias in node.names}  # fmt: skip
    assert set(seen) | {"__version__"} == set(NAMES)
    places = {name: f"seqdata.{place}" for name, place in seqdata._DEFINED_IN.items()}
    assert {name: places.get(name, "seqdata.errors") for name in seen} == seen


def test_importing_the_front_loads_nothing_else():
    heavy = {"torch", "lightning", "pytorch_lightning", "pyarrow", "numpy", "pluggy", "rich"}
    loaded = modules_after("import seqdata")
    assert not loaded & heavy
    assert [name for name in loaded if name.startswith("seqdata.")] == []


def test_planning_loads_neither_torch_nor_pyarrow():
    code = (
        "from seqdata import Bucketed, SequenceIndex, share, World\n"
        "plan = Bucketed(2).plan(SequenceIndex.from_lengths([3, 1, 2]), seed=0, epoch=0)\n"
        "share(plan, World(0, 1))"
    )
    assert not modules_after(code) & {"torch", "lightning", "pyarrow", "pluggy", "rich", "click"}


def test_looking_up_a_policy_loads_no_torch():
    code = "import seqdata\nseqdata.PluginHost.discover().policy('bucketed')"
    assert not modules_after(code) & {"torch", "lightning", "pyarrow"}


def test_starting_the_command_loads_no_torch():
    code = "import seqdata.cli"
    assert not modules_after(code) & {"torch", "lightning", "pyarrow", "matplotlib"}


def test_values_that_are_passed_around_do_not_change():
    """All but batches: code that holds one, or has planned by it, can rely on it."""
    found = {name: getattr(seqdata, name) for name in seqdata.__all__}
    values = {name: value for name, value in found.items() if dataclasses.is_dataclass(value)}
    assert len(values) > 20
    changing = {name for name, value in values.items() if value.__setattr__ is object.__setattr__}
    assert changing == {"SequenceBatch"}
