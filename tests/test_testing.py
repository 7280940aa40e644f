"""``seqdata.testing`` says where it went."""

import importlib
import subprocess
import sys

import pytest

from seqdata_testing.waiting import patient
from tests.preloaded import python

WHERE = (
    'pip install "lightning-seqdata[testing]"',
    "import `seqdata_testing` instead",
    "`python -m seqdata_testing.faults`",
)


@pytest.mark.parametrize("name", ["seqdata.testing", "seqdata.testing.plans"])
def test_importing_the_old_name_says_what_to_install_and_import(name):
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(name)
    assert caught.value.name == "seqdata.testing"
    assert all(text in str(caught.value) for text in WHERE)


def test_running_the_old_name_says_so_too():
    done = subprocess.run(
        [sys.executable, "-m", "seqdata.testing.faults"],
        capture_output=True, text=True, timeout=patient(), check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert all(text in done.stderr for text in WHERE)


def test_the_library_never_imports_the_kit():
    used = "import sys, seqdata.cli, seqdata.lightning.datamodule, seqdata.loading.measure_lengths"
    done = subprocess.run(
        [python(), "-c", f"{used}; print('seqdata_testing' in sys.modules)"],
        capture_output=True, text=True, timeout=patient(), check=True,
    )  # fmt: skip
    assert done.stdout == "False\n"
