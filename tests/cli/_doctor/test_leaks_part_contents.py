"""What tells sequences apart: hashes of contents, ids and groups, and how much they say."""

import numpy as np
import pytest

from seqdata import concat, open_store, split
from seqdata.cli._doctor import leaks as part_contents
from seqdata.cli._doctor.leaks import PartContents

WAVES = [np.arange(5.0), np.arange(5.0) + 1, np.zeros(5), np.zeros(0), np.arange(5.0)]
TEXT = "a text that is long enough to be no accident"
ROWS = [
    {"x": wave, "id": f"s{number}", "note": TEXT if number in (0, 4) else "short"}
    for number, wave in enumerate(WAVES)
]


def contents(rows=ROWS, **options):
    return PartContents("train", open_store(rows, **options))


@pytest.mark.parametrize("bytes_at_once", [1, 90, 1 << 20])
def test_equal_contents_have_equal_hashes_however_they_are_read(bytes_at_once, monkeypatch):
    due = contents().contents["x"][0].tolist()
    monkeypatch.setattr(part_contents, "_BYTES_AT_ONCE", bytes_at_once)
    hashes, bits = contents().contents["x"]
    assert hashes.tolist() == due
    assert hashes[0] == hashes[4]
    assert len(set(hashes.tolist())) == 4
    assert (bits > 0).tolist() == [True, True, False, False, True]  # constant ones say nothing
    of_values = 5 if bytes_at_once == 1 else 6  # those of the first sequences that are read
    assert bits[0] == pytest.approx(5 * np.log2(of_values))


def test_fields_of_an_axis_are_hashed_together():
    rows = [{"x": np.arange(3), "y": np.arange(3) * number} for number in range(3)]
    hashes, bits = contents(rows).contents["x, y"]
    assert len(set(hashes.tolist())) == 3
    assert (bits > 0).all()


def test_texts_count_from_some_length_on():
    hashes, bits = contents().contents["note"]
    assert hashes[0] == hashes[4]
    assert hashes[1] == hashes[2]
    assert bits.tolist() == [4.0 * len(TEXT), 0, 0, 0, 4.0 * len(TEXT)]


def test_ids_and_groups_are_hashed_where_there_are_any():
    part = contents()
    assert len(set(part.ids.tolist())) == 5
    assert len(set(part.hash_groups("note").tolist())) == 2
    assert contents([{"x": np.zeros(1)}]).ids is None


def test_pieces_in_time_are_spans_of_their_store():
    store = open_store([{"id": "a", "x": np.arange(10)}, {"id": "b", "x": np.arange(4)}])
    parts = split(store, {"train": "..6", "val": "6.."}, along="time", context=2)
    (pieces,) = PartContents("val", parts["val"]).pieces.items()
    assert pieces[0] == store.fingerprint
    assert pieces[1].spans.tolist() == [[0, 6, 10]]  # without the context
    assert pieces[1].are_cut


def test_whole_sequences_are_spans_of_their_store():
    store = open_store([{"id": "a", "x": np.arange(10)}, {"id": "b", "x": np.arange(4)}])
    (pieces,) = PartContents("train", store.take([1])).pieces.values()
    assert pieces.store.fingerprint == store.fingerprint
    assert pieces.spans.tolist() == [[1, 0, 4]]
    assert not pieces.are_cut


def test_joined_stores_have_pieces_of_each():
    stores = [open_store([np.arange(n), np.arange(9)]) for n in (10, 11)]
    late = split(stores[1], {"a": "..8", "b": "8.."}, along="time", context=1)["b"]
    joined = concat([stores[0], late, stores[0].take([1])]).take([3, 0, 4])
    first, second = PartContents("train", joined).pieces.values()
    assert (first.spans.tolist(), first.rows.tolist()) == ([[0, 0, 10], [1, 0, 9]], [1, 2])
    assert (second.spans.tolist(), second.rows.tolist()) == ([[1, 8, 9]], [0])


def test_the_first_and_the_last_timestamp_of_each_sequence_are_found():
    rows = [{"x": np.zeros(n), "when": np.arange(n) + 10 * n} for n in (3, 0, 1)]
    first, last = contents(rows).find_times("when", "time")
    assert first.tolist()[::2] == [30, 10]
    assert last.tolist()[::2] == [32, 10]
    assert np.isnan([first[1], last[1]]).all()
