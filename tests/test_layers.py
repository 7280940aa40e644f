"""The layers of the house: import-linter's contracts, and who may import from which module."""

import ast
import re
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

MAY_IMPORT_TESTS = re.compile(r"\b(from|import)\b([^(\n\\]|\\\n|\([^)]*)*\btest_")
"""What a module has that imports one whose name begins so; others need not be parsed."""


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
        for node in walk(path.read_text("utf-8"))
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
        if "tests" in path.parts and MAY_IMPORT_TESTS.search(text := path.read_text("utf-8"))
        for node in walk(text)
        for name in imported_by(node)
        if any(part.startswith("test_") for part in name.split("."))
    ]
    assert not found


def test_the_guard_tells_what_may_import_a_test_module():
    lines = [
        "import a.test_b",
        "from a.test_b import c",
        "from a import (\n    b,\n    test_c,\n)",
        "from a import b, \\\n    test_c",
        "if a: import b, test_c as d",
    ]
    assert not [line for line in lines if not MAY_IMPORT_TESTS.search(line)]
    assert not MAY_IMPORT_TESTS.search("import a\n\n\ndef test_b():\n    from_test_c()\n")


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
