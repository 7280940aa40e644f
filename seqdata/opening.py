"""From what a user names to objects: locations to stores, names to policies and collators.

The one place that composes a plugin host for a process, when a name is first needed; every function
takes another host as an argument. Place in the flow: the first step of every run. Reads: locations
and names. Makes: stores, policies, collators.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from seqdata.errors import ConfigError, PluginError
from seqdata.host import PluginHost
from seqdata.protocols import Collator, Opener, Policy, Store, Writing
from seqdata.storage.dataset import DatasetStore
from seqdata.storage.foreign.files import SUFFIXES, is_foreign
from seqdata.storage.location import local_path
from seqdata.storage.manifest import MANIFEST
from seqdata.storage.memory import MemoryStore
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.urls import is_remote, shown
from seqdata.storage.tables import is_frame
from seqdata.storage.writing.writer import SHARD_BYTES, write_arrow

if TYPE_CHECKING:
    from concurrent.futures import Executor

Location = str | os.PathLike[str]
CollatorLike = Collator | Callable[[list[dict[str, Any]]], Any]
"""A collator, or a torch ``collate_fn``."""

_FORMS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "webdataset",
        re.compile(r"\.(tar(\.\w+)?|tgz)$|\{[^{}]*(,|\.\.)[^{}]*\}"),
    ),  # x-{000..017}.tar
    ("foreign", re.compile("|".join(rf"{re.escape(suffix)}$" for suffix in SUFFIXES))),
    ("arrow", re.compile("")),  # folders, and whatever the backend will say of it
)
"""Which backend a location's form means: fixed, so that no plugin can take a location over.

