"""A real third-party package: built as a wheel, installed in a clean environment, used by name."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest

import seqdata
from seqdata_testing.waiting import patient

SOURCE = Path(__file__).parent / "third_party" / "seqdata-tiny"
HDF5 = SOURCE.with_name("seqdata-hdf5")
USE = """
from seqdata import Loader, PluginHost, open_store
import sys

store = open_store("numbers.txt", backend="tiny")
loader = Loader(store, "tiny-singles", collator="tiny-flat")
batches = [batch["x"].tolist() for batch in loader]
assert batches == [[1.0, 2.0, 3.0], [4.0]], batches
assert len(loader) == 2
(row,) = [row for row in PluginHost.discover().listing() if row.name == "tiny"]
print(row.distribution, row.version, row.state, sys.modules["seqdata_tiny"].__file__)
"""
KEPT_OUT = """
from seqdata import open_store
open_store("numbers.txt", backend="tiny")
"""


def run(*command, cwd, check=True, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SEQDATA_")}
    clean.pop("PYTHONPATH", None)
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=patient(120),
        check=check,
    )


class Environment:
    """An environment of its own that sees the packages of this one, and installs offline."""

    def __init__(self, folder):
        self.folder = folder
        venv.create(folder / "env", with_pip=False, symlinks=True)
        self.python = folder / "env" / "bin" / "python"
        (site,) = (folder / "env" / "lib").glob("python*/site-packages")
        present = sysconfig.get_path("purelib")
        root = Path(seqdata.__file__).parents[1]
        (site / "present.pth").write_text(f"import site; site.addsitedir({present!r})\n{root}\n")

    def install(self, source):
        """Build a wheel of a copy of ``source`` and install it."""
        copy = self.folder / "copies" / source.name
        shutil.copytree(source, copy)
        wheels = self.folder / "wheels" / source.name
        run(
            sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", wheels, copy,
            cwd=self.folder,
        )  # fmt: skip
        (wheel,) = wheels.glob("*.whl")
        run(
            sys.executable, "-m", "pip", "--python", self.python, "install", "--no-index",
            "--no-deps", "--quiet", "--disable-pip-version-check", wheel,
            cwd=self.folder,
        )  # fmt: skip

    def lay_broken(self):
        """Lay there what installing a wheel would: a module that fails, and its metadata."""
        (site,) = (self.folder / "env" / "lib").glob("python*/site-packages")
        (site / "seqdata_broken.py").write_text("import a_module_that_is_not_there\n")
        about = site / "seqdata_broken-1.2.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: seqdata-broken\nVersion: 1.2\n"
        )
        (about / "entry_points.txt").write_text("[seqdata]\nbroken = seqdata_broken\n")

    def run(self, *arguments, **options):
        return run(self.python, *arguments, cwd=self.folder, **options)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("third-party")
    made = Environment(folder)
    made.install(SOURCE)
    made.lay_broken()
    (folder / "numbers.txt").write_text("1 2 3\n4\n")
    return made


@pytest.mark.slow
def test_a_third_party_wheel_is_used_by_name(environment):
    done = environment.run("-c", USE)
    assert done.stdout.startswith("seqdata-tiny 0.3.0 installed ")
    assert str(environment.folder / "env") in done.stdout


@pytest.mark.slow
def test_plugins_are_listed_from_metadata_alone(environment):
    code = (
        "import sys\nfrom seqdata.cli.app import app\n"
        "app(['plugins'], standalone_mode=False)\n"
        "assert not {'seqdata_tiny', 'seqdata_broken'} & set(sys.modules)\n"
    )
    listed = environment.run("-c", code).stdout
    assert "seqdata-tiny" in listed
    assert "0.3.0" in listed
    assert "installed" in listed


@pytest.mark.slow
def test_checking_the_plugins_says_what_is_broken(environment):
    done = environment.run("-m", "seqdata", "plugins", "--check", "--json", check=False)
    assert done.returncode == 1
    rows = {row["name"]: row for row in json.loads(done.stdout)["plugins"]}
    assert rows["tiny"]["state"] == "loaded"
    assert rows["broken"]["state"] == "broken"
    assert rows["broken"]["distribution"] == "seqdata-broken"
    assert "No module named 'a_module_that_is_not_there'" in rows["broken"]["cause"]


@pytest.mark.slow
def test_the_command_plans_with_a_policy_of_a_plugin(environment):
    (environment.folder / "texts").mkdir(exist_ok=True)
    (environment.folder / "texts" / "a.txt").write_bytes(b"abc")
    environment.run("-m", "seqdata", "write", "texts", "store", "--overwrite")
    done = environment.run("-m", "seqdata", "plan", "store", "--batching", "tiny-singles", "--json")
    assert json.loads(done.stdout)["batches"] == 1


@pytest.mark.slow
def test_an_unknown_name_reports_the_broken_wheel(environment):
    environment.run("-m", "seqdata", "write", "numbers.txt", "store2", "--overwrite")
    done = environment.run(
        "-m", "seqdata", "plan", "store2", "--batching", "tiny-single", check=False
    )
    assert done.returncode == 1
    assert "unknown policy 'tiny-single'; did you mean 'tiny-singles'?" in done.stderr
    assert "seqdata-broken 1.2 (ModuleNotFoundError" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_environment_keeps_plugins_out(environment):
    done = environment.run("-c", KEPT_OUT, check=False, SEQDATA_PLUGINS="broken")
    assert "unknown backend 'tiny'" in done.stderr
    assert "SEQDATA_PLUGINS excludes: seqdata-tiny 0.3.0" in done.stderr


COMMANDS = """
import json, sys
from click.testing import CliRunner
from seqdata import Bucketed, SequenceDataModule, open_store
from seqdata.cli.app import app


