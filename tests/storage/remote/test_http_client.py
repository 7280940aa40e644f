"""Redirects: followed to other web servers, never to files, and never out of https."""

import base64
import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest

from seqdata import ConfigError, Remote, RemoteReadError, UnsafeContentError, open_store
from seqdata.storage.remote.transport import make_remote_files
from seqdata_testing.faults.network import Answer, folder_of, served
from seqdata_testing.waiting import patient
from tests.storage.remote.samples import CONTENT, read_all, write


def leading_to(target, *, status=302):
    """Send every request to another address, with its path."""

    def answer(asked):
        return Answer(status, (("Location", target + asked.path),))

    return answer


def quick(tmp_path, **options):
    return Remote(
        cache_dir=tmp_path / "cache",
        retry_seconds=patient(1.5),
        stall_seconds=patient(1.0),
        storage_options=options,
    )


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_another_web_server_is_followed(file_server, tmp_path, status):
    with served(leading_to(file_server.url, status=status)) as first:
        files = make_remote_files(first.url, quick(tmp_path))
        assert files.stat("file.bin").size == len(CONTENT)
        assert files.read("file.bin", 10, 300) == CONTENT[10:300]


@pytest.mark.parametrize("how", ["cache", "ranges"])
def test_a_store_is_opened_behind_a_redirect(tmp_path, how):
    local = write(tmp_path / "store")
    remote = Remote(how=how, cache_dir=tmp_path / "cache")
    with (
        served(folder_of(Path(local.location))) as there,
        served(leading_to(there.url)) as first,
    ):
        store = open_store(first.url, remote=remote)
        assert read_all(store) == read_all(local)


TARGETS = [
    "file:///etc",
    "ftp://host",
    "s3://bucket",
    "data:text/plain,",
    "FILE:///etc",
    "gopher:/",
]


@pytest.mark.parametrize("target", TARGETS)
def test_a_redirect_to_anything_but_the_web_is_refused(tmp_path, target):
    text = (
        r'\("file\.bin"\).*: is redirected from http:// to .*, but redirects must lead to https, '
        r"or from http to http\. Pass"
    )
    with served(leading_to(target)) as first:
        files = make_remote_files(first.url, quick(tmp_path))
        for ask in (lambda: files.stat("file.bin"), lambda: files.read("file.bin", 0, 9)):
            first.requests.clear()
            with pytest.raises(UnsafeContentError, match=text) as caught:
                ask()
            assert caught.value.details["file"] == "file.bin"
            assert len(first.requests) <= 2  # HEAD and GET, but never again
        with pytest.raises(UnsafeContentError, match="is redirected from http:// to"):
            open_store(first.url, remote=quick(tmp_path))


def test_a_redirect_to_no_url_is_refused(tmp_path):
    with served(leading_to("http://[::1")) as first:
        files = make_remote_files(first.url, quick(tmp_path))
        with pytest.raises(
            UnsafeContentError, match="is redirected to something that is not a URL, but redirects"
        ):
            files.read("file.bin", 0, 9)


def test_servers_that_send_to_each_other_are_an_error_at_once(tmp_path):
    with served(leading_to("")) as first:
        files = make_remote_files(first.url, quick(tmp_path))
        for call in (lambda: files.stat("file.bin"), lambda: files.read("file.bin", 0, 9)):
            text = r"\(TooManyRedirects: its redirects do not end; tried once\)\. Check the address"
            with pytest.raises(RemoteReadError, match=text):
                call()


def test_what_is_secret_stays_with_its_server_and_out_of_messages(file_server, tmp_path):
    told = []

    def listening(asked):
        told.append(dict(asked.headers))
        return folder_of(tmp_path / "data")(asked)

    keys = {"X-Key": "token99", "Cookie": "token99"}
    for user, headers in (("me:password@", {}), ("", {"Authorization": "Bearer token99"})):
        with served(listening) as there, served(leading_to(there.url)) as first:
            address = first.url.replace("http://", f"http://{user}")
            files = make_remote_files(address, quick(tmp_path, headers={**keys, **headers}))
            assert files.read("file.bin", 10, 300) == CONTENT[10:300]
            assert told[-1]["Range"] == "bytes=10-299"
            assert "token99" not in str(told)
            assert "Authorization" not in told[-1]
    with served(listening) as there:
        make_remote_files(there.url, quick(tmp_path, headers={"X-Key": "token99"})).read(
            "file.bin", 0, 9
        )
        assert told[-1]["X-Key"] == "token99"
    with served(leading_to("ftp://me:password@host/x?Signature=abc#")) as first:
        with pytest.raises(UnsafeContentError, match="to 'ftp://host/x', but") as caught:
            make_remote_files(first.url, quick(tmp_path)).read("file.bin", 0, 9)
        for secret in ("password", "Signature", "abc", "me:"):
            assert secret not in f"{caught.value} {caught.value.details} {caught.value.__cause__}"


