"""The keys, classes and values of a configuration: which of them does not exist or is invalid."""

from __future__ import annotations

import contextlib
import importlib
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.loggers import Logger
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from seqdata.builtin import POLICIES
from seqdata.errors import describe_unknown_name, did_you_mean
from seqdata.fitting.estimator_names import ESTIMATORS
from seqdata.host import default_host
from seqdata.lightning.policy_names import find_import_path
from seqdata.suite.config_types import (
    Argument,
    describe_type,
    is_accepted,
    list_arguments,
    list_bases,
)

_CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")
_BASES = {
    "model": LightningModule, "data": LightningDataModule, "optimizer": Optimizer,
    "lr_scheduler": LRScheduler,
}  # fmt: skip
_REQUIRED = ("data", "model")
_OPTIMIZERS = ("optimizer", "lr_scheduler")  # their first argument is not written
_OTHER_BASES = (Callback, Logger)  # their classes occur at any depth, such as trainer.callbacks
_POLICY_KEYS = ("batching", "eval_batching")
_FILES = (".yaml", ".yml", ".json")  # suffixes of files that may stand in place of a value
_OTHER_OPTIONS = ("help", "print_config")
_FEW = 12  # most names that a message lists


@dataclass(frozen=True)
class Source:
    """A part of a configuration: a file, or an option of the command line.

    Args:
        name: The file or option.
        values: Contents of a file, or the value of an option as YAML.
        key: The key whose value this is; empty: the whole configuration.
        text: Value of an option as it was written; None: of a file.
    """

    name: str
    values: Any
    key: str = ""
    text: str | None = None

    def describe(self, path: str, text: str) -> str:
        """Return the message about a key, named by its place in the file, or by the option."""
        inner = path.removeprefix(self.key).removeprefix(".") if self.text is None else ""
        return f"{self.name}: {inner}: {text}" if inner else f"{self.name}: {text}"


Reader = Callable[[str, Source, str], Source]
"""Reads the file that stands in place of a value: its name, the part that names it, the key."""


