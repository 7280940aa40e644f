"""Arguments in the form of jsonargparse, ``class_path`` and ``init_args``; and back.

A dataclass is written as its class with arguments, a function as its import path. A value that has
neither (a lambda, an object in memory) is not replayable. Reading imports only the module of a
requested function or class.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from seqdata.errors import ConfigError
from seqdata.policies.weighted import WeightArray
from seqdata.runs.side_files import MOST_NUMBERS, Arrays, read_arrays
from seqdata.storage.remote.options import Remote, redact_remote

CLASS_PATH, INIT_ARGS = "class_path", "init_args"
_ARRAYS = "arrays"  # argument of functions of this package: the path of a side file
_MAIN, _SCRIPT = "__main__", "__seqdata_script__"  # module of a script: running, replayed
_TAKES_LIST = re.compile(r"\b([Tt]uple|Sequence)\[")


class NotReplayableError(Exception):
    """Error about a value that cannot be saved in a run file; the message is the reason."""


def import_object(path: str) -> Callable[..., Any]:
    """Return the function or class at an import path.

    Raises:
        ImportError: If its module cannot be imported.
        AttributeError: If its module does not have it.
    """
    module, _, name = path.rpartition(".")
    try:
        owner: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module or "." not in module:
            raise
        owner = import_object(module)  # a class
    value: Callable[..., Any] = getattr(owner, name)
    return value


def make_partial(
    func: Any, args: Sequence[Any] = (), keywords: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Return ``functools.partial(func, *args, **keywords)``."""
    return functools.partial(func, *args, **(keywords or {}))


def make_tuple(items: Sequence[Any]) -> Any:
    """Return a tuple of the items; YAML has lists only."""
    return tuple(items)


def load_weights(arrays: str, digest: str, owner: str = "weights have arrays that") -> WeightArray:
    """Return weights of sequences that were saved in a side file.

    Args:
        arrays: Path of the side file.
        digest: Digest of the weights.
        owner: Beginning of messages about the arrays.

    Raises:
        ConfigError: If the side file is missing or damaged, or of another run.
    """
    path = Path(arrays)
    weights = WeightArray(**read_arrays(path, owner))
    if weights.digest != digest:
        raise ConfigError(
            f"{owner} must have the digest {digest}, but those in {path.name!r} next to the file "
            f"have {weights.digest}: they are of another run. Copy the file of this run there."
        )
    return weights


