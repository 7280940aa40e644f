"""STFT is torch.stft for every sequence of a batch."""

import numpy as np
import pytest
import torch
from seqdata_audio import STFT

from seqdata import Bucketed, ConfigError, Loader, Ragged
from seqdata.errors import DecodeError

RNG = np.random.default_rng(0)
SOUNDS = [RNG.normal(size=length).astype("float32") for length in (1000, 333, 201, 4001)]


def of(transform, *sounds):
    lengths = np.array([len(sound) for sound in sounds], dtype=np.int64)
    audio = Ragged(np.concatenate(sounds), lengths)
    made = transform({"audio": audio}, np.zeros(len(sounds), dtype=np.uint64))[transform.to]
    assert made.lengths.tolist() == transform.lengths(lengths).tolist()
    return np.split(made.values, np.cumsum(made.lengths)[:-1])


def due(sound, *, window="hann", power=None, **options):
    size = options.get("win_length") or options["n_fft"]
    made = torch.stft(
        torch.from_numpy(sound),
        window=torch.hann_window(size) if window == "hann" else torch.ones(size),
        return_complex=True,
        **options,
    ).T
    return made.numpy() if power is None else made.abs().pow(power).numpy()


CASES = [
    {"n_fft": 64},
    {"n_fft": 400, "hop_length": 160},
    {"n_fft": 400, "hop_length": 160, "win_length": 300, "power": 1},
    {"n_fft": 128, "hop_length": 50, "win_length": 101, "power": 2.0, "normalized": True},
    {"n_fft": 64, "window": None, "win_length": 40},
    {"n_fft": 63, "hop_length": 16, "center": False},
    {"n_fft": 65, "hop_length": 16},
    {"n_fft": 64, "pad_mode": "constant"},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_spectra_are_those_of_torch(options):
    for sound, frames in zip(SOUNDS, of(STFT(**options), *SOUNDS), strict=True):
        wanted = due(sound, **options)
        assert frames.shape == wanted.shape
        assert frames.dtype == wanted.dtype
        np.testing.assert_allclose(frames, wanted, rtol=1e-5, atol=2e-5 * np.abs(wanted).max())


def test_integers_channels_and_empty_sequences():
    sound = RNG.integers(-20000, 20000, 700).astype("int16")
    (frames,) = of(STFT(n_fft=64), sound)
    scaled = (sound / 32768).astype("float32")
    np.testing.assert_allclose(frames, due(scaled, n_fft=64), atol=1e-4)
    both = np.stack([SOUNDS[0], SOUNDS[0][::-1]], axis=1)
    (frames,) = of(STFT(n_fft=64), both)
    assert frames.shape == (63, 2, 33)
    np.testing.assert_allclose(frames[:, 0], due(SOUNDS[0], n_fft=64), atol=1e-4)
    empty, _ = of(STFT(n_fft=64), SOUNDS[0][:0], SOUNDS[0])
    assert empty.shape == (0, 33)


@pytest.mark.parametrize("power", [None, 1])
def test_batches_have_spectra_and_the_planned_lengths(power):
    loader = Loader(
        [{"audio": sound} for sound in SOUNDS], Bucketed(4), transform=STFT(power=power)
    )
    (batch,) = loader
    assert batch["spectrum"].dtype == (torch.complex64 if power is None else torch.float32)
    assert sorted(batch.lengths.tolist()) == sorted(1 + len(sound) // 100 for sound in SOUNDS)
    assert batch["spectrum"].shape == (4, 41, 201)


def test_a_sequence_too_short_to_be_mirrored_is_named():
    with pytest.raises(
        DecodeError, match=r"more than 200 samples .* has 150\. Pass pad_mode='const"
    ):
        of(STFT(), SOUNDS[0][:150])
    assert of(STFT(pad_mode="constant"), SOUNDS[0][:150])[0].shape == (2, 201)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_fft": 0}, "`n_fft` must be an integer of at least 1, but is 0"),
        ({"hop_length": 0}, "`hop_length` must be an integer of at least 1, or None, but is 0"),
        ({"win_length": 500}, r"`win_length` must be an integer in \[1, 400\], or None"),
        ({"window": "hamming"}, "`window` must be 'hann' or None"),
        ({"pad_mode": "edge"}, "`pad_mode` must be 'reflect' or 'constant'"),
        ({"power": 0}, "`power` must be above 0, or None for complex values"),
        ({"to": ""}, "`to` must be a string that is not empty"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ConfigError, match=f"STFT: {message}"):
        STFT(**options)
