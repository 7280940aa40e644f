"""Run the examples of the repository, or import them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from seqdata_testing.waiting import patient
from tests.preloaded import python

EXAMPLES = Path(__file__).parent.parent / "examples"


def run_example(name: str, *arguments: object, seconds: float = 150) -> list[str]:
    command = [python(), str(EXAMPLES / name), *map(str, arguments)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=patient(seconds))
    assert found.returncode == 0, found.stdout + found.stderr
    assert not found.stderr
    return found.stdout.splitlines()


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
