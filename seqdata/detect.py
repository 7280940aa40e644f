"""Detection of the backend of a location, by its suffix or the files of a folder."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqdata.errors import (
    ConfigError,
    MissingShardError,
    PluginError,
    RemoteReadError,
    must_be,
)
from seqdata.host import PluginHost, default_host
from seqdata.protocols import Opener
from seqdata.readers.binary import LIBRARY_BY_SUFFIX
from seqdata.readers.source import find_suffix
from seqdata.storage.arrow.manifest import MANIFEST, STORE_FILES
from seqdata.storage.arrow.open_remote import file_exists
from seqdata.storage.braces import expand_location, split_location
from seqdata.storage.find_files import is_folder, iter_names, list_entries, names_several
from seqdata.storage.foreign.file_discovery import SUFFIXES, has_table_suffix, is_data_file
from seqdata.storage.indexed.file_format import FileFormat
from seqdata.storage.indexed.opening import FormatBackend
from seqdata.storage.local_files import is_remote, local_path
from seqdata.storage.remote.options import Remote, resolve_remote
from seqdata.storage.remote.transport import make_remote_files
from seqdata.storage.remote.urls import redact_url
from seqdata.storage.writing.staging_dir import find_staging_dirs

LocationLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class PackagedForm:
    """A form of files that one package opens; its suffix cannot be claimed by another.

    Attributes:
        backend: The name of the backend and of its reader.
        package: The package to install.
        suffix: The suffix of shards, by which a folder of them is found.
        pattern: The pattern of names, compressed shards included.
    """

    backend: str
    package: str
    suffix: str
    pattern: re.Pattern[str]

    def has_name(self, name: str) -> bool:
        """Return whether a file is a shard of this form, by its name."""
        return name.lower().endswith(self.suffix)


TAR = PackagedForm(
    backend="webdataset", package="seqdata-webdataset", suffix=".tar",
    pattern=re.compile(r"\.(tar(\.\w+)?|tgz)$", re.I),
)  # fmt: skip
"""Tar shards: also what braces and folders of no other form mean. The only plugin named here."""
_MOST_NAMES = 100_000  # most names of a folder that are examined

_OPTION = re.compile(r"([^,=]+)=((?:\[[^\]]*\]|[^,\[])*)(?:,|$)")  # fields=[a,b]
_BRACES = re.compile(r"\{[^{}]*(,|\.\.)[^{}]*\}")  # x-{000..017}.tar

_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (TAR.backend, TAR.pattern),
    ("foreign", re.compile("|".join(rf"{re.escape(suffix)}$" for suffix in SUFFIXES), re.I)),
    ("arrow", re.compile("")),  # folders, and everything else: the backend raises its error
)
"""The backend of each kind of location: fixed, so that no plugin can replace it.

Other files are opened by the plugin that claims their suffix (``seqdata.suffixes``).

