"""Checksums: computed, verified while copying, marked by bits; both kernels take the same tests."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdata.storage.fields import extents_of
from tests.kernel.engines import get_compiled, int64, numpy_kernel, spans

BIG = 2**63 - 1


def summed(engine, data, bounds, name="crc32c"):
    made = np.zeros(len(bounds) - 1, dtype=np.uint32)
    engine.checksums(data, int64(*bounds), made, name)
    return made.tolist()


def test_checksums_are_those_that_everybody_knows(engine):
    data = b"123456789" + bytes(32)
    assert summed(engine, data, [0, 9, 41, 41]) == [0xE3069283, 0x8A9136AA, 0]
    assert summed(engine, data, [0, 9, 41, 41], "crc32") == [0xCBF43926, zlib.crc32(bytes(32)), 0]


@pytest.mark.parametrize("name", ["crc32c", "crc32"])
def test_both_kernels_compute_the_same_of_pieces_of_any_size_and_place(name):
    random = np.random.default_rng(0)
    data = random.bytes(60_000)
    sizes = [*range(80), 191, 192, 193, 767, 768, 769, 1023, 1024, 1025, 1279, 1280, 12_287, 12_289]
    bounds = np.concatenate([[3], 3 + np.cumsum(sizes)])
    assert bounds[-1] <= len(data)
    assert summed(get_compiled(), data, bounds, name) == summed(numpy_kernel, data, bounds, name)


@pytest.mark.parametrize("bounds", [(0, 2, 1), (-1, 0, 2), (0, 2, 9), (0, 1), (0, 1, 2, 3), ()])
def test_checksums_refuses_bounds_that_do_not_fit(engine, bounds):
    with pytest.raises(ValueError, match="`bounds` must rise inside `data`, one more than `out`"):
        engine.checksums(b"12345678", int64(*bounds), np.zeros(2, dtype=np.uint32), "crc32c")


@pytest.mark.parametrize("name", ["md5", "", "crc32é"])
def test_checksums_refuses_another_algorithm(engine, name):
    with pytest.raises(ValueError, match=r"takes \(data, bounds, out|`algorithm` must be"):
        engine.checksums(b"", int64(0), np.zeros(0, dtype=np.uint32), name)


def test_the_compiled_kernel_has_both():
    assert get_compiled().algorithms() == ("crc32c", "crc32") == numpy_kernel.algorithms()


class Field:
    """Three sequences of 2, 0 and 3 timesteps, 4 bytes each, in blocks of 8 bytes."""

    def __init__(self, engine, *, lengths=(2, 0, 3), bits=True, firsts=(0, 1, 2, 4)):
        self.engine = engine
        self.values = np.arange(1, 6, dtype=np.int32)
        self.sums = np.array(summed(engine, self.values, [0, 8, 8, 16, 20]), dtype=np.uint32)
        self.bits = np.zeros(2, dtype=np.uint8)
        self.offsets = int64(0, 2, 2, 5)
        self.lengths = np.array(lengths, dtype=np.uint32)
        checks = (
            "crc32c", 8, (self.sums,), (None if firsts is None else int64(*firsts),),
            self.bits if bits else None, (3,), self.lengths,
        )  # fmt: skip
        self.source = engine.source(
            (self.values,), extents_of([self.offsets]), int64(0, 3), 4, checks
        )

    def fill(self, *rows):
        table = spans(*rows)
        bounds = np.concatenate([[0], np.cumsum(table[:, 2] - table[:, 1])])
        out = np.zeros(int(bounds[-1]), dtype=np.int32)
        return self.engine.fill(self.source, table, bounds, out, None), out.tolist()

    def marked(self):
        return np.flatnonzero(np.unpackbits(self.bits, bitorder="little")).tolist()


def test_fill_verifies_what_it_copies_and_marks_it(engine):
    field = Field(engine)
    assert field.fill([0, 0, 2], [1, 0, 0], [2, 0, 3]) == (-1, [1, 2, 3, 4, 5])
    assert field.marked() == [3, 4, 5, 6]


def test_fill_verifies_only_the_blocks_that_a_span_touches(engine):
    field = Field(engine)
    field.values[4] ^= 1
    assert field.fill([2, 0, 2]) == (-1, [3, 4])
    assert field.marked() == [5]
    assert field.fill([2, 0, 1], [2, 1, 3])[0] == -3
    assert field.marked() == [5]
    field.values[4] ^= 1
    assert field.fill([2, 2, 3]) == (-1, [5])
    assert field.marked() == [5, 6]


def test_an_empty_span_of_a_sequence_touches_nothing(engine):
    field = Field(engine)
    field.values[:] = 0
    assert field.fill([0, 1, 1], [2, 3, 3]) == (-1, [])
    assert field.marked() == []


@pytest.mark.parametrize("place", range(20))
def test_a_flipped_byte_is_another_checksum_and_marks_nothing(engine, place):
    field = Field(engine)
    field.values.view(np.uint8)[place] ^= 16
    sequence, bit = (0, 3) if place < 8 else (2, 5 if place < 16 else 6)
    table = [[1, 0, 0], [sequence, 0, 2 if sequence == 0 else 3]]
    assert field.fill(*table)[0] == -3
    assert engine.verify(field.source, spans(*table)) == -3
    assert bit not in field.marked()


def test_what_is_marked_is_not_looked_at_again(engine):
    field = Field(engine)
    field.fill([0, 0, 2])
    field.values[0] = 9
    assert field.fill([0, 0, 2]) == (-1, [9, 2])


def test_without_bits_everything_is_looked_at_each_time(engine):
    field = Field(engine, bits=False)
    assert field.fill([0, 0, 2])[0] == -1
    field.values[0] = 9
    assert field.fill([0, 0, 2])[0] == -2


def test_verify_marks_and_copies_nothing(engine):
    field = Field(engine)
    assert engine.verify(field.source, spans([2, 0, 3], [1, 0, 0])) == -1
    assert field.marked() == [4, 5, 6]


def test_verify_gives_the_first_span_that_is_not_there(engine):
    field = Field(engine)
    assert engine.verify(field.source, spans([2, 0, 3], [1, 0, 1])) == 1
    assert field.marked() == []


def test_verify_without_checksums_looks_at_places_only(engine):
    source = engine.source((np.arange(4),), None, int64(0, 4), 8)
    assert engine.verify(source, spans([3, 0, 1])) == -1
    assert engine.verify(source, spans([3, 0, 1], [4, 0, 1])) == 1


@pytest.mark.parametrize(
    "firsts",
    [(0, 1, 2, 3), (0, 1, 3, 4), (0, 1, -2, 0), (0, 1, 2, 5), (0, 1, 9, 11), (0, 1, BIG, 4),
     (0, 1, 2, -BIG), (0, 1, 4, 2), None],
)  # fmt: skip
def test_firsts_that_do_not_fit_the_bytes_are_another_checksum(engine, firsts):
    field = Field(engine, firsts=firsts)
    assert field.fill([2, 0, 1])[0] == -2
    assert field.marked() == []


@pytest.mark.parametrize(("lengths", "number"), [((3, 0, 3), 0), ((2, 1, 3), 1), ((2, 0, 2), 2)])
def test_a_length_that_is_not_the_recorded_one_is_refused(engine, lengths, number):
    for lengths_ in (lengths, np.array(lengths, dtype=np.uint64)):
        field = Field(engine, lengths=lengths_)
        stop = int(field.offsets[number + 1] - field.offsets[number])
        assert field.fill([number, 0, stop])[0] == -2
        assert field.marked() == []


def test_an_empty_sequence_is_verified_by_the_checksum_of_no_bytes(engine):
    field = Field(engine)
    field.sums[1] = 7
    assert field.fill([1, 0, 0])[0] == -2


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({0: "md5"}, "known algorithm|takes|`algorithm` must be"),
        ({1: 0}, "checks need a known algorithm, a block of at least 1 byte and an entry for each"),
        (
            {2: ()},
            "checks need a known algorithm, a block of at least 1 byte and an entry for each",
        ),
        (
            {3: ()},
            "checks need a known algorithm, a block of at least 1 byte and an entry for each",
        ),
        (
            {5: ()},
            "checks need a known algorithm, a block of at least 1 byte and an entry for each",
        ),
        ({2: (bytes(4),)}, "checksums of shard 0 are too few"),
        ({3: (bytes(16),)}, "checksums of shard 0 are too few"),
        ({5: (7,)}, "`bits` of shard 0 are too few"),
        ({5: (-1,)}, "`bits` of shard 0 are too few"),
        ({6: bytes(2)}, "`lengths` must be one uint32 or uint64 for each sequence of a ragged"),
        ({6: bytes(24)}, "`lengths` must be one uint32 or uint64 for each sequence of a ragged"),
    ],
)
def test_source_refuses_checks_that_are_too_short(engine, change, text):
    checks = ["crc32c", 8, (bytes(8),), (None,), bytearray(1), (6,), bytes(8)]
    values, extents, starts = (bytes(8),), extents_of([int64(0, 1, 2)]), int64(0, 2)
    engine.source(values, extents, starts, 4, tuple(checks))
    for place, value in change.items():
        checks[place] = value
    with pytest.raises(ValueError, match=text):
        engine.source(values, extents, starts, 4, tuple(checks))


def test_source_refuses_bits_that_are_read_only_and_lengths_of_a_field_without(engine):
    checks = ("crc32c", 8, (bytes(8),), (None,), bytes(1), (6,), None)
    with pytest.raises(BufferError):
        engine.source((bytes(8),), None, int64(0, 2), 4, checks)
    checks = ("crc32c", 8, (bytes(8),), (None,), None, (0,), bytes(8))
    with pytest.raises(ValueError, match="uint32 or uint64 for each sequence of a ragged field"):
        engine.source((bytes(8),), None, int64(0, 2), 4, checks)


@st.composite
def checked(draw):
    """Return values, offsets, checks and spans of up to two shards: right, then one changed."""
    width, block = draw(st.integers(1, 3)), draw(st.integers(1, 7))
    values, offsets, all_sums, all_firsts, starts, lengths = [], [], [], [], [0], []
    for _ in range(draw(st.integers(1, 2))):
        sizes = np.array(draw(st.lists(st.integers(0, 6), min_size=1, max_size=4)), dtype=np.int64)
        edges = np.concatenate([[0], np.cumsum(sizes)])
        data = bytes(draw(st.lists(st.integers(0, 255), min_size=int(edges[-1]) * width,
                                   max_size=int(edges[-1]) * width)))  # fmt: skip
        pieces, firsts = [], [0]
        for first, last in zip(edges[:-1] * width, edges[1:] * width, strict=True):
            pieces += [zlib.crc32(data[at : min(at + block, last)])
                       for at in range(first, max(last, first + 1), block)]  # fmt: skip
            firsts.append(len(pieces))
        values.append(bytearray(data))
        offsets.append(edges.astype(np.int64))
        all_sums.append(np.array(pieces, dtype=np.uint32))
        all_firsts.append(np.array(firsts, dtype=np.int64))
        starts.append(starts[-1] + len(sizes))
        lengths += sizes.tolist()
    recorded = np.array(lengths, dtype=draw(st.sampled_from([np.uint32, np.uint64])))
    for _ in range(draw(st.integers(0, 2))):
        where = draw(st.sampled_from([*values, *offsets, *all_sums, *all_firsts, recorded]))
        flat = np.frombuffer(where, dtype=np.uint8)
        if len(flat):
            flat[draw(st.integers(0, len(flat) - 1))] ^= 1 << draw(st.integers(0, 7))
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        number = draw(st.integers(0, len(lengths) - 1))
        start = draw(st.integers(0, lengths[number]))
        rows.append([number, start, draw(st.integers(start, lengths[number]))])
    begins = tuple(np.cumsum([5, *(len(one) for one in all_sums)]).tolist()[:-1])
    checks = ("crc32", block, tuple(all_sums), tuple(all_firsts), begins, recorded)
    return (tuple(values), extents_of(offsets), int64(*starts), width), checks, spans(*rows)


def outcomes(engine, call, use_bits):
    source_args, (name, block, all_sums, firsts, begins, lengths), table = call
    bits = np.zeros(32, dtype=np.uint8)
    checks = (name, block, all_sums, firsts, bits if use_bits else None, begins, lengths)
    source = engine.source(*source_args, checks)
    bounds = np.concatenate([[0], np.cumsum(table[:, 2] - table[:, 1])])
    out = np.zeros(int(bounds[-1]) * source_args[3], dtype=np.uint8)
    found = [engine.fill(source, table, bounds, out, None)]
    wrote = out.tobytes() if found[0] == -1 else None
    marked = bits.tobytes()
    return [*found, engine.verify(source, table), wrote, marked, bits.tobytes()]


@given(checked(), st.booleans())
def test_the_compiled_kernel_and_its_twin_verify_alike_whatever_the_buffers_hold(call, use_bits):
    found = outcomes(get_compiled(), call, use_bits)
    assert found == outcomes(numpy_kernel, call, use_bits)
    assert found[0] == found[1]
