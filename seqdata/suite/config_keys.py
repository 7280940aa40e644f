"""The error about a configuration file: which of its keys or classes does not exist."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.loggers import Logger
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from seqdata.builtin import POLICIES
from seqdata.errors import describe_unknown_name
from seqdata.fitting.estimator_names import ESTIMATORS
from seqdata.host import default_host
from seqdata.lightning.policy_names import find_import_path

_CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")
_BASES = {
    "model": LightningModule, "data": LightningDataModule, "optimizer": Optimizer,
    "lr_scheduler": LRScheduler,
}  # fmt: skip
_OTHER_BASES = (Callback, Logger)  # their classes occur at any depth, such as trainer.callbacks
_POLICY_KEYS = ("batching", "eval_batching")
_FEW = 12  # most names that a message lists


class ConfigKeys:
    """The keys that a configuration file may have.

    Args:
        keys: Keys of the parser, nested ones with dots: ``trainer.max_epochs``.
        names: Short name of a class -> import path.
    """

    def __init__(self, keys: Iterable[str], names: Mapping[str, str]) -> None:
        self._keys = list(keys)
        self._names = names
        self._classes: dict[str, Any] = {}  # of keys, also of files read before

    def find_mistake(self, config: Any) -> str:
        """Return a message on the first key or class that does not exist; empty if all exist.

        Args:
            config: Contents of one file. Check several files in the order of the command line: a
                later file may give arguments of a class that an earlier one names.
        """
        return next(self._iter_section(_nest(config), ""), "")

    def _iter_section(self, section: Any, path: str) -> Iterator[str]:
        """Yield the mistakes in a section such as ``trainer``, or in the whole file."""
        if not isinstance(section, Mapping):
            return
        start = f"{path}." if path else ""
        inner = [key.removeprefix(start) for key in self._keys if key.startswith(start)]
        known = list(dict.fromkeys(key.partition(".")[0] for key in inner))
        for key, value in section.items():
            if key not in known:
                yield _describe("key", path, str(key), known)
            elif key not in inner:
                yield from self._iter_section(value, f"{start}{key}")
            else:
                yield from self._iter_value(value, f"{start}{key}", key in _BASES)

    def _iter_value(
        self, value: Any, path: str, is_class: bool = False, is_policy: bool = False
    ) -> Iterator[str]:
        """Yield the mistakes in the value of a key.

        Args:
            value: Scalars, lists and dicts.
            path: The key.
            is_class: Whether a dict is always a class and its arguments.
            is_policy: Whether short names are those of policies.
        """
        if isinstance(value, Sequence) and not isinstance(value, str):
            for index, item in enumerate(value):
                yield from self._iter_value(item, f"{path}[{index}]", False, is_policy)
        if not isinstance(value, Mapping):
            return
        if is_class or "class_path" in value or "init_args" in value:
            yield from self._iter_class(value, path, is_policy)
            return
        for key, item in value.items():
            yield from self._iter_value(item, f"{path}.{key}", False, is_policy)

    def _iter_class(self, value: Mapping[str, Any], path: str, is_policy: bool) -> Iterator[str]:
        """Yield the mistakes in a dict of a class and its arguments."""
        for key in value:
            if key not in _CLASS_KEYS:
                yield _describe("key", path, str(key), _CLASS_KEYS)
        name = value.get("class_path")
        if isinstance(name, str):
            self._classes[path] = self._find_class(name, is_policy)
            if self._classes[path] is None:
                inside = _list_module(name.rpartition(".")[0])
                known = inside if "." in name else self._list_classes(path, is_policy)
                if known:
                    yield _describe("class", f"{path}.class_path", name, known)
        found, arguments = self._classes.get(path), value.get("init_args")
        if not isinstance(arguments, Mapping):
            return
        owner, taken = "", None
        if isinstance(found, type):
            owner, taken = found.__name__, _list_arguments(found)
        for key, item in arguments.items():
            inner = f"{path}.init_args.{key}"
            if taken is not None and key not in taken:
                where = f"{path}.init_args"
                yield _describe("argument", where, str(key), taken, owner)
            yield from self._iter_value(item, inner, False, is_policy or key in _POLICY_KEYS)

    def _find_class(self, name: str, is_policy: bool) -> Any:
        """Return the class of an import path or short name; None if it is not found."""
        path = name
        if is_policy:
            with contextlib.suppress(ValueError):  # no name of a policy
                path = find_import_path(name)
        elif name in ESTIMATORS:
            return ESTIMATORS[name]
        else:
            path = self._names.get(name, name)
        module, _, attribute = path.rpartition(".")
        if not module:
            return next((each for each in _iter_classes() if each.__name__ == name), None)
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, TypeError):  # the parser says why
            return None

    def _list_classes(self, path: str, is_policy: bool) -> list[str]:
        """Return the names of the classes that a key may have, for messages."""
        if is_policy:
            built_in = [each.rpartition(":")[2] for each in POLICIES.values()]
            return sorted({*default_host().names("policy"), *built_in})
        if ".statistics." in path:
            return list(ESTIMATORS)
        bases = [_BASES[path]] if path in _BASES else [*_BASES.values(), *_OTHER_BASES]
        found = {each.__name__ for each in _iter_classes(bases)}
        return sorted(found if path in _BASES else found | {*self._names})


def read_mistake(arguments: Sequence[str], keys: ConfigKeys, load: Callable[[str], Any]) -> str:
    """Return the error about the configuration files of a command line; empty if none is found.

    Args:
        arguments: The command line.
        keys: The keys that a file may have.
        load: Function that parses the text of a file.
    """
    for path in _list_files(arguments):
        with contextlib.suppress(OSError, ValueError, yaml.YAMLError):  # the parser says why
            mistake = keys.find_mistake(load(Path(path).read_text(encoding="utf-8")))
            if mistake:
                return f"{path}: {mistake}"
    return ""


def _nest(value: Any) -> Any:
    """Return a value with ``{"a": {"b": 1}}`` in place of ``{"a.b": 1}``, as the parser does."""
    if isinstance(value, list):
        return [_nest(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    found: dict[Any, Any] = {}
    for key, item in value.items():
        first, _, rest = str(key).partition(".")
        is_nested = bool(first and rest)
        name, inner = (first, _nest({rest: item})) if is_nested else (key, _nest(item))
        _add(found, name, inner)
    return found


def _add(found: dict[Any, Any], name: Any, value: Any) -> None:
    """Set a key of nested dicts; a dict is merged into the dict that the key already has."""
    if isinstance(value, dict) and isinstance(found.get(name), dict):
        for key, item in value.items():
            _add(found[name], key, item)
    else:
        found[name] = value


def _list_files(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the configuration files of a command line."""
    for index, argument in enumerate(arguments):
        name, separator, value = argument.partition("=")
        if name in ("-c", "--config"):
            yield from [value] if separator else arguments[index + 1 : index + 2]


