"""Hashes of texts are the same for ever, spread evenly, and one text's own."""

import numpy as np
import pytest

from seqdata.storage.hashing import (
    HASH_CHUNK,
    TEXTS_PER_PASS,
    hash_numbers,
    hash_texts,
    is_among,
)

MOST = (1 << 64) - 1


def joined(texts):
    """Return (values, offsets) of texts."""
    values = np.frombuffer(b"".join(texts), dtype=np.uint8)
    return values, np.append(0, np.cumsum([len(text) for text in texts], dtype=np.int64))


def hashed(texts, seed=0):
    return hash_texts(*joined(texts), seed=seed)


def mix(state):
    state ^= state >> 30
    state = state * 0xBF58476D1CE4E5B9 & MOST
    state ^= state >> 27
    state = state * 0x94D049BB133111EB & MOST
    return state ^ state >> 31


def written_again(text, seed=0):
    """Return the hash by integers of Python, which have no byte order and no words."""
    if len(text) > HASH_CHUNK:
        pieces = [text[i : i + HASH_CHUNK] for i in range(0, len(text), HASH_CHUNK)]
        inner = b"".join(written_again(one, seed).to_bytes(8, "little") for one in pieces)
        return mix(written_again(inner, seed) ^ len(text))
    state = mix((seed + 0x9E3779B97F4A7C15) & MOST)
    for first in range(0, len(text), 8):
        state = mix(state ^ int.from_bytes(text[first : first + 8], "little"))
    return mix(state ^ len(text))


GOLDEN = {
    (b"", 0): 0x48218226FF3CD4BF,
    (b"", 1): 0xDCE423FC82C0D5B8,
    (b"a", 0): 0xB7C3BBC717C50CB6,
    (b"0", 0): 0x5B0C8C9785E34379,
    (b"12345678", 0): 0xFC711A7336B97B25,
    (b"123456789", 0): 0x2D2C980DB957191D,
    ("größe/日本".encode(), 0): 0x905B99CDF56A8755,
    (b"train/spk0001/utt_0000042.flac", 0): 0xAD8D543D09DFC5DE,
    (b"train/spk0001/utt_0000042.flac", 42): 0x699E18F08B8476D0,
    (b"train/spk0001/utt_0000042.flac", MOST): 0x7DBE07D76914DEB8,
    (b"x" * 512, 0): 0xE5D2706C47834E8B,
    (b"x" * 513, 0): 0xF6BE59242D60EF39,
}


@pytest.mark.parametrize(("text", "seed"), GOLDEN)
def test_the_hash_of_a_text_is_pinned_for_ever(text, seed):
    """What a split puts where, and what a writer left behind, rest on these numbers."""
    assert int(hashed([text], seed)[0]) == GOLDEN[text, seed]


@pytest.mark.parametrize("seed", [0, 1, MOST])
def test_the_hash_is_that_of_whole_numbers_on_any_machine(seed):
    rng = np.random.default_rng(seed)
    sizes = [0, 1, 2, 7, 8, 9, 15, 16, 17, 26, 511, 512, 513, 1024, 5000, 512 * 65 + 3]
    texts = [rng.bytes(size) for size in rng.choice(sizes, 300)]
    assert hashed(texts, seed).tolist() == [written_again(text, seed) for text in texts]


def test_a_text_has_one_hash_wherever_it_lies():
    texts = [b"u%d" % i for i in range(TEXTS_PER_PASS + 100)] + [b"", b"l" * 600]
    order = np.random.default_rng(1).permutation(len(texts))
    assert (hashed([texts[i] for i in order]) == hashed(texts)[order]).all()
    values, offsets = joined(texts)
    assert (hash_texts(values, offsets[40:60]) == hashed(texts)[40:59]).all()
    framed = np.concatenate([values, np.full(50, 255, dtype=np.uint8)])
    assert (hash_texts(framed, offsets) == hashed(texts)).all()


def test_zeros_at_the_end_make_another_text():
    texts = [b"a" + b"\0" * i for i in range(40)] + [b"\0" * i for i in range(40)]
    assert len(set(hashed(texts).tolist())) == 80


def test_a_number_has_the_hash_of_its_eight_bytes():
    numbers = np.random.default_rng(2).integers(0, MOST, TEXTS_PER_PASS + 9, dtype=np.uint64)
    texts = [int(number).to_bytes(8, "little") for number in numbers]
    assert (hash_numbers(numbers, seed=7) == hashed(texts, seed=7)).all()


