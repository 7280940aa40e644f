"""Manifests of other toolkits: parts of recordings as sequences, equal to what libsndfile reads."""

import gzip
import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from seqdata_audio import Audio

from seqdata import Bucketed, Loader, Windows, open_store, split
from seqdata.errors import ConfigError, DataError, SeqDataWarning
from seqdata_testing.stores import check_store

RATE = 8000
SECONDS = {"x/a.wav": 1.0, "b.flac": 1.5}
# lines that lhotse 1.33.0 has written: CutSet.from_manifests(...).trim_to_supervisions().to_file
CUT = (
    '{"id": "a-0", "start": 0.1, "duration": 0.2, "channel": 0, "supervisions": [{"id": "a-0", '
    '"recording_id": "a", "start": 0.0, "duration": 0.2, "channel": 0, "text": "word 00", '
    '"language": "en", "speaker": "s0"}], "recording": {"id": "a", "sources": [{"type": "file", '
    '"channels": [0], "source": "clips/x/a.wav"}], "sampling_rate": 8000, "num_samples": 8000, '
    '"duration": 1.0, "channel_ids": [0]}, "type": "MonoCut"}'
)
WHOLE = (
    '{"id": "b-0", "start": 0, "duration": 1.5, "channel": 0, "supervisions": [{"id": "b-0", '
    '"recording_id": "b", "start": 0.1, "duration": 0.2, "channel": 0, "text": "word 10", '
    '"language": "en", "speaker": "s1"}, {"id": "b-1", "recording_id": "b", "start": 0.35, '
    '"duration": 0.2, "channel": 0, "text": "word 11", "language": "en", "speaker": "s1"}], '
    '"recording": {"id": "b", "sources": [{"type": "file", "channels": [0], "source": '
    '"clips/b.flac"}], "sampling_rate": 8000, "num_samples": 12000, "duration": 1.5, '
    '"channel_ids": [0]}, "type": "MonoCut"}'
)
SUPERVISION = (
    '{"id": "a-1", "recording_id": "a", "start": 0.35, "duration": 0.2, "channel": 0, '
    '"text": "word 01", "language": "en", "speaker": "s0"}'
)
RECORDING = (
    '{"id": "a", "sources": [{"type": "file", "channels": [0], "source": "clips/x/a.wav"}], '
    '"sampling_rate": 8000, "num_samples": 8000, "duration": 1.0, "channel_ids": [0]}'
)


@pytest.fixture
def clips(tmp_path):
    for name, seconds in SECONDS.items():
        path = tmp_path / "clips" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        samples = np.random.default_rng(1).integers(-999, 999, int(seconds * RATE), np.int16)
        soundfile.write(path, samples, RATE)
    return tmp_path / "clips"


def read(clips, name, begin, end):
    """Return samples as libsndfile reads them."""
    first, last = round(begin * RATE), round(end * RATE)
    return soundfile.read(clips / name, start=first, stop=last, dtype="int16")[0]


