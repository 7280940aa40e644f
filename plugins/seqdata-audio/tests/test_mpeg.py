"""MP3 without a Xing or Info frame: as long as its frames are, and every sample is there."""

import io
import random

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from seqdata_audio.mpeg import count_frames
from seqdata_audio.sound_file import Content, read_info, read_samples

from seqdata import open_store
from seqdata.errors import DataError

RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
DELAY = 1105  # samples that the encoder and decoder put before the first: LAME's, for all rates


def encode(samples, rate=16000, mode="VARIABLE"):
    """The bytes of an MP3 file, and those of its Info frame."""
    stream = io.BytesIO()
    soundfile.write(
        stream, samples, rate, format="MP3", subtype="MPEG_LAYER_III", bitrate_mode=mode
    )
    content = stream.getvalue()
    first = frame_bytes(content)
    assert b"Xing" in content[:first] or b"Info" in content[:first]
    return content, first


def frame_bytes(content):
    """The bytes of the first frame of Layer III, by its header."""
    head = int.from_bytes(content[:4], "big")
    version, bits, rate, padding = head >> 19 & 3, head >> 12 & 15, head >> 10 & 3, head >> 9 & 1
    rates = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}[version]
    table = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
    if version == 3:
        table = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
    return (144 if version == 3 else 72) * table[bits] * 1000 // rates[rate] + padding