NAMES = {
    "numbers": lambda i: b"%d" % i,
    "numbers of one length": lambda i: b"%08d" % i,
    "paths": lambda i: b"train/spk%04d/utt_%07d.flac" % (i // 700, i),
    "two counters": lambda i: b"%d-%d" % (i % 1000, i // 1000),
    "hex": lambda i: b"%032x" % (i * 0x9E3779B97F4A7C15),
}


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("style", NAMES)
def test_many_ids_have_as_many_hashes_spread_evenly(style, count):
    make = NAMES[style]
    hashes = hashed([make(i) for i in range(count)])
    assert len(np.unique(hashes)) == count
    # the low bits, too: 1024 cells alike, chi-square about 1023 with deviation 45
    for shift in (0, 27, 54):
        counts = np.bincount((hashes >> np.uint64(shift)).astype(np.int64) & 1023, minlength=1024)
        expected = count / 1024
        assert abs(((counts - expected) ** 2 / expected).sum() - 1023) < 6 * 45


def bits_of(hashes):
    return np.unpackbits(hashes.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1)


def test_each_bit_of_a_text_changes_each_bit_of_its_hash_half_of_the_time():
    rng = np.random.default_rng(3)
    texts = rng.integers(0, 256, (2000, 20), dtype=np.uint8)
    offsets = np.arange(2001) * 20
    before = hash_texts(texts.reshape(-1), offsets)
    for bit in range(160):
        turned = texts.copy()
        turned[:, bit // 8] ^= np.uint8(1 << bit % 8)
        rates = bits_of(before ^ hash_texts(turned.reshape(-1), offsets)).mean(axis=0)
        assert abs(rates - 0.5).max() < 6 * 0.5 / 2000**0.5


@pytest.mark.parametrize("other", [1, 2, 1 << 63, MOST])
def test_another_seed_gives_unrelated_hashes(other):
    texts = [b"u%d" % i for i in range(100_000)]
    first, second = hashed(texts), hashed(texts, other)
    assert abs(bits_of(first ^ second).mean(axis=0) - 0.5).max() < 6 * 0.5 / 100_000**0.5
    low, high = first < 1 << 62, second < 1 << 62  # a quarter each: a sixteenth in both
    assert abs((low & high).mean() - 1 / 16) < 6 * (15 / 256 / 100_000) ** 0.5


@pytest.mark.parametrize(
    ("values", "offsets", "seed", "text"),
    [
        (np.zeros(4, np.int8), [0, 4], 0, "hash_texts: `values` must be uint8 of one dimension"),
        (np.zeros((2, 2), np.uint8), [0, 4], 0, "`values` must be uint8 of one dimension"),
        (np.zeros(8, np.uint8)[::2], [0, 4], 0, "`values` must be uint8 of .*, without gaps"),
        (np.zeros(4, np.uint8), [0, 4], -1, r"`seed` must be in \[0, 2\^64\), but is -1"),
        (
            np.zeros(4, np.uint8),
            [0, 4],
            1 << 64,
            "`seed` must be in .*, but is 18446744073709551616",
        ),
        (np.zeros(4, np.uint8), [], 0, "`offsets` must have at least one element, inside 0..4"),
        (np.zeros(4, np.uint8), [0, 5], 0, "`offsets` must have at least one element, inside 0..4"),
        (
            np.zeros(4, np.uint8),
            [-1, 4],
            0,
            "`offsets` must have at least one element, inside 0..4",
        ),
        (np.zeros(4, np.uint8), [0, 3, 2, 4], 0, "`offsets` must be ascending"),
    ],
)
def test_arguments_that_cannot_be_meant_are_an_error(values, offsets, seed, text):
    with pytest.raises(ValueError, match=text):
        hash_texts(values, np.array(offsets, dtype=np.int64), seed)


def test_hashes_among_others_are_found_over_the_whole_range():
    hashes = np.array([0, 5, 2**63, 2**64 - 1], np.uint64)
    others = np.array([2**64 - 1, 0, 7], np.uint64)
    assert is_among(hashes, others).tolist() == [True, False, False, True]
    assert not is_among(hashes, others[:0]).any()
