"""The same recording in a folder and in a tar shard: the same values, or refused in both."""

import io
import struct
import sys
import tarfile

import numpy as np
import pytest
import soundfile
from seqdata_audio import Audio, LogMel

from seqdata import Fixed, Loader, open_store
from seqdata.errors import DecodeError, SeqDataError

pytest.importorskip("seqdata_webdataset")

WRITTEN = {  # name -> format, encoding and byte order of soundfile
    "8 bit": ("WAV", "PCM_U8"), "16 bit": ("WAV", "PCM_16"), "24 bit": ("WAV", "PCM_24"),
    "32 bit": ("WAV", "PCM_32"), "float32": ("WAV", "FLOAT"), "float64": ("WAV", "DOUBLE"),
    "mu-law": ("WAV", "ULAW"), "A-law": ("WAV", "ALAW"), "IMA": ("WAV", "IMA_ADPCM"),
    "MS": ("WAV", "MS_ADPCM"), "GSM": ("WAV", "GSM610"), "G721": ("WAV", "G721_32"),
    "extensible 8 bit": ("WAVEX", "PCM_U8"), "extensible 24 bit": ("WAVEX", "PCM_24"),
    "extensible float32": ("WAVEX", "FLOAT"), "extensible mu-law": ("WAVEX", "ULAW"),
    "RF64 16 bit": ("RF64", "PCM_16"), "RF64 24 bit": ("RF64", "PCM_24"),
    "RF64 A-law": ("RF64", "ALAW"), "RIFX 16 bit": ("WAV", "PCM_16", "BIG"),
    "RIFX 24 bit": ("WAV", "PCM_24", "BIG"), "RIFX 32 bit": ("WAV", "PCM_32", "BIG"),
    "RIFX float64": ("WAV", "DOUBLE", "BIG"), "NIST": ("NIST", "PCM_16"),
}  # fmt: skip
DTYPES = {"PCM_U8": "uint8", "PCM_16": "int16", "PCM_24": "int32", "PCM_32": "int32",
          "DOUBLE": "float64"}  # fmt: skip
ONE_CHANNEL = ("GSM", "G721")


def write(name, channels=1):
    format_, subtype, *endian = WRITTEN[name]
    at = np.arange(2001)[:, None] + 40 * np.arange(channels)
    stream = io.BytesIO()
    soundfile.write(
        stream, 0.5 * np.sin(0.17 * at), 16000, format=format_, subtype=subtype,
        endian=endian[0] if endian else None,
    )  # fmt: skip
    return stream.getvalue()


def data_at(content, order="<"):
    """The first byte of the samples."""
    at = 12
    while content[at : at + 4] != b"data":
        (size,) = struct.unpack_from(f"{order}I", content, at + 4)
        at += 8 + size + size % 2
    return at + 8


@pytest.fixture
def both(tmp_path):
    """Opens a recording in a folder, as field ``audio``, and in a tar shard, as field ``wav``."""

    def open_(content):
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "a.wav").write_bytes(content)
        with tarfile.open(tmp_path / "x.tar", "w") as tar:
            tar.add(folder / "a.wav", "a.wav")
        return (
            lambda: open_store(folder),
            lambda: open_store(tmp_path / "x.tar", index="build").rename({"wav": "audio"}),
        )

    return open_


def check_same(both, content):
    """Check that both are the same, and return the samples."""
    stores = [open_() for open_ in both(content)]
    fields = [(store.fields["audio"].dtype, store.fields["audio"].shape) for store in stores]
    one, other = (np.asarray(store[0]["audio"]) for store in stores)
    assert fields[0] == fields[1]
    assert one.dtype == other.dtype
    assert np.array_equal(one, other)
    assert (
        len(one) == stores[0].lengths[0] == stores[1].lengths_of[stores[1].fields["audio"].axis][0]
    )
    return one


