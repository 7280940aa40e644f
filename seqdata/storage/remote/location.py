"""Remote locations: their URLs, and the options with which they are read.

URLs are shown without secrets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from seqdata.errors import ConfigError

PACKAGES = {
    "s3": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "hf": "huggingface_hub",
    "http": "aiohttp",
    "https": "aiohttp",
    "memory": "fsspec",
}
"""Scheme of a URL -> the package that its transport needs; other schemes are refused."""
WEB = ("http", "https")
"""Schemes of web servers: they have queries, and cannot be written to."""
_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL | re.IGNORECASE)
_USER_INFO = re.compile(  # in URLs of Azure a lone name is the container, not the user
    r"((?<!abfs)(?<!az)://)[^/@\s'\"]*@|(://)[^/@\s'\"]*:[^/@\s'\"]*@", re.IGNORECASE
)
_QUERY = re.compile(r"(://[^\s'\"?#]*)[?#][^\s'\")>]*")


def is_remote(location: str | os.PathLike[str]) -> bool:
    """Return whether a location is a URL of another machine, or of ``memory://``."""
    text = os.fspath(location)
    found = _URL.match(text) if isinstance(text, str) else None
    return found is not None and found["scheme"].lower() != "file"


def check_url(url: str) -> str:
    """Return the scheme of a URL that can be opened.

    Raises:
        ConfigError: If it has another scheme, or several at once.
    """
    found = _URL.match(url)
    scheme = "" if found is None else found["scheme"].lower()
    if scheme not in PACKAGES or "::" in url:
        raise ConfigError(
            f"{redact_url(url)}: must be a plain URL of {', '.join(PACKAGES)}, but is of "
            f"{scheme or 'no scheme'!r}. Copy the data to such a location"
        )
    return scheme


def redact_url(url: str) -> str:
    """Return a URL for messages: without the user's name and password, and without its query.

    Examples:
        >>> redact_url("https://me:secret@host/data?signature=abc") 'https://host/data'
    """
    return redact_secrets(url).rstrip("/") or url


def redact_secrets(text: str) -> str:
    """Return a text with user, password, query and fragment removed from its URLs."""
    return _QUERY.sub(r"\1", _USER_INFO.sub(r"\1\2", text))


def identify_url(url: str, *, has_tag: bool = True) -> str:
    """Return the text that identifies a location, such as in the names of cached files.

    Args:
        url: The location.
        has_tag: Whether a tag identifies the content, too: then the query of a web address does not
            count, which may be a signature that is new each time.

    Examples:
        >>> identify_url("https://me:secret@host/data/?key=1"), identify_url("s3://bucket/data#2/")
        ('https://host/data', 's3://bucket/data#2')
    """
    web = has_tag and urlsplit(url).scheme.lower() in WEB
    return redact_url(url) if web else _USER_INFO.sub(r"\1\2", url).rstrip("/")


def join_url(folder: str, name: str) -> str:
    """Return the URL of a file in a folder; a web address keeps its query."""
    if urlsplit(folder).scheme.lower() in WEB:
        url = urlsplit(folder)
        path = f"{url.path.rstrip('/')}/{name}"
        return urlunsplit((url.scheme, url.netloc, path, url.query, ""))
    return f"{folder.rstrip('/')}/{name}"


def split_url(url: str) -> tuple[str, str]:
    """Return the URL of the folder of a file, and the name of the file.

    Examples:
        >>> split_url("s3://bucket/data/part.tar") ('s3://bucket/data', 'part.tar')
    """
    if urlsplit(url).scheme.lower() in WEB:
        web = urlsplit(url)
        path, _, name = web.path.rstrip("/").rpartition("/")
        return urlunsplit((web.scheme, web.netloc, path, web.query, "")), name
    folder, _, name = url.rstrip("/").rpartition("/")
    return folder, name


MODES = ("cache", "ranges")
CACHE_BYTES = 64 << 30
MEMORY_BYTES = 64 << 20
_MINIMUM = {"cache_bytes": 1, "memory_bytes": 0, "gap": 0, "connections": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """How a remote location is read.

    Attributes:
        how: ``"cache"``: whole shards are downloaded into a folder of this machine; ``"ranges"``:
            only the bytes that a batch needs are downloaded, into memory.
        cache_dir: Folder in which the cache creates its own, ``seqdata-shards``, shared by all
            processes; None: ``~/.cache/seqdata``. Other files in it are not touched.
        cache_bytes: Its maximum size in bytes. Files that are being read are never removed.
        storage_options: Options for fsspec: endpoint, credentials, …; never shown.
        retry_seconds: Seconds for which a failed request is retried before it is an error.
        stall_seconds: Timeout of one attempt, in seconds.
        memory_bytes: Bytes of downloaded ranges that a store keeps in each process: slices of long
            sequences share blocks.
        gap: ``"ranges"`` reads two pieces with one request if at most this many bytes are between
            them.
        connections: Maximum number of concurrent requests of one process.
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
            ConfigError: If one is invalid.
        """
        if self.how not in MODES:
            raise ConfigError(
                f"Remote: `how` must be one of {', '.join(MODES)}, but is {self.how!r}. Leave it "
                "out for the cache"
            )
        for name, least in _MINIMUM.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"Remote: `{name}` must be an integer of at least {least}, but is {value!r}. "
                    "Leave it out for the default"
                )
        for name in ("retry_seconds", "stall_seconds"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not value > 0:
                raise ConfigError(
                    f"Remote: `{name}` must be a number above 0, but is {value!r}. Leave it out "
                    "for the default"
                )

    @property
    def folder(self) -> Path:
        """The folder of the cache."""
        return self._base / "seqdata-shards"

    @property
    def writing(self) -> Path:
        """The folder in which stores are written before they are uploaded."""
        return self._base / "seqdata-writing"

    @property
    def _base(self) -> Path:
        cache_dir = "~/.cache/seqdata" if self.cache_dir is None else self.cache_dir
        return Path(cache_dir).expanduser()


def resolve_remote(remote: str | Remote | None) -> Remote:
    """Return the options for ``"cache"``, ``"ranges"``, None or a ``Remote``.

    Raises:
        ConfigError: If it is of another type.
    """
    if remote is None:
        return Remote()
    if isinstance(remote, str):
        return Remote(how=remote)
    if not isinstance(remote, Remote):
        raise ConfigError(
            f"`remote` must be 'cache', 'ranges' or a Remote, but is a {type(remote).__name__}. "
            "Leave it out for the cache"
        )
    return remote


def refuse_remote(location: str | os.PathLike[str], remote: str | Remote | None) -> None:
    """Raise if options for URLs are given for a local path.

    Raises:
        ConfigError: If they are.
    """
    if remote is not None:
        raise ConfigError(
            f"{os.fspath(location)}: `remote` must be left out for a local path, but is given. It "
            "is for URLs only"
        )
