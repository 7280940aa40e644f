"""The layers of the house: import-linter's contracts, and who may import from which module."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seqdata_testing.waiting import patient
from tests.library_files import ROOT, list_files, walk

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


@pytest.mark.slow
def test_test_modules_are_imported_by_nobody():
    """What they share is in helper modules, and fixtures are in a ``conftest.py``."""
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in list_files("tests", "models", "plugins")
        if "tests" in path.parts
        for node in walk(path.read_text("utf-8"))
        for name in imported_by(node)
        if any(part.startswith("test_") for part in name.split("."))
    ]
    assert not found


def imported_by(node: ast.AST) -> Iterator[str]:
    """Yield the full names of what a statement imports."""
    if isinstance(node, ast.Import):
        yield from (name.name for name in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module or ''}.{name.name}" for name in node.names)


def is_package_of_ours(module: str | None) -> bool:
    of_ours = module is not None and module.split(".")[0] == "seqdata"
    return of_ours and (ROOT / Path(*module.split("."))).is_dir()


def is_module(name: str) -> bool:
    place = ROOT / Path(*name.split("."))
    compiled = any(place.parent.glob(f"{place.name}*.c"))
    return place.is_dir() or place.with_suffix(".py").is_file() or compiled
