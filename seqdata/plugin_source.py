"""The source of a plugin, and its state.

A plugin is imported only when the host needs it. Its errors are stored, and raised by the host when
one of its names is looked up.
"""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import pluggy

from seqdata.errors import PluginError, did_you_mean

API_GROUP = "seqdata.api"
"""Entry points that name the level of the hooks that a package needs (``SEQDATA_API``)."""

HOOK_BY_KIND = {
    "backend": "seqdata_register_backends",
    "policy": "seqdata_register_policies",
    "collator": "seqdata_register_collators",
    "reader": "seqdata_register_readers",
}
NAME_PATTERN = re.compile(r"[a-z][a-z0-9_.-]{0,63}")

Factory = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class SuffixClaim:
    """A suffix of files that an installed package claims for its backend.

    Attributes:
        suffix: The suffix in lower case, with its dot.
        backend: Name of the backend.
        distribution: The package.
        label: The package and its version, for messages.
    """

    suffix: str
    backend: str
    distribution: str
    label: str

    @classmethod
    def from_entry_point(cls, point: metadata.EntryPoint) -> Self:
        """Return the claim of an entry point of ``seqdata.suffixes``, without importing it."""
        name, version = _get_distribution(point)
        return cls(point.name.lower(), point.value, name, f"{name} {version}".strip())


@dataclass(frozen=True, slots=True)
class CommandClaim:
    """A command that an installed package adds to ``seqdata``.

    Attributes:
        name: Name of the command.
        point: The entry point that it is imported from.
        distribution: The package.
        label: The package and its version, for messages.
    """

    name: str
    point: metadata.EntryPoint
    distribution: str
    label: str

    @classmethod
    def from_entry_point(cls, point: metadata.EntryPoint) -> Self:
        """Return the claim of an entry point of ``seqdata.commands``, without importing it."""
        name, version = _get_distribution(point)
        return cls(point.name, point, name, f"{name} {version}".strip())


def _get_distribution(point: metadata.EntryPoint) -> tuple[str, str]:
    """Return name and version of the package of an entry point; empty without one."""
    return (point.dist.name, point.dist.version) if point.dist else ("", "")


