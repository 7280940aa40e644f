"""From a location to an opened store.

Place in the flow: below ``open_store``. Reads: locations. Makes: stores.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from seqdata.arguments import select_options
from seqdata.default_host import default_host
from seqdata.detect import LocationLike, detect_backend_at
from seqdata.errors import ConfigError, PluginError
from seqdata.host import PluginHost
from seqdata.protocols import Opener
from seqdata.readers.binary import LIBRARY_BY_SUFFIX
from seqdata.required_members import STORE_MEMBERS, missing_members
from seqdata.storage.indexed.backend import as_opener
from seqdata.storage.indexed.formats import FileFormat
from seqdata.storage.local_files import local_path
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.urls import is_remote, redact_url
from seqdata.storage.views import SequenceStore, as_sequence_store

_PACKAGES = {"webdataset": "seqdata-webdataset"}


def open_location(
    location: LocationLike,
    *,
    backend: str | Opener | FileFormat | None = None,
    verify: str | None = None,
    schema: Mapping[str, Any] | None = None,
    index: str | None = None,
    remote: str | Remote | None = None,
    host: PluginHost | None = None,
) -> SequenceStore:
    """Open what lies at a path or URL, reading no data yet; see ``open_store``.

    A store of a backend that has only what the contract asks for is wrapped, so that every store
    can be looked at and selected from.

    Args:
        location: A path or a URL.
        backend: Name of a backend, a ``FileFormat``, or a function that opens a location; None:
            chosen by the location's form.
        verify: When checksums of the data are looked at.
        schema: What fields hold, for backends that must be told.
        index: ``"build"``: make the index that a backend reads by, where there is none.
        remote: How a URL is read.
        host: Where names are looked up; None: the installed plugins.

    Raises:
        ConfigError: If nothing lies there, or an argument cannot be meant.
        PluginError: If the backend is not installed or broken.
        DataError: If what lies there is not whole.
    """
    host = host or default_host()
    name = detect_backend_at(location, remote, host) if backend is None else backend
    if name == "arrow" and backend is None:
        _refuse_binary(location)
    opener = _find_backend(name, location, host) if isinstance(name, str) else as_opener(name)
    options = {"schema": schema, "index": index, "remote": remote}
    store = opener(location, verify=verify, **select_options("open_store", opener, name, options))
    if missing_names := missing_members(store, STORE_MEMBERS):
        raise PluginError(
            f"backend {name!r}: gave a {type(store).__name__} without {', '.join(missing_names)}, "
            "must "
            "give a Store; tell its author"
        )
    return as_sequence_store(store)


def find_opener(
    location: LocationLike, *, backend: str | None = None, host: PluginHost | None = None
) -> Opener:
    """Return the opener of a backend.

    Args:
        location: What is opened.
        backend: Name of the backend; None: the one that the location's form means.
        host: Where names are looked up; None: the installed plugins.

    Raises:
        PluginError: If it is not installed or broken.
    """
    host = host or default_host()
    return _find_backend(backend or detect_backend_at(location, host=host), location, host)


def _refuse_binary(location: LocationLike) -> None:
    """Raise if a location is a file of a known format that no installed backend opens.

    Raises:
        ConfigError: If it is one.
    """
    ending = os.path.splitext(os.fspath(location))[1].lower()
    if ending not in LIBRARY_BY_SUFFIX or is_remote(location) or not local_path(location).is_file():
        return
    raise ConfigError(
        f"open_store: no installed backend opens {os.fspath(location)!r} by its suffix "
        f"{ending!r}. Read it with {LIBRARY_BY_SUFFIX[ending]} and pass the arrays to "
        "`write_store`, or "
        "install a plugin whose backend opens such files; `seqdata plugins` lists those there are."
    )


def _find_backend(name: str, location: LocationLike, host: PluginHost) -> Opener:
    package = _PACKAGES.get(name)
    if package is not None and host.find("backend", name) is None:
        raise PluginError.at(
            f"open_store: {redact_url(os.fspath(location))!r} needs the backend {name!r}, which "
            "is not "
            f"installed; pip install {package}",
            package=package,
        )
    return as_opener(host.backend(name))
