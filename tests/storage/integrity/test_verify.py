"""When a store is verified: modes, stores without checksums, bits that processes share."""

import logging
import multiprocessing
import pickle
from dataclasses import replace

import pytest

from seqdata.errors import ConfigError, SeqDataWarning
from seqdata.storage.arrow.manifest import load_manifest
from seqdata.storage.arrow.store import open_arrow
from seqdata.storage.arrow.write import write_arrow
from seqdata_testing.waiting import patient
from tests.storage.integrity.checked import everything, marked, rewrite, spans_of

pytestmark = pytest.mark.usefixtures("kernel")


def test_a_store_without_checksums_is_read_unverified_and_that_is_logged(root, caplog):
    rewrite(root, checksums=None)
    with caplog.at_level(logging.INFO, "seqdata.storage"):
        store = open_arrow(root)
    assert store.verify == "off"
    assert [one.message for one in caplog.records] == [
        f"{root}: unverified: it has no checksums; sizes and footers are checked"
    ]
    caplog.clear()
    pickle.loads(pickle.dumps(store))
    open_arrow(root, verify="off")
    assert not caplog.records
    with pytest.raises(
        ConfigError,
        match=(
            r"`verify` must be 'off', but is 'always': it has no checksums. Leave it out, or write"
        ),
    ):
        open_arrow(root, verify="always")


def test_checksums_that_cannot_be_computed_are_a_warning_or_what_was_asked_for_an_error(root):
    rewrite(root, checksums=replace(load_manifest(root).checksums, algorithm="xxh3"))
    text = "its checksums are 'xxh3', which cannot be computed here"
    remedy = "install lightning-seqd"
    with pytest.warns(
        SeqDataWarning, match=rf"{root}: is read without comparing checksums: {text}.*{remedy}"
    ):
        store = open_arrow(root)
    assert store.verify == "off"
    assert everything(store)["keys"] == [f"u{i}" for i in range(6)]
    with pytest.raises(
        ConfigError,
        match=rf"must be 'off', but is 'first_read': {text}\. Leave it out, or {remedy}",
    ):
        open_arrow(root, verify="first_read")


def test_an_unknown_mode_is_refused(root):
    with pytest.raises(
        ConfigError,
        match=r"`verify` must be one of off, first_read, always, but is 'on'. Leave it out",
    ):
        open_arrow(root, verify="on")


def test_a_pickled_store_keeps_its_mode_and_has_bits_of_its_own(root):
    store = open_arrow(root)
    everything(store)
    other = pickle.loads(pickle.dumps(store))
    assert other.verify == "first_read"
    assert marked(other) == 0
    assert pickle.loads(pickle.dumps(open_arrow(root, verify="always"))).verify == "always"
    assert pickle.loads(pickle.dumps(open_arrow(root, verify="off"))).verify == "off"


def test_bits_of_another_store_are_not_taken(root):
    store = open_arrow(root)
    everything(store)
    reopen, (location, verify, bits, fingerprint) = store.__reduce__()
    assert marked(reopen(location, verify, bits, fingerprint)) == bits.count
    other = write_arrow(root, [{"x": [1]}], overwrite=True)
    assert marked(reopen(location, verify, bits, other.fingerprint)) == 0


def read_some(store, numbers, pipe):
    store.read(spans_of(store)[numbers], ["id"])
    pipe.send(marked(store))
    pipe.close()


@pytest.mark.parametrize(
    "method", ["fork", pytest.param("forkserver", marks=pytest.mark.nightly), "spawn"]
)
def test_a_ranks_processes_share_what_was_found_right(root, method):
    store = open_arrow(root)
    store.read(spans_of(store)[:2], ["id"])
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=read_some, args=(store, [4, 5], theirs))
    process.start()
    theirs.close()
    assert ours.poll(60)
    assert ours.recv() == 4
    process.join(timeout=patient())
    assert marked(store) == 4
