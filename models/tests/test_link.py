"""The link between processes, without any: what it finds in its store."""

from __future__ import annotations

import json
import threading

import pytest
from seqdata_models.parallel.link import _ERROR, Link, LinkTimeouts
from torch.distributed import HashStore

from seqdata import PeerFailedError


class Store(HashStore):
    """Where the process that is looked at goes on at that very moment, or gets its value late."""

    goes_on = False

    def check(self, keys):
        if self.goes_on and keys == ["its value"]:
            super().set("wait/1", "")
        return super().check(keys)

    def set(self, key, value):
        super().set(key, value)
        if "late" in value:
            super().set("late", "1")


def test_a_process_that_has_got_what_it_waited_for_waits_no_more():
    link, store = Link.__new__(Link), Store()
    link._rank, link._world, link._store, link._timeouts = 0, 2, store, LinkTimeouts()
    link._failure = link._computing = None
    waits = {
        f"wait/{rank}": json.dumps([1 - rank, f"{name} value", f"{name} value"])
        for rank, name in enumerate(("my", "its"))
    }
    for key, value in {"beat/0": "", "beat/1": "", **waits}.items():
        store.set(key, value)
    with pytest.raises(PeerFailedError, match="rank 0 waits for my value; rank 1 waits for its va"):
        link._check_awaited()
    store.goes_on = True  # its value is there, is read, and its key deleted
    link._check_awaited()
    assert store.get("wait/1") == b""
    link._check_awaited()
    link.wait("late", "late", 1)
    assert store.get("wait/0") == b""
    link.forget("late")
    assert not store.check(["late"])


def make_link(world, **timeouts):
    """Return the link of rank 0, without its thread."""
    link = Link.__new__(Link)
    link._rank, link._world, link._timeouts = 0, world, LinkTimeouts(**timeouts)
    link._store = link._thread_store = Store()
    link._failure = link._computing = None
    link._closed = threading.Event()
    return link


def test_a_process_without_a_sign_of_life_is_found_behind_one_that_has_not_begun():
    link = make_link(3, unresponsive=5)
    link._store.set("beat/2", "the same")  # rank 1 has set nothing
    seen = {}
    link._beat(0.0, seen)
    link._beat(4.0, seen)
    link.raise_failure()
    link._beat(6.0, seen)
    with pytest.raises(PeerFailedError, match="rank 2 gives no sign of life"):
        link.raise_failure()


def test_a_process_that_does_not_return_after_a_failure_is_ended(monkeypatch):
    link = make_link(2, heartbeat=0.01, exit_grace=0.01)
    link._store.set(_ERROR, "of rank 1")
    ended, seen = [], []
    monkeypatch.setattr(link, "_exit", ended.append)

    def set_key(key, value):
        seen.extend([key] * key.startswith("seen/"))
        if len(seen) > 1:
            link._closed.set()  # it looks again at what it has seen

    monkeypatch.setattr(link._store, "set", set_key)
    link._watch()
    assert (seen, ended) == (["seen/0"], ["of rank 1"])
