"""BrainVision: the values of mne in every form; what does not fit is refused."""

import mne
import numpy as np
import pytest
from seqdata_biosignals import Biosignals

from seqdata import open_store
from seqdata.errors import SeqDataError
from seqdata_testing.contract import StoreContract

FORMS = ["binary_int16", "binary_int32", "binary_float32"]


def volts(count, channels, seed=0):
    return np.random.default_rng(seed).standard_normal((count, channels)) * 1e-4


def turn(header):
    """Turn a multiplexed recording into a vectorized one."""
    text = header.read_text()
    form = "<i2" if "INT_16" in text else "<i4" if "INT_32" in text else "<f4"
    path = header.with_suffix(".eeg")
    count = int(text.split("NumberOfChannels=")[1].split()[0])
    values = np.fromfile(path, form).reshape(-1, count)
    path.write_bytes(np.ascontiguousarray(values.T).tobytes())
    header.write_text(text.replace("=MULTIPLEXED", "=VECTORIZED"))
    return header


class TestContract(StoreContract):
    """Vectorized: each channel of each span is a range of bytes of its own."""

    methods = ("fork",)
    sequences = tuple(
        {"id": f"r{at}.vhdr", "signal": np.random.default_rng(at).integers(
            -30_000, 30_000, (length, 3)).astype(np.int16)}
        for at, length in enumerate((1, 40, 300))
    )  # fmt: skip

    @pytest.fixture(autouse=True)
    def _writers(self, made):
        self.made = made

    def make(self, folder, sequences):
        for each in sequences:
            header = self.made.brainvision(folder / each["id"], 1e-7 * each["signal"])
            (folder / each["id"]).with_suffix(".eeg").write_bytes(each["signal"].tobytes())
            turn(header)
        return open_store(folder, backend=Biosignals(dtype="stored"))


@pytest.mark.parametrize("fmt", FORMS)
@pytest.mark.parametrize("is_turned", [False, True])
def test_values_are_those_of_mne(made, tmp_path, fmt, is_turned):
    is_int32 = fmt == "binary_int32"  # which pybv does not write
    written = "binary_float32" if is_int32 else fmt
    header = made.brainvision(tmp_path / "r", volts(700, 5), fmt=written, resolution=0.05)
    if is_int32:
        header.write_text(header.read_text().replace("IEEE_FLOAT_32", "INT_32"))
        (tmp_path / "r.eeg").write_bytes(made.numbers(700, 5, 32).tobytes())
    if is_turned:
        turn(header)
    due = mne.io.read_raw_brainvision(header, verbose="ERROR").get_data(units="uV").T
    found = open_store(header, backend=Biosignals())[0]["signal"]
    np.testing.assert_allclose(found, due, rtol=2**-23, atol=1e-9)
    exact = open_store(tmp_path, backend=Biosignals(dtype="float64"))[0]["signal"]
    np.testing.assert_allclose(exact, due, rtol=1e-12, atol=1e-12)
    store = open_store(tmp_path, backend=Biosignals(channels=["E4", "E1"]))
    column = store.read(np.array([[0, 10, 200], [0, 650, 700], [0, 5, 5]]), ["signal"])["signal"]
    assert (column[0] == found[10:200, [4, 1]]).all()
    assert (column[1] == found[650:, [4, 1]]).all()
    assert column[2].shape == (0, 2)


def test_markers_and_the_start_are_those_of_mne(made, tmp_path):
    events = np.array([[100, 1, 3], [250, 7, 50]])
    header = made.brainvision(tmp_path / "r", volts(700, 2), events=events)
    raw = mne.io.read_raw_brainvision(header, verbose="ERROR")
    backend = Biosignals(annotations=True, labels={"Stimulus/S  7": 2}, facts=["start"])
    for location in (header, tmp_path, tmp_path / "*.vhdr", tmp_path / "r.eeg"):
        found = open_store(location, backend=backend)[0]
        np.testing.assert_allclose(found["onset"], raw.annotations.onset, rtol=1e-12)
        np.testing.assert_allclose(found["duration"], raw.annotations.duration, rtol=1e-12)
        assert found["event_texts"].split("\n") == list(raw.annotations.description)
        assert np.flatnonzero(found["label"] == 2).tolist() == list(range(250, 300))
        assert found["start"] == "2020-05-06T07:08:09.250000"
    assert raw.info["meas_date"].isoformat().startswith("2020-05-06T07:08:09.25")


def edit(name, old, new):
    def harm(folder):
        path = folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return harm


def remove(name):
    return lambda folder: (folder / name).unlink()


def cut(folder):
    path = folder / "r.eeg"
    path.write_bytes(path.read_bytes()[:-3])


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (cut, r"r.vhdr: declares complete samples of 2 channels in INT_16 for 'r.eeg', which"),
        (remove("r.eeg"), r"r.vhdr: must have its file of samples 'r.eeg' among .* was renamed"),
        (remove("r.vhdr"), r"r.eeg.*must have its header 'r.vhdr' next to it, but does not"),
        (remove("r.vmrk"), r"r.vhdr: must have its annotations 'r.vmrk' among the opened files"),
        (edit("r.vhdr", "=r.eeg", "=old.eeg"), r"must have its file of samples 'old.eeg'"),
        (edit("r.vhdr", "=r.eeg", "="), r"r.vhdr: must have a DataFile, but has none"),
        (edit("r.vhdr", "Brain", "Train"), r"must begin with 'Brain Vision Data Exchange Header"),
        (edit("r.vhdr", "=BINARY", "=ASCII"), r"must have dataformat BINARY, but has 'ASCII'"),
        (edit("r.vhdr", "=INT_16", "=UINT_16"), r"must have binaryformat INT_16 or INT_32 or IEEE"),
        (edit("r.vhdr", "=2\n", "=none\n"), r"must have NumberOfChannels above 0, but has 'none'"),
        (edit("r.vhdr", "Ch2=", "Ch9="), r"for each of its 2 channels, but has none for Ch2"),
        (
            edit("r.vhdr", "SamplingInterval=2000", "SamplingInterval=0"),
            r"SamplingInterval above 0",
        ),
        (edit("r.vhdr", "E0,,", "E0,,x"), r"'E0' cannot be .*: its header has the reso"),
        (edit("r.vmrk", "[Marker Infos]", "[Other]"), r"r.vmrk: must have a section \[Marker Inf"),
        (edit("r.vmrk", ",1,1,", ",one,1,"), r"r.vmrk: has the marker mk1='New Segment,,one,1,"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(made, tmp_path, harm, message):
    for name in "rs":
        made.brainvision(tmp_path / name, volts(50, 2), events=np.array([[3, 1]]))
    harm(tmp_path)
    with pytest.raises(SeqDataError, match=message):
        open_store(tmp_path, backend=Biosignals(annotations=True))
