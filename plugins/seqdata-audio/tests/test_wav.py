"""Headers of WAV files: every form that is read, and every lie that is refused."""

import io
import struct

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from seqdata_audio.wav import read_header

from seqdata.errors import DataError

SAMPLES = np.arange(12, dtype="<i2").tobytes()


def values_of(content, header):
    shape = (-1,) if header.channels == 1 else (-1, header.channels)
    return np.frombuffer(content[header.begin : header.end], header.dtype).reshape(shape)


def refused(made, content):
    with pytest.raises(DataError) as caught:
        read_header(made.bytes(content))
    message = str(caught.value)
    assert message.startswith("a/b.wav: ")
    assert "write it again with `ffmpeg" in message
    assert caught.value.facts["file"] == "a/b.wav"
    return message


@pytest.mark.parametrize("channels", [1, 2, 5])
@pytest.mark.parametrize("dtype", ["u1", "<i2", "<i4", "<f4", "<f8"])
def test_samples_lie_where_the_header_says(made, dtype, channels):
    samples = np.arange(7 * channels).astype(dtype).reshape(7, channels)
    content = made.wav(samples if channels > 1 else samples[:, 0], rate=44100)
    header = read_header(made.bytes(content))
    assert (header.rate, header.channels, header.frames) == (44100, channels, 7)
    assert header.dtype_name == np.dtype(dtype).name
    assert (values_of(content, header).reshape(7, channels) == samples).all()


SUBTYPES = ["PCM_U8", "PCM_16", "PCM_32", "FLOAT", "DOUBLE"]


@pytest.mark.parametrize("subtype", SUBTYPES)
@pytest.mark.parametrize(("format", "endian"), [("WAV", "LITTLE"), ("WAV", "BIG"), ("WAVEX", None)])
def test_what_libsndfile_writes_is_read_in_place(made, format, endian, subtype):
    written = np.linspace(-0.9, 0.9, 31)
    file = io.BytesIO()
    soundfile.write(file, written, 8000, format=format, subtype=subtype, endian=endian)
    content = file.getvalue()
    header = read_header(made.bytes(content))
    assert header.dtype.startswith("|" if subtype == "PCM_U8" else ">" if endian == "BIG" else "<")
    found = values_of(content, header).astype(np.float64)
    scale = {"PCM_U8": 128, "PCM_16": 2**15, "PCM_32": 2**31}.get(subtype, 1)
    found = (found - 128 if subtype == "PCM_U8" else found) / scale
    assert np.abs(found - written).max() < 0.02


@pytest.mark.parametrize("subtype", ["PCM_24", "ULAW", "ALAW", "IMA_ADPCM", "MS_ADPCM"])
def test_what_has_no_numpy_dtype_is_left_to_the_decoder(made, subtype):
    file = io.BytesIO()
    soundfile.write(file, np.zeros(100), 8000, format="WAV", subtype=subtype)
    assert read_header(made.bytes(file.getvalue())).dtype is None


def test_the_subformat_of_an_extensible_header_counts(made):
    for tag, bits, dtype in ((1, 16, "<i2"), (1, 24, None), (3, 32, "<f4"), (6, 8, None)):
        fmt = made.extensible(tag, bits=bits)
        content = made.riff(made.chunk(b"fmt ", fmt), made.chunk(b"data", SAMPLES))
        assert read_header(made.bytes(content)).dtype == dtype
    somebodys = made.extensible(1)[:-1] + b"\0"
    content = made.riff(made.chunk(b"fmt ", somebodys), made.chunk(b"data", SAMPLES))
    assert read_header(made.bytes(content)).dtype is None


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4095, 4096, 70_001])
def test_chunks_of_odd_size_have_a_byte_behind_them(made, size):
    other = made.chunk(b"LIST", b"x" * size)
    fmt = made.chunk(b"fmt ", made.layout())
    content = made.riff(other, fmt, other, made.chunk(b"data", SAMPLES), other)
    header = read_header(made.bytes(content))
    assert content[header.begin : header.end] == SAMPLES


@pytest.mark.parametrize("kind", [b"RF64", b"BW64"])
def test_files_above_4_gib_have_their_size_in_a_chunk_of_its_own(made, kind):
    ds64 = made.chunk(b"ds64", struct.pack("<QQQI", 0, len(SAMPLES), 12, 0))
    fmt = made.chunk(b"fmt ", made.layout())
    data = made.chunk(b"data", SAMPLES, size=0xFFFFFFFF)
    header = read_header(made.bytes(made.riff(ds64, fmt, data, kind=kind)))
    assert header.frames == 12
    assert "was cut off" in refused(made, made.riff(fmt, data, kind=kind))


