"""fsspec's file systems: packages and options that are missing are named, without secrets."""

import asyncio
import importlib.util
import threading

import pytest

from seqdata import Remote
from seqdata.errors import ConfigError
from seqdata.storage.remote.transport import (
    _reset_dead_event_loop,
    call_filesystem,
    keep_alive,
    make_filesystem,
)
from seqdata.storage.remote.urls import PACKAGES


def test_a_location_has_a_file_system_and_a_path():
    system, path = make_filesystem("memory", "memory://a/b", Remote())
    assert path == "/a/b"
    assert make_filesystem("memory", "memory://c", Remote())[0] is system  # one per process
    system.pipe_file("/a/b/x", b"content")
    assert call_filesystem(system, "cat_file", ("/a/b/x",), 1.0) == b"content"
    assert call_filesystem(system, "cat_file", ("/a/b/x",), None, start=2) == b"ntent"
    keep_alive(system)


MISSING = [
    (scheme, package)
    for scheme, package in PACKAGES.items()
    if importlib.util.find_spec(package) is None
]


@pytest.mark.parametrize(("scheme", "package"), MISSING[:1])
def test_a_package_that_is_not_installed_is_named(scheme, package):
    text = rf"{scheme}:// needs the package '{package}', which is not .* pip install {package}"
    with pytest.raises(ConfigError, match=text) as caught:
        make_filesystem(scheme, f"{scheme}://me:secret@host/data", Remote())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("options", [{"asynchronous": 7, "default_block_size": "hunter2"}])
def test_options_that_a_package_does_not_take_are_named_without_their_values(options):
    remote = Remote(storage_options={**options, "get_client": "hunter2", "fo": None, "url": 1})
    text = r"`storage_options` must be what aiohttp accepts for http://, but are .*get_client"
    with pytest.raises(ConfigError, match=text) as caught:
        make_filesystem("http", "http://127.0.0.1/data", remote)
    assert "hunter2" not in str(caught.value)


def test_an_asynchronous_file_system_is_called_with_a_bound():
    fsspec_asyn = pytest.importorskip("fsspec.asyn")

    class Slow(fsspec_asyn.AsyncFileSystem):
        async def _twice(self, value, *, plus=0):
            return 2 * value + plus

        async def _stuck(self):
            await asyncio.sleep(3600)

    system = Slow()
    assert call_filesystem(system, "twice", (3,), 60.0, plus=1) == 7
    with pytest.raises(fsspec_asyn.FSTimeoutError):
        call_filesystem(system, "stuck", (), 0.01)


def test_a_loop_without_a_thread_is_not_used_again(monkeypatch):
    from fsspec import asyn

    dead = threading.Thread(target=lambda: None)
    dead.start()
    dead.join(60)
    monkeypatch.setattr(asyn, "iothread", [dead])
    monkeypatch.setattr(asyn, "loop", [object()])
    _reset_dead_event_loop()
    assert asyn.loop == [None]
    assert asyn.iothread == [None]
