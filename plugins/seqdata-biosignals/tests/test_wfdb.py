"""WFDB: the values of wfdb for each format, annotations; damaged and missing files are refused."""

import shutil
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from seqdata_biosignals import Biosignals
from seqdata_biosignals.decoding import unpack_pairs

from seqdata import open_store
from seqdata.errors import ConfigError, DataError, SeqDataError
from seqdata_testing.contract import StoreContract

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of pandas 3
    import wfdb

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")  # pandas 3
BITS = {"16": 16, "212": 12, "80": 8, "24": 24, "32": 32}


def sequences(lengths):
    return [
        {"id": f"r{at}.hea", "signal": np.random.default_rng(at).integers(
            -2047, 2048, (length, 3)).astype(np.int16)}
        for at, length in enumerate(lengths)
    ]  # fmt: skip


class TestContract(StoreContract):
    """Three channels of 12 bits: every second frame begins in mid-byte."""

    methods = ("fork",)
    sequences = sequences((1, 2, 7, 301))

    @pytest.fixture(autouse=True)
    def _writers(self, made):
        self.made = made

    def make(self, folder, sequences):
        for each in sequences:
            self.made.wfdb(folder / each["id"], each["signal"], fmt="212")
        return open_store(folder, backend=Biosignals(dtype="stored"))


@pytest.mark.parametrize("fmt", BITS)
@pytest.mark.parametrize("channels", [1, 4, 3])
def test_values_are_those_of_wfdb(made, tmp_path, fmt, channels):
    stored = made.numbers(501, channels, BITS[fmt])
    header = made.wfdb(tmp_path / "r", stored, fmt=fmt)
    due = wfdb.rdrecord(str(header.with_suffix("")))
    for dtype, slack in (("float32", 2**-22), ("float64", 2**-51)):
        store = open_store(header, backend=Biosignals(dtype=dtype))
        found = store[0]["signal"]
        assert found.dtype == dtype
        np.testing.assert_allclose(found, due.p_signal, rtol=slack, atol=slack)
    as_stored = open_store(tmp_path, backend=Biosignals(dtype="stored"))[0]["signal"]
    assert (as_stored == stored).all()


@pytest.mark.parametrize("fmt", BITS)
def test_samples_that_are_missing_are_nan(made, tmp_path, fmt):
    stored = made.numbers(40, 3, BITS[fmt])
    stored[[3, 4, 39], [0, 2, 1]] = -(1 << (BITS[fmt] - 1))
    header = made.wfdb(tmp_path / "r", stored, fmt=fmt)
    due = wfdb.rdrecord(str(header.with_suffix(""))).p_signal
    found = open_store(header, backend=Biosignals())[0]["signal"]
    assert np.argwhere(np.isnan(found)).tolist() == [[3, 0], [4, 2], [39, 1]]
    assert (np.isnan(due) == np.isnan(found)).all()


@pytest.mark.parametrize(("fmt", "dtype", "zero"), [("61", ">i2", 0), ("160", "<u2", 32768)])
def test_the_other_formats_of_16_bits(made, tmp_path, fmt, dtype, zero):
    stored = made.numbers(100, 2)
    (tmp_path / "r.dat").write_bytes((stored.astype(np.int32) + zero).astype(dtype).tobytes())
    lines = [f"r.dat {fmt} 100(5)/uV 16 0 0 0 0 c{at}" for at in range(2)]
    (tmp_path / "r.hea").write_text("\n".join(["r 2 360 100", *lines, ""]))
    found = open_store(tmp_path, backend=Biosignals(dtype="float64"))[0]["signal"]
    np.testing.assert_allclose(found, (stored - 5.0) / 100, rtol=1e-12, atol=1e-12)


def test_several_rates_in_frames_and_several_files(made, tmp_path):
    random = np.random.default_rng(0)
    signals = [random.integers(-2000, 2000, 100 * per_frame) for per_frame in (4, 1, 4)]
    wfdb.wrsamp(
        "r", fs=50, units=["mV"] * 3, sig_name=["a", "slow", "b"], e_d_signal=signals,
        samps_per_frame=[4, 1, 4], fmt=["16"] * 3, adc_gain=[200.0] * 3, baseline=[0] * 3,
        write_dir=str(tmp_path),
    )  # fmt: skip
    store = open_store(tmp_path, backend=Biosignals(dtype="stored", facts="rate"))
    assert {name: field.axis for name, field in store.fields.items() if field.axis} == {
        "signal": "time", "signal_50hz": "time_signal_50hz",
    }  # fmt: skip
    found = store[0]
    assert found["rate"] == 200
    assert (found["signal"] == np.stack([signals[0], signals[2]], axis=1)).all()
    assert (found["signal_50hz"][:, 0] == signals[1]).all()
    due = wfdb.rdrecord(str(tmp_path / "r"), smooth_frames=False, physical=False)
    assert all((mine == own).all() for mine, own in zip(due.e_d_signal, signals, strict=True))