def run(*arguments):
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, (arguments, done.output, done.exception)
    return done.output


assert "seqdata-hdf5" in run("plugins")
assert "seqdata_hdf5" not in sys.modules and "h5py" not in sys.modules
store = open_store("a.hdf")
assert "Hdf5Store" in repr(store) and store.lengths.tolist() == [3, 5, 4], store
assert json.loads(run("stats", "a.hdf", "--json"))["sequences"] == 3
assert json.loads(run("plan", "a.hdf", "--max-tokens", "8", "--json"))["timesteps"] == 12
assert "all could be read" in run("verify", "a.hdf")
assert json.loads(run("doctor", "a.hdf", "--json"))["bad"] == 0
assert "fields: x float32 [T, 2], y int64, id str" in run("write", "a.hdf", "store/")
assert open_store("store/").read([[1, 0, 5]], ["y"])["y"][0].tolist() == [1]
"""
FIT = """
import lightning as L
import torch
from seqdata import Bucketed, SequenceDataModule

seen = []


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch):
        seen.extend(zip(batch["id"], batch["y"].tolist(), batch.lengths.tolist()))
        return self.layer(batch["x"]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


if __name__ == "__main__":
    data = SequenceDataModule(train="a.hdf", batching=Bucketed(2), num_workers=1)
    L.Trainer(max_epochs=1, accelerator="cpu", default_root_dir="run").fit(Model(), data)
    assert sorted(seen) == [("utt-0", 0, 3), ("utt-1", 1, 5), ("utt-2", 2, 4)], seen
"""


@pytest.mark.nightly
def test_an_hdf5_file_is_opened_by_its_path_with_the_wheel_of_its_backend(tmp_path):
    h5py = pytest.importorskip("h5py")
    made = Environment(tmp_path)
    made.install(HDF5)
    with h5py.File(tmp_path / "a.hdf", "w") as file:
        for number, length in enumerate((3, 5, 4)):
            sequence = file.create_dataset(f"utt-{number}", data=np.ones((length, 2), np.float32))
            sequence.attrs["y"] = number
    made.run("-c", COMMANDS)
    (tmp_path / "fit.py").write_text(FIT)
    made.run("fit.py")
    (run_file,) = (tmp_path / "run").rglob("seqdata-run.yaml")
    done = made.run("-m", "seqdata", "replay", run_file, "--epoch", 0, "--batch", 0, "--json")
    assert len(json.loads(done.stdout)["sequences"]) in (1, 2)
    again = made.run("-m", "seqdata", "replay", run_file, "--epoch", 0, "--batch", 0, "--json",
                     "--backend", "hdf5_datasets")  # fmt: skip
    assert again.stdout == done.stdout
