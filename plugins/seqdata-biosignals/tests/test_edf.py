"""EDF, EDF+, BDF: mne's values, annotations, gaps; what is damaged or unfinished is refused."""

import edfio
import mne
import numpy as np
import pytest
from seqdata_biosignals import Biosignals
from seqdata_biosignals.edf import parse_header

from seqdata import open_store
from seqdata.errors import ConfigError, DataError
from seqdata_testing.contract import StoreContract

SPIKES = [(0.5, 0.25, "spike"), (1.0, None, "Sleep stage W"), (1.75, 1.0, "artefact é")]


def sequences(lengths, **options):
    """Expected content of recordings of so many seconds, as they are stored."""
    found = []
    for at, seconds in enumerate(lengths):
        random = np.random.default_rng(at)
        found.append({
            "id": f"r{at}.edf",
            "signal": random.integers(-32768, 32768, (64 * seconds, 3)).astype(np.int16),
            "signal_2hz": random.integers(-32768, 32768, (2 * seconds, 1)).astype(np.int16),
        })  # fmt: skip
    return found


class TestContract(StoreContract):
    sequences = sequences((3, 1, 12))

    @pytest.fixture(autouse=True)
    def _writers(self, made):
        self.made = made

    def make(self, folder, sequences):
        for each in sequences:
            groups = {64: ("eeg", each["signal"]), 2: ("temp", each["signal_2hz"])}
            self.made.edf(folder / each["id"], groups)
        return open_store(folder, backend=Biosignals(dtype="stored"))


class TestContractOfAllFields(StoreContract):
    methods = ("fork",)
    sequences = tuple(
        each
        | {
            "onset": np.array([0.5, 1.0, 1.75][: at + 1]),
            "duration": np.array([0.25, 0.0, 1.0][: at + 1]),
            "event_texts": "\n".join(text for _, _, text in SPIKES[: at + 1]),
            "label": np.full(len(each["signal"]), -1),
            "patient": f"r{at} X X X",
            "start": "2021-03-04T01:02:03",
            "rate": np.float64(64),
        }
        for at, each in enumerate(sequences((3, 4, 5)))
    )
    for _each in sequences:
        _each["label"][32:48] = 7
    for _each in sequences[1:]:
        _each["label"][64] = 9

    @pytest.fixture(autouse=True)
    def _writers(self, made):
        self.made = made

    def make(self, folder, sequences):
        for at, each in enumerate(sequences):
            groups = {64: ("eeg", each["signal"]), 2: ("temp", each["signal_2hz"])}
            self.made.edf(folder / each["id"], groups, annotations=SPIKES[: at + 1])
        return open_store(folder, backend=Biosignals(
            dtype="stored", annotations=True, labels={"spike": 7, "Sleep stage W": 9},
            facts=["patient", "start", "rate"],
        ))  # fmt: skip


@pytest.mark.parametrize("suffix", [".edf", ".bdf"])
def test_values_are_those_of_mne_to_one_step(made, tmp_path, suffix):
    bits = 24 if suffix == ".bdf" else 16
    path = made.edf(tmp_path / f"x{suffix}", {128: ("c", made.numbers(1280, 5, bits))}, seconds=2)
    read = mne.io.read_raw_bdf if bits == 24 else mne.io.read_raw_edf
    due = read(path, verbose="ERROR").get_data(units="uV").T
    step = 721.5 / (1 << bits)
    for dtype in ("float32", "float64"):
        signal = open_store(path, backend=Biosignals(dtype=dtype))[0]["signal"]
        assert signal.dtype == dtype
        rounding = np.spacing(np.float32(400)) if dtype == "float32" else 1e-9
        assert abs(signal - due).max() <= max(rounding, step / 100)
        assert max(rounding, step / 100) <= step
    volts = open_store(path, backend=Biosignals(unit="V"))[0]["signal"]
    np.testing.assert_allclose(volts, due * 1e-6, rtol=1e-6, atol=1e-11)


def test_edfio_reads_the_same_numbers(made, tmp_path):
    stored = made.numbers(300, 4, 24)
    path = made.edf(tmp_path / "x.bdf", {100: ("c", stored)})
    store = open_store(path, backend=Biosignals(dtype="stored"))
    assert store.fields["signal"].dtype == "int32"
    again = np.stack([signal.digital for signal in edfio.read_bdf(path).signals], axis=1)
    assert (store[0]["signal"] == again).all()
    assert (again == stored).all()