def check_refused(both, content, text):
    for open_ in both(content):
        with pytest.raises(SeqDataError, match=text):
            open_()


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("name", WRITTEN)
def test_values_dtype_and_scale_are_the_same(both, name, channels):
    if name in ONE_CHANNEL and channels > 1:
        pytest.skip("of one channel")
    content = write(name, channels)
    found = check_same(both, content)
    dtype = DTYPES.get(WRITTEN[name][1], "float32")
    due = soundfile.read(io.BytesIO(content), dtype="int16" if dtype == "uint8" else dtype)[0]
    assert found.dtype == dtype
    assert np.array_equal(found, due // 256 + 128 if dtype == "uint8" else due)


@pytest.mark.filterwarnings("ignore:.*no field 'rate'")
@pytest.mark.parametrize("name", WRITTEN)
def test_spectrograms_are_the_same_and_as_loud(both, name):
    mel = LogMel(rate=16000, n_fft=256, hop_length=128, n_mels=20)
    batches = []
    for open_ in both(write(name)):
        (batch,) = Loader(open_(), Fixed(1), transform=mel, fields=("audio",))
        batches.append(batch["mel"].numpy())
    assert np.array_equal(*batches)
    assert abs(batches[0].max() - 9.5) < 4  # dB; GSM is 3.5 louder


STREAMS = {  # sizes of RIFF and of the samples that programs write into a pipe
    "ffmpeg": (0xFFFFFFFF, 0xFFFFFFFF), "sox": (0x7FFFF024, 0x7FFFF000),
    "arecord": (0x80000024, 0x80000000), "gstreamer": (36, 0), "never finished": (0, 0),
}  # fmt: skip


@pytest.mark.parametrize("writer", STREAMS)
@pytest.mark.parametrize(
    "name",
    ["8 bit", "16 bit", "24 bit", "float32", "mu-law", "A-law", "IMA", "MS", "extensible 24 bit",
     "RIFX 16 bit", "RIFX 24 bit"],
)  # fmt: skip
def test_a_stream_is_read_to_its_end(both, name, writer):
    content = write(name, 2)
    order = ">" if name.startswith("RIFX") else "<"
    sizes = [struct.pack(f"{order}I", size) for size in STREAMS[writer]]
    at = data_at(content, order)
    end = at + struct.unpack_from(f"{order}I", content, at - 4)[0]
    note = b"INFOISFT" + struct.pack(f"{order}I", 5) + b"Lavf\0\0"
    note = b"LIST" + struct.pack(f"{order}I", len(note)) + note  # ffmpeg's, before the samples
    stream = (
        content[:4] + sizes[0] + content[8 : at - 8] + note + b"data" + sizes[1] + content[at:end]
    )
    found = check_same(both, stream)
    due = read_whole(content, found.dtype)
    assert np.array_equal(found, due)


def read_whole(content, dtype):
    if dtype == "uint8":
        return soundfile.read(io.BytesIO(content), dtype="int16")[0] // 256 + 128
    return soundfile.read(io.BytesIO(content), dtype=str(dtype))[0]


@pytest.mark.parametrize("chunk", [b"LIST", b"bext", b"JUNK", b"iXML"])
@pytest.mark.parametrize("size", [1, 602, 4095, 70_001])
@pytest.mark.parametrize("name", ["16 bit", "24 bit", "mu-law"])
def test_chunks_before_the_samples_are_passed_over(both, name, chunk, size):
    content = write(name)
    at = data_at(content)
    before = chunk + struct.pack("<I", size) + b"x" * (size + size % 2)
    riff = struct.pack("<I", len(content) + len(before) - 8)
    longer = content[:4] + riff + content[8 : at - 8] + before + content[at - 8 :]
    found = check_same(both, longer)
    assert np.array_equal(found, read_whole(content, found.dtype))


def test_mpeg_in_wav_is_as_long_as_its_frames(both):
    stream = io.BytesIO()
    soundfile.write(stream, write_noise(20_000), 16000, format="MP3")
    content = stream.getvalue()
    frames = content[content.find(b"\xff\xf3", 10) :]
    layout = struct.pack("<HHIIHHH", 0x55, 1, 16000, 4000, 1, 0, 12)
    layout += struct.pack("<HIHHH", 1, 2, 576, 1, 0)
    body = b"WAVEfmt " + struct.pack("<I", len(layout)) + layout
    body += b"fact\4\0\0\0" + struct.pack("<I", 20_000) + b"data"
    body += struct.pack("<I", len(frames)) + frames
    found = check_same(both, b"RIFF" + struct.pack("<I", len(body)) + body)
    assert len(found) % 576 == 0
    assert len(found) > 20_000


def write_noise(count):
    noise = np.random.default_rng(0).normal(0, 0.2, count)
    noise[: count // 2] = 0
    return noise


def cut(content):
    return content[:-3]


def no_frame(content):
    return content[: data_at(content) - 8]


def other_numbers(content):
    """Integers of 64 bits, which no reader here knows."""
    return content[:34] + b"\x40\0" + content[36:]


BROKEN = [
    (cut, r"must hold \d+ bytes of samples by its header, but holds \d+: it was cut"),
    (no_frame, "must have a chunk 'data', but has none"),
    (lambda content: b"anything" * 9, "must begin with RIFF, a size and WAVE, but begins with"),
    (lambda content: b"", "must begin with RIFF"),
    (other_numbers, "cannot be read by libsndfile"),
]


@pytest.mark.parametrize("name", ["16 bit", "24 bit"])
@pytest.mark.parametrize(("change", "text"), BROKEN)
def test_what_cannot_be_read_is_refused_in_both(both, name, change, text):
    check_refused(both, change(write(name)), text)


@pytest.mark.parametrize("name", ["mu-law", "IMA", "extensible mu-law", "RF64 A-law"])
def test_a_compressed_recording_that_was_cut_off_is_refused_in_both(both, name):
    check_refused(both, cut(write(name)), ": it was cut off")


OTHERS = {"mp3": ("MP3", "MPEG_LAYER_III"), "ogg": ("OGG", "VORBIS"), "opus": ("OGG", "OPUS"),
          "aiff": ("AIFF", "PCM_16"), "caf": ("CAF", "ALAC_16"), "au": ("AU", "FLOAT")}  # fmt: skip


def shard_of(path, ending, content):
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo(f"a.{ending}")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return path


def encode(ending, count=3000):
    name, subtype = OTHERS[ending]
    stream = io.BytesIO()
    soundfile.write(stream, write_noise(count), 48000, format=name, subtype=subtype)
    return stream.getvalue()


@pytest.mark.parametrize("ending", OTHERS)
def test_other_sound_in_a_shard_is_decoded_by_the_schema_and_else_bytes(tmp_path, ending):
    content = encode(ending)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / f"a.{ending}").write_bytes(content)
    path = shard_of(tmp_path / "x.tar", ending, content)
    due = np.asarray(open_store(tmp_path / "folder", backend="audio")[0]["audio"])
    store = open_store(path, index="build", schema={ending: due.dtype.name})
    found = np.asarray(store[0][ending])
    assert (found.dtype, found.shape) == (due.dtype, due.shape)
    assert np.allclose(found, due, rtol=0, atol=1e-6 if ending == "mp3" else 0)
    store = open_store(path, schema={ending: "uint8"})  # bytes as numbers
    assert np.asarray(store[0][ending]).tobytes() == content


def test_other_sound_that_is_not_whole_is_refused(tmp_path):
    path = shard_of(tmp_path / "x.tar", "aiff", encode("aiff")[:-100])
    with pytest.raises(
        DecodeError, match=r"says that FORM ends at byte \d+, but has \d+ bytes: it"
    ):
        open_store(path, index="build", schema={"aiff": "int16"})


def test_other_sound_needs_the_plugin(tmp_path, monkeypatch):
    path = shard_of(tmp_path / "x.tar", "mp3", encode("mp3"))
    monkeypatch.setitem(sys.modules, "seqdata_audio.sound_file", None)
    with pytest.raises(
        DecodeError, match=r"needs the package seqdata-audio, .* install seqdata-audio"
    ):
        open_store(path, index="build", schema={"mp3": "float32"})


def test_samples_of_24_bits_are_not_cut_to_16(tmp_path):
    stream = io.BytesIO()
    soundfile.write(stream, write_noise(300), 16000, format="FLAC", subtype="PCM_24")
    path = shard_of(tmp_path / "x.tar", "flac", stream.getvalue())
    store = open_store(path, index="build", schema={"flac": "int16"})
    with pytest.raises(DecodeError, match="holds samples of 24 bits, which int16 cannot hold"):
        store[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", WRITTEN)
def test_floats_are_those_of_soundfile_bit_by_bit(tmp_path, name, dtype):
    (tmp_path / "a.wav").write_bytes(write(name))
    store = open_store(tmp_path, backend=Audio(dtype=dtype))
    found = np.asarray(store[0]["audio"])
    due = soundfile.read(tmp_path / "a.wav", dtype=dtype)[0]
    assert found.dtype == due.dtype
    assert np.array_equal(found, due)