def expect(clips, name, begin, end, key, **fields):
    return {
        "id": key, "audio": read(clips, name, begin, end), "rate": np.int64(RATE), **fields,
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore::seqdata.errors.SeqDataWarning")
def test_parts_of_recordings_are_sequences_of_their_own(clips):
    table = pa.table(
        {
            "audio_filepath": ["b.flac", "x/a.wav", "b.flac", "x/a.wav"],
            "offset": [1.0, 0.25, 0.0, 0.0],
            "duration": [0.5, 0.125, 0.75, 1.0],
            "text": ["later", "in it", "first", "whole"],
        }
    )
    store = open_store(clips, backend=Audio(transcript=table))
    due = [
        expect(clips, "b.flac", 1.0, 1.5, "b.flac[8000:12000]", text="later"),
        expect(clips, "b.flac", 0.0, 0.75, "b.flac[0:6000]", text="first"),
        expect(clips, "x/a.wav", 0.25, 0.375, "x/a.wav[2000:3000]", text="in it"),
        expect(clips, "x/a.wav", 0.0, 1.0, "x/a.wav", text="whole"),
    ]
    seconds = [(1.0, 0.5), (0.0, 0.75), (0.25, 0.125), (0.0, 1.0)]
    for row, (offset, duration) in zip(due, seconds, strict=True):
        row |= {"offset": np.float64(offset), "duration": np.float64(duration)}
    check_store(store, due)
    check_store(pickle.loads(pickle.dumps(store)), due)
    batch = next(iter(Loader(store, Bucketed(4, shuffle=False), fields=("audio",))))
    assert sorted(batch.lengths.tolist()) == [1000, 4000, 6000, 8000]
    windows = Loader(store, Windows(1000, batch_size=2, shuffle=False), fields=("audio",))
    found = np.concatenate([batch["audio"].numpy().reshape(-1) for batch in windows])
    np.testing.assert_array_equal(found, np.concatenate([row["audio"] for row in due]))


@settings(max_examples=30, deadline=None)
@given(
    parts=st.lists(
        st.tuples(st.sampled_from(sorted(SECONDS)), st.floats(0, 0.9), st.floats(0.001, 0.1)),
        min_size=1, max_size=12, unique_by=lambda part: (part[0], round(part[1] * RATE)),
    )
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::seqdata.errors.SeqDataWarning")
def test_any_parts_are_what_libsndfile_reads(parts, tmp_path_factory):
    clips = tmp_path_factory.getbasetemp() / "parts"
    for name, seconds in SECONDS.items():
        path = clips / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(path, np.arange(int(seconds * RATE), dtype=np.int16), RATE)
    names, offsets, durations = zip(*parts, strict=True)
    texts = [str(row) for row in range(len(parts))]
    table = {"file": names, "offset": offsets, "duration": durations, "text": texts}
    store = open_store(clips, backend=Audio(transcript=pa.table(table)))
    assert len(store) == len(parts)
    for sequence in store:
        name, offset, duration = parts[int(sequence["text"])]
        due = read(clips, name, offset, offset + duration)
        np.testing.assert_array_equal(sequence["audio"], due)


def test_cuts_of_lhotse_are_sequences(clips, tmp_path):
    path = tmp_path / "cuts.jsonl.gz"
    path.write_bytes(gzip.compress(f"{CUT}\n{WHOLE}\n".encode()))
    store = open_store(clips, backend=Audio(transcript=path))
    due = [
        expect(clips, "b.flac", 0, 1.5, "b-0", text="word 10 word 11", speaker="s1"),
        expect(clips, "x/a.wav", 0.1, 0.3, "a-0", text="word 00", speaker="s0"),
    ]
    for row, (offset, duration) in zip(due, [(0.0, 1.5), (0.1, 0.2)], strict=True):
        row |= {"offset": np.float64(offset), "duration": np.float64(duration)}
    check_store(store, due)
    parts = split(store, {"train": 0.5, "test": 0.5}, by="speaker", seed=1, exact=True)
    assert {len(part) for part in parts.values()} == {1}


def test_supervisions_of_lhotse_name_their_recordings(clips, tmp_path):
    path = tmp_path / "supervisions.jsonl"
    path.write_text(f"{SUPERVISION}\n")
    with pytest.warns(SeqDataWarning, match="1 of 2 recordings have no row"):
        store = open_store(clips, backend=Audio(transcript=path))
    assert store.keys([0]) == ["a-1"]
    assert (store[0]["audio"] == read(clips, "x/a.wav", 0.35, 0.55)).all()


def write_kaldi(folder, clips, **files):
    folder.mkdir()
    made = {
        "wav.scp": f"rec1 {clips}/x/a.wav\nrec2 {clips}/b.flac\n",
        "segments": "utt1 rec1 0.5 0.75\nutt2 rec1 0.0 0.25\nutt3 rec2 1.0 -1\n",
        "text": "utt1 one two\nutt2 three\nutt3 four\n",
        "utt2spk": "utt1 s1\nutt2 s1\nutt3 s2\n",
    } | files
    for name, text in made.items():
        if text is not None:
            (folder / name.replace("_", ".")).write_text(text)
    return folder


def test_a_data_folder_of_kaldi_has_its_segments(clips, tmp_path):
    folder = write_kaldi(tmp_path / "train", clips)
    store = open_store(clips, backend=Audio(transcript=folder))
    assert store.keys(range(3)) == ["utt3", "utt1", "utt2"]  # in the order of the recordings
    assert [store[at]["text"] for at in range(3)] == ["four", "one two", "three"]
    assert [store[at]["speaker"] for at in range(3)] == ["s2", "s1", "s1"]
    assert (store[0]["audio"] == read(clips, "b.flac", 1.0, 1.5)).all()  # -1: to its end
    assert (store[1]["audio"] == read(clips, "x/a.wav", 0.5, 0.75)).all()


def test_a_data_folder_of_kaldi_without_segments_has_whole_recordings(clips, tmp_path):
    folder = write_kaldi(
        tmp_path / "train", clips, segments=None, utt2spk=None, text="rec2 two\nrec1 one\n"
    )
    store = open_store(clips, backend=Audio(transcript=folder))
    assert {store.keys([at])[0]: store[at]["text"] for at in range(2)} == {
        "rec1": "one", "rec2": "two",
    }  # fmt: skip
    assert "speaker" not in store.fields


def changed(line, **fields):
    return json.dumps(json.loads(line) | fields) + "\n"


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        (changed(CUT, type="MixedCut"), ConfigError, r"line 1 \('a-0'\): must be a cut of one"),
        (changed(CUT, recording={"sources": []}), ConfigError, "its sources are none"),
        (RECORDING, ConfigError, "must be a cut or a supervision, but is a recording"),
        (changed(CUT, start=0.9), DataError, "which has 1 s, but describes 0.9 to 1.1 s. Correct"),
        (f"{CUT}\n{CUT}\n", DataError, "rows 0 and 1 are both 'a-0'. Remove one"),
        (f"{CUT}\n{{", DataError, r"line 2 must be a JSON object, but is not \("),
        (f"{CUT}\n3\n", DataError, "line 2 must be a JSON object, but is a int"),
        (f'{SUPERVISION}\n{{"id": "q"}}\n', DataError, "must have 'recording_id', 'start', 'dur"),
    ],
)
@pytest.mark.filterwarnings("ignore::seqdata.errors.SeqDataWarning")
def test_a_manifest_that_cannot_be_followed_is_refused(clips, tmp_path, line, error, message):
    path = tmp_path / "cuts.jsonl"
    path.write_text(line)
    with pytest.raises(error, match=message):
        open_store(clips, backend=Audio(transcript=path))


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({"wav_scp": "rec1 sph2pipe a.sph |\n"}, ConfigError, "is the output of a command"),
        ({"wav_scp": None, "wav.scp": None}, ConfigError, "must hold `wav.scp`"),
        ({"text": "utt1 a\nutt1 b\n"}, DataError, "but 'utt1' occurs twice"),
        ({"text": "utt9 a\n"}, DataError, "segments: must have the utterance 'utt9', but"),
        ({"segments": "utt1 rec1 0.5\n"}, DataError, "must be followed by a recording, and a"),
        ({"segments": "utt1 rec9 0 1\n", "text": "utt1 a\n"}, DataError, "the recording 'rec9'"),
    ],
)
def test_a_data_folder_that_is_not_whole_is_refused(clips, tmp_path, files, error, message):
    folder = write_kaldi(tmp_path / "train", clips, **files)
    with pytest.raises(error, match=message):
        open_store(clips, backend=Audio(transcript=folder))


def test_seconds_are_numbers_and_a_part_may_be_rounded(clips):
    rows = {"file": ["x/a.wav"], "text": ["a"]}
    with pytest.raises(ConfigError, match="column 'offset' must hold seconds as numbers, but"):
        open_store(clips, backend=Audio(transcript=pa.table(rows | {"offset": ["0.5"]})))
    rounded = pa.table(rows | {"offset": [0.5], "duration": [0.509]})
    with pytest.warns(SeqDataWarning, match="have no row"):
        store = open_store(clips, backend=Audio(transcript=rounded))
    assert store.lengths.tolist() == [4000]  # to the end, which is 9 ms before
    beyond = pa.table(rows | {"offset": [0.5], "duration": [0.52]})
    with pytest.raises(DataError, match=r"but describes 0\.5 to 1\.02 s"):
        open_store(clips, backend=Audio(transcript=beyond))
