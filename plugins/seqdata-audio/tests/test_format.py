"""Folders of audio files as stores: by path, in place where that can be, and what is refused."""

import io
import re
import shutil
import sys
import tomllib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner
from seqdata_audio import Audio, LogMel
from seqdata_audio.format import seqdata_register_backends
from seqdata_audio.sound_file import read_info

from seqdata import Bucketed, Loader, SequenceDataModule, Windows, open_store
from seqdata.cli.app import app
from seqdata.errors import (
    ConfigError,
    CorruptSampleError,
    DataError,
    DecodeError,
    FingerprintMismatch,
    PluginError,
)
from seqdata_testing.contract import StoreContract
from seqdata_testing.stores import check_store


def sound(count, number=0, channels=1):
    """Samples, int16, that are other for each number and channel."""
    at = np.arange(count)[:, None] + 1000 * np.arange(channels)
    samples = (9000 * np.sin((0.03 + 0.001 * number) * at)).astype(np.int16)
    return samples if channels > 1 else samples[:, 0]


def sounds(channels=1):
    counts = (1, 40, 700, 33, 12, 90_000, 8)
    return [
        {"audio": sound(count, number, channels), "rate": np.int64(8000 + number)}
        for number, count in enumerate(counts)
    ]


def write(folder, sequences, ending="wav", **options):
    for number, one in enumerate(sequences):
        path = folder / f"{number // 3}" / f"é {number}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, one["audio"], int(one["rate"]), **options)
    return folder


class TestWav(StoreContract):
    """WAV files, read in place."""

    sequences = tuple(sounds())

    def make(self, folder, sequences):
        return open_store(write(folder / "data", sequences))


class TestStereo(StoreContract):
    """WAV files of two channels."""

    sequences = tuple(sounds(2))
    methods = ()

    def make(self, folder, sequences):
        return open_store(write(folder / "data", sequences))


class TestFlac(StoreContract):
    """FLAC files, which are decoded."""

    sequences = tuple(sounds())

    def make(self, folder, sequences):
        return open_store(write(folder / "data", sequences, "flac"))


class TestBoth(StoreContract):
    """A folder of both, of the same dtype."""

    sequences = tuple(sounds())
    methods = ()

    def make(self, folder, sequences):
        write(folder / "data" / "0", sequences[:3], "flac")
        write(folder / "data" / "1", sequences[3:])
        return open_store(folder / "data")


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "recordings", sounds())


def test_ids_are_paths_below_the_folder(folder):
    assert open_store(folder).keys([0, 6]) == ["0/é 0.wav", "2/é 6.wav"]
    assert open_store(folder / "2" / "é 6.wav").keys([0]) == ["é 6.wav"]
    assert len(open_store(f"{folder}/*/*.wav")) == 7


def test_the_plugin_is_found_without_being_imported(folder):
    assert list(seqdata_register_backends()) == ["audio", "kaldi"]
    assert seqdata_register_backends()["audio"] == Audio()
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    claimed = project["project"]["entry-points"]["seqdata.suffixes"]
    assert claimed == dict.fromkeys(Audio().suffixes, "audio") | {".ark": "kaldi", ".scp": "kaldi"}


def test_slices_of_wav_are_views_of_the_file(folder):
    store = open_store(folder)
    column = store.read(np.array([[5, 80_000, 80_010]]), ["audio"])["audio"]
    values = column[0]
    assert np.array_equal(values, sound(90_000, 5)[80_000:80_010])
    assert not values.flags.owndata
    crops = Loader(store, Windows(size=100, horizon=0, stride=400, batch_size=16))
    for batch in crops:
        assert batch["audio"].shape[1] == 100