def make_call(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Return the plain data of a call of a function of this package."""
    return {CLASS_PATH: f"{function.__module__}.{function.__qualname__}", INIT_ARGS: arguments}


def is_call(plain: Any, *functions: Callable[..., Any]) -> bool:
    """Return whether plain data is a call; if functions are given, of one of them."""
    if not isinstance(plain, Mapping) or CLASS_PATH not in plain:
        return False
    return not functions or plain[CLASS_PATH] in [
        make_call(function)[CLASS_PATH] for function in functions
    ]


@dataclass(slots=True, eq=False)
class ArgumentWriter:
    """Converts arguments to plain data.

    Attributes:
        file: Path of the run file.
        arrays: Name of a file next to it -> its arrays.
        roots: Folders that modules were imported from, in addition to those of the environment.
        script: Path of the running program, if it defines one of the values.
        left_out: Options of a ``Remote`` that are not written, since they may be secret.
    """

    file: Path = Path("run.yaml")
    arrays: dict[str, Arrays] = field(default_factory=dict)
    roots: list[str] = field(default_factory=list)
    script: str | None = None
    left_out: list[str] = field(default_factory=list)

    def to_plain(self, value: Any, argument: str, annotation: str = "") -> Any:
        """Return a value as scalars, lists and dicts.

        Args:
            value: Any value.
            argument: Name of the argument.
            annotation: Annotation of the value; a tuple or sequence is saved as a list.

        Raises:
            NotReplayableError: If it cannot be saved.
        """
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, np.generic):
            return self.to_plain(value.item(), argument)
        if type(value) is Fraction:
            return make_call(Fraction, numerator=value.numerator, denominator=value.denominator)
        if isinstance(value, list | tuple):
            items = [self.to_plain(item, argument, annotation) for item in value]
            is_list = isinstance(value, list) or (
                _TAKES_LIST.search(annotation) and not any(isinstance(item, list) for item in value)
            )
            return items if is_list else make_call(make_tuple, items=items)
        if isinstance(value, Mapping) and all(type(key) is str for key in value):
            if CLASS_PATH in value:
                raise NotReplayableError(f"a dict has the key {CLASS_PATH!r}; use a dataclass")
            return {key: self.to_plain(item, argument) for key, item in value.items()}
        if isinstance(value, functools.partial):
            return make_call(
                make_partial,
                func=self.to_plain(value.func, argument),
                args=[self.to_plain(item, argument) for item in value.args],
                keywords=self.to_plain(value.keywords, argument),
            )
        if isinstance(value, Remote):
            value, left_out = redact_remote(value)
            self.left_out += [f"{argument}.{name}" for name in left_out]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass_to_plain(value, argument)
        if type(value) is WeightArray:
            path = self.save_arrays({"values": value.values}, argument, "numbers of a WeightArray")
            return make_call(load_weights, arrays=path, digest=value.digest)
        if isinstance(value, type) or {"__module__", "__qualname__"} <= set(dir(value)):
            return make_call(import_object, path=self._find_import_path(value))
        raise NotReplayableError(
            f"a {type(value).__name__} has no import path; use a function of a module, or a "
            "dataclass"
        )

    def save_arrays(self, arrays: Arrays, argument: str, description: str) -> str:
        """Add arrays to the files next to the run file; return the path of their file.

        Raises:
            NotReplayableError: If they are too large.
        """
        largest = max((array.size for array in arrays.values()), default=0)
        if largest > MOST_NUMBERS:
            raise NotReplayableError(f"{largest} {description}, more than {MOST_NUMBERS}")
        name = f"{self.file.stem}-{re.sub(r'[^A-Za-z0-9_]+', '-', argument)}"
        name += f"-{len(self.arrays)}.npz" if f"{name}.npz" in self.arrays else ".npz"
        self.arrays[name] = arrays
        return str(self.file.absolute().parent / name)

    def _dataclass_to_plain(self, value: Any, argument: str) -> dict[str, Any]:
        class_path = self._find_import_path(type(value))
        arguments: dict[str, Any] = {}
        for field_info in dataclasses.fields(value):
            field_value = getattr(value, field_info.name)
            if field_info.init and field_value is not field_info.default:
                arguments[field_info.name] = self.to_plain(
                    field_value, argument, _get_annotation(field_info)
                )
        return {CLASS_PATH: class_path, INIT_ARGS: arguments}

    def _find_import_path(self, value: Any) -> str:
        """Return the import path of a function or class, if it has one.

        Raises:
            NotReplayableError: If it has none.
        """
        module, name = str(value.__module__), str(value.__qualname__)
        if "<" in name:
            description = (
                "a lambda" if name.endswith("<lambda>") else f"{name}, defined in a function,"
            )
            raise NotReplayableError(f"{description} has no import path; define it in a module")
        if _find_attribute(sys.modules.get(module), name) is not value:
            raise NotReplayableError(
                f"the import path {module}.{name} does not lead to this object"
            )
        if module == _MAIN:
            return self._find_script_path(name)
        self._add_module_root(module)
        return f"{'seqdata' if _is_public(value, module, name) else module}.{name}"

    def _find_script_path(self, name: str) -> str:
        """Return the import path of an object of the running script, which must have a guard."""
        main = sys.modules[_MAIN]
        file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
        if file is None or not os.path.isfile(file):
            raise NotReplayableError(
                f"{name} was defined at a prompt or in a notebook; define it in a module"
            )
        if not _is_guarded(Path(file)):
            raise NotReplayableError(
                f"{name} is defined in {os.path.basename(file)}, which has no "
                "`if __name__ == '__main__':`; put the training under it"
            )
        if spec is not None:
            self._add_module_root(spec.name, main)
            return f"{spec.name}.{name}"
        self.script = os.path.abspath(file)
        self._add_root(os.path.dirname(self.script))
        return f"{_MAIN}.{name}"

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
class ArgumentReader:
    """Restores arguments from the result of ``ArgumentWriter``.

    Attributes:
        file: Name of the run file, for messages.
        folder: Folder of the files next to it.
        roots: Folders that are searched for modules, after those of the environment.
        script: Path of the program that ran, if it defines one of the values.
    """

    file: str
    folder: Path = Path()
    roots: Iterable[str] = ()
    script: str | None = None
    _restored: dict[str, Any] = field(default_factory=dict)

    def from_plain(self, plain: Any, argument: str) -> Any:
        """Return the restored value.

        Raises:
            ConfigError: If its module cannot be imported or has changed.
        """
        try:
            return self._restore(plain, argument)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"{self.file}: `{argument}` is {plain!r:.200}, which cannot be restored "
                f"({error}). Use the code of the run"
            ) from error

    def from_plain_once(self, plain: Any, argument: str) -> Any:
        """Return the restored value; equal plain data yields the same object."""
        key = repr(plain)
        if key not in self._restored:
            self._restored[key] = self.from_plain(plain, argument)
        return self._restored[key]

    def import_path(self, path: str, argument: str) -> Any:
        """Return the function or class at an import path.

        Raises:
            ConfigError: If its module cannot be imported.
            AttributeError: If its module does not have it.
        """
        module, _, name = path.partition(".")
        try:
            if module == _MAIN and self.script is not None:
                return functools.reduce(getattr, name.split("."), _load_script(self.script))
            sys.path.extend(root for root in self.roots if root not in sys.path)
            return import_object(path)
        except AttributeError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{self.file}: `{argument}` is {path!r}, which cannot be imported "
                f"({type(error).__name__}: {error}). Run this where the training ran, or put the "
                "folder of that module on PYTHONPATH"
            ) from error

    def _restore(self, plain: Any, argument: str) -> Any:
        if isinstance(plain, list):
            return [self._restore(item, argument) for item in plain]
        if not isinstance(plain, Mapping):
            return plain
        if CLASS_PATH not in plain:
            return {key: self._restore(item, argument) for key, item in plain.items()}
        arguments = {
            name: self._restore(item, argument) for name, item in plain.get(INIT_ARGS, {}).items()
        }
        if is_call(plain, import_object):
            return self.import_path(arguments["path"], argument)
        function = self.import_path(plain[CLASS_PATH], argument)
        if dataclasses.is_dataclass(function):
            for field_info in dataclasses.fields(function):
                if re.match(r"(typing\.)?[Tt]uple\[", _get_annotation(field_info)):
                    name = field_info.name
                    arguments |= {name: _to_tuples(arguments[name])} if name in arguments else {}
        if (
            str(plain[CLASS_PATH]).startswith(f"{__package__}.")
            and arguments.get(_ARRAYS) is not None
        ):
            arguments[_ARRAYS] = str(self.folder / os.path.basename(arguments[_ARRAYS]))
            arguments["owner"] = f"{self.file}: `{argument}` has arrays that"
        return function(**arguments)


def list_import_paths(plain: Any) -> list[str]:
    """Return the import paths in an argument of a run file, in order."""
    if isinstance(plain, list):
        return [path for item in plain for path in list_import_paths(item)]
    if not isinstance(plain, Mapping):
        return []
    if is_call(plain, import_object):
        return [str(plain[INIT_ARGS]["path"])]
    own_path = [str(plain[CLASS_PATH])] if CLASS_PATH in plain else []
    return own_path + [path for value in plain.values() for path in list_import_paths(value)]


def _get_annotation(field_info: dataclasses.Field[Any]) -> str:
    return field_info.type if isinstance(field_info.type, str) else str(field_info.type)


def _to_tuples(value: Any) -> Any:
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value


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
    """Import a script as a module, as ``spawn`` does."""
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
