"""The file systems of fsspec in this process: event loops and finalizers that survive a fork."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

from seqdata.errors import ConfigError
from seqdata.storage.remote.http_client import make_guarded_client
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.urls import PACKAGES, WEB, redact_url


def make_filesystem(scheme: str, url: str, remote: Remote) -> tuple[Any, str]:
    """Return fsspec's file system of this process, and a path in it; fsspec caches them by pid.

    Raises:
        ConfigError: If a package is not installed, or does not accept the options.
    """
    import fsspec
    from fsspec.core import url_to_fs

    package = PACKAGES[scheme]
    _reset_dead_event_loop()
    try:
        importlib.import_module(package)
        fsspec.get_filesystem_class(scheme)
        options = dict(remote.storage_options)
        if scheme in WEB:
            options.setdefault("get_client", make_guarded_client)
        system, path = url_to_fs(url, **options)
    except ImportError as error:
        raise ConfigError(
            f"{redact_url(url)}: {scheme}:// needs the package {package!r}, which is not "
            f"installed. Run: pip install {package}"
        ) from error
    except (TypeError, ValueError, KeyError) as error:
        names = ", ".join(remote.storage_options) or "none"
        raise ConfigError(
            f"{redact_url(url)}: `storage_options` must be what {package} accepts for "
            f"{scheme}://, but are {names} ({type(error).__name__}). See its documentation"
        ) from None  # their text may contain credentials
    return system, path


def _reset_dead_event_loop() -> None:
    """Make fsspec start a new event loop in a forked process; only newer releases do so themselves.

    The copied loop has no thread; a call to it would never return.
    """
    from fsspec.asyn import iothread, reset_lock

    thread = iothread[0]
    if thread is not None and not thread.is_alive():
        reset_lock()


def keep_alive(system: Any) -> None:
    """Leak one reference to a file system, so that it is never finalized in a forked process.

    In a forked process fsspec drops its copied file systems; their finalizer would remove the
    connections from the event loop that both processes share, and the child would wait for
    responses that never arrive.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(system))
