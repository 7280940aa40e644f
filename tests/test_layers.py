"""The layers of the house: import-linter's contracts, and who may import from a package's front."""

import ast
import subprocess
import sys
from pathlib import Path

from seqdata_testing.waiting import patient

ROOT = Path(__file__).resolve().parents[1]
LINT = """
from importlinter.cli import lint_imports_command
lint_imports_command(["--no-logo", "--no-cache"])
"""


def test_the_layer_contracts_are_kept():
    done = subprocess.run(
        [sys.executable, "-c", LINT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patient(120),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_modules_import_from_the_defining_file():
    """A package's ``__init__`` hands names to users; our own modules never go through one."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: from {node.module} import {name.name}"
        for room in ("seqdata", "plugins/seqdata-testing/seqdata_testing")
        for path in sorted((ROOT / room).rglob("*.py"))
        if path.name != "__init__.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and is_package_of_ours(node.module)
        for name in node.names
        if not is_module(f"{node.module}.{name.name}")
    ]
    assert not found


def is_package_of_ours(module: str | None) -> bool:
    of_ours = module is not None and module.split(".")[0] == "seqdata"
    return of_ours and (ROOT / Path(*module.split("."))).is_dir()


def is_module(name: str) -> bool:
    place = ROOT / Path(*name.split("."))
    compiled = any(place.parent.glob(f"{place.name}*.c"))
    return place.is_dir() or place.with_suffix(".py").is_file() or compiled