def recording(count, channels=1, quiet="first"):
    """Noise whose first or second half is silence: what the first frame says is wrong for it."""
    samples = np.random.default_rng(count).normal(0, 0.2, (count, channels))
    half = slice(None, count // 2) if quiet == "first" else slice(count // 2, None)
    samples[half] = 0
    return samples


@pytest.fixture(scope="module")
def plain():
    """An MP3 file without an Info frame."""
    content, first = encode(recording(24_000, quiet="last"))
    return content[first:]


def close(one, other):
    """Whether samples are equal but for the last bit, in which libsndfile itself differs."""
    return one.shape == other.shape and np.allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("quiet", ["first", "last"])
@pytest.mark.parametrize("mode", ["VARIABLE", "CONSTANT"])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", RATES)
def test_every_sample_is_there_and_the_length_is_known(rate, channels, mode, quiet):
    content, first = encode(recording(20_000, channels, quiet), rate, mode)
    due = read_samples(content, "float32")
    assert len(due) == 20_000
    info = read_info(Content(content[first:], "x.mp3"))
    found = read_samples(content[first:], "float32")
    assert (info.rate, info.channels, info.frames) == (rate, channels, len(found))
    assert len(found) % (1152 if rate >= 32_000 else 576) == 0
    assert close(found[DELAY:][:20_000], due)


def test_a_folder_and_its_index_have_the_true_length(tmp_path, plain):
    for name in ("a", "b"):
        (tmp_path / f"{name}.mp3").write_bytes(plain)
    due = read_samples(plain, "float32")
    for _ in range(2):  # made, then from its index
        store = open_store(tmp_path)
        assert store.lengths.tolist() == [len(due), len(due)]
        assert close(np.asarray(store[1]["audio"]), due)


def id3(content=bytes(300)):
    return b"ID3\x04\0\0" + bytes(len(content) >> bits & 127 for bits in (21, 14, 7, 0)) + content


TAGS = {
    "id3v2": (id3(), b""),
    "two id3v2": (id3() + id3(b"x" * 5000), b""),
    "id3v1": (b"", b"TAG" + bytes(125)),
    "ape": (b"", b"APETAGEX" + bytes(24) + b"name" * 9 + b"APETAGEX" + bytes(24)),
    "lyrics": (b"", b"LYRICSBEGIN" + b"la" * 40 + b"LYRICS200" + b"TAG" + bytes(125)),
    "id3v2 behind": (b"", id3()),
    "zeros": (b"", bytes(5000)),
    "zeros and id3v1": (id3(), bytes(9) + b"TAG" + bytes(125)),
}


@pytest.mark.parametrize("name", TAGS)
def test_tags_are_not_sound(plain, name):
    before, behind = TAGS[name]
    due = read_samples(plain, "float32")
    content = before + plain + behind
    assert read_info(Content(content, "x.mp3")).frames == len(due)
    assert close(read_samples(content, "float32"), due)


def test_a_tag_between_frames_is_not_sound(plain):
    middle = list(walk(plain))[9]
    due = read_samples(plain, "float32")
    found = read_samples(plain[:middle] + id3() + plain[middle:], "float32")
    assert close(found[: 9 * 576], due[: 9 * 576])
    assert close(found[20 * 576 :], due[20 * 576 :])  # the next frames lack what was before them


def walk(content):
    """The bytes at which frames begin."""
    at = 0
    while at < len(content):
        yield at
        at += frame_bytes(content[at:])


def test_an_info_frame_that_says_no_number_is_not_sound():
    content, first = encode(recording(9000))
    at = max(content[:first].find(b"Xing"), content[:first].find(b"Info"))
    for flags in (bytes(4), b"\0\0\0\x0e", b"\0\0\0\x0f"):  # none, all but frames, frames: 0
        silent = content[: at + 4] + flags + bytes(8) + content[at + 16 :]
        assert close(read_samples(silent, "float32"), read_samples(content[first:], "float32"))


def mix(plain):
    """Files that are not what they seem, and what is said of each."""
    content, first = encode(recording(9000))
    other, skipped = encode(recording(9000), 22050)
    stereo, before = encode(recording(9000, 2))
    free = bytearray(plain)
    free[2] &= 0x0F
    return {
        "cut off": (plain[:-7], r"ends within the MPEG frame at byte \d+: it was cut off"),
        "other bytes": (plain + b"hello world", "must have an MPEG frame or a tag at byte"),
        "another rate": (plain + other[skipped:], "must have frames of one rate, layer and number"),
        "more channels": (plain + stereo[before:], "must have frames of one rate, layer and"),
        "free format": (bytes(free), "must say its bit rate in each frame, but is of free format"),
        "joined": (content + content, r"says \d+ frames in its Xing or Info frame, but has \d+"),
        "joined to none": (content + content[first:], r"says \d+ frames .*, but has \d+: it was"),
        "half": (content[: len(content) // 2], r"says \d+ frames .*, but has \d+: it was cut off"),
    }  # fmt: skip


KINDS = ("cut off", "other bytes", "another rate", "more channels", "free format", "joined",
         "joined to none", "half")  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_what_would_lose_samples_is_refused_when_it_is_indexed(tmp_path, plain, name):
    content, text = mix(plain)[name]
    (tmp_path / "a.mp3").write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.mp3: {text}.*ffmpeg -i old\.mp3 new\.wav"):
        open_store(tmp_path)


def silent_frame(version, layer, bits, rate, padding, mode):
    """A frame without sound: a header and zeros."""
    head = 2047 << 21 | version << 19 | 4 - layer << 17 | 1 << 16
    head |= bits << 12 | rate << 10 | padding << 9 | mode << 6
    raw = head.to_bytes(4, "big")
    return raw.ljust(sizes_of(version, layer, bits, rate, padding), b"\0")


def sizes_of(version, layer, bits, rate, padding):
    """The bytes of a frame, as ISO 11172-3 and 13818-3 say it: samples / 8 * bit rate / rate."""
    table = {
        (3, 1): "32 64 96 128 160 192 224 256 288 320 352 384 416 448",
        (3, 2): "32 48 56 64 80 96 112 128 160 192 224 256 320 384",
        (3, 3): "32 40 48 56 64 80 96 112 128 160 192 224 256 320",
        (2, 1): "32 48 56 64 80 96 112 128 144 160 176 192 224 256",
    }
    low = "8 16 24 32 40 48 56 64 80 96 112 128 144 160"
    kilobits = int(table.get((version or 2, layer), low).split()[bits - 1])
    hertz = (44100, 48000, 32000)[rate] // {3: 1, 2: 2, 0: 4}[version]
    if layer == 1:
        return (12 * kilobits * 1000 // hertz + padding) * 4
    samples = 1152 if layer == 2 or version == 3 else 576
    return samples // 8 * kilobits * 1000 // hertz + padding


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([3, 2, 0]), st.sampled_from([1, 2, 3]), st.integers(0, 2),
    st.sampled_from([0, 3]), st.integers(3, 60), st.integers(0, 1 << 30),
)  # fmt: skip
def test_frames_of_any_kind_are_counted_and_decoded(version, layer, rate, mode, count, seed):
    draw = random.Random(seed)
    bits = [draw.randrange(4, 12) for _ in range(count)]  # all that go with one or two channels
    frames = [silent_frame(version, layer, one, rate, draw.randrange(2), mode) for one in bits]
    content = b"".join(frames)
    found = count_frames(content)
    samples = {1: 384, 2: 1152, 3: 1152 if version == 3 else 576}[layer]
    assert (found.begin, found.end, found.count) == (0, len(content), count)
    assert (found.length, found.longest) == (count * samples, max(map(len, frames)))
    decoded = read_samples(content, "float32")
    assert decoded.shape == ((count * samples,) if mode == 3 else (count * samples, 2))
