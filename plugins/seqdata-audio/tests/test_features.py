"""LogMel and MFCC: librosa's numbers, a law of lengths, and crops that are those of the whole."""

import importlib.util
import math
import pickle
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqdata_audio import MFCC, LogMel

from seqdata import Bucketed, ConfigError, Loader, Ragged, open_store
from seqdata.errors import DecodeError, SeqDataWarning

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("golden", HERE / "golden.py")
golden = importlib.util.module_from_spec(spec)
spec.loader.exec_module(golden)
DUE = np.load(HERE / "golden.npz")
SMALL = {"rate": 16000, "n_fft": 64, "hop_length": 16, "n_mels": 8}


def of(transform, *sounds, **others):
    lengths = np.array([len(sound) for sound in sounds], dtype=np.int64)
    audio = Ragged(np.concatenate(sounds), lengths)
    columns = {"audio": audio, "rate": np.full(len(sounds), transform.rate), **others}
    made = transform(columns, np.zeros(len(sounds), dtype=np.uint64))
    frames = made[transform.to]
    assert frames.values.dtype == np.float32
    return np.split(frames.values, np.cumsum(frames.lengths)[:-1])


def close(found, due):
    assert found.shape == due.shape
    np.testing.assert_allclose(found, due, rtol=1e-6, atol=1e-4)


def long_enough(case):
    least = 256 if case == "no_center" else 0
    return {name: sound for name, sound in golden.sounds().items() if len(sound) >= least}


ROUNDED = [case for case, (_, top_db, _) in golden.CASES.items() if top_db is not None]
AS = [*((case, "float64") for case in golden.CASES), *((case, "float32") for case in ROUNDED)]


@pytest.mark.parametrize(("case", "dtype"), AS)
def test_mel_spectrograms_are_those_of_librosa(case, dtype):
    options, top_db, _ = golden.CASES[case]
    sounds = long_enough(case)
    found = of(
        LogMel(rate=golden.RATE, top_db=top_db, **options),
        *(sound.astype(dtype) for sound in sounds.values()),
    )
    for name, frames in zip(sounds, found, strict=True):
        close(frames, DUE[f"mel {case} {name}"])


@pytest.mark.parametrize("case", golden.CASES)
def test_coefficients_are_those_of_librosa(case):
    options, top_db, n_mfcc = golden.CASES[case]
    sounds = long_enough(case)
    mfcc = MFCC(rate=golden.RATE, top_db=top_db, n_mfcc=n_mfcc, **options)
    for name, frames in zip(sounds, of(mfcc, *sounds.values()), strict=True):
        close(frames, DUE[f"mfcc {case} {name}"])


@pytest.mark.parametrize("at_once", [1, 64, 1000])
@pytest.mark.parametrize("make", [LogMel, partial(MFCC, n_mfcc=5)], ids=["mel", "mfcc"])
def test_a_sequence_is_the_same_alone_and_in_a_large_batch(make, at_once, monkeypatch):
    """However loud the others are, and however many windows are taken at once."""
    rng = np.random.default_rng(0)
    sizes = [700, 1, 0, 333, 64, 0, 512]
    loud = [1e-4, 0.9, 1.0, 1e-2, 0.5, 1.0, 1e-3]
    sounds = [rng.normal(size=(n, 2)) * level for n, level in zip(sizes, loud, strict=True)]
    transform = make(**SMALL, top_db=20.0)
    due = [of(transform, sound)[0] for sound in sounds]
    assert len({round(float(frames.max())) for frames in due if len(frames)}) > 3
    monkeypatch.setattr("seqdata_audio.features._AT_ONCE", at_once)
    for frames, alone in zip(of(transform, *sounds), due, strict=True):
        close(frames, alone)


@pytest.mark.parametrize("case", golden.CASES)
def test_channels_are_those_of_librosa_with_time_first(case):
    options, top_db, _ = golden.CASES[case]
    two = np.stack([golden.sounds()["chirp"], golden.sounds()["decay"]], axis=1)
    (found,) = of(LogMel(rate=golden.RATE, top_db=top_db, **options), two)
    close(found, DUE[f"mel {case} two"])


@pytest.mark.parametrize(("dtype", "scale", "middle"), [
    ("uint8", 2**7, 128), ("int16", 2**15, 0), ("int32", 2**31, 0),
])  # fmt: skip
def test_integers_are_scaled_as_files_say(dtype, scale, middle):
    floats = np.linspace(-0.9, 0.9, 400)
    stored = (floats * scale + middle).astype(dtype)
    back = (stored.astype(np.float64) - middle) / scale
    (found,), (due,) = of(LogMel(**SMALL), stored), of(LogMel(**SMALL), back)
    close(found, due)