A folder without a manifest is ``foreign`` or ``webdataset`` where it holds files of those endings.
"""

_PACKAGES = {"webdataset": "seqdata-webdataset"}
_TORCH_DATASET = "torch.utils.data.dataset"
POLICY_MEMBERS = ("axis", "num_batches", "plan")
STORE_MEMBERS = ("base_numbers", "fields", "fingerprint", "keys", "lengths", "lengths_of", "read")


@functools.cache
def default_host() -> PluginHost:
    """Give the host of this process; made at the first call, over the installed plugins."""
    return PluginHost.discover()


def open_store(
    location: Location,
    *,
    backend: str | Opener | None = None,
    verify: str | None = None,
    schema: Mapping[str, Any] | None = None,
    index: str | None = None,
    remote: str | Remote | None = None,
    host: PluginHost | None = None,
) -> Store:
    """Open what was written, reading no data yet.

    Args:
        location: A folder that ``write_store`` wrote; an Arrow, Feather or Parquet file that others
            wrote, or a folder of them; or another form that a backend knows. A path or a URL.
        backend: Name of a backend, or its opener; None: chosen by the location's form.
        verify: When checksums of the data are looked at: ``"first_read"``: once in a run, shared
            by its worker processes; ``"always"``: at each read; ``"off"``: never. None is
            ``first_read`` where the store has checksums. Sizes, footers and the manifest are
            checked in any case.
        schema: What fields hold, for backends that must be told; of tar shards: extension -> type.
        index: ``"build"``: make the index that a backend reads by, where there is none.
        remote: How a URL is read: ``"cache"`` (None): shards as a whole, kept on this machine;
            ``"ranges"``: only the bytes that a batch needs; or a ``Remote`` with more to say.
        host: Where names are looked up; None: the installed plugins.

    Raises:
        ConfigError: If nothing lies there, or an argument cannot be meant.
        PluginError: If the backend is not installed or broken.
        DataError: If what lies there is not whole.
    """
    if not isinstance(location, str | os.PathLike):
        raise ConfigError(
            f"open_store: location is a {type(location).__name__}, must be a path; pass stores and "
            "lists of arrays to Loader or SequenceDataModule as they are"
        )
    host = host or default_host()
    name = form_of(location) if backend is None else backend
    opener = _backend(name, location, host) if isinstance(name, str) else name
    given = {"schema": schema, "index": index, "remote": remote}
    store = opener(location, verify=verify, **_taken(opener, name, given))
    if missing := _missing(store, STORE_MEMBERS):
        raise PluginError(
            f"backend {name!r}: gave a {type(store).__name__} without {', '.join(missing)}, must "
            "give a Store; tell its author"
        )
    return store


def write_store(
    location: Location,
    sequences: Iterable[Any],
    *,
    format: str = "arrow",
    axes: Mapping[str, str | None] | None = None,
    shard_bytes: int = SHARD_BYTES,
    key: str = "id",
    executor: Executor | None = None,
    resume: bool = True,
    progress: bool | Callable[[int, int], None] | None = None,
    overwrite: bool = False,
    remote: Remote | None = None,
) -> Store:
    """Write sequences, whole or not at all, and open what was written.

    Args:
        location: A folder that is not there yet, is empty, or where a writer stopped; or a URL,
            for which the store is made on this machine first, and sent.
        sequences: Dicts of arrays, numbers, ``str`` or ``bytes``, each field alike in all of them;
            plain arrays, which become the field ``x``; or a pandas, Polars or Arrow table, a row
            per sequence. Read once, in order. Or a list of functions without arguments, *parts*,
            that give such sequences: each runs on the executor and has shards of its own.
        format: ``arrow``, or a backend that writes: ``webdataset``.
        axes: Field -> the axis it runs along; None: a vector per sequence. Arrays that are not
            named run on ``time``.
        shard_bytes: Size at which a new file begins.
        key: The ``str`` field that names a sequence, where there is one.
        executor: Where shards are written; None: threads of our own. Bytes do not depend on it. In
            memory are the open shard and those under way: 1 with our threads, else up to 1 GiB.
        resume: Whether to go on after the whole shards that a writer left; False: remove them.
        progress: Whether to show a bar; None: where standard error is a terminal. Or a function
            that is told (sequences, bytes).
        overwrite: Whether a store that lies there is replaced, once the new one is whole.
        remote: How a URL is reached; None: as the transport is set up.

    Raises:
        ConfigError: If an argument cannot be meant, there is no sequence, or something lies there.
        DataError: If a sequence is not like the first one or not what was written before, or the
            disk is full.
        RemoteReadError: If a URL cannot be reached.
        WorkerDiedError: If the executor broke.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = write_store(f"{folder}/store", [{"x": [1, 2, 3]}, {"x": [4]}])
        ...     store.lengths.tolist()
        [3, 1]
    """
    write = _writer(format)
    return write(
        location, sequences, axes=axes, shard_bytes=shard_bytes, key=key, executor=executor,
        resume=resume, progress=progress, overwrite=overwrite,
        **_taken(write, format, {"remote": remote}),
    )  # fmt: skip


def _writer(format: str) -> Callable[..., Store]:
    """Give what writes a format."""
    if format == "arrow":
        return write_arrow
    backend: object = default_host().find("backend", format)
    if not isinstance(backend, Writing):
        raise ConfigError(
            f"write_store: `format` is {format!r}, must be 'arrow' or an installed backend "
            "that writes; for 'webdataset': pip install seqdata-webdataset"
        )
    return backend.write


def opener_of(location: Location, *, host: PluginHost | None = None) -> Opener:
    """Give the opener of the backend that a location's form means.

    Raises:
        PluginError: If it is not installed or broken.
    """
    return _backend(form_of(location), location, host or default_host())


def _taken(opener: Callable[..., Any], name: object, given: Mapping[str, Any]) -> dict[str, Any]:
    """Give those options that are not None, if the backend takes them.

    Raises:
        ConfigError: If it does not.
    """
    there = {option: value for option, value in given.items() if value is not None}
    takes = inspect.signature(opener).parameters if there else {}
    for option, value in there.items():
        if option not in takes:
            raise ConfigError(
                f"open_store: `{option}` is {value!r}, must be left out: backend {name!r} takes "
                "none; leave it out"
            )
    return there


def store_of(
    data: Any,
    *,
    lengths: Any = None,
    names: Sequence[str] | None = None,
    host: PluginHost | None = None,
) -> Store:
    """Give the store of whatever a user may pass as data.

    Args:
        data: A location, a store, or sequences in memory: a list of arrays (field ``x``) or of
            dicts, or a pandas, Polars or Arrow table, a row per sequence; or, with ``lengths``, a
            map-style Dataset.
        lengths: Timesteps of each item of a Dataset, or a function that gives them.
        names: Of the parts of its items, where they are tuples of as many parts.
        host: Where a backend is looked up.

    Raises:
        ConfigError: If it is none of these, or ``lengths`` do not go with it.
    """
    if is_map_style(data) and (lengths is not None or _needs_lengths(data)):
        if lengths is None:
            raise ConfigError(
                f"dataset: a {type(data).__name__} has no lengths to plan with; pass `lengths`: an "
                "array with the timesteps of each item, or a function that gives those of an item"
            )
        return DatasetStore.of(data, lengths, names=_names_of_parts(data, names))
    if lengths is not None:
        raise ConfigError(
            f"dataset: `lengths` are given for a {type(data).__name__}, must go with a Dataset "
            "only; leave them out: they are known"
        )
    if isinstance(data, str | os.PathLike):
        return open_store(data, host=host)
    if not _missing(data, STORE_MEMBERS):
        return cast(Store, data)
    return MemoryStore.of(data)


def is_map_style(data: Any) -> bool:
    """Tell whether data has a length and items by number, and is nothing that we know better."""
    if _missing(data, ("__getitem__", "__len__")) or not _missing(data, STORE_MEMBERS):
        return False
    return not (isinstance(data, bytes | Mapping | np.ndarray | Sequence) or is_frame(data))


def _needs_lengths(data: Any) -> bool:
    """Tell whether map-style data cannot be taken into memory: torch's, or not to be iterated."""
    torch_like = any(one.__module__ == _TORCH_DATASET for one in type(data).__mro__)
    return torch_like or not isinstance(data, Iterable)


