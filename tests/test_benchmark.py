"""The benchmark asks all loaders for the same: their batches hold the same sequences."""

import gc
import importlib
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
OTHERS = {"__init__", "asking"}
ADAPTERS = sorted({path.stem for path in (BENCHMARKS / "peers").glob("*.py")} - OTHERS)
MOST_LINES = 60
COUNT = 150


@pytest.fixture(autouse=True)
def room(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def find_peer(adapter):
    peer = importlib.import_module(f"peers.{adapter}").PEER
    for package in peer.packages:
        try:
            version(package)
        except PackageNotFoundError:
            pytest.skip(f"{package} is not installed")
    return peer


def read_rows(peer, folder, name, order):
    """Return begin, end and length of each row of an epoch, sorted, and the sizes of batches."""
    from peers.asking import Ask

    reading, rows, sizes = peer.read(Ask(folder, name, order=order)), [], []
    for values, lengths in reading.loader:
        sizes.append(len(values))
        assert values.shape[1] == int(lengths.max())
        for row, length in zip(values.numpy(), lengths.tolist(), strict=True):
            assert not row[length:].any()
            rows.append((row[:length].tobytes(), row.dtype.name))
    reading.close()
    del reading
    gc.collect()  # what webdataset leaves open is closed here, where the warning is expected
    return sorted(rows), sorted(sizes)


@pytest.mark.parametrize("adapter", [name for name in ADAPTERS if not name.startswith("windows")])
@pytest.mark.parametrize("name", ["S", "M"])
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_loader_gives_each_sequence_once_as_it_was_written(adapter, name, tmp_path):
    from peers import by_hand
    from samples import frames, tokens

    peer = find_peer(adapter)
    if name not in peer.sets:
        pytest.skip(f"{peer.title} is not used for {name}")
    samples = tokens(COUNT) if name == "S" else frames(COUNT)
    (peer.write or by_hand.write)(tmp_path / "set", samples)
    expected = sorted(
        (samples.values[first:last].tobytes(), samples.values.dtype.name)
        for first, last in zip(samples.offsets, samples.offsets[1:], strict=False)
    )
    for order in peer.orders:
        rows, sizes = read_rows(peer, tmp_path / "set", name, order)
        assert rows == expected
        assert sum(sizes) == COUNT


@pytest.mark.parametrize("adapter", [name for name in ADAPTERS if name.startswith("windows")])
def test_windows_are_cut_from_the_same_series(adapter, tmp_path):
    from peers import windows_by_hand
    from peers.asking import CONTEXT, HORIZON, WINDOWS, Ask
    from samples import series

    peer, samples = find_peer(adapter), series(1)
    (peer.write or windows_by_hand.write)(tmp_path / "set", samples)
    values = samples.values
    known = {row.tobytes() for row in values[: len(values) - HORIZON]}
    loader = peer.read(Ask(tmp_path / "set", "W")).loader
    batch = next(iter(loader))
    if adapter == "windows_forecasting":
        context = batch[0]["encoder_cont"].numpy()
    else:
        context = batch.context["x"].numpy() if adapter == "windows_ours" else batch[0].numpy()
    assert context.shape == (WINDOWS, CONTEXT, 2)
    firsts = np.ascontiguousarray(context[:, 0])
    assert all(row.tobytes() in known for row in firsts)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_is_short_enough_to_be_corrected_by_its_author(adapter):
    lines = (BENCHMARKS / "peers" / f"{adapter}.py").read_text("utf-8").splitlines()
    assert len(lines) <= MOST_LINES


def test_the_page_says_where_we_are_slower_and_what_was_missed(tmp_path):
    from bench_set.page import write_page
    from bench_set.results import Results, describe_machine
    from bench_set.rows import Aim, Answer

    answer = Answer("ms")
    answer.row("short tokens", "seqdata").values += [3.0, 5.0, 4.0]
    answer.row("short tokens", "another").values += [2.0, 2.0, 2.0]
    answer.left_out["a third"] = "ImportError: no"
    answer.aims.append(Aim("at most 1 ms", "4 ms", is_met=False))
    results = Results.load(tmp_path / "results.json", quick=True, fresh=True)
    results.machine = describe_machine()
    results.add("first_batch", answer, 1.0, 0.5)
    results.save(tmp_path / "results.json")
    again = Results.load(tmp_path / "results.json", quick=True, fresh=False)
    write_page(again, tmp_path)
    page = (tmp_path / "index.md").read_text("utf-8")
    assert "| First batch | short tokens | another | 2.00 | 4.00 |" in page
    assert "| at most 1 ms | 4 ms | **missed** |" in page
    assert "4.00 [3.00..5.00]" in page
    assert "a third (ImportError: no)" in page
    assert "Not measured in this run." in page
    assert (tmp_path / "pictures" / "first_batch.svg").read_text("utf-8").startswith("<?xml")
    assert json.loads((tmp_path / "results.json").read_text("utf-8"))["machine"]["cores"] >= 1


def test_batch_mates_of_random_batches_meet_again_once_as_often_as_at_random():
    from bench_set.padding import again, random, sorted_, waste

    lengths = np.random.default_rng(0).integers(5, 500, 6400)
    assert again(random(lengths, 0), random(lengths, 1), 6400) == pytest.approx(1, abs=0.1)
    assert again(sorted_(lengths, 0), sorted_(lengths, 1), 6400) == pytest.approx(101, abs=1)
    assert waste(lengths, sorted_(lengths, 0)) < 2 < 40 < waste(lengths, random(lengths, 0))


def test_the_chart_of_the_readme_is_drawn_for_both_themes(tmp_path):
    from bench_set.charts import THEMES
    from bench_set.page import README, write_page
    from bench_set.results import Results, describe_machine
    from bench_set.rows import Answer

    answer = Answer("µs")
    for setting in README:
        answer.row(setting, "seqdata").values += [3.0, 4.0, 5.0]
        answer.row(setting, "another").values += [200.0]
    results = Results(quick=True, machine=describe_machine())
    results.add("speed", answer, 1.0, 0.5)
    write_page(results, tmp_path)
    for theme, colour in THEMES.items():
        drawn = (tmp_path / "pictures" / f"readme-{theme}.svg").read_text("utf-8")
        assert colour in drawn
        assert not [other for other in THEMES.values() if other != colour and other in drawn]
