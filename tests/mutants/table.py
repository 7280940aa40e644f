"""The table of planted bugs: TOML files next to this module, one for each room of the tree.

A bug replaces whole lines of one function and names the tests that find it, as pytest is given
them::

    [[bug]]
    name = "agreed-error-is-forgotten"
    about = "..."                              # optional
    tests = ["tests/lightning/test_trainer_loader.py", "-x", "-q"]
    file = "seqdata/lightning/ranks/coordinator.py"
    function = "_StickyErrorIterator.__next__"  # or the class that holds the text; "": the file
    old = '''
                self._failed = error
    '''
    new = ""

``old`` must be found exactly once in the function, so that a bug stays where it was planted, or
says so. A bug of several edits has an array of tables ``[[bug.edit]]``, each with ``file``,
``function``, ``old`` and ``new``. A bug belongs to the table that is named after the innermost
folder of its file that has one; modules right in ``seqdata/`` are in ``seqdata.toml``.
"""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
KEYS = {"name", "about", "tests"}
KEYS_OF_EDIT = {"file", "function", "old", "new"}
C_FUNCTION = re.compile(r"^[A-Za-z_][^;{}()]*?(\w+)\([^;{}]*\)\s*\{.*?^\}\n", re.M | re.S)


class TableError(Exception):
    """An entry of the table is not as it must be, or does not fit the tree."""


@dataclass(frozen=True)
class Edit:
    """Whole lines of a function, and what stands there in their place."""

    file: str
    function: str
    old: str
    new: str


@dataclass(frozen=True)
class Bug:
    """A bug that tests must find."""

    name: str
    room: str
    tests: tuple[str, ...]
    edits: tuple[Edit, ...]
    about: str = ""

    @property
    def files(self) -> list[str]:
        """The files that the bug is planted in, each once."""
        return list(dict.fromkeys(edit.file for edit in self.edits))


def read_table(folder: Path = HERE) -> list[Bug]:
    """Return the bugs of all rooms, sorted by name.

    Raises:
        TableError: If an entry has other keys than it must have, or a name is there twice.
    """
    bugs = [bug for path in sorted(folder.glob("*.toml")) for bug in read_room(path)]
    named: dict[str, Bug] = {}
    for bug in bugs:
        if bug.name in named:
            first = named[bug.name].room
            raise TableError(f"{bug.name}: two bugs have this name: {first}.toml, {bug.room}.toml")
        named[bug.name] = bug
    return [named[name] for name in sorted(named)]


def read_room(path: Path) -> list[Bug]:
    """Return the bugs of one file of the table, in its order."""
    table = tomllib.loads(path.read_text("utf-8"))
    return [as_bug(entry, path) for entry in table["bug"]]


def as_bug(entry: dict[str, Any], path: Path) -> Bug:
    """Return the bug that an entry describes; raise TableError if it is not as it must be."""
    shared = {key: value for key, value in entry.items() if key in KEYS}
    rest = {key: value for key, value in entry.items() if key not in KEYS}
    edits = rest["edit"] if rest.keys() == {"edit"} else [rest]
    who = f"{entry.get('name', 'a bug without a name')} in {path.name}"
    for key in ("name", "tests"):
        if not shared.get(key):
            raise TableError(f"{who}: `{key}` must be there")
    for edit in edits:
        if edit.keys() != KEYS_OF_EDIT:
            raise TableError(
                f"{who}: an edit must have the keys {', '.join(sorted(KEYS_OF_EDIT))}, "
                f"but has {', '.join(sorted(edit)) or 'none'}"
            )
        if not edit["old"].endswith("\n") or edit["new"][-1:] not in ("", "\n"):
            raise TableError(f"{who}: `old` and `new` must be whole lines")
    given = tuple(Edit(**edit) for edit in edits)
    return Bug(shared["name"], path.stem, tuple(shared["tests"]), given, shared.get("about", ""))


def plant(bug: Bug, tree: Path) -> dict[str, str]:
    """Return the text of each file that the bug changes, with the bug; write nothing.

    Raises:
        TableError: If a file or function is not there, or the old text is not there exactly once.
    """
    texts: dict[str, str] = {}
    for edit in bug.edits:
        path = tree / edit.file
        if not path.is_file():
            raise TableError(f"{bug.name}: there is no file {edit.file}")
        text = texts.get(edit.file) or path.read_bytes().decode("utf-8")  # line ends as they are
        try:
            texts[edit.file] = replace_lines(text, edit)
        except TableError as error:
            raise TableError(f"{bug.name}: {error}") from None
    return texts


def replace_lines(text: str, edit: Edit) -> str:
    """Return a file's text with the new lines in place of the old ones."""
    place = f"{edit.function} of {edit.file}" if edit.function else edit.file
    spans = [(0, len(text))]
    if edit.function:
        spans = [span for name, span in functions(text, edit.file) if name == edit.function]
    if not spans:
        raise TableError(f"there is no function or class {place}")
    found = [at for span in spans for at in find_lines(text, span, edit.old)]
    if len(found) != 1:
        count = "not" if not found else f"{len(found)} times"
        raise TableError(f"the old text must be once in {place}, but is {count} there:\n{edit.old}")
    return text[: found[0]] + edit.new + text[found[0] + len(edit.old) :]


def find_lines(text: str, span: tuple[int, int], lines: str) -> list[int]:
    """Return where whole lines begin in a part of a text."""
    pattern = re.compile(rf"^(?={re.escape(lines)})", re.M)  # looks ahead: matches may overlap
    return [found.start() for found in pattern.finditer(text, *span)]


@cache  # many bugs are planted in the same file
def functions(text: str, file: str) -> list[tuple[str, tuple[int, int]]]:
    """Return qualified name and span of each function and class, a function's decorators with it.

    A file of C has functions only; of any other language than Python and C none are found.
    """
    if file.endswith((".c", ".h")):
        return [(found[1], found.span()) for found in C_FUNCTION.finditer(text)]
    if not file.endswith(".py"):
        return []
    starts = [0, *(found.end() for found in re.finditer("\n", text)), len(text)]
    named = definitions(ast.parse(text).body, "")
    return [(name, (starts[first - 1], starts[last])) for name, first, last in named]


def definitions(body: Iterable[ast.AST], prefix: str) -> Iterator[tuple[str, int, int]]:
    """Yield qualified name, first and last line of each function and class within statements."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            yield f"{prefix}{node.name}", first, node.end_lineno or first
            yield from definitions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):  # no expression
            yield from definitions(ast.iter_child_nodes(node), prefix)