LENGTHS = st.lists(st.integers(0, 200), min_size=1, max_size=6)
OPTIONS = st.fixed_dictionaries(
    {
        "n_fft": st.integers(1, 90), "hop_length": st.integers(1, 70), "center": st.booleans(),
        "n_mels": st.integers(1, 5), "top_db": st.sampled_from([None, 80.0]),
    }
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
@given(lengths=LENGTHS, options=OPTIONS, channels=st.integers(1, 3))
def test_frames_are_as_many_as_the_law_says(lengths, options, channels):
    transform = LogMel(rate=16000, **options)
    sounds = [golden.sounds()["rough"][:length] for length in lengths]
    if channels > 1:
        sounds = [np.stack([sound] * channels, axis=1) for sound in sounds]
    law = transform.lengths(np.array(lengths))
    found = of(transform, *sounds)
    assert [len(frames) for frames in found] == law.tolist()
    for frames, sound in zip(found, sounds, strict=True):  # one alone is as in any batch
        close(frames, of(transform, sound)[0])


@given(begin=st.integers(0, 40), frames=st.integers(1, 40), hop=st.integers(1, 20))
def test_frames_of_a_crop_are_the_crop_of_the_frames(begin, frames, hop):
    sound = golden.sounds()["rough"]
    plain = LogMel(rate=16000, n_fft=64, hop_length=hop, n_mels=8, center=False, top_db=None)
    crop = sound[begin * hop : begin * hop + (frames - 1) * hop + 64]
    close(of(plain, crop)[0], of(plain, sound)[0][begin : begin + frames])


def test_a_centred_frame_is_around_its_sample():
    sound = golden.sounds()["rough"]
    plain = LogMel(**SMALL, top_db=None, center=False)
    centred = LogMel(**SMALL, top_db=None)
    whole = of(plain, sound)[0]
    close(of(centred, sound)[0][2 : 2 + len(whole)], whole)  # n_fft // 2 == 2 * hop_length


def test_a_sequence_without_samples_has_no_frames():
    law = LogMel(**SMALL).lengths(np.array([0, 1, 15, 16, 17]))
    assert law.tolist() == [0, 1, 1, 2, 2]
    assert [len(one) for one in of(LogMel(**SMALL), np.zeros(0), np.ones(40))] == [0, 3]
    assert [len(one) for one in of(MFCC(**SMALL, n_mfcc=3), np.zeros(0))] == [0]


def test_plans_know_the_frames():
    sounds = [golden.sounds()["rough"][:length] for length in (100, 700, 300, 1600, 900)]
    data = [{"audio": sound, "rate": 16000, "y": n} for n, sound in enumerate(sounds)]
    store = open_store(data, axes={"audio": "time", "rate": None, "y": None})
    for batch in Loader(store, Bucketed(2), transform=LogMel(**SMALL)):
        assert "audio" not in batch
        for row, number in enumerate(batch["y"].tolist()):
            length = int(batch.lengths[row])
            assert length == 1 + len(sounds[number]) // 16
            (due,) = of(LogMel(**SMALL), sounds[number])
            close(batch["mel"][row, :length].numpy(), due)


def test_other_fields_stay_and_names_can_be_chosen():
    transform = LogMel(**SMALL, field="left", to="bands")
    sound = Ragged(np.ones(40), np.array([40]))
    columns = {"left": sound, "rate": np.array([16000]), "speaker": ["a"]}
    made = transform(columns, np.zeros(1, dtype=np.uint64))
    assert list(made) == ["rate", "speaker", "bands"]


def test_the_result_may_take_the_place_of_the_audio():
    transform = LogMel(**SMALL, to="audio")
    assert of(transform, np.ones(40))[0].shape == (3, 8)


@pytest.mark.parametrize("kind", [LogMel, MFCC])
def test_no_other_field_is_written_over(kind):
    sound = Ragged(np.ones(40), np.array([40]))
    columns = {"audio": sound, "rate": np.array([16000]), "kept": np.ones(1)}
    with pytest.raises(ConfigError, match=r"`to` must be a name that no other .* is 'kept'\. Pass"):
        kind(rate=16000, to="kept")(columns, np.zeros(1, dtype=np.uint64))


def test_numbers_of_numpy_are_stored_as_plain_ones():
    counts = {"rate": 16000, "n_mels": 8, "n_fft": 64, "hop_length": 16, "win_length": 60,
              "n_mfcc": 4}  # fmt: skip
    floats = {"fmin": 20.0, "fmax": 7000.0, "top_db": 60.0}
    plain = MFCC(**counts, **floats)
    for whole, real in ((np.int64, np.float64), (np.uint16, np.float32)):
        options = {name: whole(count) for name, count in counts.items()}
        options |= {name: real(value) for name, value in floats.items()}
        made = MFCC(**options)
        assert repr(made) == repr(plain)  # that of a NumPy number names its type
        assert {type(getattr(made, name)) for name in counts} == {int}
        assert {type(getattr(made, name)) for name in floats} == {float}
    assert type(LogMel(rate=16000, fmin=np.int64(20)).fmin) is int
    assert (of(made, np.ones(40))[0] == of(plain, np.ones(40))[0]).all()


def test_a_transform_is_small_when_it_is_sent_and_the_same_afterwards():
    transform = MFCC(rate=16000)
    before = pickle.dumps(transform)
    (due,) = of(transform, golden.sounds()["chirp"])
    assert len(pickle.dumps(transform)) == len(before) < 1000
    sent = pickle.loads(pickle.dumps(transform))
    assert sent == transform
    assert (of(sent, golden.sounds()["chirp"])[0] == due).all()


def test_another_rate_is_refused():
    said = "must have 16000 samples per second, but one has 8000. Resample"
    with pytest.raises(DecodeError, match=re.escape(said)) as caught:
        of(LogMel(**SMALL), np.ones(9), np.ones(9), rate=np.array([16000, 8000]))
    assert caught.value.details["field"] == "rate"
    of(LogMel(**SMALL), np.ones(9), rate=np.array([16000]))


def test_a_rate_that_is_not_told_is_warned_of():
    columns = {"audio": Ragged(np.ones(9), np.array([9]))}
    with pytest.warns(SeqDataWarning, match=r"must have 16000 .* no field 'rate' that says so"):
        LogMel(**SMALL)(columns, np.zeros(1, dtype=np.uint64))


def test_a_field_that_is_not_there_is_refused():
    said = "LogMel: `field` must name a field along time, one of audio, rate, y, but is 'sound'. Pa"
    with pytest.raises(ConfigError, match=re.escape(said)):
        of(LogMel(**SMALL, field="sound"), np.ones(9), y=np.ones(1))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rate": 0}, "`rate` must be an integer of at least 1, but is 0"),
        ({"rate": 16000.0}, "`rate` must be an integer"),
        ({"n_mels": True}, "`n_mels` must be an integer"),
        ({"hop_length": -1}, "`hop_length` must be"),
        ({"n_fft": 0}, "`n_fft` must be"),
        ({"win_length": 65, "n_fft": 64}, r"`win_length` must be an integer in \[1, 64\]"),
        (
            {"win_length": "x"},
            r"`win_length` must be an integer in \[1, 2048\], or None, but is 'x'",
        ),
        ({"rate": np.float64(16000)}, "`rate` must be an integer"),
        ({"n_fft": np.bool_(True)}, "`n_fft` must be an integer"),
        ({"fmin": "x"}, r"`fmin` must be in \[0, 8000\), in Hz, but is 'x'"),
        ({"fmin": None}, "`fmin` must be in .*, but is None"),
        ({"fmin": True}, "`fmin` must be in .*, but is True"),
        ({"fmin": math.nan}, "`fmin` must be in .*, but is nan"),
        ({"fmin": 8000}, r"`fmin` must be in \[0, 8000\), in Hz, but is 8000"),
        ({"fmin": 100, "fmax": 100}, "`fmax` must be above fmin"),
        ({"fmax": 8001}, "`fmax` must be above fmin, at most 8000"),
        ({"fmax": "x"}, "`fmax` must be above fmin, at most 8000 .*, or None, but is 'x'"),
        ({"fmax": math.nan}, "`fmax` must be above fmin, .*, but is nan"),
        ({"center": "no"}, "`center` must be True or False, but is 'no'"),
        ({"htk": "no"}, "`htk` must be True or False, but is 'no'"),
        ({"norm": "l2"}, "`norm` must be 'slaney' or None, but is 'l2'"),
        ({"top_db": -1}, "`top_db` must be at least 0"),
        ({"top_db": "x"}, "`top_db` must be at least 0, or None, but is 'x'"),
        ({"top_db": math.nan}, "`top_db` must be at least 0, or None, but is nan"),
        ({"field": ""}, "`field` must be a string that is not empty, but is ''"),
        ({"field": 3}, "`field` must be a string that is not empty, but is 3"),
        ({"to": ""}, "`to` must be a string that is not empty, and not 'rate', but is ''"),
        ({"to": None}, "`to` must be a string that is not empty, and not 'rate', but is None"),
        ({"to": "rate"}, "`to` must be a string that is not empty, and not 'rate', but is 'rate'"),
        ({"n_mfcc": "x"}, r"`n_mfcc` must be an integer in \[1, 128\]"),
        ({"n_mfcc": 129}, r"`n_mfcc` must be an integer in \[1, 128\]"),
    ],
)
def test_arguments_that_are_invalid_are_refused(options, said):
    with pytest.raises(ConfigError, match=f"MFCC: {said}"):
        MFCC(**{"rate": 16000, **options})