def test_channels_are_chosen_by_name_in_any_order_and_of_any_rate(made, tmp_path):
    first, second = made.numbers(256, 6), made.numbers(8, 1, seed=1)
    groups = {64: ("c", first), 2: ("temp", second)}
    path = made.edf(tmp_path / "x.edf", groups)
    channels = {"eeg": ["c4", "c5", "c1"], "t": "temp", "eog": "c0"}
    store = open_store(path, backend=Biosignals(channels=channels, dtype="stored"))
    assert {name: (field.shape, field.axis) for name, field in store.fields.items()} == {
        "eeg": ((3,), "time"), "t": ((), "time_t"), "eog": ((), "time"),
    }  # fmt: skip
    found = store[0]
    assert (found["eeg"] == first[:, [4, 5, 1]]).all()
    assert (found["t"] == second[:, 0]).all()
    assert (found["eog"] == first[:, 0]).all()


def test_annotations_are_those_of_mne(made, tmp_path):
    path = made.edf(tmp_path / "x.edf", {64: ("c", made.numbers(256, 2))}, annotations=SPIKES)
    due = mne.io.read_raw_edf(path, verbose="ERROR").annotations
    found = open_store(path, backend=Biosignals(annotations=True))[0]
    assert found["onset"].tolist() == due.onset.tolist()
    assert found["duration"].tolist() == due.duration.tolist()
    assert found["event_texts"].split("\n") == list(due.description)


LONG = "a text that leaves room in each record"


def discontinuous(made, path, onsets, seconds=1):
    """Turn a file of EDF+C into EDF+D whose records begin at other times."""
    stored = made.numbers(64 * len(onsets), 2)
    made.edf(path, {64: ("c", stored)}, annotations=[(0.25, None, LONG), (9.5, 0.5, "bb")])
    content = bytearray(path.read_bytes())
    header = parse_header(bytes(content))
    content[192:197] = b"EDF+D"
    ((first, stop),) = header.annotation_ranges
    for record, onset in enumerate(onsets):
        at = header.size + record * header.record_bytes + first
        _, _, rest = bytes(content[at : at + stop - first]).partition(b"\x14\x14\0")
        tal = f"+{onset:g}".encode() + b"\x14\x14\0" + rest
        content[at : at + stop - first] = tal.ljust(stop - first, b"\0")[: stop - first]
    path.write_bytes(content)
    return stored


def test_a_recording_with_gaps_is_refused_or_split(made, tmp_path):
    path = tmp_path / "x.edf"
    stored = discontinuous(made, path, [0, 1, 9, 10, 20])
    message = r"x.edf: must be without gaps, but is discontinuous .* Pass Biosignals\(gaps='split'"
    with pytest.raises(DataError, match=message):
        open_store(path, backend=Biosignals())
    store = open_store(
        path, backend=Biosignals(dtype="stored", gaps="split", annotations=True, labels=["bb"])
    )
    assert list(store.ids) == ["x.edf/0", "x.edf/1", "x.edf/2"]
    assert store.lengths.tolist() == [128, 128, 64]
    pieces = [store[number] for number in range(3)]
    assert (np.concatenate([piece["signal"] for piece in pieces]) == stored).all()
    assert [piece["event_texts"] for piece in pieces] == [LONG, "bb", ""]
    assert [piece["onset"].tolist() for piece in pieces] == [[0.25], [0.5], []]
    assert np.flatnonzero(pieces[1]["label"] == 0).tolist() == list(range(32, 64))


def test_a_discontinuous_file_without_gaps_is_one_sequence(made, tmp_path):
    discontinuous(made, tmp_path / "x.edf", [1, 2, 3])
    store = open_store(tmp_path / "x.edf", backend=Biosignals(annotations=True))
    assert store.lengths.tolist() == [192]
    assert store[0]["onset"].tolist() == [-0.75, 8.5]  # from the first sample on, as mne


def test_records_that_overlap_are_refused(made, tmp_path):
    discontinuous(made, tmp_path / "x.edf", [0, 1, 1.5])
    with pytest.raises(DataError, match=r"x.edf: has a record 2 that begins at 1.5 s, before"):
        open_store(tmp_path / "x.edf", backend=Biosignals())


def patch(path, at, value):
    content = bytearray(path.read_bytes())
    content[at : at + len(value)] = value
    path.write_bytes(content)


