"""Attributes of Lightning's objects that our code reads or sets are names in its source.

An attribute that is set, but misspelled or renamed, raises no error: it has no effect.
"""

import ast
import re
from pathlib import Path

import lightning
import torch

from tests.library_files import ROOT, list_files, walk

ADAPTER = "seqdata/lightning/adapter.py"
TRAINERS = {"trainer", "self.trainer", "self._trainer", "loop", "self._loop"}
OTHERS = {name for kind in (dict, list, set, str, torch.Tensor) for name in dir(kind)}


def read_source(package):
    """Return the identifiers in the source of a package."""
    files = Path(package.__file__).parent.rglob("*.py")
    return {word for path in files for word in re.findall(r"\w+", path.read_text("utf-8"))}


NAMES = read_source(lightning)


def find_unknown(code, is_adapter):
    """Return the attributes of Lightning's objects in a module that Lightning's source lacks."""
    nodes = walk(code)
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {ast.unparse(node.target) for node in nodes if isinstance(node, ast.AnnAssign)}
    imported = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    return sorted(
        {
            ast.unparse(node)
            for node in nodes
            if isinstance(node, ast.Attribute)
            and (is_adapter or is_of_trainer(node.value))
            and ast.unparse(node.value).split(".")[0] not in imported | {"cls"}
            and node.attr not in NAMES | OTHERS | own
        }
    )


def is_of_trainer(node):
    """Return whether an expression is a Trainer or a loop, or one of their attributes."""
    while isinstance(node, ast.Attribute) and ast.unparse(node) not in TRAINERS:
        node = node.value
    return ast.unparse(node) in TRAINERS


def test_attributes_of_lightnings_objects_exist():
    found = {
        str(path.relative_to(ROOT)): unknown
        for path in list_files("seqdata/lightning", "models/seqdata_models/parallel")
        if (unknown := find_unknown(path.read_text("utf-8"), path == ROOT / ADAPTER))
    }
    assert not found


def test_a_renamed_attribute_is_found():
    code = (ROOT / ADAPTER).read_text("utf-8")
    renamed = code.replace("total.started =", "total.start_ticks =")
    assert renamed != code
    assert find_unknown(renamed, True) == ["total.start_ticks"]
    assert find_unknown("trainer.fit_loop.epoch_looop.x = 1", False) == [
        "trainer.fit_loop.epoch_looop"
    ]
    assert find_unknown("self.trainer.limit_of_batches, other.limit_of_batches", False) == [
        "self.trainer.limit_of_batches"
    ]
