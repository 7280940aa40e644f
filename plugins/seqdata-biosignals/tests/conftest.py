"""Recordings for the tests, written by edfio, wfdb and pybv."""

import datetime
import warnings
from types import SimpleNamespace

import edfio
import numpy as np
import pybv
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of pandas 3
    import wfdb


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own for each test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SEQDATA_CACHE", str(folder))
    return folder


def numbers(count, channels, bits=16, seed=0):
    """Stored numbers, (count, channels), over the whole range but the one that is invalid."""
    high = 1 << (bits - 1)
    found = np.random.default_rng(seed).integers(1 - high, high, (count, channels))
    found[:2] = [[high - 1], [1 - high]] if count > 1 else found[:2]
    return found.astype(np.int16 if bits <= 16 else np.int32)


def write_edf(path, groups, *, seconds=1, annotations=(), unit="uV", physical=(-321.5, 400)):
    """Write EDF or BDF: rate -> (name of channels, stored numbers), with annotations as EDF+."""
    is_bdf = path.suffix.lower() == ".bdf"
    high = (1 << 23 if is_bdf else 1 << 15) - 1
    make = edfio.BdfSignal if is_bdf else edfio.EdfSignal
    signals = [
        make.from_digital(
            stored[:, at].copy(), rate, label=name if stored.shape[1] == 1 else f"{name}{at}",
            physical_dimension=unit, physical_range=physical, digital_range=(-high - 1, high),
        )
        for rate, (name, stored) in groups.items()
        for at in range(stored.shape[1])
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    (edfio.Bdf if is_bdf else edfio.Edf)(
        signals, data_record_duration=seconds, starttime=datetime.time(1, 2, 3),
        patient=edfio.Patient(code=path.stem),
        recording=edfio.Recording(startdate=datetime.date(2021, 3, 4)),
        annotations=[edfio.EdfAnnotation(*each) for each in annotations] or None,
    ).write(path)  # fmt: skip
    return path


def write_wfdb(path, stored, *, fmt="16", rate=250, gains=None, baselines=None, **options):
    """Write a WFDB record of stored numbers, (samples, channels), and return its header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = stored.shape[1]
    wfdb.wrsamp(
        path.stem, fs=rate, units=["mV"] * channels, sig_name=[f"ch{at}" for at in range(channels)],
        d_signal=stored.astype(np.int64), fmt=[fmt] * channels,
        adc_gain=gains or [200.0 + at for at in range(channels)],
        baseline=baselines or [3 * at - 2 for at in range(channels)], write_dir=str(path.parent),
        **options,
    )  # fmt: skip
    return path.with_suffix(".hea")


def write_brainvision(path, values, *, fmt="binary_int16", rate=500, events=None, **options):
    """Write BrainVision files of values in volts, (samples, channels); return the header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pybv.write_brainvision(
        data=values.T, sfreq=rate, ch_names=[f"E{at}" for at in range(values.shape[1])],
        fname_base=path.stem, folder_out=str(path.parent), fmt=fmt, events=events, overwrite=True,
        meas_date=datetime.datetime(2020, 5, 6, 7, 8, 9, 250_000), **options,
    )  # fmt: skip
    return path.with_suffix(".vhdr")


@pytest.fixture(scope="session")
def made():
    """What makes recordings."""
    names = (numbers, write_edf, write_wfdb, write_brainvision)
    return SimpleNamespace(**{one.__name__.removeprefix("write_"): one for one in names})
