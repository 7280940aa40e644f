"""Plugin host: finds the factory that a plugin registered under a name.

A host finds installed plugins by their metadata and imports one only when a name needs it; a broken
plugin breaks only its own names. The core's own components come through the same hooks, from
``seqdata.builtin``, an entry point that is known in advance.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any, Self

import pluggy

from seqdata import hookspecs
from seqdata.errors import PluginError, did_you_mean
from seqdata.hookspecs import SEQDATA_API
from seqdata.plugin_source import (
    API_GROUP,
    HOOK_BY_KIND,
    CommandClaim,
    Factory,
    PluginSource,
    SuffixClaim,
    find_offers,
    format_cause,
    normalize_name,
)

if TYPE_CHECKING:
    from seqdata.plan import Plan
    from seqdata.protocols import CollatorFactory, Opener, PolicyFactory, Reader

ENTRY_POINT_GROUP = "seqdata"
SUFFIX_GROUP = "seqdata.suffixes"
TABLE_GROUP = "seqdata.tables"
COMMANDS = "seqdata.commands"
CLASSES = "seqdata.classes"
"""Entry points of classes that have a short name: transforms, models, DataModules."""
CORE_DISTRIBUTION = "lightning-seqdata"
_CORE = metadata.EntryPoint(name="core", value="seqdata.builtin", group=ENTRY_POINT_GROUP)
_logger = logging.getLogger("seqdata.plugins")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """Information about a plugin, from its metadata only until it is needed.

    Attributes:
        name: Name of its entry point.
        distribution: The installed package that contains it; empty for an object passed in code.
        version: Version of the distribution.
        module: Name of its module.
        state: ``built in``, ``installed`` (not imported), ``loaded``, ``off`` (excluded by
            ``SEQDATA_PLUGINS``) or ``broken``.
        cause: Error of a broken plugin.
        api: Level of the hooks that it needs (``SEQDATA_API``).
        offers: Kind (``backend``, ``policy``, ``collator``, ``reader``) -> names that its source
            code lists; empty for an object passed in code.
    """

    name: str
    distribution: str
    version: str
    module: str
    state: str
    cause: str = ""
    api: int = SEQDATA_API
    offers: Mapping[str, list[str]] = field(default_factory=dict)


class PluginHost:
    """Host that finds the components of plugins by kind and name.

    Args:
        plugins: Modules or objects with functions marked by ``seqdata.hookimpl``, in addition to
            the core's own; for tests and for code that has its own plugin.
        trace: Whether to log every hook call to the logger ``seqdata.plugins``.

    Examples:
        >>> PluginHost().policy("fixed")(batch_size=2).batch_size
        2
    """

    def __init__(self, plugins: Iterable[object] = (), *, trace: bool = False) -> None:
        self._manager = pluggy.PluginManager(ENTRY_POINT_GROUP)
        self._manager.add_hookspecs(hookspecs)
        self._lock = threading.RLock()
        self._core = PluginSource.from_entry_point(_CORE)
        self._explicit_sources = [PluginSource.from_object(plugin) for plugin in plugins]
        self._installed: list[PluginSource] = []
        self._pending_environ: Mapping[str, str] | None = None  # until metadata is read, slowly
        self._allowed_names: frozenset[str] = frozenset()
        self._is_discovering = False
        self._claims: tuple[SuffixClaim, ...] | None = None  # read from metadata when needed
        self._table_claims: tuple[SuffixClaim, ...] | None = None
        if trace:
            self._manager.add_hookcall_monitoring(_log_call, _log_outcome)

    @classmethod
    def discover(cls, *, environ: Mapping[str, str] = os.environ) -> Self:
        """Return a host of all installed plugins, found by their metadata without importing them.

        Args:
            environ: ``SEQDATA_PLUGINS=a,b`` excludes all but these entry points or distributions;
                ``SEQDATA_TRACE_PLUGINS=1`` logs every hook call.
        """
        host = cls(trace=environ.get("SEQDATA_TRACE_PLUGINS", "") not in ("", "0"))
        host._pending_environ = dict(environ)
        host._is_discovering = True
        return host

    def backend(self, name: str) -> Opener:
        """Return the opener of a storage backend.

        Raises:
            PluginError: If none or several plugins offer the name, or the plugin is broken.
        """
        opener: Opener = self._require("backend", name)
        return opener

    def policy(self, name: str) -> PolicyFactory:
        """Return the factory of a policy; errors are those of ``backend``."""
        factory: PolicyFactory = self._require("policy", name)
        return factory

    def collator(self, name: str) -> CollatorFactory:
        """Return the factory of a collator; errors are those of ``backend``."""
        factory: CollatorFactory = self._require("collator", name)
        return factory

    def reader(self, name: str) -> Reader:
        """Return the reader of an input format or suffix; errors are those of ``backend``."""
        reader: Reader = self._require("reader", name)
        return reader

    def claims(self) -> tuple[SuffixClaim, ...]:
        """Return the suffixes that installed packages claim for backends, without importing them.

        They come from the entry-point group ``seqdata.suffixes``: ``".h5" = "hdf5"``. Packages that
        ``SEQDATA_PLUGINS`` excludes claim nothing.
        """
        with self._lock:
            if self._claims is None:
                self._claims = self._read_claims(SUFFIX_GROUP)
            return self._claims

    def table_claims(self) -> tuple[SuffixClaim, ...]:
        """Return the kinds of tables with a row per timestep that packages claim for backends.

        They come from the entry-point group ``seqdata.tables``: ``parquet = "frames"``. Kinds are
        ``parquet``, ``arrow`` and ``stream``: what has ``__arrow_c_stream__``.
        """
        with self._lock:
            if self._table_claims is None:
                self._table_claims = self._read_claims(TABLE_GROUP)
            return self._table_claims

    def _read_claims(self, group: str) -> tuple[SuffixClaim, ...]:
        points = metadata.entry_points(group=group) if self._is_discovering else ()
        unique_claims = dict.fromkeys(map(SuffixClaim.from_entry_point, points))
        disabled = {source.distribution for source in self._plugin_sources() if source.is_disabled}
        return tuple(claim for claim in unique_claims if claim.distribution not in disabled)

    def commands(self) -> tuple[CommandClaim, ...]:
        """Return the commands that installed packages add, without importing them.

        They come from the entry-point group ``seqdata.commands``: ``hdf5 =
        "seqdata_hdf5:command"``.
        """
        with self._lock:
            points = metadata.entry_points(group=COMMANDS) if self._is_discovering else ()
            off = {source.distribution for source in self._plugin_sources() if source.is_disabled}
            found = dict.fromkeys(map(CommandClaim.from_entry_point, points))
            return tuple(claim for claim in found if claim.distribution not in off)

    def backend_of_suffix(self, name: str) -> str | None:
        """Return the backend for which a package claims the longest suffix of a file name, if any.

        Args:
            name: Name or path of a file.

        Raises:
            PluginError: If several packages claim the suffix.
        """
        lowered = name.lower()
        matches = [claim for claim in self.claims() if lowered.endswith(claim.suffix)]
        longest = max((len(claim.suffix) for claim in matches), default=0)
        matches = [claim for claim in matches if len(claim.suffix) == longest]
        if len(matches) > 1:
            claimants = " and ".join(
                f"{claim.label} (backend {claim.backend!r})" for claim in matches
            )
            alternatives = " or ".join(
                dict.fromkeys(f"backend={claim.backend!r}" for claim in matches)
            )
            raise PluginError.at(
                f"open_store: {name!r}: the suffix {matches[0].suffix!r} is claimed by "
                f"{claimants}. Pass {alternatives}, or uninstall one of them.",
                suffix=matches[0].suffix,
            )
        return matches[0].backend if matches else None

    def backend_of_tables(self, kind: str) -> str | None:
        """Return the backend that a package offers for tables with a row per timestep, if any.

        Args:
            kind: ``parquet``, ``arrow`` or ``stream``.

        Raises:
            PluginError: If several packages offer one.
        """
        names = [claim for claim in self.table_claims() if claim.suffix == kind]
        if len(names) > 1:
            claimants = " and ".join(f"{each.label} (backend {each.backend!r})" for each in names)
            raise PluginError.at(
                f"open_store: tables of kind {kind!r} are claimed by {claimants}. Pass `backend`, "
                "or uninstall one of them.",
                suffix=kind,
            )
        return names[0].backend if names else None

    def find(self, kind: str, name: str, *, everywhere: bool = True) -> Factory | None:
        """Return the factory of a kind under a name; None if nothing offers one.

        The core is searched first, then plugins passed in code and the entry points named like the
        name or its part before the first ``-`` or ``.``, then all others.

        Args:
            kind: ``backend``, ``policy``, ``collator`` or ``reader``.
            name: The name.
            everywhere: Whether all others are searched; False for names that come from data.

        Raises:
            PluginError: If several plugins offer the name, or the plugin is broken.
        """
        with self._lock:
            core_table = self._core_table(kind)
            if name in core_table:
                return core_table[name]
            for source in self._plugin_sources():
                if source in self._explicit_sources or source.owns(name):
                    source.load(self._manager)
            if everywhere and not self._sources_offering(kind, name):
                for source in self._plugin_sources():
                    source.load(self._manager)
            return self._select_offer(kind, name)

    def names(self, kind: str) -> list[str]:
        """Return the names of a kind that the core and all imported plugins offer, sorted."""
        with self._lock:
            core_table = self._core_table(kind)
            tables = [
                source.load_table(self._manager, kind, core_table)
                for source in self._plugin_sources()
            ]
            return sorted({name for table in (core_table, *tables) for name in table})

    def plan_ready(self, plan: Plan) -> None:
        """Pass a plan to the observers among the plugins in use, last registered first.

        Plugins are in use if a name needed them, they were passed in code, or ``SEQDATA_PLUGINS``
        names them.

        Raises:
            PluginError: If an observer fails.
        """
        if self._pending_environ is not None and "SEQDATA_PLUGINS" not in self._pending_environ:
            return  # no plugin is in use yet
        with self._lock:
            for source in self._plugin_sources():
                if source in self._explicit_sources or not self._allowed_names.isdisjoint(
                    _source_names(source)
                ):
                    source.load(self._manager)
            order = self._manager.hook.seqdata_plan_ready.get_hookimpls()
        for implementation in reversed(order):
            source = next(s for s in self._plugin_sources() if s.plugin is implementation.plugin)
            try:
                source.call(self._manager, "seqdata_plan_ready", plan=plan)
            except Exception as error:
                raise source.make_error(error) from error

    def listing(self) -> list[PluginInfo]:
        """Return information about the core and every plugin, without importing any."""
        core = PluginInfo(
            name=_CORE.name,
            distribution=CORE_DISTRIBUTION,
            version=core_version(),
            module=_CORE.module,
            state="built in",
        )
        return [core, *(_make_info(source) for source in self._plugin_sources())]

    def check(self) -> list[PluginInfo]:
        """Import all plugins with their components, and return the listing with their faults."""
        with self._lock:
            for source in self._plugin_sources():
                source.load(self._manager)
            for kind in HOOK_BY_KIND:
                self.names(kind)
        return self.listing()

    def _register_sources(
        self, points: Iterable[metadata.EntryPoint], only_plugins: str | None
    ) -> None:
        self._installed = [PluginSource.from_entry_point(point) for point in points]
        if only_plugins is not None:
            self._allowed_names = frozenset(name.strip() for name in only_plugins.split(","))
            for source in self._installed:
                source.is_disabled = self._allowed_names.isdisjoint(_source_names(source))
        allowed = [source for source in self._installed if not source.is_disabled]
        for source in allowed:
            labels = [candidate.label for candidate in allowed if candidate.name == source.name]
            if len(labels) > 1:
                source.fault = PluginError(
                    f"entry point {source.name!r} is offered by {' and '.join(labels)}. "
                    "Uninstall all but one, or choose with SEQDATA_PLUGINS."
                )
        for source in self._installed:
            if source.level_name is not None:
                _set_level(source, source.level_name)

    def _plugin_sources(self) -> list[PluginSource]:
        with self._lock:
            environ, self._pending_environ = self._pending_environ, None
            if environ is not None:
                self._register_sources(
                    metadata.entry_points(group=ENTRY_POINT_GROUP), environ.get("SEQDATA_PLUGINS")
                )
        return [*self._explicit_sources, *self._installed]

    def _core_table(self, kind: str) -> Mapping[str, Factory]:
        self._core.load(self._manager)
        core_table = self._core.load_table(self._manager, kind)
        fault = self._core.fault_for_kind(kind)
        if fault is not None:
            raise self._core.make_error(fault) from fault
        return core_table

    def _sources_offering(self, kind: str, name: str) -> list[PluginSource]:
        core_table = self._core_table(kind)
        return [
            source
            for source in self._plugin_sources()
            if normalize_name(name)
            in {
                normalize_name(offered_name)
                for offered_name in source.load_table(self._manager, kind, core_table)
            }
        ]

    def _select_offer(self, kind: str, name: str) -> Factory | None:
        offers = self._sources_offering(kind, name)
        if len(offers) > 1:
            modules = " and ".join(f"{s.label} (module {s.module!r})" for s in offers)
            raise PluginError.at(
                f"{kind} {name!r} is offered by {modules}, but must be offered by one: "
                "uninstall the others, or choose with SEQDATA_PLUGINS",
                kind=kind,
                name=name,
            )
        if offers:
            return offers[0].load_table(self._manager, kind).get(name)
        for source in self._plugin_sources():
            fault = source.fault_for_name(kind, name)
            if fault is not None:
                raise source.make_error(fault) from fault
        return None

    def _require(self, kind: str, name: str) -> Factory:
        factory = self.find(kind, name)
        if factory is None:
            raise PluginError.at(self._format_unknown(kind, name), kind=kind, name=name)
        return factory

    def _format_unknown(self, kind: str, name: str) -> str:
        names = self.names(kind)
        hint = did_you_mean(name, names) or "choose one that is installed."
        sentences = [f"unknown {kind} {name!r}; {hint} Installed: {', '.join(names)}."]
        failed = [
            f"{s.label} ({format_cause(f)})" for s in self._plugin_sources() if (f := s.first_fault)
        ]
        if failed:
            count_text = "One plugin" if len(failed) == 1 else f"{len(failed)} plugins"
            sentences.append(f"{count_text} failed to load: {', '.join(failed)}.")
        disabled = [source.label for source in self._installed if source.is_disabled]
        if disabled:
            sentences.append(f"SEQDATA_PLUGINS excludes: {', '.join(disabled)}.")
        return " ".join(sentences)


@functools.cache
def default_host() -> PluginHost:
    """Return the host of this process, over the installed plugins."""
    return PluginHost.discover()


def core_version() -> str:
    """Return the version of the installed core; ``0+unknown`` if it is not installed."""
    try:
        return metadata.version(CORE_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "0+unknown"


def _set_level(source: PluginSource, text: str) -> None:
    """Record the level of the hooks that a plugin needs; a level above ours is a fault."""
    source.level = int(text) if text.isdecimal() else 0
    if source.level < 1:
        source.fault = PluginError(
            f"the name of its entry point in group `{API_GROUP}` must be a level of the hooks, an "
            f"integer of at least 1, but is {text!r}. Correct its metadata"
        )
    elif source.level > SEQDATA_API:
        source.fault = PluginError(
            f"needs level {source.level} of the hooks (`SEQDATA_API`), but seqdata "
            f"{core_version()} has {SEQDATA_API}. Update lightning-seqdata"
        )


def _source_names(source: PluginSource) -> tuple[str, str]:
    return source.name, source.distribution


def _make_info(source: PluginSource) -> PluginInfo:
    return PluginInfo(
        name=source.name,
        distribution=source.distribution,
        version=source.version,
        module=source.module,
        state=source.state,
        cause=format_cause(source.first_fault) if source.first_fault else "",
        api=source.level,
        offers=find_offers(source.module) if source.distribution else {},
    )


def _log_call(hook: str, implementations: Iterable[Any], arguments: Mapping[str, object]) -> None:
    # A warning, because it was asked for and must be visible without any logging configuration.
    names = ", ".join(implementation.plugin_name for implementation in implementations)
    _logger.warning("%s(%s) of %s", hook, ", ".join(arguments), names)


def _log_outcome(outcome: Any, hook: str, _implementations: object, _arguments: object) -> None:
    if outcome.exception is None:
        _logger.warning("%s returned %r", hook, outcome.get_result())
    else:
        _logger.warning("%s raised %r", hook, outcome.exception)