def still_written(path):
    patch(path, 236, b"-1      ")


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-70])


def grown(path):
    path.write_bytes(path.read_bytes() + bytes(7))


def other_format(path):
    patch(path, 0, b"STARTFON")


def tiny(path):
    path.write_bytes(path.read_bytes()[:100])


def cut_header(path):
    path.write_bytes(path.read_bytes()[:500])


def no_signals(path):
    patch(path, 252, b"0   ")


def other_size(path):
    patch(path, 184, b"1       ")


def bad_number(path):
    patch(path, 236, b"many    ")


def bad_duration(path):
    patch(path, 244, b"one     ")


def no_duration(path):
    patch(path, 244, b"-1      ")


def no_time(path):
    header = parse_header(path.read_bytes())
    ((first, _),) = header.annotation_ranges
    patch(path, header.size + first, b"\0\0\0\0\0")


def no_end(path):
    header = parse_header(path.read_bytes())
    ((first, stop),) = header.annotation_ranges
    patch(path, header.size + header.record_bytes + first, b"+1" * ((stop - first) // 2))


def bad_time(path):
    header = parse_header(path.read_bytes())
    ((first, _),) = header.annotation_ranges
    patch(path, header.size + first, b"x")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (still_written, r"is still being written, .* declares -1 records. .* write 4.* into bytes"),
        (cut_off, r"must have \d+ bytes for the 4 records .* but has \d+: it is cut off. Restore"),
        (grown, r"must have \d+ bytes for the 4 records .*: its header does not match its content"),
        (other_format, r"must begin with '0' \(EDF\) or .* but begins with b'STARTFON'"),
        (tiny, r"must have a header of 256 bytes, but has 100"),
        (cut_header, r"must have a header of 1024 bytes for its 3 signals, but has 500"),
        (no_signals, r"must have a header of 256 bytes for its 0 signals"),
        (other_size, r"must have a header of 1024 bytes for its 3 signals, but declares 1"),
        (bad_number, r"must have the number of records as a number, but has b'many"),
        (bad_duration, r"must have the duration of a record as a number, but has b'one"),
        (no_duration, r"has records of -1.0 seconds with \[64, 64, \d+\] samples"),
        (no_time, r"must have the time of its record 0 at byte \d+, as files of EDF\+C do"),
        (no_end, r"has damaged annotations in its record 1, bytes \d+..\d+ \(a list does not end"),
        (bad_time, r"has damaged annotations in its record 0.*b'x0' is not a valid time"),
    ],
)
def test_damaged_files_are_refused_by_name(made, tmp_path, harm, message):
    path = made.edf(tmp_path / "x.edf", {64: ("c", made.numbers(256, 2))}, annotations=SPIKES)
    harm(path)
    with pytest.raises(DataError, match=message) as raised:
        open_store(tmp_path, backend=Biosignals())
    assert "x.edf" in str(raised.value)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (
            104,
            b"-3,5    ",
            r"'c0' cannot be converted to its physical unit: its header has physical_min='-3,5'",
        ),
        (104, b"400     ", r"'c0' cannot be converted .*: its header maps -32768..32767 to"),
    ],
)
def test_channels_without_a_scale_are_read_as_stored_only(made, tmp_path, at, value, message):
    path = made.edf(tmp_path / "x.edf", {64: ("c", made.numbers(256, 2))})
    count = parse_header(path.read_bytes()).size // 256 - 1
    patch(path, 256 + count * at, value)
    with pytest.raises(ConfigError, match=message):
        open_store(path, backend=Biosignals())
    assert open_store(path, backend=Biosignals(channels="c1")).fields["signal"].shape == ()
    assert open_store(path, backend=Biosignals(dtype="stored"))[0]["signal"].shape == (256, 2)


def test_a_file_of_annotations_alone_is_refused(made, tmp_path):
    made.edf(tmp_path / "a-PSG.edf", {64: ("c", made.numbers(256, 2))})
    edfio.Edf([], annotations=[edfio.EdfAnnotation(0, 30, "Sleep stage W")]).write(
        tmp_path / "a-Hypnogram.edf"
    )
    with pytest.raises(DataError, match=r"a-Hypnogram.edf: must have a channel of samples, but"):
        open_store(tmp_path, backend=Biosignals())
    assert len(open_store(tmp_path / "*-PSG.edf", backend=Biosignals())) == 1
