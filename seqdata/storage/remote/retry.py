"""Retries of remote requests, with exponential backoff, one log line per attempt and a deadline."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from seqdata.errors import (
    DataError,
    MissingShardError,
    RemoteReadError,
    SeqDataError,
    UnsafeContentError,
    find_interruption,
)
from seqdata.storage.data_location import DataLocation
from seqdata.storage.remote.http_client import RefusedRedirectError, WrongBodyError
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.urls import redact_secrets

T = TypeVar("T")
_LOG = logging.getLogger("seqdata.remote")
_FIRST_WAIT, _LONGEST_BACKOFF = 0.1, 8.0  # seconds
_MIN_TIMEOUT = 0.05  # seconds for the last attempt
_GONE_STATUSES = (404, 410)
_REFUSED_STATUSES = (401, 403)
_TRANSIENT_STATUSES = (408, 425, 429)  # the 4xx that a retry may avoid
_PERMANENT_ERRORS = (PermissionError, NotImplementedError, ImportError, TypeError, ValueError)
_CREDENTIAL_ERRORS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")


class ShortBodyError(OSError):
    """Fewer bytes were received than requested; a retry may help."""


def retry(
    call: Callable[[float], T], location: DataLocation, remote: Remote, *, action: str = "read"
) -> T:
    """Return a function's result; call it again while that may help.

    Waits grow, and are at least as long as the server asks for (``Retry-After``, RFC 9110, 10.2.3).

    Args:
        call: Called with its timeout in seconds.
        location: The file, and the bytes if it is a range.
        remote: The options with the deadline.
        action: The participle for messages: ``read``, ``written``, ``removed``.

    Raises:
        MissingShardError: If it does not exist.
        RemoteReadError: If it cannot be read; ``details`` has the file, the bytes and ``attempts``.
    """
    deadline = time.monotonic() + remote.retry_seconds
    attempt = 0
    while True:
        attempt += 1
        seconds_left = deadline - time.monotonic()
        try:
            return call(max(_MIN_TIMEOUT, min(remote.stall_seconds, seconds_left)))
        except SeqDataError:
            raise
        except Exception as error:  # each transport has its own errors
            if find_interruption(error) is not None:
                raise
            final_error = _make_final_error(error, location, attempt, action)
            reason, least_wait = describe_error(error), find_retry_after(error)
            limits = "stall_seconds=..., " if isinstance(error, TimeoutError) else ""
        if final_error is not None:
            raise final_error from None  # the cause may contain a URL with secrets
        wait = min(_LONGEST_BACKOFF, _FIRST_WAIT * 2 ** min(attempt - 1, 10))
        spread = 0.5 + time.monotonic_ns() % 1000 / 2000  # many processes must not retry at once
        if least_wait:
            reason += f"; the server asks to wait {least_wait:.0f} s"
        wait = max(wait * spread, least_wait + _FIRST_WAIT * spread)
        if time.monotonic() + wait >= deadline:
            raise _make_failed_error(location, reason, attempt, action, (
                f"Check the network, or wait longer with Remote({limits}retry_seconds=...)"
            )) from None  # fmt: skip
        _LOG.warning("%s: %s; attempt %d failed, retry in %.1f s", location, reason, attempt, wait)
        time.sleep(wait)


def describe_error(error: BaseException) -> str:
    """Return the text of an exception, in one line without secrets."""
    if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # there may be another reason
    text = str(error).strip().splitlines()
    return redact_secrets(f"{type(error).__name__}: {text[0]}" if text else type(error).__name__)


def find_status(error: BaseException) -> int | None:
    """Return the HTTP status that an exception is about; None if there is none."""
    answer = getattr(error, "response", None)
    statuses = (
        getattr(error, "status", None), getattr(error, "status_code", None),
        getattr(answer, "status_code", None), vars(error).get("code"),
    )  # fmt: skip
    return next(
        (status for status in statuses if isinstance(status, int) and 100 <= status < 600), None
    )


def find_retry_after(error: BaseException) -> float:
    """Return the seconds to wait that a server asks for in its answer; 0 if it does not."""
    for candidate in (error, error.__cause__):
        text = _find_headers(candidate).get("retry-after", "").strip()
        if text.isascii() and text.isdigit():
            return float(text)
        try:
            return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
        except (ValueError, OverflowError):  # no header, or none that can be read
            continue
    return 0.0


def _find_headers(error: BaseException | None) -> dict[str, str]:
    """Return the headers of the answer that an exception is about, with names in lower case."""
    answer: Any = getattr(error, "response", None)
    if isinstance(answer, Mapping):  # of botocore
        found = answer.get("ResponseMetadata", {}).get("HTTPHeaders")
    else:
        found = getattr(error, "headers", None) or getattr(answer, "headers", None)
    if not isinstance(found, Mapping):
        return {}
    return {str(name).lower(): str(value) for name, value in found.items()}


def _make_final_error(
    error: Exception, location: DataLocation, attempt: int, action: str
) -> SeqDataError | None:
    """Return the error to raise if a retry cannot help; None if it may."""
    cause, status = error.__cause__, find_status(error)
    for candidate in (error, cause):
        if isinstance(candidate, RefusedRedirectError):
            return location.make_error(
                UnsafeContentError,
                f"{candidate}, but redirects must stay on http or https. Pass the final address, "
                "if you trust it",
            )
        if isinstance(candidate, WrongBodyError):
            return _make_failed_error(
                location, str(candidate), attempt, action, (
                    "Use a server that supports range requests and does not encode files"
                ),
            )  # fmt: skip
        if type(candidate).__name__ == "TooManyRedirects":  # of aiohttp and requests
            return _make_failed_error(
                location, "TooManyRedirects: its redirects do not end", attempt, action, (
                    "Check the address: its server leads back to where it began"
                ),
            )  # fmt: skip
    if isinstance(error, FileNotFoundError):  # a web server may mean anything by it
        status = None if cause is None else find_status(cause)
        is_transient = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
        if not is_transient and (status is None or status in _GONE_STATUSES):
            return _make_missing_error(location)
        error = error if status is None or not isinstance(cause, Exception) else cause
    elif status in _GONE_STATUSES:
        return _make_missing_error(location)
    is_refused = status is not None and 400 <= status < 500 and status not in _TRANSIENT_STATUSES
    if (
        is_refused
        or isinstance(error, _PERMANENT_ERRORS)
        or type(error).__name__ in _CREDENTIAL_ERRORS
    ):
        return _make_failed_error(
            location, describe_error(error), attempt, action, (
                "Check address, permissions and credentials: the transport's own (environment, "
                "profile), or Remote(storage_options=...)"
            ),
            refused=status in _REFUSED_STATUSES or isinstance(error, PermissionError),
        )  # fmt: skip
    return None


def _make_missing_error(location: DataLocation) -> SeqDataError:
    return location.make_error(
        MissingShardError, "is not there. Restore it, or write the store again"
    )


def _make_failed_error(
    location: DataLocation,
    reason: str,
    attempts: int,
    action: str,
    advice: str,
    *,
    refused: bool = False,
) -> RemoteReadError:
    times = "once" if attempts == 1 else f"{attempts} times"
    return location.make_error(
        RemoteReadError,
        f"could not be {action} ({reason}; tried {times}). {advice}",
        attempts=attempts, **({"refused": True} if refused else {}),
    )  # fmt: skip


def make_changed_error(location: DataLocation) -> DataError:
    """Return the error about a file that was replaced since it was first read."""
    from seqdata.errors import FingerprintMismatch

    return location.make_error(
        FingerprintMismatch,
        "must not change while it is read, but was replaced. Open the dataset again",
    )