class PluginSource:
    """A plugin that is imported when it is needed.

    Args:
        name: Name of its entry point.
        load: Function that returns the module or object with the hooks.
        distribution: The installed package that contains it; empty for an object passed in code.
        version: Version of the distribution.
        module: Name of its module.

    Attributes:
        level: Level of the hooks that it needs: ``seqdata.hookspecs.SEQDATA_API``.
        level_name: The level in its metadata; None: no level, which means level 1.
        plugin: The module or object once it is registered, else None.
        fault: Error because of which the plugin cannot be used; None: no error so far.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], object],
        *,
        distribution: str = "",
        version: str = "",
        module: str = "",
    ) -> None:
        self.name = name
        self.distribution = distribution
        self.version = version
        self.module = module
        self.level = 1
        self.level_name: str | None = None
        self.is_disabled = False
        self.plugin: object | None = None
        self.fault: Exception | None = None
        self._import = load
        self._tables: dict[str, Mapping[str, Factory]] = {}
        self._faults: dict[str, Exception] = {}  # kind -> fault of its table
        self._claimed_names: dict[str, list[str]] = {}  # kind -> names of its table, valid or not

    @classmethod
    def from_entry_point(cls, point: metadata.EntryPoint) -> Self:
        """Return the source of an installed plugin, from metadata."""
        name, version = _get_distribution(point)
        source = cls(
            point.name, point.load, distribution=name, version=version, module=point.module
        )
        own = point.dist.entry_points if point.dist else ()
        source.level_name = next((each.name for each in own if each.group == API_GROUP), None)
        return source

    @classmethod
    def from_object(cls, plugin: object) -> Self:
        """Return the source of a module or object that exists already."""
        name = str(getattr(plugin, "__name__", type(plugin).__name__))
        return cls(name, lambda: plugin, module=name)

    @property
    def label(self) -> str:
        """Distribution and version, for messages."""
        if not self.distribution:
            return f"plugin {self.name!r}"
        return f"{self.distribution} {self.version}".rstrip()

    @property
    def first_fault(self) -> Exception | None:
        """The first known fault; None without one."""
        return self.fault or next(iter(self._faults.values()), None)

    @property
    def state(self) -> str:
        """``off`` (not allowed), ``broken``, ``installed`` (not imported) or ``loaded``."""
        if self.is_disabled:
            return "off"
        if self.first_fault:
            return "broken"
        return "installed" if self.plugin is None else "loaded"

    def owns(self, name: str) -> bool:
        """Return whether the entry point has the name ``name``, or the first part of it."""
        base_name = name.removeprefix(".")
        return self.name in (base_name, re.split(r"[-.]", base_name, maxsplit=1)[0])

    def fault_for_kind(self, kind: str) -> Exception | None:
        """Return the error because of which this plugin cannot offer a kind; None without one."""
        return self.fault or self._faults.get(kind)

    def fault_for_name(self, kind: str, name: str) -> Exception | None:
        """Return the error because of which a name of this plugin is not offered; else None."""
        fault = self.fault_for_kind(kind)
        return fault if self.owns(name) or name in self._claimed_names.get(kind, ()) else None

    def load(self, manager: pluggy.PluginManager) -> None:
        """Import and register the plugin once; a failure is stored in ``fault``."""
        if self.is_disabled or self.fault or self.plugin is not None:
            return
        try:
            self.plugin = self._register(manager, self._import())
        except SystemExit as stop:
            self.fault = PluginError(f"ended the process when imported (SystemExit: {stop})")
        except Exception as error:  # not silent: raised when one of its names is needed
            self.fault = error

    def load_table(
        self, manager: pluggy.PluginManager, kind: str, reserved: Collection[str] = ()
    ) -> Mapping[str, Factory]:
        """Return a loaded plugin's offers of a kind; empty, and the fault recorded, if invalid.

        Args:
            manager: Plugin manager with the registered plugin.
            kind: One of ``HOOK_BY_KIND``.
            reserved: Names of the core, which plugins must not offer.
        """
        if self.plugin is None:
            return {}
        if kind not in self._tables:
            self._tables[kind] = {}
            try:
                self._tables[kind] = self._collect_offers(
                    manager, kind, {normalize_name(name) for name in reserved}
                )
            except Exception as error:  # not silent: raised when one of its names is needed
                self._faults[kind] = error
        return self._tables[kind]

    def call(self, manager: pluggy.PluginManager, hook: str, **arguments: object) -> list[Any]:
        """Call a hook of this plugin alone, so that its answer can be attributed to it."""
        excluded = [plugin for plugin in manager.get_plugins() if plugin is not self.plugin]
        answers: list[Any] = manager.subset_hook_caller(hook, excluded)(**arguments)
        return answers

    def make_error(self, fault: Exception) -> PluginError:
        """Return the error that reports a fault to the user."""
        return PluginError.at(
            f"{self.label} (entry point {self.name!r}, module {self.module!r}): "
            f"{format_cause(fault).rstrip('.')}. Repair, update or uninstall it",
            distribution=self.distribution,
            version=self.version,
            module=self.module,
            cause=format_cause(fault),
        )

    def _register(self, manager: pluggy.PluginManager, plugin: object) -> object:
        if manager.is_registered(plugin):
            raise PluginError(f"is the same object as {manager.get_name(plugin)!r}; remove one")
        registered_name = f"{self.name} of {self.label}" if self.distribution else self.name
        while manager.has_plugin(registered_name):  # two objects of one class
            registered_name += " again"
        try:
            manager.register(plugin, name=registered_name)
            manager.check_pending()
        except pluggy.PluginValidationError as error:
            manager.unregister(name=registered_name)
            raise PluginError(_format_validation_error(error)) from error
        if not manager.get_hookcallers(plugin):
            manager.unregister(name=registered_name)
            raise PluginError(
                "must have a function marked with `seqdata.hookimpl`, but has none. Mark its hooks."
            )
        return plugin

    def _collect_offers(
        self, manager: pluggy.PluginManager, kind: str, reserved: set[str]
    ) -> Mapping[str, Factory]:
        table: dict[str, Factory] = {}
        for offered in self.call(manager, HOOK_BY_KIND[kind]):
            if not isinstance(offered, Mapping):
                raise PluginError(
                    f"`{HOOK_BY_KIND[kind]}` must return a mapping of names to callables, but "
                    f"returned {offered!r}. Return a dict"
                )
            self._claimed_names[kind] = [str(name) for name in offered]
            if isinstance(offered, LazyFactories):
                return offered
            for name, factory in offered.items():
                _check_offer(kind, name, factory, reserved)
            table.update(offered)
        return table


class LazyFactories(Mapping[str, Factory]):
    """The factories of the core by name, each imported when it is looked up.

    Args:
        paths: Name -> ``module:attribute``.
    """

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = paths

    def __getitem__(self, name: str) -> Factory:
        factory: Factory = pkgutil.resolve_name(self._paths[name])
        return factory

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, name: object) -> bool:
        return name in self._paths  # that of Mapping would import it


def find_offers(module: str) -> dict[str, list[str]]:
    """Return the names that a module offers, from its source, without importing it.

    Args:
        module: Path of the module with the hooks.

    Returns:
        Kind -> names; an empty list if a hook does not return a dict display with constant keys.
            An empty dict if the source cannot be read.
    """
    hooks = {hook: kind for kind, hook in HOOK_BY_KIND.items()}
    try:
        tree = ast.parse(_find_file(module).read_text("utf-8"))
    except (ImportError, ValueError, OSError, SyntaxError):  # `--check` says what is wrong
        return {}
    found: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in hooks:
            names = found.setdefault(hooks[node.name], [])
            tables = [each.value for each in ast.walk(node) if isinstance(each, ast.Return)]
            keys = [key for each in tables if isinstance(each, ast.Dict) for key in each.keys]
            names += [str(key.value) for key in keys if isinstance(key, ast.Constant)]
    return found


def _find_file(module: str) -> Path:
    """Return the file of a module; only a package's own folder is looked up, none is imported."""
    package, *parts = module.split(".")
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"there is no file of {module!r}")
    if not spec.submodule_search_locations:
        return Path(spec.origin)
    path = Path(spec.submodule_search_locations[0], *parts)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def normalize_name(name: str) -> str:
    """Return a name with all separators as hyphens, so that similar names are equal."""
    head = "." if name.startswith(".") else ""
    return head + name.removeprefix(".").replace("_", "-").replace(".", "-")


