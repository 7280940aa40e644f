"""Retries of remote requests, with exponential backoff, one log line per retry and a deadline."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

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
from seqdata.storage.remote.urls import redact_secrets, redact_url

T = TypeVar("T")
_LOG = logging.getLogger("seqdata.remote")
_FIRST_WAIT, _LONGEST_BACKOFF = 0.1, 8.0  # seconds
_CONNECT_SECONDS = 1.0  # to look whether a server takes connections
_MIN_TIMEOUT = 0.05  # seconds for the last attempt
_MOST_TEXT = 200  # characters
_GONE_STATUSES = (404, 410)
_REFUSED_STATUSES = (401, 403)
_TRANSIENT_STATUSES = (408, 425, 429)  # the 4xx that a retry may avoid
_PERMANENT_ERRORS = (PermissionError, NotImplementedError, ImportError, TypeError, ValueError)
_CREDENTIAL_ERRORS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")
_PARSE_ERROR = "HttpProcessingError"  # of aiohttp: no HTTP was received; its status is no answer's
_ENDPOINT_VARIABLES = {"s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")}


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
        RemoteReadError: If it cannot be read; ``details`` has the file, the bytes and ``attempts``,
            ``transient`` if the attempts ended because the time was over, and ``refused`` if the
            server or the transport denied access.
        UnsafeContentError: If a server redirects to a location that is not allowed.
    """
    deadline = time.monotonic() + remote.retry_seconds
    handled = sys.exc_info()[1]  # of the caller: no cause of what is raised here
    endpoint = find_endpoint(location.dataset, remote)
    failure = _Failure(location, endpoint, action)
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
            causes = find_causes(error, handled)
            final_error = _make_final_error(error, causes, failure, attempt)
            reason, least_wait = describe_error(error, causes), find_retry_after(error)
            limits = "stall_seconds=..., " if isinstance(error, TimeoutError) else ""
        if final_error is not None:
            raise final_error from None  # the cause may contain a URL with secrets
        wait = min(_LONGEST_BACKOFF, _FIRST_WAIT * 2 ** min(attempt - 1, 10))
        spread = 0.5 + time.monotonic_ns() % 1000 / 2000  # many processes must not retry at once
        if least_wait:
            reason += f"; the server asks to wait {least_wait:.0f} s"
        wait = max(wait * spread, least_wait + _FIRST_WAIT * spread)
        if time.monotonic() + wait >= deadline:
            if endpoint is not None and "Timeout" in reason.partition(":")[0]:
                reason += find_refusal(endpoint)
            raise failure.make_error(
                reason, attempt,
                f"Check the network, or wait longer with Remote({limits}retry_seconds=...)",
                transient=True,
            ) from None  # fmt: skip
        _LOG.warning("%s: %s; attempt %d failed, retry in %.1f s", location, reason, attempt, wait)
        time.sleep(wait)


def find_causes(error: BaseException, handled: BaseException | None = None) -> list[BaseException]:
    """Return the exceptions that led to an exception, the direct cause first.

    Args:
        error: The exception.
        handled: What the caller was handling when it made the call: no cause.
    """
    causes: list[BaseException] = []
    latest = error
    while True:
        cause = latest.__cause__ or (None if latest.__suppress_context__ else latest.__context__)
        if cause is None or any(cause is known for known in (error, handled, *causes)):
            return causes
        causes.append(cause)
        latest = cause


def find_reason(error: FileNotFoundError, causes: Sequence[BaseException]) -> Exception | None:
    """Return the failure that a transport reports as a missing file; None: it is missing.

    fsspec's web transport raises ``FileNotFoundError`` for any failure of the request for a size.
    """
    for cause in causes:
        if find_status(cause) in _GONE_STATUSES:
            return None
        is_missing = isinstance(cause, FileNotFoundError | KeyError) or (
            "NotFound" in type(cause).__name__ and find_status(cause) is None
        )
        if not is_missing:
            return cause if isinstance(cause, Exception) else error
    return None


def describe_error(error: BaseException, causes: Sequence[BaseException] = ()) -> str:
    """Return the text of an exception, and of the cause furthest back, without secrets."""
    if isinstance(error, FileNotFoundError):
        error = find_reason(error, causes) or error
    error = next((cause for cause in reversed(causes) if _is_parse_error(cause)), error)
    text = _describe_alone(error)
    told = [cause for cause in causes if str(cause).strip()]
    if told and told[-1] is not error and str(told[-1]).strip() not in text:
        text += f"; because of {_describe_alone(told[-1])}"
    return redact_secrets(text)


