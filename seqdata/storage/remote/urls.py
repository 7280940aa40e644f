"""URLs of remote locations: their parts, and their form for messages, without secrets."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from seqdata.errors import ConfigError
from seqdata.storage.local_files import URL

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
_USER_INFO = re.compile(  # in URLs of Azure a lone name is the container, not the user
    r"((?<!abfs)(?<!az)://)[^/@\s'\"]*@|(://)[^/@\s'\"]*:[^/@\s'\"]*@", re.IGNORECASE
)
_QUERY = re.compile(  # a bracket that closes may be of the sentence
    r"([\w+.-]+)(://[^\s'\"?#]*)([?#](?:[^\s'\")>]|\)(?=[\w&=%]))*)"
)
_SIGNED = ("x-amz-", "x-goog-", "x-oss-", "x-cos-")  # of AWS, Google, Alibaba and Tencent
_SIGNATURES = {
    "signature": ("expires", "policy"),
    "sig": (
        "se", "si", "sip", "ske", "skoid", "sks", "skt", "sktid", "skv", "sp", "spr", "sr", "srt",
        "ss", "st", "sv",
    ),
    "awsaccesskeyid": (), "googleaccessid": (), "ossaccesskeyid": (), "key-pair-id": (),
    "q-signature": ("q-sign-algorithm", "q-ak", "q-sign-time", "q-key-time", "q-header-list",
                    "q-url-param-list"),
    "security-token": (), "access_token": (), "token": (), "hdnts": (), "hdnea": (),
}  # fmt: skip
"""Parameter of a signature -> others that belong to it where it is in the same query."""
_NAME_SIGNS = "/:@!$&()*+,;=~[]"  # of a name, not encoded
_URL_SIGNS = f"%?{_NAME_SIGNS}"  # of a path or query


def check_url(url: str) -> str:
    """Return the scheme of a URL that can be opened.

    Raises:
        ConfigError: If its scheme is unknown or missing, or it has ``::``.
    """
    found = URL.match(url)
    scheme = "" if found is None else found["scheme"].lower()
    if scheme not in PACKAGES or "::" in url:
        found_text = f"is of {scheme!r}" if scheme else "has no scheme"
        found_text = "is a chain of URLs ('::')" if "::" in url else found_text
        raise ConfigError(
            f"{redact_url(url)}: must be a plain URL of {', '.join(PACKAGES)}, but {found_text}. "
            "Copy the data to such a location"
        )
    return scheme


def redact_url(url: str) -> str:
    """Return a URL for messages: without the user's name and password, and without its query.

    Names in a bucket may have ``?`` and ``#``, which stay unless a signature follows.

    Examples:
        >>> redact_url("https://me:secret@host/data?signature=abc"), redact_url("s3://bucket/a#1")
        ('https://host/data', 's3://bucket/a#1')
    """
    return redact_secrets(url).rstrip("/") or url


def redact_secrets(text: str) -> str:
    """Return a string with user, password, query and fragment removed from its URLs.

    Names in a bucket may have ``?`` and ``#``, which stay unless a signature follows.
    """
    if _is_web(text):  # a location, whose name may hold blanks and quotes
        text = re.split("[?#]", text, maxsplit=1)[0]
    return _QUERY.sub(_cut_query, _USER_INFO.sub(r"\1\2", text))


def _cut_query(found: re.Match[str]) -> str:
    scheme, address, query = found.groups()
    is_bucket = scheme.lower() in PACKAGES and scheme.lower() not in WEB
    if is_bucket and _strip_signature(query[1:]) == query[1:]:
        return found[0]
    return f"{scheme}{address}"


def identify_url(url: str) -> str:
    """Return the string that identifies a location, such as in the names of cached files.

    The signature in the query of a web address does not count, for it may be new each time.

    Examples:
        >>> identify_url("https://me:secret@host/data/?key=1"), identify_url("s3://bucket/data#2/")
        ('https://host/data?key=1', 's3://bucket/data#2')
    """
    if not _is_web(url):
        return _USER_INFO.sub(r"\1\2", url).rstrip("/")
    query = _strip_signature(urlsplit(url).query)
    return f"{redact_url(url)}?{query}" if query else redact_url(url)


def _strip_signature(query: str) -> str:
    """Return a query without the parameters of a signature; all others may name a file."""
    parameters = query.split("&")
    names = [unquote(parameter.partition("=")[0]).lower() for parameter in parameters]
    left_out = {name for sign, with_it in _SIGNATURES.items() if sign in names for name in with_it}
    return "&".join(
        parameter
        for parameter, name in zip(parameters, names, strict=True)
        if name not in left_out and name not in _SIGNATURES and not name.startswith(_SIGNED)
    )


def encode_url(url: str) -> str:
    """Return a URL as it is requested: a web address without blanks, quotes, and the like.

    What is encoded stays as it is, so that both forms of a name lead to the same file.

    Examples:
        >>> encode_url("https://host/part 1+a%20b.parquet"), encode_url("s3://bucket/part 1")
        ('https://host/part%201+a%20b.parquet', 's3://bucket/part 1')
    """
    if not _is_web(url):
        return url
    scheme, netloc, *rest = urlsplit(url)
    return urlunsplit((scheme, netloc, *(quote(part, safe=_URL_SIGNS) for part in rest)))


def _is_web(url: str) -> bool:
    found = URL.match(url)
    return found is not None and found["scheme"].lower() in WEB


def join_url(folder: str, name: str) -> str:
    """Return the URL of a file in a folder; a web address keeps its query, and encodes the name.

    Examples:
        >>> join_url("https://host/data?key=1", "50%.wav"), join_url("s3://bucket/data", "50%.wav")
        ('https://host/data/50%25.wav?key=1', 's3://bucket/data/50%.wav')
    """
    if urlsplit(folder).scheme.lower() in WEB:
        url = urlsplit(folder)
        path = f"{url.path.rstrip('/')}/{quote(name, safe=_NAME_SIGNS)}"
        return urlunsplit((url.scheme, url.netloc, path, url.query, ""))
    path = folder.rstrip("/")
    return f"{path}//{name}" if path.endswith(":") else f"{path}/{name}"  # memory:// has files


def split_url(url: str) -> tuple[str, str]:
    """Return the URL of the folder of a file, and the name of the file, as it is on a disk.

    Examples:
        >>> split_url("s3://bucket/data/part.tar"), split_url("https://host/data/50%25.wav")
        (('s3://bucket/data', 'part.tar'), ('https://host/data', '50%.wav'))
    """
    if urlsplit(url).scheme.lower() in WEB:
        web = urlsplit(url)
        path, _, name = web.path.rstrip("/").rpartition("/")
        return urlunsplit((web.scheme, web.netloc, path, web.query, "")), unquote(name)
    folder, _, name = url.rstrip("/").rpartition("/")
    return f"{folder}/" if folder.endswith(":/") else folder, name
