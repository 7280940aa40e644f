"""The first bytes of arrays and sound: what they say, and what is not believed."""

import gc
import io
import math
import re
import struct
import sys
import wave
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqdata_webdataset.array_headers import (
    ArrayHeader,
    BadHeaderError,
    read_flac_header,
    read_npy_header,
    read_wav_header,
)

DTYPES = ["<f4", ">f4", "<i2", "|u1", "<f8", "<u8", "|b1", "<f2"]


def test_timesteps_that_are_too_large_are_refused_with_their_size():
    content = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (1, 1 << 28)}
    np.lib.format.write_array_header_1_0(content, header)
    with pytest.raises(BadHeaderError, match=rf"of {1 << 31} bytes .*have less than {1 << 31}"):
        read_npy_header(content.getvalue())


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=3),
    st.booleans(),
    st.sampled_from([(1, 0), (2, 0)]),
)
def test_heads_of_arrays_are_what_numpy_reads(dtype, shape, fortran, version):
    array = np.zeros(shape, dtype, order="F" if fortran else "C")
    content = io.BytesIO()
    np.lib.format.write_array(content, array, version=version)
    raw = content.getvalue()
    if 0 in shape[1:]:
        with pytest.raises(BadHeaderError, match=r"has timesteps of shape .*, without numbers"):
            read_npy_header(raw)
        return
    head, begin, size, steps = read_npy_header(raw)
    assert raw[begin:] == bytes(size)
    assert (head.descr, head.shape, head.scalar) == (dtype, tuple(shape[1:]), not shape)
    assert steps == (shape[0] if shape else 1)
    assert head.dtype == np.dtype(dtype).name


def text_of(text):
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


BAD = [
    (b"", "is not a .npy file: it does not begin with the header of one"),
    (b"\x93NUMPY\x09\x00\x10\x00\0\0" + b" " * 16, "a header of version 9, but only 1 to 3"),
    (
        b"\x93NUMPY\x01\x00\xff\xff" + b" " * 16,
        "declares a header that ends at byte 65545, but it must",
    ),
    (text_of("{'descr': '<f4'"), "a header that cannot be read"),
    (text_of("__import__('os').system('true')"), "a header that cannot be read"),
    (text_of("{'descr': '|O', 'fortran_order': False, 'shape': (3,)}"), "holds Python objects"),
    (text_of("{'descr': [('a','<f4')], 'fortran_order': False, 'shape': (3,)}"), "Python objects"),
    (text_of("{'descr': '<q9', 'fortran_order': False, 'shape': (3,)}"), "which cannot be stored"),
    (text_of("{'descr': '<c8', 'fortran_order': False, 'shape': (3,)}"), "which cannot be stored"),
    (text_of("{'descr': '<f4', 'fortran_order': False}"), "a header that cannot be read"),
    (
        text_of("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 5_000 + ",), }\n"),
        "a header that cannot be read",
    ),
    (
        text_of("{'descr': '<f4', 'fortran_order': False, 'shape': (3)}"),
        "has the invalid shape or order 3, F",
    ),
    (text_of("{'descr': '<f4', 'fortran_order': 1, 'shape': (3,)}"), "the invalid shape or order"),
    (
        text_of("{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}"),
        "the invalid shape or order",
    ),
    (
        text_of("{'descr': '<f4', 'fortran_order': False, 'shape': 3}"),
        "has the invalid shape or order 3, F",
    ),
    (text_of("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}"), "0 bytes of values, but"),
    (
        text_of("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1152921504606846976)}"),
        "have less than",
    ),
]


@pytest.mark.parametrize(("raw", "what"), BAD, ids=range(len(BAD)))
def test_what_is_no_array_is_said(raw, what):
    with pytest.raises(BadHeaderError, match=what):
        read_npy_header(raw)