STORED = {
    ("wav", "PCM_U8"): "uint8", ("wav", "PCM_16"): "int16", ("wav", "PCM_24"): "int32",
    ("wav", "PCM_32"): "int32", ("wav", "FLOAT"): "float32", ("wav", "DOUBLE"): "float64",
    ("wav", "ULAW"): "float32", ("wav", "IMA_ADPCM"): "float32", ("flac", "PCM_S8"): "int16",
    ("flac", "PCM_16"): "int16", ("flac", "PCM_24"): "int32", ("ogg", "VORBIS"): "float32",
    ("ogg", "OPUS"): "float32", ("mp3", "MPEG_LAYER_III"): "float32",
}  # fmt: skip


@pytest.mark.parametrize(("ending", "subtype"), STORED)
@pytest.mark.parametrize("channels", [1, 2])
def test_samples_are_those_that_soundfile_reads(tmp_path, ending, subtype, channels):
    rows = [{"audio": sound(n, n, channels), "rate": 16000} for n in (3000, 5000)]
    write(tmp_path, rows, ending, subtype=subtype)
    store = open_store(tmp_path)
    dtype = STORED[ending, subtype]
    shape = () if channels == 1 else (channels,)
    assert (store.fields["audio"].dtype, store.fields["audio"].shape) == (dtype, shape)
    floats = open_store(tmp_path, backend=Audio(dtype="float64"))
    for number, path in enumerate(sorted(tmp_path.rglob(f"*.{ending}"))):
        due = soundfile.read(path, dtype="int16" if dtype == "uint8" else dtype)[0]
        spans = np.array([[number, 0, store.lengths[number]]])
        found = store.read(spans, ["audio"])["audio"][0]
        same = partial(np.allclose, rtol=0, atol=1e-6 if ending == "mp3" else 0)  # the last bit
        assert same(due // 256 + 128 if dtype == "uint8" else due, found)
        found = floats.read(spans, ["audio"])["audio"][0]
        assert same(found, soundfile.read(path, dtype="float64")[0])


def test_files_above_one_header_and_big_endian_are_the_same(tmp_path):
    soundfile.write(tmp_path / "a.wav", sound(50), 8000, endian="BIG")
    soundfile.write(tmp_path / "b.wav", sound(50), 8000, format="WAVEX")
    soundfile.write(tmp_path / "c.WAV", sound(50), 8000, format="RF64")
    check_store(open_store(tmp_path), 3 * [{"audio": sound(50), "rate": np.int64(8000)}])


@pytest.mark.parametrize("ending", ["wav", "flac", "ogg", "mp3"])
def test_a_file_that_was_cut_off_is_an_error_that_names_it(tmp_path, ending):
    path = write(tmp_path, [{"audio": sound(40_000), "rate": 16000}], ending) / f"0/é 0.{ending}"
    content = path.read_bytes()
    for size in (0, 3, 30, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(DataError, match=f"0.{ending}"):  # noqa: PT012
            store = open_store(tmp_path)
            store.read(np.array([[0, 0, 40_000]]), ["audio"])["audio"][0]
        shutil.rmtree(tmp_path / "seqdata-index", ignore_errors=True)


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_a_flipped_bit_in_the_last_page_of_ogg_does_not_shorten_it(tmp_path, subtype, made):
    write(tmp_path, [{"audio": sound(40_000), "rate": 16000}], "ogg", subtype=subtype)
    path = tmp_path / "0/é 0.ogg"
    whole = path.read_bytes()
    assert read_info(made.bytes(whole, "x.ogg")).frames == 40_000
    last, random = whole.rfind(b"OggS"), np.random.default_rng(0)
    places = {*range(last, last + 30), *random.integers(last, len(whole), 60).tolist()}
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << random.integers(8)
        with pytest.raises(ValueError, match="Ogg page"):
            read_info(made.bytes(damaged, "x.ogg"))
    with pytest.raises(ValueError, match="has 128 other bytes after its last one"):
        read_info(made.bytes(whole + b"TAG" + bytes(125), "x.ogg"))


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_an_ogg_file_that_was_cut_off_between_two_pages_is_refused(tmp_path, subtype):
    write(tmp_path, [{"audio": sound(200_000), "rate": 16000}], "ogg", subtype=subtype)
    path = tmp_path / "0/é 0.ogg"
    whole = path.read_bytes()
    pages = [match.start() for match in re.finditer(rb"OggS\x00[\x00-\x07]", whole)]
    assert len(pages) > 3
    for end in pages[1:]:
        path.write_bytes(whole[:end])
        with pytest.raises(DataError, match=r"é 0\.ogg: must end with an Ogg page that is marked"):
            open_store(tmp_path)
    path.write_bytes(whole)
    assert open_store(tmp_path).lengths.tolist() == [200_000]


def as_stream(content):
    """Return a FLAC file whose header says no number of samples: 36 bits of STREAMINFO."""
    packed = int.from_bytes(content[18:26], "big") >> 36 << 36
    return content[:18] + packed.to_bytes(8, "big") + content[26:]


@pytest.mark.parametrize("channels", [1, 2])
def test_flac_that_does_not_say_how_many_samples_it_has_is_refused(tmp_path, channels):
    rows = [{"audio": sound(n, n, channels), "rate": 16000} for n in (3000, 5000)]
    path = write(tmp_path, rows, "flac") / "0/é 1.flac"
    whole = path.read_bytes()
    path.write_bytes(as_stream(whole))
    text = (
        r"é 1\.flac: does not say how many samples it has: it was written as a stream\. Restore "
        r"the file; .* with `ffmpeg -i old\.flac new\.flac`"
    )
    for backend in (Audio(), Audio(dtype="float32"), Audio(allow_empty=True)):
        with pytest.raises(DataError, match=text):
            open_store(tmp_path, backend=backend)
    with pytest.raises(ValueError, match="does not say how many samples"):
        Audio().decode_int16(as_stream(whole))
    path.write_bytes(whole)
    assert open_store(tmp_path).lengths.tolist() == [3000, 5000]


def test_what_is_not_audio_is_refused(tmp_path):
    (tmp_path / "a.flac").write_bytes(b"no flac" * 100)
    with pytest.raises(DataError, match=r"a\.flac: cannot be read by libsndfile .* Restore"):
        open_store(tmp_path)


def test_a_file_without_samples_is_an_error_unless_it_is_allowed(tmp_path):
    write(tmp_path, [{"audio": sound(n), "rate": 8000} for n in (0, 7)])
    text = r"é 0\.wav: must hold at least one sample \(or be opened with Audio\(allow_empty"
    with pytest.raises(DataError, match=text):
        open_store(tmp_path)
    store = open_store(tmp_path, backend=Audio(allow_empty=True))
    assert store.lengths.tolist() == [0, 7]
    (batch,) = Loader(store, Bucketed(8))
    assert batch.lengths.tolist() == [7]


def test_files_of_other_dtypes_or_channels_go_together_as_floats_alone(tmp_path):
    write(tmp_path / "a", [{"audio": sound(90), "rate": 8000}])
    write(tmp_path / "b", [{"audio": sound(90), "rate": 8000}], subtype="FLOAT")
    text = (
        r"must hold int16 \[\] .* but holds float32 \[\] on axis time\. Pass `backend=Audio\("
        r"dtype='float32'\)` of seqdata_audio, .*, or open them as two stores"
    )
    with pytest.raises(DecodeError, match=text):
        open_store(tmp_path)
    floats = open_store(tmp_path, backend=Audio(dtype="float32"))
    assert floats.fields["audio"].dtype == "float32"
    write(tmp_path / "c", [{"audio": sound(90, 0, 2), "rate": 8000}])
    with pytest.raises(DecodeError, match=r"holds float32 \[2\] on axis time\. Open them as two"):
        open_store(tmp_path, backend=Audio(dtype="float32"))
    text = "Audio: `dtype` must be one of None, 'float32', 'float64', but is 'int16'. Leave"
    with pytest.raises(ConfigError, match=re.escape(text)):
        Audio(dtype="int16")


def test_a_text_is_not_taken_for_true():
    text = "Audio: `allow_empty` must be True or False, but is 'no'"
    with pytest.raises(ConfigError, match=re.escape(text)):
        Audio(allow_empty="no")


def test_a_flipped_bit_is_named_by_file_sequence_and_bytes(folder):
    store = open_store(folder)
    path = folder / "1" / "é 5.wav"
    raw = bytearray(path.read_bytes())
    raw[100_001] ^= 1
    path.write_bytes(raw)
    assert len(store.read(np.array([[5, 0, 100]]), ["audio"])["audio"][0]) == 100
    with pytest.raises(
        CorruptSampleError, match=r'"1/é 5.wav".*field "audio", bytes \d+'
    ) as caught:
        store.read(np.array([[5, 49_000, 51_000]]), ["audio"])["audio"][0]
    assert caught.value.details["offset"] <= 100_001
    result = CliRunner().invoke(app, ["verify", str(folder)])
    assert result.exit_code == 1
    assert "é 5.wav" in result.output
    raw[24] ^= 1  # the rate
    path.write_bytes(raw)
    with pytest.raises(FingerprintMismatch, match=r"é 5\.wav"):
        open_store(folder)


def test_the_command_knows_folders_of_audio(folder):
    runner = CliRunner()
    for words in (
        ["index"],
        ["verify"],
        ["stats"],
        ["plan", "--batching", "bucketed", "--batch-size", "4"],
    ):
        done = runner.invoke(app, [words[0], str(folder), *words[1:]])
        assert done.exit_code == 0, done.output
    assert "indexed 0 of 7 shards, 7 sequences" in runner.invoke(app, ["index", str(folder)]).output


def test_batches_come_from_worker_processes(folder):
    mel = LogMel(rate=8000, n_fft=64, hop_length=16, n_mels=8)
    for row in sorted(folder.rglob("*.wav")):
        samples = soundfile.read(row, dtype="int16")[0]
        soundfile.write(row, samples, 8000)
    here = list(Loader(open_store(folder), Bucketed(2), transform=mel))
    there = list(Loader(open_store(folder), Bucketed(2), transform=mel, num_workers=1))
    assert len(here) == len(there) == 4
    for one, other in zip(here, there, strict=True):
        assert np.array_equal(one["mel"], other["mel"])
        assert np.array_equal(one.ids, other.ids)


def test_an_error_of_a_transform_names_the_recordings(folder):
    text = r"(?s)must have 8000 samples per second, but one has 800\d.*sequences '\d/é \d\.wav'"
    with pytest.raises(DecodeError, match=text) as caught:
        list(Loader(open_store(folder), Bucketed(7), transform=LogMel(rate=8000)))
    assert caught.value.details["field"] == "rate"


def test_a_data_module_takes_a_path(tmp_path):
    write(tmp_path, [{"audio": sound(n), "rate": 8000} for n in (900, 400, 700, 1000)])
    mel = LogMel(rate=8000, n_fft=64, hop_length=16, n_mels=8)
    data = SequenceDataModule(train=str(tmp_path), batching=Bucketed(2), transform=mel, seed=1)
    data.setup("fit")
    shapes = {tuple(batch["mel"].shape) for batch in data.train_dataloader()}
    assert shapes == {(2, 63, 8), (2, 44, 8)}


def test_soundfile_is_needed_for_what_is_decoded_alone(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert len(open_store(folder)) == 7
    (folder / "x.flac").write_bytes(b"fLaC")
    with pytest.raises(PluginError, match="soundfile must be installed, but cannot be imported"):
        open_store(folder)


def test_decoding_says_what_is_missing():
    content = io.BytesIO()
    soundfile.write(content, np.zeros(30_000), 16000, format="MP3")
    with pytest.raises(ValueError, match=r"says \d+ frames in its Xing or Info frame, but has \d+"):
        Audio().decode_float32(content.getvalue()[: len(content.getvalue()) // 2])
    with pytest.raises(ValueError, match="Format not recognised"):
        Audio().decode_int16(b"")
