"""Kinds of files beside WAV: read as soundfile reads them, and never in part."""

import io
import itertools
import re

import numpy as np
import pytest
import soundfile
from seqdata_audio import Audio

from seqdata import open_store
from seqdata.errors import DataError

KINDS = {  # suffix -> format and encoding; several encodings of a suffix have a number
    "aiff": ("AIFF", "PCM_16"), "aif": ("AIFF", "PCM_24"), "aifc": ("AIFF", "ULAW"),
    "aifc 2": ("AIFF", "FLOAT"), "aiff 2": ("AIFF", "PCM_S8"), "aiff 3": ("AIFF", "PCM_U8"),
    "au": ("AU", "PCM_16"), "snd": ("AU", "FLOAT"), "au 2": ("AU", "ULAW"),
    "caf": ("CAF", "PCM_16"), "caf 2": ("CAF", "ALAC_16"), "caf 3": ("CAF", "ALAC_24"),
    "w64": ("W64", "PCM_16"), "w64 2": ("W64", "PCM_24"), "w64 3": ("W64", "IMA_ADPCM"),
    "nist": ("NIST", "PCM_16"), "sph": ("NIST", "ULAW"), "wav": ("NIST", "PCM_16"),
    "wave": ("WAVEX", "PCM_24"), "rf64": ("RF64", "PCM_16"), "bwf": ("WAV", "MS_ADPCM"),
    "flac": ("FLAC", "PCM_24"), "ogg": ("OGG", "VORBIS"), "oga": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"), "mp3": ("MP3", "MPEG_LAYER_III"),
}  # fmt: skip
DTYPES = {"PCM_16": "int16", "PCM_24": "int32", "PCM_S8": "int16", "PCM_U8": "int16",
          "ALAC_16": "int16", "ALAC_24": "int32"}  # fmt: skip
SILENTLY_SHORT = ("AIFF", "AU", "CAF", "W64", "NIST")  # what libsndfile makes of a part


def write(kind, channels=2, count=301):
    name, subtype = KINDS[kind]
    samples = np.random.default_rng(1).normal(0, 0.2, (count, channels))
    stream = io.BytesIO()
    soundfile.write(stream, samples, 48000, format=name, subtype=subtype)
    return stream.getvalue()


def opened(folder, kind, content, **options):
    (folder / f"a.{kind.split()[0]}").write_bytes(content)
    return open_store(folder, backend=Audio(**options))


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_those_that_soundfile_reads(tmp_path, kind, channels):
    content = write(kind, channels)
    store = opened(tmp_path, kind, content)
    dtype = DTYPES.get(KINDS[kind][1], "float32")
    due = soundfile.read(io.BytesIO(content), dtype=dtype)[0]
    found = np.asarray(store[0]["audio"])
    assert (found.dtype, found.shape, store[0]["rate"]) == (dtype, due.shape, 48000)
    assert store.lengths.tolist() == [len(due)]
    assert np.allclose(found, due, rtol=0, atol=1e-6 if kind == "mp3" else 0)  # the last bit


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind][0] in SILENTLY_SHORT])
def test_a_file_is_refused_wherever_it_was_cut_off(tmp_path, kind):
    content = write(kind)
    for size in {*range(len(content) - 40, len(content)), *range(0, len(content), 97)}:
        with pytest.raises(DataError, match=rf"a\.{kind.split()[0]}: .*Restore the file"):
            opened(tmp_path, kind, content[:size], allow_empty=True)


@pytest.mark.parametrize("junk", [bytes(64), b"TAG" + bytes(125), b"abcd" * 50])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind][0] in SILENTLY_SHORT])
def test_bytes_behind_a_recording_are_not_samples(tmp_path, kind, junk):
    content = write(kind)
    due = soundfile.read(io.BytesIO(content), dtype="float64")[0]
    try:
        store = opened(tmp_path, kind, content + junk, dtype="float64")
    except DataError:
        return
    assert np.array_equal(store[0]["audio"], due)


def aiff_stream(content):
    return content[:4] + bytes(4) + content[8:]


def w64_stream(content):
    return content[:16] + b"\xff" * 8 + content[24:]


@pytest.mark.parametrize(("kind", "change"), [("aiff", aiff_stream), ("w64", w64_stream)])
def test_a_stream_of_unknown_length_is_refused(tmp_path, kind, change):
    text = rf"a\.{kind}: does not say how many samples it has: it was written as a stream"
    with pytest.raises(DataError, match=text):
        opened(tmp_path, kind, change(write(kind)))


def test_a_stream_of_au_ends_with_the_file(tmp_path):
    content = write("au")
    content = content[:8] + b"\xff" * 4 + content[12:]
    assert opened(tmp_path, "au", content).lengths.tolist() == [301]


def test_a_shortened_file_of_nist_is_said_to_be_compressed(tmp_path):
    header = b"NIST_1A\n   1024\nchannel_count -i 1\nsample_rate -i 16000\nsample_count -i 9000\n"
    coding = b"sample_n_bytes -i 2\nsample_coding -s26 pcm,embedded-shorten-v2.00\nend_head\n"
    with pytest.raises(DataError, match=r"a\.sph: cannot be read by libsndfile"):
        opened(tmp_path, "sph", (header + coding).ljust(1024) + b"ajkg\x02" + bytes(500))


@pytest.mark.parametrize("kind", ["ogg", "opus"])
def test_ogg_of_several_recordings_is_refused(tmp_path, kind):
    content = write(kind, count=9000) + write(kind, count=5000)
    text = rf"a\.{kind}: must hold one recording, but another begins after the first, at byte \d+"
    with pytest.raises(DataError, match=text):
        opened(tmp_path, kind, content)


@pytest.mark.parametrize("kind", ["ogg", "opus"])
def test_ogg_without_one_of_its_pages_is_refused(tmp_path, kind):
    content = write(kind, count=150_000)
    begins = [match.start() for match in re.finditer(rb"OggS\0[\0-\7]", content)]
    assert len(begins) > 4
    for first, end in itertools.pairwise([*begins, len(content)]):
        with pytest.raises(DataError, match=rf"a\.{kind}: "):
            opened(tmp_path, kind, content[:first] + content[end:])
    text = r"must have all its Ogg pages, but page 1 is followed by 3"
    with pytest.raises(DataError, match=text):
        opened(tmp_path, kind, content[: begins[2]] + content[begins[3] :])


def test_all_kinds_of_a_folder_are_read_as_floats(tmp_path):
    for kind in KINDS:
        (tmp_path / f"{kind}.{kind.split()[0]}").write_bytes(write(kind))
    store = open_store(tmp_path, backend=Audio(dtype="float32"))
    assert len(store) == len(KINDS)
    assert {name.rpartition(".")[2] for name in store.keys(range(len(store)))} == {
        kind.split()[0] for kind in KINDS
    }
