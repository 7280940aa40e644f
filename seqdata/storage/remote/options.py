"""How a remote location is read: through a cache or by ranges, and how long it is tried."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seqdata.errors import ConfigError

MODES = ("cache", "ranges")
CACHE_BYTES = 64 << 30
MEMORY_BYTES = 64 << 20
_MINIMUM = {"cache_bytes": 1, "memory_bytes": 0, "gap": 0, "connections": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """How a remote location is read.

    Attributes:
        how: ``"cache"``: shards come whole, into a folder of this machine; ``"ranges"``: only the
            bytes that a batch needs come, and stay in memory for a while.
        cache_dir: Folder in which the cache makes its own, ``seqdata-shards``, shared by all
            processes; None: ``~/.cache/seqdata``. Nothing else in it is touched.
        cache_bytes: Bytes that it holds at most. What is being read is never removed.
        storage_options: What fsspec is told: endpoint, credentials, …; never shown.
        retry_seconds: How long one read is tried again and again before it is an error.
        stall_seconds: How long one try may take.
        memory_bytes: Bytes of what came by ranges that a store keeps in each process, for pieces of
            long sequences, which share blocks.
        gap: Bytes between two pieces up to which ``"ranges"`` reads them as one.
        connections: Requests that one process has under way at a time.
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
        """Refuse what cannot be meant.

        Raises:
            ConfigError: If an attribute is such.
        """
        if self.how not in MODES:
            raise ConfigError(
                f"Remote: `how` is {self.how!r}, must be one of {', '.join(MODES)}; leave it out "
                "for "
                "the cache"
            )
        for name, least in _MINIMUM.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"Remote: `{name}` is {value!r}, must be an integer of at least {least}; leave "
                    "it out"
                )
        for name in ("retry_seconds", "stall_seconds"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value > 0:
                raise ConfigError(
                    f"Remote: `{name}` is {value!r}, must be a number of more than 0; leave it out"
                )

    @property
    def folder(self) -> Path:
        """Of the cache alone."""
        return self._base / "seqdata-shards"

    @property
    def writing(self) -> Path:
        """Folder in which stores are made that are sent to a URL."""
        return self._base / "seqdata-writing"

    @property
    def _base(self) -> Path:
        cache_dir = "~/.cache/seqdata" if self.cache_dir is None else self.cache_dir
        return Path(cache_dir).expanduser()


def resolve_remote(remote: str | Remote | None) -> Remote:
    """Return the options that are meant by ``"cache"``, ``"ranges"``, None or themselves.

    Raises:
        ConfigError: If it is something else.
    """
    if remote is None:
        return Remote()
    if isinstance(remote, str):
        return Remote(how=remote)
    if not isinstance(remote, Remote):
        raise ConfigError(
            f"`remote` is a {type(remote).__name__}, must be 'cache', 'ranges' or a Remote; leave "
            "it out for the cache"
        )
    return remote


def refuse_remote(location: str | os.PathLike[str], remote: str | Remote | None) -> None:
    """Refuse what is said of URLs where a location is none.

    Raises:
        ConfigError: If something is.
    """
    if remote is not None:
        raise ConfigError(
            f"{os.fspath(location)}: `remote` is given for a local path, must be left out; it "
            "is about URLs"
        )