def format_cause(fault: Exception) -> str:
    """Return the text of a fault for a message about its plugin."""
    return str(fault) if isinstance(fault, PluginError) else f"{type(fault).__name__}: {fault}"


def _check_offer(kind: str, name: object, factory: object, reserved: set[str]) -> None:
    text = name if isinstance(name, str) else ""
    if not NAME_PATTERN.fullmatch(text.removeprefix(".") if kind == "reader" else text):
        raise PluginError(
            f"offers {kind} {name!r}, but names must match {NAME_PATTERN.pattern}. Rename it."
        )
    if normalize_name(text) in reserved:
        raise PluginError(f"offers {kind} {name!r}, a name of seqdata's own; rename it")
    is_format = kind == "backend" and hasattr(factory, "index") and hasattr(factory, "suffixes")
    if not callable(factory) and not is_format:
        raise PluginError(
            f"offers {kind} {name!r} as {factory!r}, which is not callable. Offer a function"
        )


def _format_validation_error(error: pluggy.PluginValidationError) -> str:
    """Return pluggy's finding in one line, with the most similar hook."""
    text = "; ".join(str(error).splitlines())
    unknown = re.match(r"unknown hook '(\w+)'", text)
    if not unknown:
        return text
    hooks = [*HOOK_BY_KIND.values(), "seqdata_plan_ready"]
    hint = did_you_mean(unknown[1], hooks) or f"the hooks are {', '.join(hooks)}"
    return f"implements {unknown[1]!r}, which is not a hook of seqdata; {hint}"
