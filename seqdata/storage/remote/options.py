"""``Remote``: options for remote locations."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from seqdata.errors import ConfigError, must_be
from seqdata.storage.braces import has_url
from seqdata.storage.remote.cache_folder import COPIES
from seqdata.storage.remote.urls import redact_secrets

MODES = ("cache", "ranges")
CACHE_BYTES = 64 << 30
MEMORY_BYTES = 64 << 20
_NESTED = ("client_kwargs", "config_kwargs", "s3")  # groups of options of s3fs
_NO_SECRETS = (
    "account_host", "account_name", "addressing_style", "anon", "cache_regions",
    "default_block_size", "endpoint_url", "max_concurrency", "project", "region_name",
    "requester_pays", "signature_version", "timeout", "use_ssl", "verify", "version_aware",
)  # fmt: skip
"""Options for fsspec that are written to files; any other one may be a secret."""
_MINIMUM = {"cache_bytes": 1, "memory_bytes": 0, "gap": 0, "connections": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Options for reading a remote location.

    Attributes:
        how: ``"cache"`` downloads whole shards into a folder of this machine. ``"ranges"``
            downloads only the bytes that a batch needs, into memory.
        cache_dir: Parent folder of the cache, which all processes share; None:
            ``~/.cache/seqdata``. The cache creates its own folders in it, such as
            ``seqdata-shards``, and never changes other files.
        cache_bytes: Maximum size of the cache in bytes; default 64 GiB. Files in use are never
            removed.
        storage_options: Options for fsspec, such as endpoint and credentials; never shown.
        retry_seconds: Time in seconds for which a failed request is repeated before it raises.
            Each piece that arrives starts it again.
        stall_seconds: Timeout of one request in seconds. After a timeout, requests are smaller, so
            that a slow connection is enough: 64 KiB must arrive in this time.
        memory_bytes: Maximum number of bytes of downloaded ranges that a store keeps in each
            process, because slices of long sequences share blocks; default 64 MiB.
        gap: Maximum number of bytes between two ranges that ``"ranges"`` reads with one request;
            default 64 KiB.
        connections: Maximum number of concurrent requests of one process.

    Raises:
        ConfigError: If an option is invalid.

    Examples:
        >>> from seqdata import Remote
        >>> Remote(how="ranges").how
        'ranges'
    """

    how: str = "cache"
    cache_dir: str | os.PathLike[str] | None = None
    cache_bytes: int = CACHE_BYTES
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    retry_seconds: float = 60.0
    stall_seconds: float = 30.0
    memory_bytes: int = MEMORY_BYTES
    gap: int = 64 << 10
    connections: int = 8

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ConfigError: If an option is invalid.
        """
        if self.how not in MODES:
            raise ConfigError(
                f"Remote: `how` must be one of {', '.join(MODES)}, but is {self.how!r}. Leave it "
                "out for the cache"
            )
        for name, least in _MINIMUM.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(
                    f"Remote: `{name}` must be an integer of at least {least}, but is {value!r}. "
                    "Leave it out for the default"
                )
        for name in ("retry_seconds", "stall_seconds"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise ConfigError(
                    f"Remote: `{name}` must be a number above 0, but is {value!r}. Leave it out "
                    "for the default"
                )
        if isinstance(self.cache_dir, os.PathLike):  # a checkpoint may hold strings only
            object.__setattr__(self, "cache_dir", os.fspath(self.cache_dir))
        if not isinstance(self.cache_dir, str | None):
            raise ConfigError(
                must_be(
                    "Remote: `cache_dir`",
                    "a path or None",
                    repr(self.cache_dir),
                    "Leave it out for the default",
                )
            )
        if not isinstance(self.storage_options, Mapping):
            raise ConfigError(
                must_be(
                    "Remote: `storage_options`",
                    "a dict of options for fsspec",
                    f"a {type(self.storage_options).__name__}",  # it may hold secrets
                    "Leave it out if there are none",
                )
            )

    @property
    def folder(self) -> Path:
        """Folder of cached shards."""
        return self._base / "seqdata-shards"

    @property
    def copies(self) -> Path:
        """Folder of copies of tables and text files, which share their bytes with the cache."""
        return self._base / COPIES

    @property
    def writing(self) -> Path:
        """Folder in which stores are written before they are uploaded."""
        return self._base / "seqdata-writing"

    @property
    def _base(self) -> Path:
        cache_dir = "~/.cache/seqdata" if self.cache_dir is None else self.cache_dir
        return Path(cache_dir).expanduser()


def resolve_remote(remote: str | Remote | None) -> Remote:
    """Return the options for a value of the argument ``remote``.

    Args:
        remote: ``"cache"``, ``"ranges"``, a ``Remote``, or None for the defaults.

    Raises:
        ConfigError: If it is another string or of another type.
    """
    if remote is None:
        return Remote()
    if isinstance(remote, str) and remote in MODES:
        return Remote(how=remote)
    if not isinstance(remote, Remote):
        found = repr(remote) if isinstance(remote, str) else f"a {type(remote).__name__}"
        raise ConfigError(
            f"`remote` must be 'cache', 'ranges' or a Remote, but is {found}. Leave it out for the "
            "cache"
        )
    return remote


def select_remote(
    remote: str | Remote | None,
    location: str | os.PathLike[str],
    others: Iterable[str | os.PathLike[str]],
) -> str | Remote | None:
    """Return the options for a location; None for a path if another location is a URL."""
    return remote if has_url(location) or not any(map(has_url, others)) else None


def redact_remote(remote: Remote) -> tuple[Remote, list[str]]:
    """Return options to write to a file, and the names of those left out, which may be secret.

    Args:
        remote: The options.
    """
    left_out: list[str] = []
    kept = _keep_open("storage_options", remote.storage_options, left_out)
    folder = remote.cache_dir
    if folder is not None and not os.fspath(folder).startswith("~"):
        folder = os.path.abspath(folder)
    return replace(remote, storage_options=kept, cache_dir=folder), left_out


def _keep_open(owner: str, options: Mapping[str, Any], left_out: list[str]) -> dict[str, Any]:
    """Return the options that hold no secret; add the names of others to ``left_out``."""
    kept: dict[str, Any] = {}
    for name, value in options.items():
        if name in _NESTED and isinstance(value, Mapping):
            kept[name] = _keep_open(f"{owner}.{name}", value, left_out)
            continue
        shown = redact_secrets(value) if isinstance(value, str) else value
        if name in _NO_SECRETS and isinstance(value, str | int | float | None) and shown == value:
            kept[name] = value
        else:
            left_out.append(f"{owner}.{name}")
    return kept
