"""A read that is tried again: with waits that grow, a line in the log each, and an end.

Place in the flow: every request goes through here. Reads: by a function it is given. Makes: its
result, or an error that names no secrets.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from seqdata.errors import (
    DataError,
    MissingShardError,
    RemoteReadError,
    SeqDataError,
    UnsafeContentError,
)
from seqdata.storage.data_location import Place
from seqdata.storage.remote.options import Remote
from seqdata.storage.remote.redirects import RefusedRedirectError
from seqdata.storage.remote.response_body import WrongBodyError
from seqdata.storage.remote.urls import without_secrets

Given = TypeVar("Given")
_LOG = logging.getLogger("seqdata.remote")
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 8.0  # seconds
_LEAST = 0.05  # seconds that the last try gets
_GONE = (404, 410)
_REFUSED = (401, 403)
_PASSING = (408, 425, 429)  # of 4xx, those that another try may not meet
_HOPELESS = (PermissionError, NotImplementedError, ImportError, TypeError, ValueError)
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")


class ShortBodyError(OSError):
    """Fewer bytes came than were asked for; another try may bring all."""


def tried(
    call: Callable[[float], Given], place: Place, remote: Remote, *, doing: str = "read"
) -> Given:
    """Give what a function gives, tried again while that may help.

    Args:
        call: Is told how many seconds it may take.
        place: What is read: file, and bytes where only some are.
        remote: How long it is tried.
        doing: What is done: ``read``, ``written``, ``removed``.

    Raises:
        MissingShardError: If it is not there.
        RemoteReadError: If it cannot be read; ``facts`` has the file, the bytes and ``attempts``.
    """
    deadline = time.monotonic() + remote.retry_seconds
    attempt = 0
    while True:
        attempt += 1
        left = deadline - time.monotonic()
        try:
            return call(max(_LEAST, min(remote.stall_seconds, left)))
        except SeqDataError:
            raise
        except Exception as error:  # each transport has its own: what helps is another try
            found = _is_final(error, place, attempt, doing)
            what = describe(error)
        if found is not None:
            raise found from None  # the cause may hold a URL with its secrets
        wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(attempt - 1, 10))
        wait *= 0.5 + (time.monotonic_ns() % 1000) / 1000  # many processes must not come at once
        if time.monotonic() + wait >= deadline:
            raise _failed(place, what, attempt, doing, "look at the network, or wait longer with "
                              "Remote(retry_seconds=...)") from None  # fmt: skip
        _LOG.warning("%s: %s; attempt %d failed, again in %.1f s", place, what, attempt, wait)
        time.sleep(wait)


def describe(error: BaseException) -> str:
    """Give what an exception says, in one line without secrets."""
    if isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # which may be another reason than that
    text = str(error).strip().splitlines()
    return without_secrets(f"{type(error).__name__}: {text[0]}" if text else type(error).__name__)


def status_of(error: BaseException) -> int | None:
    """Give the status of the answer that an exception is about; None: it is about none."""
    answer = getattr(error, "response", None)
    told = (
        getattr(error, "status", None), getattr(error, "status_code", None),
        getattr(answer, "status_code", None), vars(error).get("code"),
    )  # fmt: skip
    return next((one for one in told if isinstance(one, int) and 100 <= one < 600), None)


def _is_final(error: Exception, place: Place, attempt: int, doing: str) -> SeqDataError | None:
    """Give the error that no other try would help against; None: one may."""
    cause, status = error.__cause__, status_of(error)
    for one in (error, cause):
        if isinstance(one, RefusedRedirectError):
            return place.error(
                UnsafeContentError,
                f"{one}, must stay with http or https; give the address that it leads to, if you "
                "trust it",
            )
        if isinstance(one, WrongBodyError):
            return _failed(
                place, str(one), attempt, doing, "serve the files by a server that answers a "
                "request for a range of bytes with just these bytes",
            )  # fmt: skip
    if isinstance(error, FileNotFoundError):  # over the web it may stand for anything
        status = None if cause is None else status_of(cause)
        passing = isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError)
        if not passing and (status is None or status in _GONE):
            return _missing(place)
        error = error if status is None or not isinstance(cause, Exception) else cause
    elif status in _GONE:
        return _missing(place)
    refused = status is not None and 400 <= status < 500 and status not in _PASSING
    if refused or isinstance(error, _HOPELESS) or type(error).__name__ in _NO_CREDENTIALS:
        return _failed(
            place, describe(error), attempt, doing, "check address, rights and credentials: the "
            "transport's own (environment, profile), or Remote(storage_options=...)",
            refused=status in _REFUSED or isinstance(error, PermissionError),
        )  # fmt: skip
    return None


def _missing(place: Place) -> SeqDataError:
    return place.error(
        MissingShardError, "is not there, must be; restore it or write the store again"
    )


def _failed(
    place: Place, what: str, attempts: int, doing: str, advice: str, *, refused: bool = False
) -> RemoteReadError:
    times = "once" if attempts == 1 else f"{attempts} times"
    return place.error(
        RemoteReadError,
        f"cannot be {doing} ({what}; tried {times}), must be; {advice}",
        attempts=attempts, **({"refused": True} if refused else {}),
    )  # fmt: skip


def changed(place: Place) -> DataError:
    """Give the error about a file that is another one than when it was first looked at."""
    from seqdata.errors import FingerprintMismatch

    return place.error(
        FingerprintMismatch,
        "was replaced while it was read, must stay as it is; open the data set again",
    )
