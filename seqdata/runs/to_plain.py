"""Arguments as plain data, and back: functions by import path, dataclasses by their fields.

What has neither (a lambda, an object in memory) is written down as not replayable, with the reason.
Reading imports nothing but the module of a function or class that is asked for. Place in the flow:
below the run file. Reads: objects. Makes: scalars, lists and dicts; and objects again.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from seqdata.errors import ConfigError

IMPORT, SCRIPT = "import", "script"
OBJECT, FIELDS = "object", "fields"
PARTIAL, ARGUMENTS, KEYWORDS = "partial", "arguments", "keywords"
TUPLE, DICT = "tuple", "dict"
NOTHING = "unreplayable"
_TAGS = frozenset((IMPORT, OBJECT, PARTIAL, TUPLE, DICT, NOTHING))
_MOVED = {
    "seqdata.collators.samples": "seqdata.collators.collate_fn",
    "seqdata.streams": "seqdata",
    "seqdata.transforms": "seqdata",
}
"""Modules of earlier releases -> where what run files name in them is found now."""

_SCRIPT = "__seqdata_script__"  # what a script is called while it is read again


@dataclass(slots=True, eq=False)
class Names:
    """Writes arguments down.

    Attributes:
        missing: What could not be: ``argument: why``, in order.
        roots: Folders that modules were imported from, beside those of the environment.
    """

    missing: list[str] = field(default_factory=list)
    roots: list[str] = field(default_factory=list)

    def plain(self, value: Any, argument: str) -> Any:
        """Give a value as scalars, lists and dicts; what cannot be is said in their place.

        Args:
            value: Anything.
            argument: What it was passed as.
        """
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, np.generic):
            return self.plain(value.item(), argument)
        if isinstance(value, list | tuple):
            items = [self.plain(item, argument) for item in value]
            return items if isinstance(value, list) else {TUPLE: items}
        if isinstance(value, Mapping) and all(type(key) is str for key in value):
            made = {key: self.plain(item, argument) for key, item in value.items()}
            return made if _TAGS.isdisjoint(made) else {DICT: made}
        if isinstance(value, functools.partial):
            return self._partial(value, argument)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._object(value, argument)
        if isinstance(value, type) or {"__module__", "__qualname__"} <= set(dir(value)):
            return self.named(value, argument)
        return self.nothing(
            argument,
            f"a {type(value).__name__} has no import path; use a function of a module, or a "
            "dataclass",
        )

    def named(self, value: Any, argument: str) -> dict[str, Any]:
        """Give the import path of a function or class, where it has one."""
        module, name = str(value.__module__), str(value.__qualname__)
        if "<" in name:
            what = "a lambda" if name.endswith("<lambda>") else f"{name}, defined in a function,"
            return self.nothing(argument, f"{what} has no import path; define it in a module")
        if _looked_up(sys.modules.get(module), name) is not value:
            return self.nothing(argument, f"{module}:{name} is another object")
        if module == "__main__":
            return self._of_script(name, argument)
        self._keep_root(module)
        return {IMPORT: f"{'seqdata' if _is_public(value, module, name) else module}:{name}"}

    def nothing(self, argument: str, why: str) -> dict[str, Any]:
        """Note what cannot be written down."""
        self.missing.append(f"{argument}: {why}")
        return {NOTHING: why}

    def _partial(self, value: functools.partial[Any], argument: str) -> dict[str, Any]:
        return {
            PARTIAL: self.plain(value.func, argument),
            ARGUMENTS: [self.plain(item, argument) for item in value.args],
            KEYWORDS: {key: self.plain(item, argument) for key, item in value.keywords.items()},
        }

    def _object(self, value: Any, argument: str) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for one in dataclasses.fields(value):
            given = getattr(value, one.name)
            if one.init and given is not one.default:
                made[one.name] = self.plain(given, argument)
        named = self.named(type(value), argument)
        if IMPORT not in named:
            return named
        of_script = {SCRIPT: named[SCRIPT]} if SCRIPT in named else {}
        return {OBJECT: named[IMPORT], **of_script, FIELDS: made}

    def _of_script(self, name: str, argument: str) -> dict[str, Any]:
        """Name what is defined in the script that runs; it is read again, so it needs a guard."""
        main = sys.modules["__main__"]
        file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
        if file is None or not os.path.isfile(file):
            return self.nothing(
                argument, f"{name} was defined at a prompt or in a notebook; define it in a module"
            )
        if not _is_guarded(Path(file)):
            return self.nothing(
                argument,
                f"{name} is defined in {os.path.basename(file)}, which trains when it is imported;"
                " put that under `if __name__ == '__main__':`",
            )
        if spec is not None:
            self._keep_root(spec.name, main)
            return {IMPORT: f"{spec.name}:{name}"}
        path = os.path.abspath(file)
        self._keep(os.path.dirname(path))
        return {IMPORT: f"__main__:{name}", SCRIPT: path}

    def _keep_root(self, name: str, module: ModuleType | None = None) -> None:
        file = getattr(module or sys.modules[name], "__file__", None)
        if file is None or name.partition(".")[0] == "seqdata":
            return
        root = Path(os.path.abspath(file)).parent
        up = name.count(".") + (os.path.basename(file) == "__init__.py")
        self._keep(str(root.parents[up - 1] if up else root))

    def _keep(self, root: str) -> None:
        if root not in self.roots and root not in sysconfig.get_paths().values():
            self.roots.append(root)


@dataclass(frozen=True, slots=True, eq=False)
class Objects:
    """Makes arguments again from what ``Names`` wrote.

    Attributes:
        roots: Folders that are looked in for modules, after those of the environment.
        file: The file that they are from, for messages.
    """

    roots: Iterable[str]
    file: str

    def of(self, plain: Any, argument: str) -> Any:
        """Give the value that was written down.

        Raises:
            ConfigError: If it could not be, or its module cannot be imported or is another one.
        """
        if isinstance(plain, list):
            return [self.of(item, argument) for item in plain]
        if not isinstance(plain, dict):
            return plain
        if NOTHING in plain:
            raise ConfigError(
                f"{self.file}: `{argument}` cannot be made again: {plain[NOTHING]}; in the "
                "program that trains, call data.replay(epoch=, batch=)"
            )
        if _TAGS.isdisjoint(plain):
            return {key: self.of(item, argument) for key, item in plain.items()}
        try:
            return self._tagged(plain, argument)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"{self.file}: `{argument}` is {plain!r:.200}, which cannot be made again "
                f"({error}), must be as the run wrote it; use the code that the run had"
            ) from error

    def _tagged(self, plain: Mapping[str, Any], argument: str) -> Any:
        if TUPLE in plain:
            return tuple(self.of(item, argument) for item in plain[TUPLE])
        if DICT in plain:
            return {key: self.of(item, argument) for key, item in plain[DICT].items()}
        if IMPORT in plain:
            return self._imported(plain[IMPORT], plain.get(SCRIPT), argument)
        if PARTIAL in plain:
            arguments = [self.of(item, argument) for item in plain[ARGUMENTS]]
            keywords = {key: self.of(item, argument) for key, item in plain[KEYWORDS].items()}
            return functools.partial(self.of(plain[PARTIAL], argument), *arguments, **keywords)
        made = {name: self.of(item, argument) for name, item in plain[FIELDS].items()}
        return self._imported(plain[OBJECT], plain.get(SCRIPT), argument)(**made)

    def _imported(self, path: str, script: str | None, argument: str) -> Any:
        module, _, name = path.partition(":")
        try:
            where = _MOVED.get(module, module)
            found = _script(script) if script is not None else self._module(where)
        except Exception as error:
            raise ConfigError(
                f"{self.file}: `{argument}` is {path!r}, which cannot be imported "
                f"({type(error).__name__}: {error}), must be importable; run this where the "
                "training ran, or put the folder of that module on PYTHONPATH"
            ) from error
        return functools.reduce(getattr, name.split("."), found)

    def _module(self, name: str) -> ModuleType:
        for root in self.roots:
            if root not in sys.path:
                sys.path.append(root)
        return importlib.import_module(name)


def _is_public(value: Any, module: str, name: str) -> bool:
    """Return whether users import a value of ours from ``seqdata`` itself."""
    if not module.startswith("seqdata."):
        return False
    package = sys.modules["seqdata"]
    return name in package.__all__ and getattr(package, name) is value


def _looked_up(module: ModuleType | None, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _is_guarded(script: Path) -> bool:
    """Tell whether a script says what only runs when it is the program."""
    try:
        body = ast.parse(script.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    tests = (statement.test for statement in body if isinstance(statement, ast.If))
    return any(
        isinstance(node, ast.Name) and node.id == "__name__"
        for test in tests
        for node in ast.walk(test)
    )


def _script(path: str) -> ModuleType:
    """Give a script as a module, as ``spawn`` does."""
    found = sys.modules.get(_SCRIPT)
    if found is not None and found.__file__ == path:
        return found
    spec = importlib.util.spec_from_file_location(_SCRIPT, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.append(folder)
    made = importlib.util.module_from_spec(spec)
    sys.modules[_SCRIPT] = made
    try:
        spec.loader.exec_module(made)
    except BaseException:
        del sys.modules[_SCRIPT]
        raise
    return made
