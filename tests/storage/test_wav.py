"""Headers of WAV files: every form that is read, and every lie that is refused."""

import io
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdata.storage.wav import WavHeader
from tests.wav_files import Bytes, chunk, extensible, layout, riff, wav

SAMPLES = np.arange(12, dtype="<i2").tobytes()


def values_of(content, header):
    shape = (-1,) if header.channels == 1 else (-1, header.channels)
    return np.frombuffer(content[header.begin : header.end], header.stored).reshape(shape)


def refused(content):
    with pytest.raises(ValueError) as caught:
        WavHeader.read(Bytes(content))
    return str(caught.value)


@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize("dtype", ["u1", "<i2", "<i4", "<f4", "<f8"])
def test_samples_lie_where_the_header_says(dtype, channels):
    samples = np.arange(7 * channels).astype(dtype).reshape(7, channels)
    content = wav(samples if channels > 1 else samples[:, 0], rate=44100)
    header = WavHeader.read(Bytes(content))
    assert (header.rate, header.channels, header.frames) == (44100, channels, 7)
    assert header.dtype == np.dtype(dtype).name
    assert (values_of(content, header).reshape(7, channels) == samples).all()


SUBTYPES = ["PCM_U8", "PCM_16", "PCM_32", "FLOAT", "DOUBLE"]


@pytest.mark.parametrize("subtype", SUBTYPES)
@pytest.mark.parametrize(("format", "endian"), [("WAV", "LITTLE"), ("WAV", "BIG"), ("WAVEX", None)])
def test_what_libsndfile_writes_is_read_in_place(format, endian, subtype):
    written = np.linspace(-0.9, 0.9, 31)
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, written, 8000, format=format, subtype=subtype, endian=endian)
    content = file.getvalue()
    header = WavHeader.read(Bytes(content))
    assert header.stored.startswith("|" if subtype == "PCM_U8" else ">" if endian == "BIG" else "<")
    found = values_of(content, header).astype(np.float64)
    scale = {"PCM_U8": 128, "PCM_16": 2**15, "PCM_32": 2**31}.get(subtype, 1)
    found = (found - 128 if subtype == "PCM_U8" else found) / scale
    assert np.abs(found - written).max() < 0.02


@pytest.mark.parametrize("subtype", ["ULAW", "ALAW", "IMA_ADPCM", "MS_ADPCM"])
def test_what_is_compressed_is_left_to_the_decoder(subtype):
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    soundfile.write(file, np.zeros(100), 8000, format="WAV", subtype=subtype)
    assert WavHeader.read(Bytes(file.getvalue())).dtype is None


def test_the_subformat_of_an_extensible_header_counts():
    for tag, bits, dtype in ((1, 16, "<i2"), (1, 24, "<i3"), (3, 32, "<f4"), (6, 8, None)):
        fmt = extensible(tag, bits=bits)
        content = riff(chunk(b"fmt ", fmt), chunk(b"data", SAMPLES))
        assert WavHeader.read(Bytes(content)).stored == dtype
    somebodys = extensible(1)[:-1] + b"\0"
    content = riff(chunk(b"fmt ", somebodys), chunk(b"data", SAMPLES))
    assert WavHeader.read(Bytes(content)).dtype is None


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4095, 4096, 70_001])
def test_chunks_of_odd_size_have_a_byte_behind_them(size):
    other = chunk(b"LIST", b"x" * size)
    fmt = chunk(b"fmt ", layout())
    content = riff(other, fmt, other, chunk(b"data", SAMPLES), other)
    header = WavHeader.read(Bytes(content))
    assert content[header.begin : header.end] == SAMPLES


@pytest.mark.parametrize("kind", [b"RF64", b"BW64"])
def test_files_above_4_gib_have_their_size_in_a_chunk_of_its_own(kind):
    ds64 = chunk(b"ds64", struct.pack("<QQQI", 0, len(SAMPLES), 12, 0))
    fmt = chunk(b"fmt ", layout())
    data = chunk(b"data", SAMPLES, size=0xFFFFFFFF)
    header = WavHeader.read(Bytes(riff(ds64, fmt, data, kind=kind)))
    assert header.frames == 12
    assert "was cut off" in refused(riff(ds64, fmt, data, kind=kind)[:-2])


