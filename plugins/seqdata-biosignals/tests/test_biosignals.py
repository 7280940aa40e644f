"""The backend: options, several formats in a folder, loaders and workers, index, verify, remote."""

import pickle
from pathlib import Path

import fsspec
import lightning as L
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from seqdata_biosignals import Biosignals
from seqdata_biosignals.files import BiosignalFiles

from seqdata import TBPTT, Bucketed, Loader, SequenceDataModule, Windows, open_store, write_store
from seqdata.backends import FormatBackend
from seqdata.cli.app import app
from seqdata.errors import ConfigError, DataError, FingerprintMismatch
from seqdata_testing.stores import check_pickling, check_store

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")  # pandas 3


@pytest.fixture
def folder(made, tmp_path):
    """Two EDF files of 3 and 5 seconds."""
    for at, seconds in enumerate((3, 5)):
        made.edf(
            tmp_path / "data" / f"r{at}.edf", {64: ("c", made.numbers(64 * seconds, 3, seed=at))},
            annotations=[(0.5, 1.0, "on"), (2.0, None, "off")],
        )  # fmt: skip
    return tmp_path / "data"


def test_formats_side_by_side_are_one_store(made, tmp_path):
    stored = [made.numbers(count, 2, 12, seed=count) for count in (128, 40, 30)]
    made.edf(tmp_path / "b.edf", {64: ("ch", stored[0])}, unit="mV")
    header = made.wfdb(tmp_path / "a", stored[1], rate=64)
    vhdr = made.brainvision(tmp_path / "c", stored[2] * 1e-7, rate=64, resolution=0.1)
    vhdr.write_text(vhdr.read_text().replace("=E", "=ch"))
    store = open_store(tmp_path, backend=Biosignals(unit="uV"))
    assert list(store.ids) == ["a.hea", "b.edf", "c.vhdr"]
    assert store.lengths.tolist() == [40, 128, 30]
    due = {
        0: (stored[1][:, 0] + 2) / 200 * 1000,
        1: ((stored[0][:, 0] + 32768.0) * (721.5 / 65535) - 321.5) * 1000,
        2: stored[2][:, 0] * 0.1,
    }
    assert header.exists()
    for number, values in due.items():
        np.testing.assert_allclose(store[number]["signal"][:, 0], values, rtol=1e-6, atol=0.11)


def test_channels_are_listed(folder):
    found = Biosignals().list_channels(folder)
    assert found == {f"c{at}": "uV, 64 Hz, in 2 of 2" for at in range(3)}


@pytest.mark.parametrize("workers", [0, 2])
def test_windows_are_drawn_by_workers_and_by_ranges_of_records(folder, workers):
    store = open_store(folder, backend=Biosignals())
    whole = [sequence["signal"] for sequence in store]
    loader = Loader(store, Windows(50, stride=17, batch_size=4), num_workers=workers)
    count = 0
    for batch in loader:
        for row, number, start in zip(batch["signal"], batch.ids, batch.start, strict=True):
            piece = whole[int(number)][int(start) : int(start) + 50]
            assert (row.numpy()[: len(piece)] == piece).all()
            count += 1
    assert count > 8


def test_every_sample_is_read_once_by_lanes(folder):
    store = open_store(folder, backend=Biosignals(dtype="stored", channels="c1"))
    due = sorted(np.concatenate([sequence["signal"] for sequence in store]).tolist())
    batches = Loader(store, TBPTT(lanes=2, chunk=30))
    assert sorted(int(x) for batch in batches for x in batch["signal"][batch.mask]) == due


def test_labels_come_with_each_window(folder):
    store = open_store(folder, backend=Biosignals(labels=["on", "off"]))
    batch = next(iter(Loader(store, Windows(64, stride=64, batch_size=8))))
    assert batch["label"].shape == batch["signal"].shape[:2]
    assert set(batch["label"].unique().tolist()) == {-1, 0, 1}
    (label,) = [store[0]["label"]]
    assert np.flatnonzero(label == 0).tolist() == list(range(32, 96))
    assert np.flatnonzero(label == 1).tolist() == [128]


def test_later_annotations_paint_over_earlier_ones(made, tmp_path):
    made.edf(tmp_path / "x.edf", {64: ("c", made.numbers(256, 1))},
             annotations=[(0, 3, "a"), (1, 1, "b"), (3.5, 90, "a"), (70, 1, "b")])  # fmt: skip
    label = open_store(tmp_path, backend=Biosignals(labels={"a": 5, "b": 6}))[0]["label"]
    due = [5] * 64 + [6] * 64 + [5] * 64 + [-1] * 32 + [5] * 32
    assert label.tolist() == due


def test_a_step_is_trained_by_path(folder):
    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch, _):
            return (self.layer(batch["signal"]).squeeze(-1) * batch.score).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-6)

    data = SequenceDataModule(
        train=open_store(folder, backend=Biosignals()), batching=Bucketed(batch_size=2)
    )
    trainer = L.Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Model(), data)
    assert trainer.global_step == 1