def _names_of_parts(data: Any, names: Sequence[str] | None) -> Sequence[str] | None:
    first = data[0] if names is not None and len(data) else None
    return names if isinstance(first, tuple) and len(first) == len(names or ()) else None


def resolve_policy(
    policy: str | Policy,
    options: Mapping[str, Any] | None = None,
    *,
    host: PluginHost | None = None,
) -> Policy:
    """Give a policy by its name, or the one that is passed.

    Args:
        policy: A policy, or the name of one.
        options: Keyword arguments of a policy that is named.
        host: Where names are looked up.

    Raises:
        ConfigError: If an argument is missing or unknown, or this is no policy.
        PluginError: If the name is unknown, or what its plugin makes is no policy.
    """
    if isinstance(policy, str):
        factory = (host or default_host()).policy(policy)
        made = _make("policy", policy, factory, options or {})
        if missing := _missing(made, POLICY_MEMBERS):
            raise PluginError(
                f"policy {policy!r}: its factory gave a {type(made).__name__} without "
                f"{', '.join(missing)}, must give a Policy; tell its author"
            )
        return cast(Policy, made)
    if options:
        raise ConfigError(
            f"policy {policy!r}: options {dict(options)!r} go with a name only; give them to the "
            "policy itself"
        )
    if isinstance(policy, type) or _missing(policy, POLICY_MEMBERS):
        raise ConfigError(
            f"`batching` is {policy!r}, must be a policy or the name of one; e.g. Bucketed(64)"
        )
    return policy


def resolve_collator(collator: str | CollatorLike, *, host: PluginHost | None = None) -> Collator:
    """Give a collator by its name, or the one that is passed.

    A function of one argument is a ``collate_fn`` as torch knows them: it gets a list of samples.

    Raises:
        ConfigError: If this is no collator.
        PluginError: If the name is unknown, or what its plugin makes is no collator.
    """
    if isinstance(collator, str):
        made = _make("collator", collator, (host or default_host()).collator(collator), {})
        if not callable(made):
            raise PluginError(
                f"collator {collator!r}: its factory gave a {type(made).__name__}, must give a "
                "callable; tell its author"
            )
        return cast(Collator, made)
    if isinstance(collator, type) or not callable(collator):
        raise ConfigError(
            f"`collator` is {collator!r}, must be a collator or the name of one; e.g. 'padded'"
        )
    if not _takes_one(collator):
        return cast(Collator, collator)
    from seqdata.collators.samples import Samples  # torch is imported only where it is needed

    return Samples(cast(Callable[..., Any], collator))


def _takes_one(function: Callable[..., Any]) -> bool:
    """Tell whether a function must be given exactly one argument."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # written in C, without a signature
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    due = [one for one in parameters if one.kind in places and one.default is one.empty]
    many = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
    return len(due) == 1 and not many


def form_of(location: Location) -> str:
    """Give the name of the backend that a location's form means."""
    text = shown(os.fspath(location)) if is_remote(location) else os.fspath(location)
    name = next(name for name, form in _FORMS if form.search(text))
    if name in ("arrow", "foreign") and "://" not in text.removeprefix("file://"):
        path = local_path(text)
        return "foreign" if is_foreign(path) else "webdataset" if _holds_tar(path) else "arrow"
    return name


def _holds_tar(path: Path) -> bool:
    """Tell whether a path is a folder of tar files that is no store of ours."""
    if not path.is_dir() or (path / MANIFEST).exists():
        return False
    return any(one.name.endswith(".tar") for one in path.iterdir())


def _backend(name: str, location: Location, host: PluginHost) -> Opener:
    package = _PACKAGES.get(name)
    if package is not None and host.find("backend", name) is None:
        raise PluginError.at(
            f"open_store: {os.fspath(location)!r} needs the backend {name!r}, which is not "
            f"installed; pip install {package}",
            package=package,
        )
    return host.backend(name)


def _make(kind: str, name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    takes = inspect.signature(factory)
    try:
        takes.bind(**options)
    except TypeError as error:
        raise ConfigError(
            f"{kind} {name!r}: {error}, must have what it needs and no more; it takes "
            f"{', '.join(takes.parameters) or 'nothing'}"
        ) from error
    return factory(**options)


def _missing(thing: object, members: Iterable[str]) -> list[str]:
    have = set(dir(thing))  # not hasattr: it would compute properties
    return [member for member in members if member not in have]