def test_a_file_above_4_gib_is_found_without_being_read():
    long = (5 << 30) + 2
    ds64 = chunk(b"ds64", struct.pack("<QQQI", long, long, long // 2, 0))
    fmt = chunk(b"fmt ", layout())
    head = riff(ds64, fmt, chunk(b"data", b"", size=0xFFFFFFFF), kind=b"RF64")
    file = Bytes(head)
    file.size = len(head) + long
    header = WavHeader.read(file)
    assert (header.begin, header.end) == (len(head), len(head) + long)
    assert sum(stop - first for first, stop in file.reads) <= 4096


def test_a_header_is_read_at_once():
    file = Bytes(wav(np.zeros(50_000, dtype="i2")))
    WavHeader.read(file)
    assert file.reads == [(0, 4096)]


def test_a_file_that_was_cut_off_is_refused_wherever_it_was():
    content = wav(np.arange(100, dtype="<i2"))
    for size in range(len(content)):
        refused(content[:size])


SIZES_OF_STREAMS = {  # (of RIFF, of the samples); None: the true one
    "ffmpeg": (0xFFFFFFFF, 0xFFFFFFFF),
    "sox": (0x7FFFF024, 0x7FFFF000),
    "arecord": (0x80000024, 0x80000000),
    "signed": (0x7FFFFFFF, 0x7FFFFFFF),
    "less the header": (0xFFFFFFFF, 0xFFFFFFDB),
    "gstreamer": (36, 0),
    "never finished": (0, 0),
    "only the samples": (None, 0xFFFFFFFF),
}


@pytest.mark.parametrize(("kind", "order"), [(b"RIFF", "<"), (b"RIFX", ">")])
@pytest.mark.parametrize("writer", SIZES_OF_STREAMS)
def test_the_samples_of_a_stream_end_with_the_file(writer, kind, order):
    riff_size, size = SIZES_OF_STREAMS[writer]
    fmt = chunk(b"fmt ", layout(order=order), order)
    note = chunk(b"LIST", b"INFOISFT", order)
    data = chunk(b"data", SAMPLES, order, size=size)
    content = riff(fmt, note, data, kind=kind, order=order)
    if riff_size is not None:
        content = content[:4] + struct.pack(f"{order}I", riff_size) + content[8:]
    header = WavHeader.read(Bytes(content))
    assert (header.is_stream, content[header.begin : header.end]) == (True, SAMPLES)
    assert "ends within a frame: it holds 23" in refused(content[:-1])


@pytest.mark.parametrize("sizes", [(0, 0), (2**64 - 1, 2**64 - 1)])
def test_a_stream_of_rf64_ends_with_the_file(sizes):
    ds64 = chunk(b"ds64", struct.pack("<QQQI", *sizes, 12, 0))
    fmt, data = chunk(b"fmt ", layout()), chunk(b"data", SAMPLES, size=0xFFFFFFFF)
    assert WavHeader.read(Bytes(riff(ds64, fmt, data, kind=b"RF64"))).frames == 12
    assert WavHeader.read(Bytes(riff(fmt, data, kind=b"RF64"))).frames == 12


@pytest.mark.parametrize("size", [25, 26, 1 << 20, 0x7FFFEFFE, 0x7FFFF002, 0xFFFFFFFE])
def test_a_size_that_is_no_streams_is_that_of_a_file_that_was_cut_off(size):
    fmt = chunk(b"fmt ", layout())
    short = riff(fmt, chunk(b"data", SAMPLES, size=size))
    for riff_size in (len(short) - 8, 36 + size & 0xFFFFFFFE):
        content = short[:4] + struct.pack("<I", riff_size) + short[8:]
        assert (
            f"must hold {size} bytes of samples by its header, but holds 24: it was cut off"
            in refused(content)
        )


@pytest.mark.parametrize("name", [b"LIST", b"id3 ", b"_PMX"])
@pytest.mark.parametrize(("kind", "order"), [(b"RIFF", "<"), (b"RIFX", ">")])
def test_no_samples_before_another_chunk_are_no_lie(name, kind, order):
    fmt = chunk(b"fmt ", layout(order=order), order)
    rest = chunk(name, b"abcde", order)
    content = riff(fmt, chunk(b"data", b"", order), rest, kind=kind, order=order)
    assert WavHeader.read(Bytes(content)).frames == 0


@pytest.mark.parametrize("rest", [b"abcd" * 9, b"ab", b"id3 ", b"data\4\0\0\0" + SAMPLES[:4]])
def test_samples_that_look_as_a_chunk_but_are_not_as_long_are_samples(rest):
    head = riff(chunk(b"fmt ", layout()), chunk(b"data", b""))
    header = WavHeader.read(Bytes(head + rest))  # RIFF knows nothing of it
    assert (header.begin, header.end) == (len(head), len(head + rest))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"channels": 0, "frame": 2}, "0 channels"),
        ({"rate": 0}, "0 samples per second"),
        ({"frame": 0}, "0 bytes per frame"),
        ({"frame": 3}, "must declare 2 bytes per frame for 1 channels of 16 bits"),
        ({"channels": 5}, "must declare a multiple of 10"),
    ],
)
def test_a_layout_that_cannot_be_true_is_refused(options, said):
    fmt = chunk(b"fmt ", layout(**options))
    assert said in refused(riff(fmt, chunk(b"data", SAMPLES)))