def test_a_file_above_4_gib_is_found_without_being_read(made):
    long = (5 << 30) + 2
    ds64 = made.chunk(b"ds64", struct.pack("<QQQI", long, long, long // 2, 0))
    fmt = made.chunk(b"fmt ", made.layout())
    head = made.riff(ds64, fmt, made.chunk(b"data", b"", size=0xFFFFFFFF), kind=b"RF64")
    file = made.bytes(head)
    file.size = len(head) + long
    header = read_header(file)
    assert (header.begin, header.end) == (len(head), len(head) + long)
    assert sum(stop - first for first, stop in file.reads) <= 4096


def test_a_header_is_read_at_once(made):
    file = made.bytes(made.wav(np.zeros(50_000, dtype="i2")))
    read_header(file)
    assert file.reads == [(0, 4096)]


def test_a_file_that_was_cut_off_is_refused_wherever_it_was(made):
    content = made.wav(np.arange(100, dtype="<i2"))
    for size in range(len(content)):
        refused(made, content[:size])


def test_a_header_that_was_never_finished_is_refused(made):
    fmt = made.chunk(b"fmt ", made.layout())
    stream = made.riff(fmt, made.chunk(b"data", SAMPLES, size=0xFFFFFFFF))
    assert "says 4294967295 bytes of samples, but 24 are there" in refused(made, stream)
    empty = made.riff(fmt, made.chunk(b"data", SAMPLES, size=0))
    assert "0 bytes of samples, but 24 follow" in refused(made, empty)


@pytest.mark.parametrize("name", [b"LIST", b"id3 ", b"_PMX"])
@pytest.mark.parametrize(("kind", "order"), [(b"RIFF", "<"), (b"RIFX", ">")])
def test_no_samples_before_another_chunk_are_no_lie(made, name, kind, order):
    fmt = made.chunk(b"fmt ", made.layout(order=order), order)
    rest = made.chunk(name, b"abcde", order)
    content = made.riff(fmt, made.chunk(b"data", b"", order), rest, kind=kind, order=order)
    assert read_header(made.bytes(content)).frames == 0


@pytest.mark.parametrize("rest", [b"abcd" * 9, b"ab", b"id3 ", b"data\4\0\0\0" + SAMPLES[:4]])
def test_samples_that_look_as_a_chunk_but_are_not_as_long_are_refused(made, rest):
    head = made.riff(made.chunk(b"fmt ", made.layout()), made.chunk(b"data", b""))
    assert "that are not another chunk" in refused(made, head + rest)  # RIFF knows nothing of it


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
def test_a_layout_that_cannot_be_true_is_refused(made, options, said):
    fmt = made.chunk(b"fmt ", made.layout(**options))
    assert said in refused(made, made.riff(fmt, made.chunk(b"data", SAMPLES)))


def test_what_is_not_a_whole_wav_file_is_refused(made):
    fmt, data = made.chunk(b"fmt ", made.layout()), made.chunk(b"data", SAMPLES)
    assert "must begin with RIFF" in refused(made, b"fLaC" + bytes(100))
    assert "must begin with RIFF" in refused(made, b"")
    assert "must have a chunk 'data', but has none" in refused(made, made.riff(fmt))
    assert "must have a chunk 'fmt ' before its data" in refused(made, made.riff(data, fmt))
    short = made.chunk(b"fmt ", made.layout()[:14])
    assert "at least 16 bytes, but" in refused(made, made.riff(short, data))
    short = made.chunk(b"fmt ", made.extensible(1)[:30])
    assert "of 40 bytes, but" in refused(made, made.riff(short, data))
    many = made.chunk(b"junk", b"") * 5000
    assert "at most 4096 chunks" in refused(made, made.riff(many, fmt, data))


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
        header = read_header(file)
    except DataError:
        return
    assert 0 <= header.begin <= header.end <= len(content)
    assert header.dtype is None or (header.end - header.begin) % header.frame_bytes == 0


class Changed:
    def __init__(self, content):
        self.content, self.name, self.size = content, "x.wav", len(content)

    def read(self, first, stop):
        return self.content[first:stop]


def test_samples_behind_those_that_are_declared_are_not_lost(made):
    samples = np.random.default_rng(0).integers(-9000, 9000, 1000).astype("<i2").tobytes()
    fmt = made.chunk(b"fmt ", made.layout())
    short = made.riff(fmt, made.chunk(b"data", samples, size=2000 ^ 512))
    assert "but what follows is" in refused(made, short)
    twice = made.riff(fmt, made.chunk(b"data", SAMPLES), made.chunk(b"data", SAMPLES))
    assert "b'data' and not another kind of chunk" in refused(made, twice)
    noted = made.riff(fmt, made.chunk(b"data", SAMPLES), made.chunk(b"LIST", b"abcd"))
    assert read_header(made.bytes(noted)).frames == 12
    assert read_header(made.bytes(noted + bytes(64))).frames == 12  # after what RIFF declares