def _iter_classes(bases: Iterable[Any] = (*_BASES.values(), *_OTHER_BASES)) -> Iterator[Any]:
    """Yield all imported public subclasses of base classes."""
    for base in bases:
        for each in base.__subclasses__():
            if not each.__name__.startswith("_"):
                yield each
            yield from _iter_classes([each])


def _list_module(module: str) -> list[str]:
    """Return the import paths of the public names of a module; empty if it is not imported."""
    found = dir(sys.modules[module]) if module in sys.modules else []
    return [f"{module}.{name}" for name in found if not name.startswith("_")]


def _list_arguments(found: type) -> list[str]:
    """Return the names of the arguments of a class, as the parser knows them."""
    jsonargparse: Any = importlib.import_module("jsonargparse")
    parser = jsonargparse.ArgumentParser()
    added = parser.add_class_arguments(found, "it", fail_untyped=False)
    return list(dict.fromkeys(key.split(".")[1] for key in added))


def _describe(kind: str, where: str, name: str, known: Sequence[str], owner: str = "") -> str:
    """Return the text about a name that does not exist, with all known names if they are few."""
    text = describe_unknown_name(kind, name, known, most=_FEW)
    prefix = f"{where}: " if where else ""
    return f"{prefix}{owner} has {text}" if owner else f"{prefix}there is {text}"