def _describe_alone(error: BaseException) -> str:
    if _is_parse_error(error):  # the lines show where the answer is no HTTP
        text = " ".join(str(getattr(error, "message", "")).split())[:_MOST_TEXT]
    else:
        text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _is_parse_error(error: BaseException | None) -> bool:
    return any(base.__name__ == _PARSE_ERROR for base in type(error).__mro__)


def find_status(error: BaseException) -> int | None:
    """Return the HTTP status that an exception is about; None if there is none."""
    if _is_parse_error(error) or _is_parse_error(error.__cause__):
        return None
    answer = getattr(error, "response", None)
    if isinstance(answer, Mapping):  # of botocore
        return _as_status(answer.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    statuses = (
        getattr(error, "status", None), getattr(error, "status_code", None),
        getattr(answer, "status_code", None), vars(error).get("code"),
    )  # fmt: skip
    return next((status for status in map(_as_status, statuses) if status is not None), None)


def _as_status(found: object) -> int | None:
    return found if isinstance(found, int) and 100 <= found < 600 else None


def find_endpoint(url: str, remote: Remote) -> str | None:
    """Return the address that requests for a URL are sent to, where the user has set it."""
    options = remote.storage_options
    client = options.get("client_kwargs")
    named = options.get("endpoint_url") or (
        client.get("endpoint_url") if isinstance(client, Mapping) else None
    )
    variables = _ENDPOINT_VARIABLES.get(url.partition("://")[0].lower(), ())
    found = named or next(filter(None, map(os.environ.get, variables)), None)
    return None if found is None else redact_url(str(found))


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


def find_refusal(endpoint: str) -> str:
    """Return why no connection to an address can be made; "" if one can.

    A transport that retries by itself for longer than a request may take does not say so.
    """
    try:
        url = urlsplit(endpoint)
        port = url.port or {"http": 80}.get(url.scheme, 443)
        socket.create_connection((url.hostname or "", port), _CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        return f"; because of {_describe_alone(error)}"
    return ""


@dataclass(frozen=True, slots=True)
class _Failure:
    """The parts of an error that are the same for all attempts of a request.

    Attributes:
        location: The file, and the bytes if it is a range.
        endpoint: The address of the server, where the user has set it.
        action: The participle for messages.
    """

    location: DataLocation
    endpoint: str | None
    action: str

    def make_error(
        self, reason: str, attempts: int, advice: str, **details: bool
    ) -> RemoteReadError:
        """Return the error; ``details`` are those that are true."""
        times = "once" if attempts == 1 else f"{attempts} times"
        where = "" if self.endpoint is None else f"; endpoint {self.endpoint}"
        return self.location.make_error(
            RemoteReadError,
            f"could not be {self.action} ({reason}{where}; tried {times}). {advice}",
            attempts=attempts, **{name: True for name, found in details.items() if found},
        )  # fmt: skip


def _make_final_error(
    error: Exception, causes: Sequence[BaseException], failure: _Failure, attempt: int
) -> SeqDataError | None:
    """Return the error to raise if a retry cannot help; None if it may."""
    location = failure.location
    for candidate in (error, *causes):
        if isinstance(candidate, RefusedRedirectError):
            return location.make_error(
                UnsafeContentError,
                f"{candidate}, but redirects must lead to https, or from http to http. Pass the "
                "final address, if you trust it",
            )
        if isinstance(candidate, WrongBodyError):
            return failure.make_error(
                str(candidate), attempt,
                "Use a server that supports range requests and does not encode files",
            )  # fmt: skip
        if type(candidate).__name__ == "TooManyRedirects":  # of aiohttp and requests
            return failure.make_error(
                "TooManyRedirects: its redirects do not end", attempt,
                "Check the address: its server leads back to where it began",
            )  # fmt: skip
    reason: Exception | None = error
    if isinstance(error, FileNotFoundError):
        reason = find_reason(error, causes)
    status = None if reason is None else find_status(reason)
    if reason is None or status in _GONE_STATUSES:
        return location.make_error(MissingShardError, "is not there. Check the URL, or restore it")
    is_refused = status is not None and 400 <= status < 500 and status not in _TRANSIENT_STATUSES
    if (
        is_refused
        or isinstance(reason, _PERMANENT_ERRORS)
        or type(reason).__name__ in _CREDENTIAL_ERRORS
    ):
        return failure.make_error(
            describe_error(error, causes), attempt,
            "Check address, permissions and credentials: the transport's own (environment, "
            "profile), or Remote(storage_options=...)",
            refused=status in _REFUSED_STATUSES or isinstance(reason, PermissionError),
        )  # fmt: skip
    return None


def make_changed_error(location: DataLocation) -> DataError:
    """Return the error about a file that was replaced since it was first read."""
    from seqdata.errors import FingerprintMismatch

    return location.make_error(
        FingerprintMismatch,
        "must not change while it is read, but was replaced. Open the dataset again",
    )