class ConfigKeys:
    """The keys that a configuration may have.

    Args:
        keys: Keys of the parser, nested ones with dots: ``trainer.max_epochs``.
        names: Short name of a class -> import path.
        types: Types of the keys, as far as they are known.
        read: Function that reads a file that stands in place of a value.
    """

    def __init__(
        self,
        keys: Iterable[str],
        names: Mapping[str, str],
        types: Mapping[str, Any],
        read: Reader,
    ) -> None:
        self._keys = list(keys)
        self._names = names
        self._types = types
        self._read = read
        self._classes: dict[str, Any] = {}  # of keys, also of parts read before
        self._named: dict[str, Source] = {}  # where these classes are named
        self._given: dict[str, set[str]] = {}  # the arguments of these classes

    def find_mistake(self, source: Source) -> str:
        """Return the message about the first key, class or value that is wrong; empty if none is.

        Args:
            source: A part. Check several parts in the order in which they are merged: a later one
                may give arguments of a class that an earlier one names.
        """
        values = _nest(source.values)
        found = (
            self._iter_section(source, values, "")
            if source.text is None
            else self._iter_option(source, values)
        )
        return next(found, "")

    def find_missing(self, where: str) -> str:
        """Return the message about the first key or argument that no part has; empty if none is.

        Args:
            where: Start of a message about the whole configuration.
        """
        for path, found in self._classes.items():
            if isinstance(found, type):
                given = self._given.get(path, set())
                missing = {
                    name: each
                    for name, each in _list_taken(path, found).items()
                    if each.is_required and name not in given
                }
                if missing:
                    text = _describe_missing(found.__name__, missing)
                    return self._named[path].describe(path, text)
        for key in _REQUIRED:
            if key in self._keys and key not in self._classes:
                known = ", ".join(self._list_classes(key, False)[:_FEW])
                text = f"the key '{key}' is required, but missing. Its class is one of {known}"
                return f"{where}: {text}"
        return ""

    def _iter_option(self, source: Source, value: Any) -> Iterator[str]:
        """Yield the mistakes in an option of the command line."""
        name = source.key
        is_help = name.endswith(".help")  # its value is a class
        if is_help:
            name = name.removesuffix(".help")
        else:
            longer = [key for key in self._keys if key.startswith(name)]
            name = longer[0] if len(longer) == 1 else name  # argparse takes abbreviations
        is_section = any(key.startswith(f"{name}.") for key in self._keys)
        if is_section and is_help:
            yield source.describe("", "there is no such option. --print_config shows all keys")
            return
        if is_section:
            yield from self._iter_section(source, value, name)
            return
        parts = name.split(".")
        starts = [".".join(parts[: count + 1]) for count in range(len(parts))]
        key = next((each for each in reversed(starts) if each in self._keys), None)
        if key is None:
            yield from self._iter_unknown_option(source, name)
            return
        rest = name.removeprefix(key).removeprefix(".")
        nested = self._nest_option(key, rest.split("."), value) if rest else value
        yield from self._iter_value(source, nested, key, key in _BASES)

    def _iter_unknown_option(self, source: Source, name: str) -> Iterator[str]:
        last = name.rpartition(".")[2]
        same = [key for key in self._keys if key.rpartition(".")[2] == last]
        for path, found in self._classes.items():
            if isinstance(found, type) and last in list_arguments(found):
                same.append(f"{path}.{last}".replace(".init_args", ""))
        options = [f"--{key}" for key in [*self._keys, *_OTHER_OPTIONS]]
        hint = f"did you mean '--{same[0]}'?" if same else did_you_mean(f"--{name}", options)
        if hint:
            yield source.describe("", f"there is no such option; {hint}")
            return
        nested: Any = source.values
        for part in reversed(name.split(".")):
            nested = {part: nested}
        yield from self._iter_section(source, nested, "")

    def _nest_option(self, path: str, rest: Sequence[str], value: Any) -> Any:
        """Return the value of a key as nested dicts with the value of an option below it.

        The option ``--data.batching.size`` is ``data.init_args.batching.init_args.size``.
        """
        if not rest:
            return value
        name, *others = rest
        if name in _CLASS_KEYS:
            path, start = f"{path}.{name}", False
        else:
            start = path in self._classes or path in _BASES
            path = f"{path}.init_args.{name}" if start else f"{path}.{name}"
        inner = {name: self._nest_option(path, others, value)}
        return {"init_args": inner} if start else inner

    def _iter_section(self, source: Source, section: Any, path: str) -> Iterator[str]:
        """Yield the mistakes in a section such as ``trainer``, or in the whole part."""
        if isinstance(section, str) and section.endswith(_FILES):
            source = self._read(section, source, path)
            section = _nest(source.values)
        start = f"{path}." if path else ""
        inner = [key.removeprefix(start) for key in self._keys if key.startswith(start)]
        known = list(dict.fromkeys(key.partition(".")[0] for key in inner))
        if not isinstance(section, Mapping):
            few = ", ".join(known[:_FEW])
            yield source.describe(path, f"must have keys ({few}), but is {_show(section)}")
            return
        for key, value in section.items():
            if key not in known:
                yield source.describe(path, _describe("key", str(key), known))
            elif key not in inner:
                yield from self._iter_section(source, value, f"{start}{key}")
            else:
                yield from self._iter_value(source, value, f"{start}{key}", key in _BASES)

    def _iter_value(
        self,
        source: Source,
        value: Any,
        path: str,
        is_class: bool = False,
        is_policy: bool = False,
        hint: Any = None,
    ) -> Iterator[str]:
        """Yield the mistakes in the value of a key.

        Args:
            source: The part.
            value: Scalars, lists and dicts.
            path: The key.
            is_class: Whether it is always a class: its name, or a dict with its arguments.
            is_policy: Whether short names are those of policies.
            hint: Type of the value, if it is known.
        """
        hint = self._types.get(path) if hint is None else hint
        if is_class and value is None:  # as if it were not there
            return
        if is_class and isinstance(value, str) and value.endswith(_FILES):
            source = self._read(value, source, path)
            value = _nest(source.values)
        if isinstance(value, Sequence) and not isinstance(value, str):
            for index, item in enumerate(value):
                yield from self._iter_value(source, item, f"{path}[{index}]", False, is_policy)
        has_class = isinstance(value, Mapping) and ("class_path" in value or "init_args" in value)
        if has_class or (is_class and isinstance(value, Mapping)):
            yield from self._iter_class(source, value, path, is_policy)
        elif isinstance(value, str) and (
            is_class or list_bases(hint) or (is_policy and hint is None)
        ):
            yield from self._iter_name(source, value, path, is_class, is_policy, hint)
        else:
            if isinstance(value, Mapping):
                for key, item in value.items():
                    yield from self._iter_value(source, item, f"{path}.{key}", False, is_policy)
            yield from self._iter_type(source, value, path, hint)

    def _iter_type(self, source: Source, value: Any, path: str, hint: Any) -> Iterator[str]:
        """Yield the mistake that a value is of another type than its key."""
        if hint is None or _names_class(value) or is_accepted(value, hint):
            return
        if source.text is not None and is_accepted(source.text, hint):  # such as "5", a string
            return
        needed = describe_type(_BASES.get(path, hint))
        yield source.describe(path, f"must be {needed}, but is {_show(value)}")

    def _iter_name(
        self, source: Source, name: str, path: str, is_class: bool, is_policy: bool, hint: Any
    ) -> Iterator[str]:
        """Yield the mistakes in a string that may be the name of a class without arguments."""
        found = self._find_class(name, is_policy)
        if isinstance(found, type):
            self._set_class(source, path, found)
            yield from self._iter_kind(source, name, path, found)
            return
        known = self._list_classes(path, is_policy, list_bases(hint) if hint else ())
        is_known = name in known if is_policy else hint is None or is_accepted(name, hint)
        if is_class or not is_known:
            yield source.describe(path, self._describe_class(name, known))

    def _iter_class(
        self, source: Source, value: Mapping[str, Any], path: str, is_policy: bool
    ) -> Iterator[str]:
        """Yield the mistakes in a dict of a class and its arguments."""
        for key in value:
            if key not in _CLASS_KEYS:
                yield source.describe(path, _describe("key", str(key), _CLASS_KEYS))
        name, arguments = value.get("class_path"), value.get("init_args")
        inner = f"{path}.init_args"
        if isinstance(name, str):
            found = self._find_class(name, is_policy)
            self._set_class(source, path, found)
            if found is None:
                known = self._list_classes(path, is_policy)
                yield source.describe(f"{path}.class_path", self._describe_class(name, known))
            else:
                yield from self._iter_kind(source, name, f"{path}.class_path", found)
        elif "class_path" in value:
            text = f"must be the name or import path of a class, but is {_show(name)}"
            yield source.describe(f"{path}.class_path", text)
        elif path not in self._classes:
            few = ", ".join(self._list_classes(path, is_policy)[:_FEW])
            text = f"the class_path of '{path}' is missing. It is one of {few}"
            yield source.describe("" if path in _BASES else path, text)
        if isinstance(arguments, Mapping):
            yield from self._iter_arguments(source, arguments, path, is_policy)
        elif "init_args" in value:
            yield source.describe(inner, f"must be a dict of arguments, but is {_show(arguments)}")

    def _iter_arguments(
        self, source: Source, arguments: Mapping[str, Any], path: str, is_policy: bool
    ) -> Iterator[str]:
        """Yield the mistakes in the arguments of a class."""
        found: Any = self._classes.get(path)
        where, is_class = f"{path}.init_args", isinstance(found, type)
        taken = _list_taken(path, found) if is_class else {}
        self._given.setdefault(path, set()).update(arguments)
        for key, item in arguments.items():
            if is_class and key not in taken:
                unknown = _describe("argument", str(key), list(taken), found.__name__)
                yield source.describe(where, unknown)
            hint = taken[key].type if key in taken else None
            is_inner = is_policy or key in _POLICY_KEYS
            yield from self._iter_value(source, item, f"{where}.{key}", False, is_inner, hint)

    def _iter_kind(self, source: Source, name: str, path: str, found: Any) -> Iterator[str]:
        """Yield the mistake that a class is not of the kind that its key takes."""
        base = _BASES.get(path.removesuffix(".class_path"))
        if base is not None and not (isinstance(found, type) and issubclass(found, base)):
            known = ", ".join(self._list_classes(path.removesuffix(".class_path"), False)[:_FEW])
            text = f"must be a {base.__name__}, but {name!r} is none. Choose one of {known}"
            yield source.describe(path, text)

    def _set_class(self, source: Source, path: str, found: Any) -> None:
        self._classes[path], self._named[path] = found, source

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
        return None if _try_import(module) else getattr(sys.modules[module], attribute, None)

    def _describe_class(self, name: str, known: Sequence[str]) -> str:
        """Return the text about a class that is not found."""
        module = name.rpartition(".")[0]
        if module:
            problem = _try_import(module)
            if problem:
                return f"the class {name!r} cannot be imported ({problem})"
            known = _list_module(module)
        return _describe("class", name, known)

    def _list_classes(self, path: str, is_policy: bool, bases: Sequence[type] = ()) -> list[str]:
        """Return the names of the classes that a key may have, for messages."""
        if is_policy:
            built_in = [each.rpartition(":")[2] for each in POLICIES.values()]
            return sorted({*default_host().names("policy"), *built_in})
        if ".statistics." in path:
            return list(ESTIMATORS)
        if path in _BASES:
            bases = [_BASES[path]]
        found = {
            each.__name__ for each in _iter_classes(bases or (*_BASES.values(), *_OTHER_BASES))
        }
        return sorted(found if bases else found | {*self._names})


