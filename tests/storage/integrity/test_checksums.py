"""Checksums of a store: made when it is written, compared when it is read, and said where wrong."""

import zlib
from dataclasses import replace

import numpy as np
import pytest

from seqdata.errors import CorruptSampleError, CorruptShardError, MissingShardError, SeqDataError
from seqdata.kernel.dispatch import get_kernel
from seqdata.storage.arrow.manifest import MANIFEST, dump_manifest, load_manifest
from seqdata.storage.arrow.store import open_arrow
from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.integrity.checksums import (
    CHECKSUM_BYTES,
    checksum_byte_offsets,
    choose_algorithm,
    compute_checksums,
    write_checksums,
)
from seqdata.storage.integrity.verify import ChecksumMismatch, make_mismatch_error
from tests.storage.integrity.checked import (
    LONG,
    everything,
    flip,
    marked,
    place_of,
    row,
    spans_of,
)

pytestmark = pytest.mark.usefixtures("kernel")


def test_checksums_are_one_per_sequence_and_one_per_block_of_a_longer_one():
    values = np.random.default_rng(0).integers(0, 9, 50_000, dtype=np.int32)
    offsets = np.array([0, 3, 3, 3 + CHECKSUM_BYTES // 4, 50_000])
    short = compute_checksums(values[: offsets[3]], offsets[:4], 4, "crc32")
    raw = values.tobytes()
    assert short.offsets is None
    assert short.values.tolist() == [
        zlib.crc32(raw[:12]),
        0,
        zlib.crc32(raw[12 : 12 + CHECKSUM_BYTES]),
    ]
    long = compute_checksums(values, offsets, 4, "crc32")
    rest = raw[12 + CHECKSUM_BYTES :]
    pieces = [rest[at : at + CHECKSUM_BYTES] for at in range(0, len(rest), CHECKSUM_BYTES)]
    assert len(pieces) == 3
    assert long.offsets.tolist() == [0, 1, 2, 3, 6]
    assert long.values.tolist() == [*short.values.tolist(), *map(zlib.crc32, pieces)]


def test_checksums_of_values_without_offsets_are_one_each():
    values = np.arange(6, dtype=np.int16).reshape(3, 2)
    made = compute_checksums(values, None, 4, "crc32")
    assert made.values.tolist() == [zlib.crc32(one.tobytes()) for one in values]
    assert compute_checksums(np.empty((0, 2), np.int16), None, 4).values.tolist() == []


def test_a_multiple_of_the_block_has_no_checksum_of_nothing():
    for size in (
        CHECKSUM_BYTES - 1,
        CHECKSUM_BYTES,
        CHECKSUM_BYTES + 1,
        2 * CHECKSUM_BYTES,
        2 * CHECKSUM_BYTES + 1,
    ):
        made = compute_checksums(np.zeros(size, np.uint8), np.array([0, size]), 1)
        assert len(made.values) == -(-size // CHECKSUM_BYTES)
        edges = checksum_byte_offsets(np.array([0, size]), made.offsets).tolist()
        assert edges == [*range(0, size, CHECKSUM_BYTES), size]


def test_the_file_of_checksums_has_every_array_where_it_says(tmp_path):
    long = compute_checksums(
        np.zeros(CHECKSUM_BYTES + 1, np.uint8), np.array([0, CHECKSUM_BYTES + 1]), 1
    )
    short = compute_checksums(np.arange(3), None, 8)
    file = write_checksums(tmp_path / "part-00000.crc", {"a": short, "b": long})
    content = (tmp_path / file.file).read_bytes()
    assert (file.file, file.bytes) == ("part-00000.crc", len(content))
    assert file.places == {"a": ((0, 12),), "b": ((16, 8), (24, 16))}
    assert content[:12] == short.values.tobytes()
    assert content[16:24] == long.values.tobytes()
    assert content[24:] == long.offsets.tobytes()


def test_a_written_store_has_checksums_and_is_verified_at_the_first_read(root):
    store = open_arrow(root)
    assert store.verify == "first_read"
    assert store.manifest.checksums.algorithm == choose_algorithm() == "crc32c"
    assert all(shard.checksums is not None for shard in store.manifest.shards)
    assert marked(store) == 0
    everything(store)
    assert marked(store) == store._info.bits.count == 6 * 5 + 2


@pytest.mark.parametrize("verify", ["off", "first_read", "always"])
@pytest.mark.parametrize("filled", [True, False])
def test_what_is_read_is_what_was_written(root, verify, filled):
    store = open_arrow(root, verify=verify)
    assert store.verify == verify
    for _ in range(2):
        found = everything(store, filled=filled)
        assert found["keys"] == [f"u{i}" for i in range(6)]
        assert found["x"] == [v for i in range(6) for v in row(i)["x"].tolist()]
        assert found["raw"] == [b"\0" * i for i in range(6)]
        assert found["y"] == list(range(6))


def test_zlibs_checksums_are_read_by_any_kernel(root, monkeypatch):
    monkeypatch.setattr("seqdata.storage.integrity.checksums.ALGORITHMS", ("crc32",))
    write_arrow(root, [row(i) for i in range(6)], axes={"wide": "wide"}, overwrite=True)
    store = open_arrow(root)
    assert store.manifest.checksums.algorithm == "crc32"
    everything(store)
    file, place = place_of(store, 5, "x")
    flip(root / file, place)
    with pytest.raises(CorruptSampleError, match=r"must have crc32 .*, but has"):
        everything(open_arrow(root))


@pytest.mark.parametrize("filled", [True, False])
def test_a_flipped_bit_is_an_error_that_says_everything(root, filled):
    store = open_arrow(root)
    file, place = place_of(store, 5, "x", offset=9)
    flip(root / file, place, 3)
    with pytest.raises(CorruptSampleError) as caught:
        everything(store, filled=filled)
    facts = caught.value.details
    right, wrong = row(5)["x"], row(5)["x"].view(np.uint8).copy()
    wrong[9] ^= 8
    sums = np.empty(2, np.uint32)
    get_kernel().checksums(right.tobytes() + wrong.tobytes(), np.array([0, 20, 40]), sums, "crc32c")
    assert facts == {
        "dataset": str(root), "file": file, "shard": 1, "sequence": 5, "key": "u5", "field": "x",
        "offset": place - 9, "length": 20, "expected": f"{sums[0]:08x}", "found": f"{sums[1]:08x}",
        "remedy": f"seqdata verify {root} --shard 1",
    }  # fmt: skip
    assert str(caught.value).split("\n")[:2] == [
        f'{root} shard 1 ("{file}"), sequence 5 ("u5"), field "x", '
        f"bytes {place - 9}..{place + 11}: must have crc32c {sums[0]:08x} "
        f"as in 'part-00001.crc', but has {sums[1]:08x}: the shard or that file is damaged. "
        "Restore it, or write the store again",
        f"  Verify: seqdata verify {root} --shard 1.",
    ]


def test_of_a_long_sequence_only_the_blocks_are_read_that_a_chunk_touches(root):
    store = open_arrow(root)
    file, place = place_of(store, 2, "x", offset=CHECKSUM_BYTES + 4)
    flip(root / file, place)
    step = CHECKSUM_BYTES // 4
    chunk = store.read(np.array([[2, 10, step], [2, 2 * step, LONG]]), ["x"])["x"]
    out = np.zeros(int(chunk.lengths.sum()), np.int32)
    chunk.fill(out, np.concatenate([[0], np.cumsum(chunk.lengths)]), None)
    assert out[0] == 12
    assert marked(store) == 2
    bad = store.read(np.array([[2, step - 1, step + 1]]), ["x"])["x"]
    with pytest.raises(CorruptSampleError) as caught:
        bad[0]
    assert caught.value.details["length"] == CHECKSUM_BYTES
    assert caught.value.details["offset"] == place - 4
    assert marked(store) == 3  # and the id that the error names


@pytest.mark.parametrize(("name", "number"), [("id", 4), ("raw", 4)])
def test_texts_and_bytes_are_verified(root, name, number):
    store = open_arrow(root)
    file, place = place_of(store, number, name, offset=1)
    flip(root / file, place)
    with pytest.raises(CorruptSampleError, match=r"must have crc32c .*, but has") as caught:
        store.read(spans_of(store), [name])
    assert caught.value.details["sequence"] == number
    assert caught.value.details["field"] == name
    assert caught.value.details["offset"] == place - 1


def test_always_notices_what_changes_after_the_first_read_and_first_read_does_not(root):
    once, always = open_arrow(root), open_arrow(root, verify="always")
    everything(once)
    everything(always)
    file, place = place_of(once, 4, "x")
    flip(root / file, place, 7)
    assert everything(once)["x"] != [v for i in range(6) for v in row(i)["x"].tolist()]
    for filled in (True, False):
        with pytest.raises(CorruptSampleError, match="sequence 4"):
            everything(always, filled=filled)


@pytest.mark.parametrize("name", ["x", "wide", "id", "raw"])
def test_a_wrong_place_of_a_sequence_is_never_silent(root, name):
    good = everything(open_arrow(root))
    for number in range(7):
        store = open_arrow(root)
        file, place = place_of(store, min(number, 5), name, buffer=1, offset=8 * (number == 6))
        flip(root / file, place)
        try:
            found = everything(open_arrow(root))
        except SeqDataError:
            continue
        finally:
            flip(root / file, place)
        assert found == good


def test_lengths_that_were_changed_are_refused_when_the_store_is_opened(root):
    flip(root / "lengths-time.u32", 0)
    with pytest.raises(
        CorruptShardError,
        match=r'lengths of axis "time" \("lengths-time.u32"\), bytes 0..24: must have '
        r"crc32c \w{8}, but have \w{8}\. Restore them, or write the store again",
    ) as caught:
        open_arrow(root)
    assert caught.value.details["file"] == "lengths-time.u32"
    assert open_arrow(root, verify="off").lengths[0] == 2


def test_a_length_that_is_not_the_shards_is_an_error(root):
    lengths = np.array([3, 0, LONG, 1, 1, 6], dtype="<u4")  # the total stays
    manifest = load_manifest(root)
    made = np.empty(1, np.uint32)
    get_kernel().checksums(lengths, np.array([0, 24]), made, "crc32c")
    changed = {**manifest.lengths}
    changed["time"] = replace(changed["time"], checksum=int(made[0]))
    (root / "lengths-time.u32").write_bytes(lengths.tobytes())
    (root / MANIFEST).write_bytes(dump_manifest(replace(manifest, lengths=changed)))
    column = open_arrow(root).read(np.array([[4, 0, 1]]), ["x"])["x"]
    with pytest.raises(
        CorruptSampleError,
        match=(
            "must have 1 timesteps as in the file of lengths, but has 2 in the shard: one of "
            "the two"
        ),
    ) as caught:
        column.fill(np.empty(1, np.int32), np.array([0, 1]), None)
    assert (caught.value.details["expected"], caught.value.details["found"]) == (1, 2)


def test_a_checksum_file_that_was_changed_is_an_error_about_the_sequence(root):
    store = open_arrow(root)
    (place, _), (firsts, _) = store.manifest.shards[0].checksums.places["x"]
    flip(root / "part-00000.crc", place)
    with pytest.raises(CorruptSampleError, match=r"sequence 0 .*must have crc32c .*, but has"):
        everything(open_arrow(root))
    flip(root / "part-00000.crc", place)
    flip(root / "part-00000.crc", firsts + 8)
    with pytest.raises(
        CorruptSampleError,
        match=r"sequence 0 .*: must have one checksum for each 65536 bytes, but has 12 "
        "bytes and 0 checksums in 'part-00000.crc': one of the two files is damaged",
    ):
        everything(open_arrow(root))
    flip(root / "part-00000.crc", firsts + 8)
    flip(root / "part-00000.crc", firsts + 7, 7)
    with pytest.raises(CorruptSampleError, match="has 12 bytes and 0 checksums"):
        everything(open_arrow(root))


def test_checksums_that_are_not_there_or_cut_off_are_refused_unless_they_are_not_wanted(root):
    path = root / "part-00001.crc"
    content = path.read_bytes()
    path.write_bytes(content[:-8])
    with pytest.raises(
        CorruptShardError,
        match=rf'checksums of shard 1 \("part-00001.crc"\), bytes .*: must have {len(content)} '
        f"bytes, but have {len(content) - 8}. Restore them, or write the store again",
    ):
        open_arrow(root)
    path.unlink()
    with pytest.raises(MissingShardError, match=r'checksums of shard 1 \("part-00001.crc"\)'):
        open_arrow(root)
    assert open_arrow(root, verify="off").keys([5]) == ["u5"]


def test_a_sequence_that_is_right_at_the_second_look_is_an_error_still(root):
    store = open_arrow(root)
    source = store._reader.sources["x"]
    content = source.values[0][:3].view(np.uint8)

    def place(first, last):
        return store._reader.layout.locate(0, "x", first, last - first)

    suspect = ChecksumMismatch(0, 0, 0, content, 4, 0, 12, place)
    error = make_mismatch_error(source.checksums, get_kernel(), suspect)
    assert "must be the same at each read, but was wrong at first" in str(error)
    with pytest.raises(
        ValueError, match="must be the checksums that the kernel compared with, but is None"
    ):
        make_mismatch_error(None, get_kernel(), suspect)


@pytest.mark.slow
def test_no_flipped_bit_of_any_file_is_silent(root):
    """What is read is what was written, or an error of ours."""
    good = everything(open_arrow(root))
    random = np.random.default_rng(7)
    files = sorted(path for path in root.iterdir() if path.is_file())
    assert {path.suffix for path in files} == {".arrow", ".crc", ".json", ".u32"}
    found = 0
    for number in range(300):
        path = files[number % len(files)]
        place, bit = int(random.integers(path.stat().st_size)), int(random.integers(8))
        flip(path, place, bit)
        try:
            assert everything(open_arrow(root), filled=number % 2 == 0) == good
        except SeqDataError:
            found += 1
        finally:
            flip(path, place, bit)
    assert found > 150
    assert everything(open_arrow(root)) == good