OTHER_WRITERS = [  # order, blanks and quotes as other libraries write them
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", (), 3),
    ("{'descr':'<f4','fortran_order':False,'shape':(3,2)}", (2,), 3),
    ('{"shape": (3, 2), "fortran_order": False, "descr": "<f4"}\n', (2,), 3),
    ("  {'descr' : '<f4' , 'shape' : ( 3 , 2 , ) , 'fortran_order' : False , }  \n", (2,), 3),
    ("{'descr': '<f4', 'fortran_order': False, 'shape': (), }", (), 1),
]


@pytest.mark.parametrize(("text", "shape", "steps"), OTHER_WRITERS, ids=range(len(OTHER_WRITERS)))
def test_headers_of_other_writers_are_read(text, shape, steps):
    raw = text_of(text) + bytes(4 * steps * math.prod(shape))
    header, _, size, length = read_npy_header(raw)
    assert (header.descr, header.shape, size, length) == (
        "<f4",
        shape,
        len(raw) - len(text_of(text)),
        steps,
    )


def test_threads_that_read_headers_at_once_are_not_in_each_others_way():
    """Collecting garbage lets another thread in, where NumPy's way ends in SystemError."""
    raw = text_of(OTHER_WRITERS[1][0]) + bytes(24)

    def read_many(depth):
        if depth:
            return read_many(depth - 1)
        for _ in range(2_000):
            cycle = WithFinalizer()
            cycle.itself = cycle
            assert read_npy_header(raw)[3] == 3
        return True

    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    try:
        sys.setswitchinterval(1e-6)
        gc.set_threshold(50)
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(read_many, [0, 1, 5, 9]))
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)


class WithFinalizer:
    def __del__(self):
        for _ in range(20):
            pass


def wav(channels, bytes_, frames):
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(bytes_)
        file.setframerate(8000)
        file.writeframes(bytes(range(channels * bytes_ * frames)))
    return content.getvalue()


@pytest.mark.parametrize(
    ("channels", "bytes_", "head"),
    [
        (1, 2, ArrayHeader("wav", "<i2")),
        (2, 2, ArrayHeader("wav", "<i2", (2,))),
        (1, 1, ArrayHeader("wav", "|u1")),
        (1, 3, ArrayHeader("wav", "<i3")),
        (1, 4, ArrayHeader("wav", "<i4")),
    ],
)
def test_plain_sound_is_known(channels, bytes_, head):
    raw = wav(channels, bytes_, 5)
    assert read_wav_header(raw) == (head, 44, 5 * channels * bytes_, 5)
    assert head.is_in_place == (bytes_ != 3)


def chunk(name, content):
    return name + len(content).to_bytes(4, "little") + content + bytes(len(content) % 2)


def riff(*chunks, size=None):
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + (len(body) if size is None else size).to_bytes(4, "little") + body


FMT = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16)
PLAIN = bytes.fromhex("000000001000800000aa00389b71")  # the end of the GUID of plain samples


def test_chunks_around_the_samples_are_passed_over():
    raw = riff(chunk(b"LIST", b"abc"), chunk(b"fmt ", FMT), chunk(b"data", b"1234")) + b"tail"
    head, begin, size, steps = read_wav_header(raw)
    assert raw[begin : begin + size] == b"1234"
    assert (head.descr, steps) == ("<i2", 2)


def test_floats_and_extensible_formats_are_known():
    floats = struct.pack("<HHIIHH", 3, 1, 8000, 32000, 4, 32)
    raw = riff(chunk(b"fmt ", floats), chunk(b"data", bytes(8)))
    assert read_wav_header(raw)[0] == ArrayHeader("wav", "<f4")
    more = struct.pack("<HHIIHH", 0xFFFE, 1, 8000, 16000, 2, 16) + bytes(8) + b"\1\0" + PLAIN
    raw = riff(chunk(b"fmt ", more), chunk(b"data", bytes(8)))
    assert read_wav_header(raw)[0] == ArrayHeader("wav", "<i2")


