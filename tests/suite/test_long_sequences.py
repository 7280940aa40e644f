"""Long recordings: windows and chunks with the labels of the training part, written once or not."""

import numpy as np
import pytest

from seqdata import ConfigError, DataError, LongSequenceDataModule, open_store, write_store


def recordings(count=12, seed=0):
    random = np.random.default_rng(seed)
    return [
        {
            "id": f"r{number}",
            "signal": random.normal(size=(int(random.integers(50, 200)), 3)) + number,
            "stage": random.choice(["wake", "sleep"], 1).repeat(1)[0],
            "subject": f"s{number // 2}",
        }
        for number in range(count)
    ]


def data_of(rows=None, **options):
    chosen = {"chunk": 20, "lanes": 8, "split": {"train": 0.75, "val": 0.25}, "seed": 1}
    return LongSequenceDataModule(recordings() if rows is None else rows, **{**chosen, **options})


def test_windows_are_those_of_a_plain_computation():
    rows = recordings()
    data = data_of(rows, scale="standard", labels="stage")
    data.setup("fit")
    train = data._sources.get_store("train")
    names = list(train.ids)
    by_id = {row["id"]: row for row in rows}
    every = np.concatenate([by_id[name]["signal"] for name in names])
    seen = 0
    for batch in data.train_dataloader():
        for row in range(len(batch)):
            own = by_id[batch["id"][row]]
            start = int(batch.start[row])
            due = (own["signal"][start : start + 20] - every.mean(axis=0)) / every.std(axis=0)
            np.testing.assert_allclose(batch["signal"][row], due, rtol=1e-4, atol=1e-5)
            assert data.statistics["stage"].classes[int(batch["stage"][row])] == own["stage"]
            seen += 1
    assert seen == sum(len(by_id[name]["signal"]) // 20 for name in names)


@pytest.mark.parametrize("read", ["in_place", "write_once"])
def test_a_recording_without_its_label_is_an_error(read, tmp_path, monkeypatch):
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "cache"))
    rows = [{**row, "age": float(number)} for number, row in enumerate(recordings())]
    write_store(tmp_path / "store", rows)
    data = data_of(tmp_path / "store", labels="age", scale="standard", read=read)
    assert data.sizes == {"features": {"signal": 3}, "vocabulary": {}, "classes": {}}
    batch = next(iter(data.train_dataloader()))
    assert batch["age"].tolist() == [float(name[1:]) for name in batch["id"]]
    rows[3]["age"] = np.nan
    write_store(tmp_path / "store", rows, overwrite=True)
    data = data_of(tmp_path / "store", labels="age", read=read)
    with pytest.raises(DataError, match=r"label 'age' must have a value .* but 'r3' has none"):
        data.setup("fit")


def test_chunks_go_on_where_the_last_one_ended():
    rows = recordings()
    data = data_of(rows, mode="tbptt", lanes=4, split={"train": 1.0})
    data.setup("fit")
    read = {}
    for batch in data.train_dataloader():
        for row in range(len(batch)):
            length = int(batch.lengths[row])
            if length:
                read.setdefault(batch["id"][row], []).append(batch["signal"][row][:length].numpy())
    for row in rows:
        np.testing.assert_allclose(np.concatenate(read[row["id"]]), row["signal"], rtol=1e-6)


def test_subjects_stay_together_and_only_named_fields_are_read():
    data = data_of(
        split_by="subject", split={"train": 0.5, "val": 0.5, "exact": True}, fields="signal"
    )
    data.setup("fit")
    parts = []
    for loader in (data.train_dataloader(), data.val_dataloader()):
        batches = list(loader)
        assert set(batches[0].keys()) >= {"signal"}
        assert "stage" not in set(batches[0].keys())
        parts.append({subject for batch in batches for subject in batch["subject"]})
    assert parts[0]
    assert parts[1]
    assert not parts[0] & parts[1]


def test_a_store_is_written_once(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "cache"))
    write_store(tmp_path / "store", recordings())
    data = data_of(tmp_path / "store", read="write_once")
    data.setup("fit")
    assert "cached in" in data.describe()
    again = data_of(open_store(tmp_path / "store"), read="write_once")
    again.setup("fit")
    assert "read from" in again.describe()
    pairs = zip(data.train_dataloader(), again.train_dataloader(), strict=True)
    assert all(bool((one["signal"] == other["signal"]).all()) for one, other in pairs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": 2.0}, "one of `seconds` and `chunk` .* must be given, but both are"),
        ({"chunk": None}, "one of `seconds` and `chunk` .* must be given, but neither is"),
        ({"hop": 1.0}, "`hop` requires windows of `seconds`, but is 1.0 without them"),
        ({"mode": "stream"}, "`mode` must be 'windows' or 'tbptt', but is 'stream'"),
        ({"read": "twice"}, "`read` must be 'in_place' or 'write_once', but is 'twice'"),
        ({"scale": "minmax"}, "`scale` must be 'standard'"),
        ({"continuous": True}, "`continuous` requires mode='tbptt', but mode is 'windows'"),
        ({"mode": "tbptt", "continuous": 1}, "`continuous` must be True or False, but is 1"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        data_of(**options)


def test_fields_of_several_rates_have_the_same_seconds():
    random = np.random.default_rng(0)
    rows = [
        {"id": f"r{n}", "acc": random.normal(size=(1000, 3)), "ecg": random.normal(size=5000)}
        for n in range(6)
    ]
    data = data_of(
        rows, chunk=None, seconds=2.0, hop=1.0, rates={"acc": 100, "ecg": 500}, scale="standard"
    )
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch["acc"].shape == (8, 200, 3)
    assert batch["ecg"].shape == (8, 1000)


def test_recordings_without_a_window_are_counted():
    rows = recordings()
    for number, length in ((3, 0), (7, 19)):
        rows[number]["signal"] = rows[number]["signal"][:length]
    lines = data_of(rows, split={"train": 1.0}).describe().split("\n")
    found = "2 of 12 sequences (the first: 'r3', 0 timesteps)"
    assert f"  train: without a window of 20 timesteps: {found}" in lines
    lines = data_of(rows, split={"train": 1.0}, mode="tbptt", lanes=2).describe().split("\n")
    assert "  train: without a timestep: 1 of 12 sequences (the first: 'r3', 0 timesteps)" in lines
    assert "without" not in data_of().describe()


def test_audio_of_several_rates_is_refused_before_training():
    rows = [
        {"id": f"{n}.wav", "audio": np.zeros(100, "float32"), "rate": 8000 if n == 3 else 16000}
        for n in range(8)
    ]
    message = (
        r"long sequences: all recordings must have one sampling rate, but they have 8000 Hz: 1 "
        r"\(the first: '3\.wav'\), 16000 Hz: 7 \(the first: '0\.wav'\)\. Resample"
    )
    with pytest.raises(ConfigError, match=message):
        data_of(rows).setup("fit")
    for row in rows:
        row["rate"] = 16000
    data_of(rows, fields="audio").setup("fit")


def test_one_recording_fills_all_lanes_of_a_continuous_stream():
    split = {"along": "time", "train": 0.9, "val": 0.1}
    data = LongSequenceDataModule(
        [np.arange(1_000.0)], mode="tbptt", lanes=3, chunk=100, continuous=True, split=split
    )
    batches = list(data.train_dataloader())
    assert [tuple(batch["x"].shape) for batch in batches] == [(3, 100)] * 3
    assert sorted(np.concatenate([batch["x"].ravel() for batch in batches])) == list(range(900))
    assert batches[1]["x"][:, 0].tolist() == [100, 400, 700]