def test_signals_in_two_files_of_other_formats_are_one_field(made, tmp_path):
    first, second = made.numbers(100, 2), made.numbers(100, 1, 12, seed=3)
    made.wfdb(tmp_path / "a" / "x", first)
    made.wfdb(tmp_path / "b" / "y", second, fmt="212")
    lines = [(tmp_path / "a/x.hea").read_text().splitlines()[1:],
             (tmp_path / "b/y.hea").read_text().replace("ch0", "z").splitlines()[1:]]  # fmt: skip
    folder = tmp_path / "both"
    folder.mkdir()
    (folder / "r.hea").write_text("\n".join(["r 3 250 100", *lines[0], *lines[1], ""]))
    shutil.copy(tmp_path / "a/x.dat", folder / "x.xyz")
    (folder / "r.hea").write_text((folder / "r.hea").read_text().replace("x.dat", "x.xyz"))
    shutil.copy(tmp_path / "b/y.dat", folder / "y.mat")
    (folder / "r.hea").write_text((folder / "r.hea").read_text().replace("y.dat", "y.mat"))
    backend = Biosignals(channels=["z", "ch1", "ch0"], dtype="stored")
    for location in (folder, folder / "r.hea"):
        found = open_store(location, backend=backend)[0]["signal"]
        assert (found == np.concatenate([second, first[:, ::-1]], axis=1)).all()


def test_a_begin_in_bytes_is_skipped(made, tmp_path):
    stored = made.numbers(100, 2)
    header = made.wfdb(tmp_path / "r", stored)
    path = tmp_path / "r.dat"
    path.write_bytes(bytes(24) + path.read_bytes())
    header.write_text(header.read_text().replace("r.dat 16", "r.dat 16+24"))
    assert (open_store(header, backend=Biosignals(dtype="stored"))[0]["signal"] == stored).all()


def test_annotations_are_those_of_wfdb(made, tmp_path):
    header = made.wfdb(tmp_path / "r", made.numbers(40_000, 1), comments=["Age: 61", "VT"],
                       base_time=None)  # fmt: skip
    samples = np.array([10, 250, 251, 5_000, 39_999])
    symbols, notes = ["N", "V", "+", "A", "N"], ["", "", "(AFIB", "", ""]
    wfdb.wrann("r", "atr", samples, symbols, aux_note=notes, num=np.array([0, 1, 2, 0, 0]),
               chan=np.array([0, 0, 1, 0, 0]), subtype=np.array([0, 3, 0, 0, 0]),
               write_dir=str(tmp_path))  # fmt: skip
    due = wfdb.rdann(str(header.with_suffix("")), "atr")
    backend = Biosignals(annotations=True, labels=["V", "+ (AFIB"], facts=["comments", "recording"])
    for location in (tmp_path, header, tmp_path / "*.hea"):
        found = open_store(location, backend=backend)[0]
        np.testing.assert_allclose(found["onset"], due.sample / 250, rtol=1e-12)
        assert found["event_texts"].split("\n") == ["N", "V", "+ (AFIB", "A", "N"]
        assert np.flatnonzero(found["label"] >= 0).tolist() == [250, 251]
        assert found["label"][[250, 251]].tolist() == [0, 1]
        assert (found["comments"], found["recording"]) == ("Age: 61\nVT", "r")


def test_annotations_with_a_rate_of_their_own(made, tmp_path):
    header = made.wfdb(tmp_path / "r", made.numbers(1_000, 1))
    wfdb.wrann("r", "qrs", np.array([100, 900]), ["N", "N"], fs=1000, write_dir=str(tmp_path))
    due = wfdb.rdann(str(header.with_suffix("")), "qrs")
    assert due.fs == 1000
    found = open_store(tmp_path, backend=Biosignals(annotations="qrs"))[0]
    np.testing.assert_allclose(found["onset"], due.sample / 1000)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_span_is_what_the_whole_is_there(made, tmp_path_factory, data):
    """Of any format, number of channels and samples of a frame."""
    fmt = data.draw(st.sampled_from(sorted(BITS)))
    length = data.draw(st.integers(1, 60))
    stored = made.numbers(length, data.draw(st.integers(1, 5)), BITS[fmt], seed=length)
    folder = tmp_path_factory.mktemp("any")
    made.wfdb(folder / "r", stored, fmt=fmt)
    store = open_store(folder, backend=Biosignals(dtype="stored"))
    edges = data.draw(st.lists(st.tuples(*[st.integers(0, length)] * 2), min_size=1, max_size=6))
    spans = np.array([[0, *sorted(edge)] for edge in edges])
    column = store.read(spans, ["signal"])["signal"]
    for number, (_, start, stop) in enumerate(spans.tolist()):
        assert (column[number] == stored[start:stop]).all()