def test_it_is_written_as_a_store_with_its_fields(folder, tmp_path):
    store = open_store(folder, backend=Biosignals(annotations=True, facts=["patient", "rate"]))
    written = write_store(tmp_path / "out", store, progress=False)
    check_store(written, [dict(sequence) for sequence in store])


def test_a_folder_of_an_edf_file_and_capital_letters(folder):
    (folder / "r0.edf").rename(folder / "R0.EDF")
    assert list(open_store(folder, backend=Biosignals()).ids) == ["R0.EDF", "r1.edf"]


def test_values_are_the_same_from_a_url(folder):
    memory = fsspec.filesystem("memory")
    for path in folder.iterdir():
        memory.pipe(f"/bio/{path.name}", path.read_bytes()) if path.is_file() else None
    near = open_store(folder, backend=Biosignals())
    for how in ("cache", "ranges"):
        far = open_store("memory://bio", backend=Biosignals(), remote=how)
        spans = np.array([[1, 30, 200], [0, 0, 192], [1, 319, 320]])
        due, found = (store.read(spans, ["signal"])["signal"] for store in (near, far))
        assert all((due[number] == found[number]).all() for number in range(3))
        check_pickling(far, list(map(dict, near)))


def test_a_header_at_a_url_opens_the_files_that_it_names(made, tmp_path):
    stored = made.numbers(60, 2)
    made.wfdb(tmp_path / "r", stored)
    memory = fsspec.filesystem("memory")
    for name in ("r.hea", "r.dat"):
        memory.pipe(f"/wfdb/{name}", (tmp_path / name).read_bytes())
    backend = Biosignals(dtype="stored")
    for location in ("memory://wfdb/r.hea", "memory://wfdb/r.dat", "memory://wfdb/*.hea"):
        assert (open_store(location, backend=backend)[0]["signal"] == stored).all()


def test_options_change_the_fingerprint_and_workers_compare_it(folder):
    marks = {
        open_store(folder, backend=backend).fingerprint
        for backend in (Biosignals(), Biosignals(channels=["c1"]), Biosignals(dtype="stored"))
    }
    assert len(marks) == 3
    content = pickle.dumps(open_store(folder, backend=Biosignals()))
    path = folder / "r0.edf"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises((FingerprintMismatch, DataError)):
        pickle.loads(content)


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def damage(path, at):
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


