"""The conformance kit, ``seqdata_testing``, is a distribution of its own."""

import subprocess

from seqdata_testing.waiting import patient
from tests.preloaded import python


def test_the_library_never_imports_the_kit():
    used = "import sys, seqdata.cli, seqdata.lightning.datamodule, seqdata.loading.measure_lengths"
    done = subprocess.run(
        [python(), "-c", f"{used}; print('seqdata_testing' in sys.modules)"],
        capture_output=True, text=True, timeout=patient(), check=True,
    )  # fmt: skip
    assert done.stdout == "False\n"
