"""The table of the contract names real tests, and has every item."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "about" / "lightning-contract.md"
ITEMS = 40
ROW = re.compile(r"^\| (\d+) \| (ours|Lightning|both) \| .+ \| (.+) \|$", re.MULTILINE)
NAME = re.compile(r"`([\w/]+\.py)::(\w+)`")
PRIVATE = re.compile(r"trainer\._|\bfit_loop\b|_loop\.|_connector\b|strategy\._")
ITEM = re.compile(r"test_items?_(\d+)(?:_and_(\d+))?_")


def rows() -> list[tuple[int, str, list[tuple[str, str]]]]:
    found = ROW.findall(PAGE.read_text("utf-8"))
    return [(int(item), whose, NAME.findall(tests)) for item, whose, tests in found]


@cache
def functions(file: str) -> set[str]:
    """Return the test functions that a file holds."""
    room = TESTS.parent if file.startswith("models/") else TESTS
    tree = ast.parse((room / file).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_item_has_a_row():
    assert [item for item, _, _ in rows()] == list(range(1, ITEMS + 1))


@pytest.mark.parametrize(("item", "tests"), [(item, tests) for item, _, tests in rows()])
def test_every_named_test_is_there(item, tests):
    assert tests
    assert not [f"{file}::{name}" for file, name in tests if name not in functions(file)]


def test_what_runs_at_night_is_listed():
    listed = NAME.findall(PAGE.read_text("utf-8").split("## What runs at night")[1])
    assert listed
    for file, name in listed:
        assert "pytest.mark.nightly" in marks(file, name)


def marks(file: str, name: str) -> list[str]:
    """Return the decorators of a test, in code."""
    tree = ast.parse((TESTS / file).read_text("utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    (one,) = [node for node in found if node.name == name]
    return [ast.unparse(decorator) for decorator in one.decorator_list]


def test_every_test_that_a_page_names_is_there():
    text = (PAGE.parent / "common-advice.md").read_text("utf-8")
    found = NAME.findall(text)
    assert len(found) > 20
    assert not [f"{file}::{name}" for file, name in found if name not in functions(file)]


def test_a_test_that_names_an_item_stands_in_its_row():
    files = sorted(TESTS.glob("*/test_contract*.py"))
    named = {
        (int(item), str(path.relative_to(TESTS)), name)
        for path in files
        for name in functions(str(path.relative_to(TESTS)))
        if (found := ITEM.match(name))
        for item in found.groups()
        if item
    }
    listed = {(item, file, name) for item, _, tests in rows() for file, name in tests}
    assert not named - listed


def test_only_the_adapter_touches_what_the_trainer_keeps_to_itself():
    room = TESTS.parent / "seqdata" / "lightning"
    found = {
        str(path.relative_to(room))
        for path in room.rglob("*.py")
        if any(
            isinstance(node, ast.Attribute) and PRIVATE.search(ast.unparse(node))
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
        )
    }
    assert found == {"adapter.py"}


def test_one_module_of_the_room_gathers_from_all_ranks():
    room = TESTS.parent / "seqdata" / "lightning"
    found = {
        str(path.relative_to(room))
        for path in room.rglob("*.py")
        if "distributed.all_gather" in path.read_text("utf-8")
    }
    assert found == {"ranks/collect.py"}
