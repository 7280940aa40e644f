"""Arguments as plain data, and back: functions by import path, dataclasses by their fields.

What has neither (a lambda, an object in memory) is marked as not replayable, with the reason.
Reading imports only the module of a requested function or class.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import json
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
from seqdata.runs.side_files import MOST_NUMBERS, SideFiles, SupportsSideFile, restore_value

IMPORT, SCRIPT = "import", "script"
OBJECT, FIELDS = "object", "fields"
ARRAYS, DIGEST = "arrays", "digest"
PARTIAL, ARGUMENTS, KEYWORDS = "partial", "arguments", "keywords"
TUPLE, DICT = "tuple", "dict"
UNREPLAYABLE = "unreplayable"
_TAGS = frozenset((IMPORT, OBJECT, PARTIAL, TUPLE, DICT, UNREPLAYABLE))
_MOVED = {
    "seqdata.collators.samples": "seqdata.collators.collate_fn",
    "seqdata.lightning.prediction": "seqdata",
    "seqdata.loader": "seqdata",
    "seqdata.measuring": "seqdata",
    "seqdata.opening.stores": "seqdata",
    "seqdata.opening.writing": "seqdata",
    "seqdata.recurrent.states": "seqdata",
    "seqdata.storage.remote.options": "seqdata",
    "seqdata.streams": "seqdata",
    "seqdata.transforms": "seqdata",
    "seqdata.world": "seqdata",
}
"""Modules of earlier releases in run files -> their current modules."""

_SCRIPT = "__seqdata_script__"  # name of a script's module while it is executed again


@dataclass(slots=True, eq=False)
class PlainWriter:
    """Converts arguments to plain data.

    Attributes:
        missing: Arguments that could not be converted: ``argument: why``, in order.
        roots: Folders that modules were imported from, in addition to those of the environment.
        side_files: The files next to the run file.
    """

    missing: list[str] = field(default_factory=list)
    roots: list[str] = field(default_factory=list)
    side_files: SideFiles = field(default_factory=SideFiles)

    def to_plain(self, value: Any, argument: str) -> Any:
        """Return a value as scalars, lists and dicts, or why it cannot be converted.

        Args:
            value: Any value.
            argument: Name of the argument.
        """
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, np.generic):
            return self.to_plain(value.item(), argument)
        if isinstance(value, list | tuple):
            items = [self.to_plain(item, argument) for item in value]
            return items if isinstance(value, list) else {TUPLE: items}
        if isinstance(value, Mapping) and all(type(key) is str for key in value):
            plain_items = {key: self.to_plain(item, argument) for key, item in value.items()}
            return plain_items if _TAGS.isdisjoint(plain_items) else {DICT: plain_items}
        if isinstance(value, functools.partial):
            return self._partial_to_plain(value, argument)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass_to_plain(value, argument)
        if isinstance(value, SupportsSideFile) and not isinstance(value, type):
            return self._arrays_to_plain(value, argument)
        if isinstance(value, type) or {"__module__", "__qualname__"} <= set(dir(value)):
            return self.to_import_path(value, argument)
        return self.mark_unreplayable(
            argument,
            f"a {type(value).__name__} has no import path; use a function of a module, or a "
            "dataclass",
        )

    def to_import_path(self, value: Any, argument: str) -> dict[str, Any]:
        """Return the import path of a function or class, if it has one."""
        module, name = str(value.__module__), str(value.__qualname__)
        if "<" in name:
            description = (
                "a lambda" if name.endswith("<lambda>") else f"{name}, defined in a function,"
            )
            return self.mark_unreplayable(
                argument, f"{description} has no import path; define it in a module"
            )
        if _find_attribute(sys.modules.get(module), name) is not value:
            return self.mark_unreplayable(argument, f"{module}:{name} is another object")
        if module == "__main__":
            return self._script_to_plain(name, argument)
        self._add_module_root(module)
        return {IMPORT: f"{'seqdata' if _is_public(value, module, name) else module}:{name}"}

    def mark_unreplayable(self, argument: str, reason: str) -> dict[str, Any]:
        """Record an argument that cannot be converted."""
        self.missing.append(f"{argument}: {reason}")
        return {UNREPLAYABLE: reason}

    def _partial_to_plain(self, value: functools.partial[Any], argument: str) -> dict[str, Any]:
        return {
            PARTIAL: self.to_plain(value.func, argument),
            ARGUMENTS: [self.to_plain(item, argument) for item in value.args],
            KEYWORDS: {key: self.to_plain(item, argument) for key, item in value.keywords.items()},
        }

    def _dataclass_to_plain(self, value: Any, argument: str) -> dict[str, Any]:
        plain_fields: dict[str, Any] = {}
        for field_info in dataclasses.fields(value):
            field_value = getattr(value, field_info.name)
            if field_info.init and field_value is not field_info.default:
                plain_fields[field_info.name] = self.to_plain(field_value, argument)
        class_path = self.to_import_path(type(value), argument)
        if IMPORT not in class_path:
            return class_path
        script_entry = {SCRIPT: class_path[SCRIPT]} if SCRIPT in class_path else {}
        return {OBJECT: class_path[IMPORT], **script_entry, FIELDS: plain_fields}

    def _arrays_to_plain(self, value: SupportsSideFile, argument: str) -> dict[str, Any]:
        arrays = value.arrays
        largest = max((array.size for array in arrays.values()), default=0)
        if largest > MOST_NUMBERS:
            return self.mark_unreplayable(
                argument, f"{largest} numbers of a {type(value).__name__}, more than {MOST_NUMBERS}"
            )
        class_path = self.to_import_path(type(value), argument)
        if IMPORT not in class_path:
            return class_path
        name = self.side_files.add(argument, arrays)
        return {OBJECT: class_path[IMPORT], ARRAYS: name, DIGEST: value.digest}

    def _script_to_plain(self, name: str, argument: str) -> dict[str, Any]:
        """Return the path of an object of the script that runs, which must have a guard."""
        main = sys.modules["__main__"]
        file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
        if file is None or not os.path.isfile(file):
            return self.mark_unreplayable(
                argument, f"{name} was defined at a prompt or in a notebook; define it in a module"
            )
        if not _is_guarded(Path(file)):
            return self.mark_unreplayable(
                argument,
                f"{name} is defined in {os.path.basename(file)}, which trains when it is imported;"
                " put that under `if __name__ == '__main__':`",
            )
        if spec is not None:
            self._add_module_root(spec.name, main)
            return {IMPORT: f"{spec.name}:{name}"}
        path = os.path.abspath(file)
        self._add_root(os.path.dirname(path))
        return {IMPORT: f"__main__:{name}", SCRIPT: path}

    def _add_module_root(self, name: str, module: ModuleType | None = None) -> None:
        file = getattr(module or sys.modules[name], "__file__", None)
        if file is None or name.partition(".")[0] == "seqdata":
            return
        root = Path(os.path.abspath(file)).parent
        levels = name.count(".") + (os.path.basename(file) == "__init__.py")
        self._add_root(str(root.parents[levels - 1] if levels else root))

    def _add_root(self, root: str) -> None:
        if root not in self.roots and root not in sysconfig.get_paths().values():
            self.roots.append(root)


@dataclass(frozen=True, slots=True, eq=False)
class PlainReader:
    """Restores arguments from the result of ``PlainWriter``.

    Attributes:
        roots: Folders that are searched for modules, after those of the environment.
        file: The run file, for messages.
        folder: Folder of the files next to it.
    """

    roots: Iterable[str]
    file: str
    folder: Path = Path()
    _restored: dict[str, Any] = field(default_factory=dict)

    def from_plain(self, plain: Any, argument: str) -> Any:
        """Return the restored value.

        Raises:
            ConfigError: If it could not be converted, or its module cannot be imported or has
                changed.
        """
        if isinstance(plain, list):
            return [self.from_plain(item, argument) for item in plain]
        if not isinstance(plain, dict):
            return plain
        if UNREPLAYABLE in plain:
            raise ConfigError(
                f"{self.file}: `{argument}` cannot be restored: {plain[UNREPLAYABLE]}. In the "
                "program that trains, call data.replay(epoch=, batch=)"
            )
        if _TAGS.isdisjoint(plain):
            return {key: self.from_plain(item, argument) for key, item in plain.items()}
        try:
            return self._from_tagged(plain, argument)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"{self.file}: `{argument}` is {plain!r:.200}, which cannot be restored "
                f"({error}). Use the code of the run"
            ) from error

    def from_plain_once(self, plain: Any, argument: str) -> Any:
        """Return the restored value; of equal plain data always the same object."""
        key = json.dumps(plain, sort_keys=True)
        if key not in self._restored:
            self._restored[key] = self.from_plain(plain, argument)
        return self._restored[key]

    def _from_tagged(self, plain: Mapping[str, Any], argument: str) -> Any:
        if TUPLE in plain:
            return tuple(self.from_plain(item, argument) for item in plain[TUPLE])
        if DICT in plain:
            return {key: self.from_plain(item, argument) for key, item in plain[DICT].items()}
        if IMPORT in plain:
            return self._import_object(plain[IMPORT], plain.get(SCRIPT), argument)
        if PARTIAL in plain:
            arguments = [self.from_plain(item, argument) for item in plain[ARGUMENTS]]
            keywords = {
                key: self.from_plain(item, argument) for key, item in plain[KEYWORDS].items()
            }
            return functools.partial(
                self.from_plain(plain[PARTIAL], argument), *arguments, **keywords
            )
        if ARRAYS in plain:
            kind = self._import_object(plain[OBJECT], plain.get(SCRIPT), argument)
            owner = f"{self.file}: `{argument}` has arrays that"
            return restore_value(kind, self.folder / plain[ARRAYS], plain[DIGEST], owner)
        field_values = {
            name: self.from_plain(item, argument) for name, item in plain[FIELDS].items()
        }
        return self._import_object(plain[OBJECT], plain.get(SCRIPT), argument)(**field_values)

    def _import_object(self, path: str, script: str | None, argument: str) -> Any:
        module, _, name = path.partition(":")
        try:
            where = _MOVED.get(module, module)
            owner = _load_script(script) if script is not None else self._import_module(where)
        except Exception as error:
            raise ConfigError(
                f"{self.file}: `{argument}` is {path!r}, which cannot be imported "
                f"({type(error).__name__}: {error}). Run this where the training ran, or put the "
                "folder of that module on PYTHONPATH"
            ) from error
        return functools.reduce(getattr, name.split("."), owner)

    def _import_module(self, name: str) -> ModuleType:
        for root in self.roots:
            if root not in sys.path:
                sys.path.append(root)
        return importlib.import_module(name)


def _is_public(value: Any, module: str, name: str) -> bool:
    """Return whether a value is public, imported from ``seqdata`` itself."""
    if not module.startswith("seqdata."):
        return False
    package = sys.modules["seqdata"]
    return name in package.__all__ and getattr(package, name) is value


def _find_attribute(module: ModuleType | None, name: str) -> Any:
    value: Any = module
    for attribute in name.split("."):
        value = getattr(value, attribute, None)
    return value


def _is_guarded(script: Path) -> bool:
    """Return whether a script has a guard (``if __name__ == "__main__":``)."""
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


def _load_script(path: str) -> ModuleType:
    """Return a script as a module, as ``spawn`` does."""
    loaded = sys.modules.get(_SCRIPT)
    if loaded is not None and loaded.__file__ == path:
        return loaded
    spec = importlib.util.spec_from_file_location(_SCRIPT, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.append(folder)
    script_module = importlib.util.module_from_spec(spec)
    sys.modules[_SCRIPT] = script_module
    try:
        spec.loader.exec_module(script_module)
    except BaseException:
        del sys.modules[_SCRIPT]
        raise
    return script_module
