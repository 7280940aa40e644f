"""Everything that can be opened becomes everything that can be written, here and elsewhere."""

import itertools
import uuid

import fsspec
import numpy as np
import pytest
from click.testing import CliRunner

from seqdata import Remote, open_store, write_store
from seqdata.cli.app import app

FORMATS = ("arrow", "webdataset")
PLACES = ("here", "elsewhere")
LONG = 6_000  # timesteps of 12 bytes: more than a block of checksums


def rows(count=24):
    drawn = np.random.default_rng(0)
    for number in range(count):
        steps = int(drawn.integers(0, 40)) if number != 7 else LONG
        yield {
            "id": f"utt-{number}",
            "x": drawn.normal(size=(steps, 3)).astype(np.float32),
            "tokens": drawn.integers(0, 99, 2 * (number % 5)),
            "mean": drawn.normal(size=4),
            "label": number % 7,
            "text": f"é {number}",
            "raw": bytes([number]),
        }


AXES = {"tokens": "text", "mean": None}


@pytest.fixture
def place(tmp_path):
    """Gives a folder here or in memory, by a name."""
    root = f"conversion-{uuid.uuid4().hex}"

    def give(where, name):
        return f"{tmp_path}/{name}" if where == "here" else f"memory://{root}/{name}"

    yield give
    if fsspec.filesystem("memory").exists(f"/{root}"):
        fsspec.filesystem("memory").rm(f"/{root}", recursive=True)


@pytest.fixture
def remote(tmp_path):
    made = Remote(cache_dir=tmp_path / "shard-cache")
    return lambda where: {"remote": made} if where == "elsewhere" else {}


def content_of(store):
    """Ids and every field of every sequence, whatever the order of fields."""
    names = sorted(set(store.fields) - {"id"})
    spans = np.zeros((len(store), 3), dtype=np.int64)
    spans[:, 0], spans[:, 2] = np.arange(len(store)), store.lengths
    columns = store.read(spans, names)
    values = [
        [np.asarray(columns[name][at]).tolist() for name in names] for at in range(len(store))
    ]
    fields = {name: store.fields[name] for name in names}
    return fields, store.keys(np.arange(len(store))), values


HERE = {  # each form at each place as a source and as a target
    (("arrow", "here"), ("webdataset", "elsewhere")),
    (("arrow", "elsewhere"), ("arrow", "here")),
    (("webdataset", "here"), ("arrow", "elsewhere")),
    (("webdataset", "elsewhere"), ("webdataset", "here")),
    (("arrow", "elsewhere"), ("webdataset", "here")),
    (("webdataset", "elsewhere"), ("arrow", "here")),
}


def every_way():
    """Return sources and targets; but for a few they are of the night."""
    for way in itertools.product(itertools.product(FORMATS, PLACES), repeat=2):
        yield pytest.param(*way, marks=[pytest.mark.nightly] * (way not in HERE))


@pytest.mark.parametrize(("source", "target"), list(every_way()))
def test_a_store_is_written_again_in_any_form_and_place(place, remote, source, target):
    options = {"shard_bytes": 8_000}
    first = write_store(
        place(source[1], "a"), rows(), format=source[0], axes=AXES, **remote(source[1]), **options
    )
    made = write_store(
        place(target[1], "b"), first, format=target[0], **remote(target[1]), **options
    )
    again = open_store(place(target[1], "b"), **remote(target[1]))
    assert content_of(made) == content_of(first) == content_of(again)
    assert len(again.shards) > 1


def test_a_view_is_written_in_its_order(place):
    store = write_store(place("here", "a"), rows(), axes=AXES)
    some = write_store(place("here", "b"), store.take([5, 2, 7]), format="webdataset")
    assert some.keys([0, 1, 2]) == ["utt-5", "utt-2", "utt-7"]
    assert some.lengths[2] == LONG


def test_ids_that_are_only_numbers_are_not_written(place):
    store = write_store(place("here", "a"), [{"x": np.arange(3)}, {"x": np.arange(5)}])
    again = write_store(place("here", "b"), store)
    assert again.fingerprint == store.fingerprint
    assert set(again.fields) == {"x"}


def test_the_command_reads_and_writes_urls(place, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_store(place("here", "a"), rows(), axes=AXES, shard_bytes=20_000)
    steps = [
        (place("here", "a"), place("elsewhere", "tar"), "webdataset"),
        (place("elsewhere", "tar"), place("elsewhere", "arrow"), "arrow"),
        (place("elsewhere", "arrow"), place("here", "tar"), "webdataset"),
        (place("here", "tar"), place("here", "arrow"), "arrow"),
    ]
    for source, out, form in steps:
        arguments = ["write", source, out, "--to", form, "--shard-bytes", "20000"]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        assert "wrote 24 sequences" in done.output
    assert content_of(open_store(steps[-1][1])) == content_of(open_store(place("here", "a")))
    done = CliRunner().invoke(app, ["write", place("elsewhere", "x.csv"), place("here", "y")])
    assert done.exit_code != 0
    assert "x.csv: is not there. Check the URL" in done.output