@given(st.lists(st.integers(-2048, 2047), min_size=1, max_size=40), st.integers(0, 1))
def test_pairs_of_12_bits_are_unpacked(values, skip):
    numbers = np.array(([0] * skip) + values + [0])
    numbers = numbers[: len(numbers) // 2 * 2]
    first, second = numbers[0::2] & 0xFFF, numbers[1::2] & 0xFFF
    raw = np.stack([first & 255, first >> 8 | second >> 8 << 4, second & 255], axis=1)
    count = min(len(values), len(numbers) - skip)
    found = unpack_pairs(raw.astype(np.uint8).reshape(-1), skip, count)
    assert found.tolist() == values[:count]


def edit(name, old, new):
    def harm(folder):
        path = folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        shutil.rmtree(folder / "seqdata-index", ignore_errors=True)  # a new file, not a changed one

    return harm


def cut(name, size):
    def harm(folder):
        path = folder / name
        content = path.read_bytes()
        path.write_bytes(content[:size] if size < 0 else content + bytes(size))

    return harm


def remove(name):
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (cut("r.dat", -1), r"r.hea: declares 50 .* 'r.dat' on, but there are 199 bytes: it is cut"),
        (cut("r.dat", 4), r"declares 50 .* there are 204 bytes: the header does not match it"),
        (remove("r.dat"), r"r.hea: must have its file of signals 'r.dat' among the opened files"),
        (remove("r.hea"), r"r.dat.*must have its header 'r.hea' or 'r.vhdr' next to it, but"),
        (remove("r.atr"), r"r.hea: must have its annotations 'r.atr' among the opened files"),
        (edit("r.hea", "r 2", "r/3 2"), r"without segments, but has 3. Move this header away"),
        (edit("r.hea", "r 2", "r 3"), r"must have 3 lines of signals, but has 2 of 2"),
        (edit("r.hea", "r 2", "* 2 x y"), r"must begin with a line of a record, but has"),
        (edit("r.hea", "r.dat 16", "r.dat 310"), r"has signals of format 310 in 'r.dat', but a"),
        (edit("r.hea", "r.dat 16", "r.dat 16:3"), r"signals without a skew, .* some in 'r.dat'"),
        (edit("r.hea", "r.dat 16", "../r.dat 16"), r"its own folder, but names '../r.dat'"),
        (edit("r.hea", " 250 ", " 0 "), r"must have a frequency above 0, but has '0'"),
        (cut("r.atr", -2), r"r.atr: must end with two NUL bytes, but ends after"),
        (cut("r.atr", 2), r"r.atr: has 2 bytes after its end. Restore it"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(made, tmp_path, harm, message):
    made.wfdb(tmp_path / "r", made.numbers(50, 2))
    made.wfdb(tmp_path / "s", made.numbers(50, 2))
    for name in "rs":
        wfdb.wrann(name, "atr", np.array([3, 40]), ["N", "N"], write_dir=str(tmp_path))
    harm(tmp_path)
    with pytest.raises(SeqDataError, match=message):
        open_store(tmp_path, backend=Biosignals(annotations="atr"))


def test_a_header_without_signals_is_refused(tmp_path):
    (tmp_path / "r.hea").write_text("r 0 250 0\n")
    with pytest.raises(DataError, match=r"r.hea: must have a signal, but has none. Move it away"):
        open_store(tmp_path, backend=Biosignals())


def test_a_file_of_samples_opens_by_its_own_name(made, tmp_path):
    stored = made.numbers(50, 2)
    made.wfdb(tmp_path / "r", stored)
    made.wfdb(tmp_path / "r0", stored)
    store = open_store(tmp_path / "r.dat", backend=Biosignals(dtype="stored"))
    assert list(store.ids) == ["r.hea"]
    (tmp_path / "r.hea").unlink()
    with pytest.raises(DataError, match=r"r.dat: must have its header 'r.hea' or 'r.vhdr' next"):
        open_store(tmp_path / "r.dat", backend=Biosignals())


def test_rates_and_units_that_differ_are_refused_with_the_remedy(made, tmp_path):
    made.wfdb(tmp_path / "a", made.numbers(50, 2))
    made.wfdb(tmp_path / "b", made.numbers(50, 2), rate=500)
    message = r"b.hea: field 'signal': must have 250 samples per second, like 'a.hea', but has 500"
    with pytest.raises(ConfigError, match=message):
        open_store(tmp_path, backend=Biosignals())
    store = open_store(tmp_path, backend=Biosignals(facts=["rate"]))
    assert [store[at]["rate"] for at in range(2)] == [250, 500]
    edit("b.hea", "/mV", "/uV")(tmp_path)
    with pytest.raises(ConfigError, match=r"b.hea: channel 'ch0' must be in 'mV' as in 'a.hea'"):
        open_store(tmp_path, backend=Biosignals(facts=["rate"]))
    store = open_store(tmp_path, backend=Biosignals(facts=["rate"], unit="uV"))
    np.testing.assert_allclose(store[0]["signal"], store[1]["signal"] * 1000, rtol=1e-6)
    edit("b.hea", "/uV", "/mmHg")(tmp_path)
    with pytest.raises(ConfigError, match=r"'ch0' must be in volts for `unit='uV'`, but is in 'mm"):
        open_store(tmp_path, backend=Biosignals(facts=["rate"], unit="uV"))