The backend of a folder without a manifest is that of its files: see ``_of_folder``.
"""


def find_opener(
    location: LocationLike, *, backend: str | None = None, host: PluginHost | None = None
) -> Opener:
    """Return the opener of a backend.

    Args:
        location: The location.
        backend: Name of the backend; None: found from the location.
        host: The plugin host that finds names; None: the installed plugins.

    Raises:
        ConfigError: If the location is an invalid URL.
        PluginError: If the backend is not installed or broken, or several claim the location.
        RemoteReadError: If a URL must be listed to find the backend, and cannot be read.
    """
    host = host or default_host()
    return find_backend(backend or detect_backend_at(location, host=host), location, host)


def detect_backend(location: LocationLike, host: PluginHost | None = None) -> str:
    """Return the name of a location's backend, from its suffix or content.

    Args:
        location: A path or a URL.
        host: The plugin host that finds suffixes; None: the installed plugins.

    Raises:
        PluginError: If several plugins claim the suffix, or the files of a folder.
    """
    if "://" in os.fspath(location).removeprefix("file://"):  # also as one of several parts
        text = redact_url(os.fspath(location))
        name = _find_core_backend(text, patterns=True)
        if name == TAR.backend and not TAR.pattern.search(text):  # braces of any files
            return _find_plugin_backend(text, host) or name
        return _find_plugin_backend(text, host) or name if name == "arrow" else name
    text = os.fspath(location)
    path = local_path(text)
    if path.is_dir():
        return _of_folder(path, host)
    if not path.exists() and names_several(text):
        name = _find_core_backend(text)
        if name != "arrow":
            return name
        found = _find_plugin_backend(text, host) or _of_matches(text, host)
        return found or _find_core_backend(text, patterns=True)
    name = _find_core_backend(text)
    return _find_plugin_backend(text, host) or name if name == "arrow" else name


def _find_core_backend(text: str, *, patterns: bool = False) -> str:
    """Return the core's backend for a name; ``arrow`` for unknown suffixes.

    Args:
        text: The name.
        patterns: Whether braces in it stand for several files, by default tar shards.
    """
    if patterns and _BRACES.search(text) and not has_table_suffix(text):
        return TAR.backend
    return next(name for name, form in _PATTERNS if form.search(text))


def is_core_form(name: str) -> bool:
    """Return whether the core opens files of a name, so that no package can claim its suffix."""
    return _find_core_backend(name, patterns=True) != "arrow"


def detect_backend_at(
    location: LocationLike, remote: str | Remote | None = None, host: PluginHost | None = None
) -> str:
    """Return the name of the backend of a location, listing the URL of a folder if needed.

    Raises:
        ConfigError: If the URL is invalid.
        PluginError: If several plugins claim the suffix, or the files of a folder.
        RemoteReadError: If the URL cannot be read.
    """
    name = detect_backend(location, host)
    if name != "arrow" or not is_remote(location):
        return name
    files = make_remote_files(os.fspath(location), resolve_remote(remote))
    if file_exists(files, MANIFEST):
        return name
    try:
        names = files.names()
    except MissingShardError:  # the backend raises
        return name
    except RemoteReadError as error:
        if error.details.get("transient"):
            raise
        return name  # a server that lists nothing
    if any(map(TAR.has_name, names)):
        return TAR.backend
    return _of_names(redact_url(os.fspath(location)), [*names, *files.folders()], host) or name


def holds_store(url: LocationLike, remote: str | Remote | None = None) -> bool:
    """Return whether the folder at a URL is one that ``write_store`` wrote.

    Raises:
        ConfigError: If the URL is invalid.
        RemoteReadError: If the URL cannot be read.
    """
    if names_several(redact_url(os.fspath(url))):
        return False
    return file_exists(make_remote_files(os.fspath(url), resolve_remote(remote)), MANIFEST)


def refuse_binary_file(location: LocationLike) -> None:
    """Raise if a location is a file of a known format that no installed backend opens.

    Raises:
        ConfigError: If it is such a file.
    """
    ending = os.path.splitext(os.fspath(location))[1].lower()
    if ending not in LIBRARY_BY_SUFFIX or find_suffix(location) != ending:
        return
    if is_remote(location) or not local_path(location).is_file():
        return
    raise ConfigError(
        f"open_store: no installed backend opens {os.fspath(location)!r} by its suffix "
        f"{ending!r}. Read it with {LIBRARY_BY_SUFFIX[ending]} and pass the arrays to "
        "`write_store`, or install a plugin whose backend opens such files; `seqdata plugins` "
        "lists the installed ones."
    )


def find_backend(
    name: str | Callable[..., Any] | FileFormat, location: LocationLike, host: PluginHost
) -> Opener:
    """Return the opener of a backend; the location is used in messages.

    Args:
        name: A name, also with options (``tokens:dtype=uint32``), a format, or an opener.
        location: The location.
        host: The plugin host that finds names.

    Raises:
        ConfigError: If ``name`` is neither a name nor an opener, or an option is invalid.
        PluginError: If the backend is not installed or broken.
    """
    if not isinstance(name, str):
        return as_opener(name)
    if name == TAR.backend and host.find("backend", name) is None:
        raise PluginError.at(
            f"open_store: {redact_url(os.fspath(location))!r} needs the backend {name!r}, which "
            f"is not installed; pip install {TAR.package}",
            package=TAR.package,
        )
    plain, separator, options = name.partition(":")
    found: Any = host.backend(plain)
    return as_opener(_configure(plain, found, options) if separator else found)


def _configure(name: str, backend: Any, text: str) -> Any:
    """Return a backend with options, as a command has them: ``dtype=uint32,fields=[a,b]``.

    Raises:
        ConfigError: If it has no such option, or a value is invalid.
    """
    import yaml

    pairs = _OPTION.findall(text)
    if not pairs or "".join(found[0] for found in _OPTION.finditer(text)) != text:
        needed = "NAME:option=value,option=[value,value]"
        remedy = "Write e.g. 'tokens:dtype=uint32'"
        raise ConfigError(must_be("`backend`", needed, repr(f"{name}:{text}"), remedy))
    has_fields = dataclasses.is_dataclass(backend) and not isinstance(backend, type)
    known = (
        [field.name for field in dataclasses.fields(backend) if field.init] if has_fields else []
    )
    for option, _ in pairs:
        if option.strip() not in known:
            raise ConfigError(
                f"backend {name!r}: has no option {option.strip()!r}; it has "
                f"{', '.join(known) or 'none'}. Leave it out"
            )
    try:
        values = {option.strip(): yaml.safe_load(value) for option, value in pairs}
    except yaml.YAMLError as error:
        raise ConfigError(
            must_be(f"backend {name!r}: values of options", "YAML", repr(text), "Quote strings")
        ) from error
    return dataclasses.replace(backend, **values)


def as_opener(backend: Callable[..., Any] | FileFormat) -> Callable[..., Any]:
    """Return an opener of locations: the argument itself, or the backend of a format or its class.

    Raises:
        ConfigError: If it is neither an opener nor a format.
    """
    if isinstance(backend, type) and hasattr(backend, "index") and hasattr(backend, "suffixes"):
        backend = backend()
    if isinstance(backend, FileFormat) and not callable(backend):  # else it opens by itself
        return FormatBackend(backend)
    if not callable(backend):
        raise ConfigError(
            f"`backend` must be a name, a FileFormat or a function that opens a location, but is "
            f"{backend!r}. Pass one of these, or leave it out"
        )
    return backend


def _find_plugin_backend(text: str, host: PluginHost | None) -> str | None:
    """Return the backend for which an installed plugin claims a location's suffix, if any."""
    name = text.rstrip("/").rpartition("/")[2]
    return (host or default_host()).backend_of_suffix(name) if "." in name.lstrip(".") else None