NOTES = [chunk(b"LIST", b"INFOISFT"), chunk(b"id3 ", b"ID3"), chunk(b"_PMX", b"")]


@pytest.mark.parametrize("note", NOTES)
@pytest.mark.parametrize("samples", [b"", b"1234", bytes(range(64))])
def test_a_chunk_behind_the_samples_is_not_among_them(note, samples):
    raw = riff(chunk(b"fmt ", FMT), chunk(b"data", samples), note)
    _, begin, size, steps = read_wav_header(raw)
    assert raw[begin : begin + size] == samples
    assert steps == len(samples) // 2


def test_nothing_behind_no_samples_is_a_sequence_of_length_0():
    for rest in (b"", b"\0"):
        assert read_wav_header(riff(chunk(b"fmt ", FMT), chunk(b"data", b"")) + rest)[2:] == (0, 0)


@pytest.mark.parametrize("size", [0, None, 0xFFFFFFFF])
def test_a_stream_goes_up_to_the_end(size):
    raw = riff(chunk(b"fmt ", FMT), b"data\xff\xff\xff\xff", bytes(40), size=size)
    assert read_wav_header(raw)[2:] == (40, 20)


ALAW = struct.pack("<HHIIHH", 6, 1, 8000, 8000, 1, 8)
REFUSED = {
    "begins with": (b"abcd", "must begin with RIFF, a size and WAVE, but begins with b'abcd'"),
    "no layout": (riff(chunk(b"data", b"12")), "must have a chunk 'fmt ' before its data"),
    "no samples": (riff(chunk(b"fmt ", FMT)), "must have a chunk 'data', but has none"),
    "cut off": (
        riff(chunk(b"fmt ", FMT), b"data\x09\0\0\0" + b"123"),
        "must hold 9 bytes of samples by its header, but holds 3",
    ),
    "part of a frame": (
        riff(chunk(b"fmt ", FMT), chunk(b"data", b"123")),
        "must declare a multiple of 2 bytes of samples",
    ),
    "too small": (
        riff(chunk(b"fmt ", FMT), b"data\x08\0\0\0", bytes(80)),
        "samples, which end at byte 52 of 124 by its header, but has",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_whole_sound_is_said(name):
    raw, text = REFUSED[name]
    with pytest.raises(BadHeaderError, match=re.escape(text)):
        read_wav_header(raw)


def test_compressed_sound_needs_its_package(monkeypatch):
    raw = riff(chunk(b"fmt ", ALAW), chunk(b"data", b"1234"))
    pytest.importorskip("soundfile")
    assert read_wav_header(raw) == (ArrayHeader("sound", "<f4"), 0, len(raw), 4)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(
        BadHeaderError, match=r"cannot be decoded \(seqdata-audio: soundfile must be"
    ):
        read_wav_header(raw)
    monkeypatch.setitem(sys.modules, "seqdata_audio.sound_file", None)
    assert read_wav_header(wav(2, 3, 5))[0] == ArrayHeader("wav", "<i3", (2,))  # plain: it does not
    text = (
        "needs the package seqdata-audio .*: run `pip install seqdata-audio`, then `seqdata index"
    )
    with pytest.raises(BadHeaderError, match=text):
        read_wav_header(raw)


def test_flac_says_its_length():
    packed = (8000 << 44) | (1 << 41) | (15 << 36) | 1234
    raw = b"fLaC" + b"\0\0\0\x22" + bytes(10) + packed.to_bytes(8, "big") + bytes(16)
    head = ArrayHeader("flac", "<i4", (2,))
    assert read_flac_header(raw + bytes(57)) == (head, 0, len(raw) + 57, 1234)
    with pytest.raises(BadHeaderError, match="does not declare its number of samples"):
        read_flac_header(raw[:18] + bytes(24))
    with pytest.raises(BadHeaderError, match=r"is not a .flac file"):
        read_flac_header(b"OggS" + raw[4:])
