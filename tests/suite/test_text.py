"""Tokens of a real corpus, Python's own library, as streams, packed and padded rows."""

import sysconfig
from pathlib import Path

import numpy as np
import pytest

from seqdata import ConfigError, TextDataModule
from seqdata.host import default_host
from seqdata.suite import sources

FILES = (
    "abc.py",
    "bisect.py",
    "colorsys.py",
    "copy.py",
    "heapq.py",
    "queue.py",
    "sched.py",
    "this.py",
)
has_package = default_host().find("backend", "text") is not None
needs_package = pytest.mark.skipif(not has_package, reason="seqdata-text is not installed")


@pytest.fixture
def corpus(tmp_path):
    for name in FILES:
        content = Path(sysconfig.get_paths()["stdlib"], name).read_bytes()
        (tmp_path / f"{name}.txt").write_bytes(content)
    return tmp_path


def data_of(source, **options):
    return TextDataModule(source, **{"tokenizer": "bytes", "split": {"train": 1.0}, **options})


def documents(folder):
    return {path.name: [*path.read_bytes(), 256] for path in folder.glob("*.txt")}


@needs_package
def test_a_stream_has_every_token_and_the_next_one_as_target(corpus):
    data = data_of(corpus, lanes=4, chunk=50)
    lanes = {row: [] for row in range(4)}
    targets = {row: [] for row in range(4)}
    for batch in data.train_dataloader():
        for row in range(len(batch)):
            length = int(batch.lengths[row])
            lanes[row] += batch["tokens"][row][:length].tolist()
            targets[row] += batch["targets"][row][:length].tolist()
    total = sum(map(len, documents(corpus).values()))
    assert sum(map(len, lanes.values())) == total - 1  # the last one has no next one
    for row, tokens in lanes.items():
        assert targets[row][:-1] == tokens[1:]
    assert data.sizes["vocabulary"] == {
        "tokens": 258
    }  # with the ends and the beginnings of documents


@needs_package
def test_one_long_document_is_cut_in_itself(tmp_path):
    content = Path(sysconfig.get_paths()["stdlib"], "copy.py").read_bytes()
    (tmp_path / "input.txt").write_bytes(content)
    parts = {"train": 0.9, "val": 0.1}
    with pytest.raises(ConfigError, match=r"or cut within every sequence: `along='time'`"):
        data_of(tmp_path, split=parts).setup("fit")
    data = data_of(tmp_path, split={**parts, "along": "time"}, lanes=1, chunk=100)
    loaders = data.train_dataloader(), data.val_dataloader()
    found = [
        [
            token
            for batch in loader
            for token in batch["tokens"][0][: int(batch.lengths[0])].tolist()
        ]
        for loader in loaders
    ]
    whole, cut = [*content, 256], round(0.9 * (len(content) + 1))
    assert abs(len(found[0]) - cut) <= 2
    assert found[0] == whole[: len(found[0])]
    assert found[1] == whole[len(found[0]) + 1 :][: len(found[1])]
    assert len(found[0]) + len(found[1]) == len(whole) - 2  # the last of each has no next one


@needs_package
def test_padded_rows_are_documents(corpus):
    data = data_of(corpus, layout="padded", max_tokens=40_000)
    found = [
        [*batch["tokens"][row][:length].tolist(), int(batch["targets"][row][length - 1])]
        for batch in data.train_dataloader()
        for row, length in enumerate(batch.lengths.tolist())
        if batch.weight[row]
    ]
    assert sorted(found) == sorted(documents(corpus).values())


@needs_package
def test_packed_rows_of_a_mixture(corpus):
    source = {"a": corpus / "abc.py.txt", "rest": str(corpus / "[c-t]*.txt")}
    data = data_of(
        source, layout="packed", row_length=100, max_tokens=400, weights={"a": 1, "rest": 3}
    )
    batch = next(iter(data.train_dataloader()))
    assert batch["tokens"].shape[0] <= 4
    assert batch["tokens"].shape[1] <= 100
    assert np.isfinite(batch.segments.numpy()).all()


@needs_package
def test_lanes_of_a_mixture(corpus):
    source = {"a": corpus / "abc.py.txt", "rest": str(corpus / "[c-t]*.txt")}
    data = data_of(source, lanes=4, chunk=50, weights={"a": 1, "rest": 3})
    for batch in data.train_dataloader():
        assert batch.part == ["a", "rest", "rest", "rest"]
    assert len(data.train_dataloader()) > 10


@needs_package
def test_a_curriculum_makes_chunks_longer(corpus):
    data = data_of(corpus, lanes=2, chunk=64, curriculum=[[0, 8], [1, 32]])
    loader = data.train_dataloader()
    assert [max(batch["tokens"].shape[1] for batch in loader) for _ in range(3)] == [8, 32, 32]


def test_the_package_is_named_if_it_is_not_installed(monkeypatch):
    class Host:
        @staticmethod
        def find(kind, name):
            return None

    monkeypatch.setattr(sources, "default_host", Host)
    with pytest.raises(ConfigError, match="needs the package seqdata-text, which is not installed"):
        data_of("corpus")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "ragged"}, "`layout` must be 'tbptt', 'packed' or 'padded', but is 'ragged'"),
        ({"max_tokens": 4}, "`max_tokens` cannot be used with layout='tbptt', but is 4"),
        (
            {"source": {"a": "b"}, "curriculum": [[0, 8], [1, 32]]},
            "the epochs of part 'a' must all have the same number of steps",
        ),
        ({"weights": {"a": 1}}, "`weights` are for several sources by name"),
        (
            {"curriculum": [[1, 8]]},
            "`curriculum` must be pairs whose epochs increase and",
        ),
        ({"curriculum": [8]}, "`curriculum` must be pairs of an epoch and a number of tokens"),
        ({"lanes": 0}, "`lanes` must be an integer of at least 1, but is 0"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        data_of(**{"source": "corpus", **options})
