"""Delta tables, here or at URLs: the files that hold the rows of the current version."""

from __future__ import annotations

import os
import re
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from seqdata.backends import DataLocation
from seqdata.backends.files import fetch_copies
from seqdata.errors import ConfigError, DecodeError, MissingShardError

_LOG = "_delta_log"
_DIGITS = 20  # of a version, in names of a log
_MOST_REASON = 160  # characters of a reason that deltalake gives
_CHECKPOINT = re.compile(rf"\d{{{_DIGITS}}}\.checkpoint\.parquet")
_PLAIN_FEATURES = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}  # change no row
_WEB = re.compile(r"https?://", re.IGNORECASE)
_NO_FOLDER = re.compile(  # URLs of one file, and patterns and lists
    r"::|[*?\[{]|\.(parquet|pq|parq|arrow|feather|ipc|[ct]sv|txt|jsonl?|ndjson)(\.\w{1,4})?$",
    re.IGNORECASE,
)
_AS_STREAM = (
    "Pass its rows as a stream: DeltaTable(path).to_pyarrow_dataset().scanner().to_reader()"
)
_LOG_FILES = ("_last_checkpoint", f"{0:0{_DIGITS}}.json")  # a log has one of them


def list_parts(
    location: str | os.PathLike[str], remote: Any = None
) -> Sequence[str | os.PathLike[str]]:
    """Return the files of a Delta table at its current version; the location if it is none.

    Args:
        location: Path or URL.
        remote: How URLs are read.

    Raises:
        ConfigError: If deltalake is not installed, the table has no rows or is on a web server,
            which cannot list files, or its rows cannot be read from files in its folder alone.
        DecodeError: If the log is damaged.
        MissingShardError: If a file is missing.
        SeqDataError: If the log of a table at a URL cannot be fetched.
    """
    text = os.fspath(location)
    if "://" in text.removeprefix("file://"):
        if _NO_FOLDER.search(text):
            return [location]
        url = text.rstrip("/")
        read = _list_web_parts if _WEB.match(url) else _list_remote_parts
        found = read(url, remote)
        return [location] if found == [url] else found
    path = Path(text.removeprefix("file://"))
    if not (path / _LOG).is_dir():
        return [location]
    names = _read_log(path, str(path))
    for name in names:
        if not (path / name).is_file():
            raise DataLocation(dataset=str(path), file=name).make_error(
                MissingShardError,
                "is not there, although the log of the Delta table names it. Restore it, or an "
                "earlier version of the table",
            )
    return [str(path / name) for name in names]


def _list_remote_parts(url: str, remote: Any) -> Sequence[str]:
    """Return the files of a table in a bucket, joined, so that they are fetched together."""
    is_listed = False

    def choose(path: str) -> list[Path]:
        nonlocal is_listed
        is_listed = True
        return _choose_log_files(path)

    try:
        log = fetch_copies(f"{url}/{_LOG}", remote, choose)
    except MissingShardError:
        if is_listed:  # a file of the log was removed: no other files must be read in its place
            raise
        return [url]
    if log is None:
        return [url]
    names = _read_log(Path(log.path).parent, log.location.removesuffix(f"/{_LOG}"))
    return ["::".join(f"{url}/{name}" for name in names)]


def _list_web_parts(url: str, remote: Any) -> Sequence[str]:
    """Return a URL of the web, if a Delta table is not there.

    Raises:
        ConfigError: If one is there, since its log cannot be listed.
    """
    for name in _LOG_FILES:
        try:
            found = fetch_copies(f"{url}/{_LOG}/{name}", remote, lambda path: [Path(path)])
        except MissingShardError:
            continue
        if found is not None:
            shown = found.location.removesuffix(f"/{_LOG}/{name}")
            raise ConfigError(
                f"frames: {shown} is a Delta table and must be in a bucket or on a disk, since a "
                "web server cannot list its log. Pass its s3:// URL, or the list of the URLs of "
                "its files"
            )
    return [url]


def _choose_log_files(path: str) -> list[Path]:
    """Return the files of a log that are never written again, from its latest checkpoint on."""
    log = Path(path)
    files = [file for file in log.glob("*") if file.suffix in (".json", ".parquet")]
    versions = [file for file in files if file.name[:_DIGITS].isdigit()]
    checkpoints = [file.name for file in versions if _CHECKPOINT.fullmatch(file.name)]
    first = max(checkpoints, default="")[:_DIGITS]
    return [*(file for file in versions if file.name >= first), *log.glob("_sidecars/*.parquet")]


def _read_log(path: Path, shown: str) -> list[str]:
    """Return the paths below a table of the files of its current version.

    Args:
        path: Path of the table; only the files of its log need to exist.
        shown: The table, for messages.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise ConfigError(
            f"frames: {shown} is a Delta table, which needs the package deltalake. Run `pip "
            "install 'seqdata-frames[delta]'`"
        ) from error
    try:
        with tempfile.TemporaryDirectory() as spot:  # deltalake decodes %20 in names of folders
            os.symlink((path / _LOG).absolute(), Path(spot, _LOG))
            table = DeltaTable(spot)
            _check_plain(table, shown)
            names = _list_names(table)
    except DeltaError as error:
        reason = textwrap.shorten(str(error), _MOST_REASON, placeholder=" ...")
        raise DecodeError.at(
            f"frames: the log of the Delta table {shown} must be readable, but is not ({reason}). "
            "Repair the table"
        ) from error
    if not names:
        raise ConfigError(
            f"frames: {shown} must be a Delta table with rows, but its current version has no "
            "file. Write rows first"
        )
    for name in names:
        if "://" in name or PurePosixPath(name).is_absolute() or ".." in name.split("/"):
            raise ConfigError(
                f"frames: {shown} must be a Delta table whose files lie in its folder, but has "
                f"{name}, as shallow clones do. {_AS_STREAM}"
            )
    return [unquote(name) for name in names]


def _list_names(table: Any) -> list[str]:
    """Return the paths of the files of a table as its log has them: percent-encoded."""
    import pyarrow as pa

    names: list[str] = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
    return names


def _check_plain(table: Any, shown: str) -> None:
    """Raise a ConfigError if the files of a table do not hold its rows as they are."""
    protocol, partitions = table.protocol(), table.metadata().partition_columns
    features = {str(feature) for feature in protocol.reader_features or ()}
    is_plain = protocol.min_reader_version == 1 or (
        protocol.min_reader_version == 3 and features <= _PLAIN_FEATURES
    )
    if not is_plain or partitions:
        why = f"has the partitions {', '.join(partitions)}"
        if protocol.min_reader_version not in (1, 3):
            why = f"requires a reader of version {protocol.min_reader_version}"
        elif not is_plain:
            why = f"requires readers that support {', '.join(sorted(features - _PLAIN_FEATURES))}"
        raise ConfigError(
            f"frames: {shown} must be a Delta table whose rows can be read from its files, but "
            f"{why}. {_AS_STREAM}"
        )