def _list_taken(path: str, found: type) -> dict[str, Argument]:
    """Return the arguments of a class that a configuration gives: not an optimizer's first one."""
    arguments = list_arguments(found)
    skipped = [*arguments][:1] if path in _OPTIMIZERS else []
    return {name: each for name, each in arguments.items() if name not in skipped}


def _names_class(value: Any) -> bool:
    """Return whether a value names a class by ``class_path``, at any depth."""
    if isinstance(value, Mapping):
        return "class_path" in value or any(map(_names_class, value.values()))
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return is_list and any(map(_names_class, value))


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


def _iter_classes(bases: Iterable[Any] = (*_BASES.values(), *_OTHER_BASES)) -> Iterator[Any]:
    """Yield all imported public subclasses of base classes."""
    for base in bases:
        for each in base.__subclasses__():
            if not each.__name__.startswith("_"):
                yield each
            yield from _iter_classes([each])


def _try_import(module: str) -> str:
    """Import a module and return why it cannot be imported; empty if it can."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        is_first = error.name == module.partition(".")[0]
        hint = did_you_mean(error.name, [*sys.modules]) if is_first else ""
        return f"{error}; {hint}" if hint else str(error)
    except Exception as error:  # the code of a user's module may raise anything
        return f"{type(error).__name__}: {error}"
    return ""


def _list_module(module: str) -> list[str]:
    """Return the import paths of the public names of a module."""
    return [f"{module}.{name}" for name in dir(sys.modules[module]) if not name.startswith("_")]


def _describe(kind: str, name: str, known: Sequence[str], owner: str = "") -> str:
    """Return the text about a name that does not exist, with all known names if they are few."""
    text = describe_unknown_name(kind, name, known, most=_FEW)
    return f"{owner} has {text}" if owner else f"there is {text}"


def _describe_missing(owner: str, missing: Mapping[str, Argument]) -> str:
    """Return the text about arguments of a class that are required, but not given."""
    if len(missing) > 1:
        return f"{owner} needs the arguments {', '.join(missing)}, which are missing"
    ((name, argument),) = missing.items()
    is_any = argument.type is None or argument.type is Any
    kind = "" if is_any else f" ({describe_type(argument.type)})"
    return f"{owner} needs the argument {name}{kind}, which is missing"


def _show(value: Any) -> str:
    """Return a value for a message; a long one is cut."""
    return "empty" if value is None else reprlib.repr(value)
