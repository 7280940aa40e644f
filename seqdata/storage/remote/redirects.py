"""Web servers that send a request elsewhere: where it may go, and what it may not take along.

From ``http`` to ``https`` and to other servers of the same scheme; never to ``file://`` and other
schemes, never from ``https`` to where anybody may listen. What the user put into headers stays with
the server that it was meant for. Place in the flow: fsspec's web client is made here. Reads: the
answers of servers. Makes: clients.
"""

from __future__ import annotations

from typing import Any

from seqdata.storage.remote.urls import shown

_ALLOWED = {("http", "http"), ("https", "https"), ("http", "https")}
_TAKEN = ("accept", "accept-encoding", "range", "user-agent")  # headers of any request


class RefusedRedirectError(Exception):
    """A server sent a request where it may not go; its text says where."""


async def guarded_client(**options: Any) -> Any:
    """Give an ``aiohttp.ClientSession`` that refuses to be sent elsewhere; fsspec asks for it."""
    import aiohttp

    tracing = aiohttp.TraceConfig()
    tracing.on_request_redirect.append(_look)
    traced = [*options.pop("trace_configs", ()), tracing]
    return aiohttp.ClientSession(trace_configs=traced, **options)


async def _look(session: Any, context: Any, about: Any) -> None:
    """Look at a redirect before it is followed.

    Raises:
        RefusedRedirectError: If it must not be.
    """
    del session, context
    told = about.response.headers
    try:
        target = about.url.join(type(about.url)(told.get("Location") or told.get("URI") or ""))
    except ValueError:
        about.response.close()
        raise RefusedRedirectError("is sent on to what is no URL") from None
    if (about.url.scheme, target.scheme) not in _ALLOWED:
        about.response.close()
        raise RefusedRedirectError(
            f"is sent on from {about.url.scheme}:// to {shown(str(target))!r}"
        )
    upgraded = about.url.scheme != target.scheme
    if target.host != about.url.host or (target.port != about.url.port and not upgraded):
        for name in [name for name in about.headers if name.lower() not in _TAKEN]:
            del about.headers[name]