def test_a_damaged_sample_is_found_when_it_is_read_and_by_the_audit(folder):
    open_store(folder, backend=Biosignals())
    path = folder / "r1.edf"
    damage(path, path.stat().st_size // 2)
    store = open_store(folder, backend=Biosignals())
    with pytest.raises(DataError, match=r'"r1.edf".*field "samples"'):
        store[1]["signal"].sum()
    _, reports = Biosignals().audit(
        str(folder), shard=None, repair=False, on_progress=lambda count: None
    )
    found = [(report.file, report.damages > 0) for report in reports]
    assert [name for name, is_bad in found if is_bad] == ["r1.edf"]


def test_it_is_indexed_before_it_is_opened(folder):
    facts = Biosignals().build_index(str(folder), progress=False)
    assert facts["shards"] == 2
    assert facts["indexed"] == 2
    assert Biosignals().build_index(str(folder), progress=False)["indexed"] == 0


def test_the_entry_points_name_the_suffixes_and_the_backend():
    """What an installed wheel offers: ``open_store("x.edf")`` finds it without importing."""
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8")
    for suffix in (".edf", ".bdf", ".hea", ".dat", ".vhdr", ".eeg"):
        assert f'"{suffix}" = "biosignals"' in text
        assert suffix in BiosignalFiles().suffixes
    assert 'biosignals = "seqdata_biosignals.backend"' in text


@pytest.mark.slow
def test_very_many_files_are_opened_for_each_batch_alone(made, tmp_path):
    stored = made.numbers(20, 1)
    made.wfdb(tmp_path / "first", stored)
    header, samples = ((tmp_path / f"first.{end}").read_bytes() for end in ("hea", "dat"))
    for number in range(520):  # and as many headers
        (tmp_path / f"r{number:03d}.hea").write_bytes(header.replace(b"first", b"r%03d" % number))
        (tmp_path / f"r{number:03d}.dat").write_bytes(samples)
    store = open_store(tmp_path, backend=Biosignals(dtype="stored"))
    assert len(store) == 521
    column = store.read(np.array([[520, 3, 20], [0, 0, 5]]), ["signal"])["signal"]
    assert (column[0] == stored[3:]).all()
    assert (column[1] == stored[:5]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"dtype": "int16"},
            r"`dtype` must be one of 'float32', 'float64', 'stored', but is 'int1",
        ),
        ({"gaps": "fill"}, r"`gaps` must be one of 'error', 'split', but is 'fill'"),
        ({"unit": "volt"}, r"`unit` must be 'V', 'mV', 'uV' or None, but is 'volt'"),
        ({"unit": "V", "dtype": "stored"}, r"`unit` must be None if `dtype` is 'stored'"),
        ({"facts": ["name"]}, r"`facts` must be one of 'patient', .*'rate', but is 'name'"),
        ({"channels": []}, r"`channels` must be distinct names of channels, or field -> names"),
        ({"channels": ["a", "a"]}, r"`channels` must be distinct names of channels"),
        ({"channels": {"x": 3}}, r"`channels` must be distinct names of channels"),
        ({"channels": {}}, r"`channels` must have at least one field, but is empty"),
        ({"labels": []}, r"`labels` must be distinct texts of annotations, or text -> int"),
        ({"labels": {"a": "b"}}, r"`labels` must be distinct texts of annotations"),
        ({"annotations": ".atr"}, r"`annotations` must be True, False or a suffix without a dot"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Biosignals(**options)


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (
            Biosignals(channels=["c0", "C1"]),
            r"r0.edf: must have the channel 'C1', but has 'c0'.* \(did you mean 'c1'\?\)\. Choose",
        ),
        (
            Biosignals(channels={"rate": "c0"}, facts="rate"),
            r"must not have the name of another field, but one is 'rate'",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(folder, backend, message):
    with pytest.raises(ConfigError, match=message):
        open_store(folder, backend=backend)


def test_channels_that_differ_are_refused_with_the_remedy(made, folder):
    made.edf(folder / "r2.edf", {64: ("other", made.numbers(64, 2))})
    message = r"r2.edf: must have the channels of 'r0.edf', but lacks 'c0', 'c1', 'c2' and has"
    with pytest.raises(ConfigError, match=message):
        open_store(folder, backend=Biosignals())
    made.edf(folder / "r2.edf", {64: ("c", made.numbers(64, 2)), 2: ("c2", made.numbers(2, 1))})
    with pytest.raises(ConfigError, match=r"r2.edf: must group its channels by rate like 'r"):
        open_store(folder, backend=open_replaced)
    message = (
        r"r2.edf: field 'signal': channels of a field must have one rate, but have 2: 'c2'; 64"
    )
    with pytest.raises(ConfigError, match=message):
        open_store(folder / "r2.edf", backend=Biosignals(channels=["c0", "c2"]))


def open_replaced(location, *, verify=None):
    """Open files of which one was replaced: their indexes are made again."""
    FormatBackend(BiosignalFiles()).build_index(location, rebuild=True, progress=False)
    return Biosignals()(location, verify=verify)


def test_a_channel_that_is_there_twice_is_not_chosen_by_name(made, tmp_path):
    path = made.edf(tmp_path / "x.edf", {64: ("c", made.numbers(64, 2))})
    raw = path.read_bytes()
    path.write_bytes(raw[:256] + raw[256:].replace(b"c1 ", b"c0 ", 1))
    assert open_store(path, backend=Biosignals()).fields["signal"].shape == (2,)
    with pytest.raises(ConfigError, match=r"x.edf: must have the channel 'c0' once, but has it se"):
        open_store(path, backend=Biosignals(channels=["c0"]))


def test_a_folder_without_a_header_is_refused(tmp_path):
    (tmp_path / "x.atr").write_bytes(bytes(2))
    with pytest.raises(DataError, match=r"must hold a header, an EDF file or a BDF file, but"):
        open_store(tmp_path, backend=Biosignals())


def test_a_sequence_is_located_by_its_file(folder):
    store = open_store(folder, backend=Biosignals()).base
    assert [store.locate(number).details["file"] for number in range(2)] == ["r0.edf", "r1.edf"]
    assert "file" not in store.locate(-1).details


def test_channels_of_several_rates_are_windows_of_the_same_seconds(made, tmp_path):
    random = np.random.default_rng(0)
    stored = {
        rate: random.integers(-32768, 32768, (rate * 20, count)).astype(np.int16)
        for rate, count in ((64, 3), (2, 1))
    }
    made.edf(tmp_path / "a.edf", {64: ("eeg", stored[64]), 2: ("temp", stored[2])})
    store = open_store(tmp_path / "a.edf", backend=Biosignals(dtype="stored"))
    assert {axis: clock.rate for axis, clock in store.linked_axes.items()} == {
        "time": 64,
        "time_signal_2hz": 2,
    }
    (batch,) = Loader(store, Windows(seconds=2, stride_seconds=1, batch_size=64, shuffle=False))
    assert batch["signal"].shape == (19, 128, 3)
    assert batch["signal_2hz"].shape == (19, 4, 1)
    for row in range(19):
        assert np.array_equal(batch["signal"][row].numpy(), stored[64][64 * row : 64 * row + 128])
        assert np.array_equal(batch["signal_2hz"][row].numpy(), stored[2][2 * row : 2 * row + 4])
    chunks = list(Loader(store, TBPTT(1, seconds=3)))
    joined = np.concatenate([batch["signal_2hz"][0].numpy() for batch in chunks])
    assert np.array_equal(joined, stored[2])
