"""The link between processes, without any: what it finds in its store."""

from __future__ import annotations

import json

import pytest
from seqdata_models.parallel.link import Link, LinkTimeouts
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
