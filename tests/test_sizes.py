"""Small files, small functions; no swallowed errors or endless waits. The rest is ruff's."""

import ast
import functools
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.library_files import ROOT, list_files, list_library, walk

ROOMS = ("seqdata", "models", "plugins", "examples", "benchmarks", "tests", ".ci", "docs")
MOST_LINES = 400  # of a file, and of a function below
MOST_LINES_OF_A_FUNCTION = 60
LEFTOVERS = ("TODO", "FIXME", "XXX", "raise NotImplementedError", "pragma: no cover")


@dataclass
class Found:
    """What a module has of what is looked for: lines, and what is there."""

    functions: list[tuple[int, str, int]] = field(default_factory=list)  # with their lengths
    swallows: list[int] = field(default_factory=list)
    waits: list[tuple[int, int, str]] = field(default_factory=list)  # first and last line


@functools.cache
def found_in(path: Path) -> Found:
    found = Found()
    for node in walk(path.read_text("utf-8")):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.functions.append((node.lineno, node.name, node.end_lineno - node.lineno + 1))
        elif isinstance(node, ast.ExceptHandler) and swallows(node):
            found.swallows.append(node.lineno)
        elif isinstance(node, ast.Call) and waits_for_ever(node):
            found.waits.append((node.lineno, node.end_lineno, ast.unparse(node)))
    return found


def test_files_are_short():
    long = {
        str(path.relative_to(ROOT)): count
        for path in list_files(*ROOMS)
        if (count := len(path.read_text("utf-8").splitlines())) >= MOST_LINES
    }
    assert not long


@pytest.mark.slow
def test_functions_are_short():
    long = {
        f"{path.relative_to(ROOT)}:{line} {name}": count
        for path in list_files(*ROOMS)
        for line, name, count in found_in(path).functions
        if count >= MOST_LINES_OF_A_FUNCTION
    }
    assert not long


def test_no_broad_handler_swallows():
    assert not [
        f"{path.relative_to(ROOT)}:{line}"
        for path in list_library()
        for line in found_in(path).swallows
    ]


def swallows(handler: ast.ExceptHandler) -> bool:
    """Return whether everything is caught, and neither raised again nor even looked at."""
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    if not names & {"Exception", "BaseException"}:
        return False
    body = [node for statement in handler.body for node in ast.walk(statement)]
    used = any(isinstance(node, ast.Name) and node.id == handler.name for node in body)
    return not used and not any(isinstance(node, ast.Raise) for node in body)


def test_nothing_is_left_over():
    assert not [
        f"{path.relative_to(ROOT)}: {word}"
        for path in list_library()
        for word in LEFTOVERS
        if word in path.read_text("utf-8")
    ]


def test_nothing_names_a_machine():
    """Paths and hosts of the machine that something was written on have no place here."""
    names = [
        "".join(parts) for parts in (("/wo", "rk/"), ("/ro", "ot/"), ("/ho", "me/"), ("pyp", "i."))
    ]
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    texts = {path: path.read_bytes() for path in paths if path.is_file()}
    assert not [
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in texts.items()
        for name in names
        if name.encode() in text
    ]


@pytest.mark.slow
def test_nothing_waits_without_a_bound():
    """A wait has a timeout, or its line says ``# ends: why``."""
    found = [
        f"{path.relative_to(ROOT)}:{first}: {call}"
        for path in list_files(*ROOMS)
        for first, last, call in found_in(path).waits
        if "# ends: " not in path.read_text("utf-8").splitlines()[last - 1]
    ]
    assert not found


WAITS = {"wait", "join", "get", "acquire", "result", "exception", "communicate"}
PROGRAMS = {"run", "call", "check_call", "check_output"}


def waits_for_ever(call: ast.Call) -> bool:
    """Return whether a call can block without end, as far as its spelling shows."""
    given = {keyword.arg for keyword in call.keywords}
    if "timeout" in given or None in given:
        return False
    if isinstance(call.func, ast.Name):
        return call.func.id == "wait" and len(call.args) < 2
    if not isinstance(call.func, ast.Attribute):
        return False
    name = call.func.attr
    if name not in WAITS | PROGRAMS | {"select", "put"}:
        return False
    owner = ast.unparse(call.func.value)
    if owner == "subprocess":
        return name in PROGRAMS
    if owner.split(".")[-1] in {"connection", "futures"} and name == "wait":
        return True
    if owner == "select" and name == "select":
        return len(call.args) < 4
    if name == "put" and "queue" in owner:
        return len(call.args) == 1 and not given & {"block"}
    if owner.isupper():
        return False  # a constant: a ContextVar, a table
    if name in WAITS and not call.args:
        return not given & {"block", "blocking"} or is_true(call)
    return name in {"get", "acquire"} and len(call.args) == 1 and constant(call.args[0]) is True


def is_true(call: ast.Call) -> bool:
    flags = [word.value for word in call.keywords if word.arg in {"block", "blocking"}]
    return any(constant(flag) is not False for flag in flags)


def constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else None


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("thread.join()", True),
        ("thread.join(timeout=5)", False),
        ("', '.join(names)", False),
        ("event.wait()", True),
        ("event.wait(0.1)", False),
        ("queue.get()", True),
        ("queue.get(True)", True),
        ("queue.get(block=False)", False),
        ("queue.get(block=True)", True),
        ("table.get('x')", False),
        ("_CONTEXT.get()", False),
        ("queue.put(item)", True),
        ("queue.put(item, timeout=1)", False),
        ("lanes.put(state)", False),
        ("lock.acquire()", True),
        ("lock.acquire(blocking=False)", False),
        ("future.result()", True),
        ("subprocess.run(['ls'])", True),
        ("subprocess.run(['ls'], timeout=9)", False),
        ("connection.wait([pipe])", True),
        ("wait(futures)", True),
        ("wait(futures, 5)", False),
        ("select.select([a], [], [])", True),
        ("select.select([a], [], [], 1)", False),
    ],
)
def test_the_guard_tells_bounded_from_endless_waits(code, expected):
    assert waits_for_ever(ast.parse(code).body[0].value) is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", True),
        ("value = None", True),
        ("raise", False),
        ("failures.append(error)", False),
    ],
)
def test_the_guard_tells_swallowed_errors(code, expected):
    tried = ast.parse(f"try:\n    f()\nexcept Exception as error:\n    {code}")
    assert swallows(tried.body[0].handlers[0]) is expected