def test_what_is_not_a_whole_wav_file_is_refused():
    fmt, data = chunk(b"fmt ", layout()), chunk(b"data", SAMPLES)
    assert "must begin with RIFF" in refused(b"fLaC" + bytes(100))
    assert "must begin with RIFF" in refused(b"")
    assert "must have a chunk 'data', but has none" in refused(riff(fmt))
    assert "must have a chunk 'fmt ' before its data" in refused(riff(data, fmt))
    short = chunk(b"fmt ", layout()[:14])
    assert "at least 16 bytes, but" in refused(riff(short, data))
    short = chunk(b"fmt ", extensible(1)[:30])
    assert "of 40 bytes, but" in refused(riff(short, data))
    many = chunk(b"junk", b"") * 5000
    assert "at most 4096 chunks" in refused(riff(many, fmt, data))


@settings(deadline=None)
@given(st.data())
def test_whatever_is_changed_in_a_header_is_read_or_refused(data):
    """No other exception, and never a place outside of the file."""
    order = data.draw(st.sampled_from([b"RIFF", b"RIFX", b"RF64"]))
    content = bytearray(order + bytes(4) + b"WAVEfmt " + struct.pack("<I", 16))
    content += struct.pack("<HHIIHH", 1, 1, 16000, 32000, 2, 16) + b"data" + struct.pack("<I", 24)
    content += SAMPLES
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFE, 0xFF]))
    content = bytes(content[: data.draw(st.integers(0, len(content)))])
    file = Changed(content)
    try:
        header = WavHeader.read(file)
    except ValueError:
        return
    assert 0 <= header.begin <= header.end <= len(content)
    assert header.dtype is None or (header.end - header.begin) % header.frame_bytes == 0


class Changed:
    def __init__(self, content):
        self.content, self.name, self.size = content, "x.wav", len(content)

    def read(self, first, stop):
        return self.content[first:stop]


def test_samples_behind_those_that_are_declared_are_not_lost():
    samples = np.random.default_rng(0).integers(-9000, 9000, 1000).astype("<i2").tobytes()
    fmt = chunk(b"fmt ", layout())
    short = riff(fmt, chunk(b"data", samples, size=2000 ^ 512))
    assert "must have another kind of chunk after its samples" in refused(short)
    twice = riff(fmt, chunk(b"data", SAMPLES), chunk(b"data", SAMPLES))
    assert "by its header, but has b'data'" in refused(twice)
    noted = riff(fmt, chunk(b"data", SAMPLES), chunk(b"LIST", b"abcd"))
    assert WavHeader.read(Bytes(noted)).frames == 12
    assert WavHeader.read(Bytes(noted + bytes(64))).frames == 12  # after what RIFF declares


@pytest.mark.parametrize("kind", [b"RIFF", b"RIFX"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", ["i2", "i4", "f4", "f8"])
def test_a_whole_file_is_decoded_to_numbers_of_this_machine(kind, channels, dtype):
    order = ">" if kind == b"RIFX" else "<"
    samples = np.arange(-9, 12).reshape(-1, 3)[:, :channels].astype(f"{order}{dtype}")
    tag, bits = 3 if dtype[0] == "f" else 1, 8 * samples.dtype.itemsize
    fmt = layout(tag=tag, channels=channels, bits=bits, order=order)
    data = chunk(b"data", samples.tobytes(), order)
    content = riff(chunk(b"fmt ", fmt, order), data, chunk(b"LIST", b"abcd", order), kind=kind,
                   order=order)  # fmt: skip
    found = WavHeader.read(Bytes(content)).decode(content)
    assert found.dtype == np.dtype(dtype)
    assert found.dtype.isnative
    assert found.tolist() == (samples if channels > 1 else samples[:, 0]).tolist()


@given(st.lists(st.integers(-(2**23), 2**23 - 1), min_size=1), st.booleans())
def test_numbers_of_24_bits_are_the_upper_ones_of_32(numbers, is_big):
    order, name = (">", "big") if is_big else ("<", "little")
    raw = b"".join(number.to_bytes(3, name, signed=True) for number in numbers)
    fmt = chunk(b"fmt ", layout(bits=24, order=order), order)
    kind = b"RIFX" if is_big else b"RIFF"
    content = riff(fmt, chunk(b"data", raw, order), kind=kind, order=order)
    header = WavHeader.read(Bytes(content))
    assert (header.stored, header.dtype, header.is_24_bit) == (f"{order}i3", "int32", True)
    assert header.decode(content).tolist() == [256 * number for number in numbers]


def test_samples_that_are_compressed_are_not_decoded():
    content = riff(chunk(b"fmt ", layout(tag=6, bits=8)), chunk(b"data", bytes(4)))
    with pytest.raises(ValueError, match="must hold samples that are not compressed, but has form"):
        WavHeader.read(Bytes(content)).decode(content)


def test_kinds_of_files_are_told_by_their_first_bytes():
    assert WavHeader.is_wav(wav(np.zeros(1, "i2"))[:12])
    assert not WavHeader.is_wav(b"RIFF\0\0\0\0AVI ")
    assert WavHeader.is_nist(b"NIST_1A\n   1024\n")
    assert not WavHeader.is_nist(b"RIFF\0\0\0\0WAVE")