def _of_names(folder: str, names: Iterable[str], host: PluginHost | None) -> str | None:
    """Return the backend for which installed plugins claim the files of a folder, if any.

    Raises:
        PluginError: If there are several.
    """
    host = host or default_host()
    if not host.claims():
        return None
    first: dict[str, str] = {}  # by backend: its first file, in the order of names
    backends: dict[str, str | None] = {}  # by what follows the first dot of a name
    for name in itertools.islice(names, _MOST_NAMES):
        ending = name.rpartition("/")[2].partition(".")[2]
        if ending not in backends:
            backends[ending] = host.backend_of_suffix(name)
        backend = backends[ending]
        if backend is not None:
            first[backend] = min(name, first.get(backend, name))
    if len(first) > 1:
        files = sorted((name, backend) for backend, name in first.items())
        several = " and ".join(f"{name!r} (backend {backend!r})" for name, backend in files)
        choose = " or ".join(f"backend={backend!r}" for _, backend in files)
        raise PluginError.at(
            f"open_store: {folder!r}: must hold files of one backend, but holds {several}. Pass "
            f"{choose}."
        )
    return next(iter(first), None)


def _of_folder(folder: Path, host: PluginHost | None) -> str:
    """Return the backend of a folder: of the files in it, else of those below it.

    Raises:
        PluginError: If files below are claimed by several plugins.
    """
    names = [entry.name for entry in list_entries(folder) if not is_folder(entry)]
    if MANIFEST in names:
        return "arrow"
    is_begun = bool(find_staging_dirs(folder))
    is_store = is_begun or any(map(STORE_FILES.names.fullmatch, names))
    if not is_store and any(map(is_data_file, names)):
        return "foreign"
    if any(map(TAR.has_name, names)):
        return TAR.backend
    if is_store:
        return "arrow"
    below = list(itertools.islice(iter_names(folder), _MOST_NAMES))
    found = _of_names(str(folder), below, host) or _find_plugin_backend(str(folder), host)
    return found or _of_core_files(below) or "arrow"


def _of_core_files(names: Sequence[str]) -> str | None:
    """Return the core's backend for files of tables or tar shards; None if there are none."""
    if any(map(is_data_file, names)):
        return "foreign"
    return TAR.backend if any(map(TAR.has_name, names)) else None


def _of_matches(pattern: str, host: PluginHost | None) -> str | None:
    """Return the backend of the local files that a glob or braces match; None if there are none.

    Raises:
        PluginError: If there are several.
    """
    names = list(itertools.islice(_list_matches(pattern), _MOST_NAMES))
    if any(map(TAR.has_name, names)):
        return TAR.backend
    found = _of_names(pattern, names, host) or _of_core_files(names)
    return found or ("arrow" if names else None)


def _list_matches(pattern: str) -> Iterator[str]:
    """Yield the names of the local files that a glob or braces match, or that folders hold."""
    try:
        parts = [part for part in split_location(pattern) if not is_remote(part)]
        paths = itertools.chain.from_iterable(map(expand_location, parts))
        for path in map(local_path, itertools.islice(paths, _MOST_NAMES)):
            yield from (path.name,) if path.is_file() else iter_names(path)
    except ValueError:  # braces that are not balanced: the backend raises its error
        return
