"""Fixtures around a server of the S3 API: a module or conftest of tests imports those that it uses.

The fixture ``folder`` of a module is copied into a bucket by ``url``.
"""

import pytest

from seqdata_testing.s3 import serve_s3


@pytest.fixture(scope="session")
def server():
    """A server; tests are skipped without its packages."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    with serve_s3() as found:
        yield found


@pytest.fixture
def url(server, folder):
    """The URL of a copy of ``folder``, of which nothing was read yet."""
    found = server.upload(folder)
    server.list_read()
    return found


@pytest.fixture
def remote(server, tmp_path):
    """Options by which URLs of the server are read, with a cache of the test's own."""
    return server.remote(tmp_path / "far")


def hide_servers(monkeypatch, tmp_path):
    """Let nothing but options say where a server and the cache are; return the home folder."""
    fsspec = pytest.importorskip("fsspec")
    pytest.importorskip("s3fs")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    fsspec.get_filesystem_class("s3").clear_instance_cache()  # it keeps what had no options
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"