MINE = "token99"
KINDS = {
    "cookies": {"client_kwargs": {"cookies": {"key": MINE}}},
    "pairs": {"client_kwargs": {"cookies": [("key", MINE)]}},
    "cookies beside a header": {
        "client_kwargs": {"cookies": {"key": MINE}}, "headers": {"Cookie": "other=1"},
    },
    "cookies of each request": {"cookies": {"key": MINE}},
    "headers": {"client_kwargs": {"headers": {"Cookie": f"key={MINE}"}}},
    "credentials": {"client_kwargs": {"auth": MINE}},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:BasicAuth is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_cookies_and_credentials_stay_with_their_server(tmp_path, file_server, kind):
    aiohttp = pytest.importorskip("aiohttp")
    options = KINDS[kind]
    if kind == "credentials":
        options = {"client_kwargs": {"auth": aiohttp.BasicAuth("me", MINE)}}
    here, there = [], []

    def told(heard, then):
        def answer(asked):
            heard.append({name.lower(): value for name, value in asked.headers})
            return then(asked)

        return answer

    with (
        served(told(there, folder_of(tmp_path / "data"))) as second,
        served(told(here, leading_to(second.url))) as first,
    ):
        files = make_remote_files(first.url, quick(tmp_path, **options))
        assert files.stat("file.bin").size == len(CONTENT)
        assert files.read("file.bin", 10, 300) == CONTENT[10:300]
    assert len(here) == len(there) == 2
    for headers in here:
        said = headers.get("cookie", headers.get("authorization"))
        if kind == "credentials":
            assert said == f"Basic {base64.b64encode(b'me:' + MINE.encode()).decode()}"
        elif kind == "cookies beside a header":
            assert said == f"key={MINE}; other=1"
        else:
            assert said == f"key={MINE}"
    for headers in there:
        assert not {"cookie", "authorization"} & set(headers)


def test_a_jar_with_cookies_of_no_server_is_refused(tmp_path, file_server):
    aiohttp = pytest.importorskip("aiohttp")
    import asyncio

    async def jar(url=None):
        made = aiohttp.CookieJar(unsafe=True)
        made.update_cookies({"key": MINE}, *([url] if url else []))
        return made

    def read(cookies):
        options = {"client_kwargs": {"cookie_jar": asyncio.run(cookies)}}
        return make_remote_files(file_server.url, quick(tmp_path, **options)).read("file.bin", 0, 9)

    from yarl import URL

    assert read(jar(URL(file_server.url))) == CONTENT[:9]
    text = "cookies in `cookie_jar` must have a domain, but key has none: such cookies are sent to"
    with pytest.raises(ConfigError, match=text):
        read(jar())


@pytest.fixture
def certificate(tmp_path):
    """A certificate of this machine, made for the test."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 7)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = tmp_path / "certificate.pem"
    path.write_bytes(key.private_bytes(pem, *plain) + made.public_bytes(pem))
    return path


def test_a_redirect_may_lead_into_https_and_never_out_of_it(file_server, tmp_path, certificate):
    trusted = ssl.create_default_context(cafile=certificate)
    safe = quick(tmp_path, ssl=trusted, headers={"X-Key": "token99"})
    with served(folder_of(tmp_path / "data"), certificate=certificate) as there:
        assert there.url.startswith("https://")
        with served(leading_to(there.url)) as first:
            assert make_remote_files(first.url, safe).read("file.bin", 0, 9) == CONTENT[:9]
    with served(leading_to(file_server.url), certificate=certificate) as first:
        file_server.requests.clear()
        text = (
            "is redirected from https:// to 'http://.*', but redirects must lead to https, or from"
        )
        with pytest.raises(UnsafeContentError, match=text):
            make_remote_files(first.url, safe).read("file.bin", 0, 9)
        assert file_server.requests == []
