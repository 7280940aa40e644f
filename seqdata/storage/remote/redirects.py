"""Web servers that send a request elsewhere: where it may go, and what it may not take along.

From ``http`` to ``https`` and to other servers of the same scheme; never to ``file://`` and other
schemes, never from ``https`` to where anybody may listen. What the user put into headers stays with
the server that it was meant for. Place in the flow: fsspec's web client is made here. Reads: the
answers of servers. Makes: clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http.cookies import SimpleCookie
from typing import Any

from seqdata.errors import ConfigError
from seqdata.storage.remote.response_body import PLAIN, bounded_response
from seqdata.storage.remote.urls import shown

_ALLOWED = {("http", "http"), ("https", "https"), ("http", "https")}
_TAKEN = ("accept", "accept-encoding", "range", "user-agent")  # headers of any request


class RefusedRedirectError(Exception):
    """A server sent a request where it may not go; its text says where."""


async def guarded_client(
    *, cookies: Any = None, auth: Any = None, cookie_jar: Any = None, **options: Any
) -> Any:
    """Return an ``aiohttp.ClientSession`` with guards; fsspec asks for it.

    It refuses to be sent elsewhere, and reads no longer body than it asked for. Cookies and
    credentials are those of the requests themselves: a session would send them to every server.

    Args:
        cookies: The user's, by name.
        auth: The user's ``aiohttp.BasicAuth``.
        cookie_jar: The user's own; each cookie in it must have a domain.
        options: Of the session.

    Raises:
        ConfigError: If cookies in the jar would go to every server.
    """
    import aiohttp

    _check_jar(cookie_jar)
    tracing = aiohttp.TraceConfig()
    tracing.on_request_start.append(partial(_give, cookies=cookies, auth=auth))
    tracing.on_request_redirect.append(_look)
    traced = [*options.pop("trace_configs", ()), tracing]
    options.setdefault("response_class", bounded_response())
    options.setdefault("auto_decompress", False)
    return aiohttp.ClientSession(trace_configs=traced, cookie_jar=cookie_jar, **options)


def _check_jar(jar: Any) -> None:
    """Refuse a jar with cookies of no server.

    Raises:
        ConfigError: If there is one.
    """
    loose = sorted({one.key for one in jar or () if not one["domain"]})
    if loose:
        raise ConfigError(
            f"`storage_options`: `cookie_jar` holds {', '.join(loose)} without a domain, each "
            "cookie must have one, or it goes to every server that a request is redirected to. "
            "Pass `cookies` instead, or `jar.update_cookies(cookies, response_url=URL(...))`"
        )


async def _give(session: Any, context: Any, about: Any, *, cookies: Any, auth: Any) -> None:
    """Put the user's cookies and credentials into the headers of a request, before it is sent."""
    del session, context
    about.headers.setdefault("Accept-Encoding", PLAIN)
    if cookies:
        pairs = cookies.items() if isinstance(cookies, Mapping) else cookies
        found = SimpleCookie(about.headers.get("Cookie", ""))
        for name, value in pairs:
            if name not in found:
                found[name] = str(getattr(value, "value", value))
        about.headers["Cookie"] = found.output(attrs=(), header="", sep=";").strip()
    if auth is not None and about.url.user is None and "Authorization" not in about.headers:
        about.headers["Authorization"] = auth.encode()


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
