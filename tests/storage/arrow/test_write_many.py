"""Sequences that the kernel packs at once, and those between them that it does not."""

import numpy as np
import pytest

from seqdata.storage.arrow.write import _PROGRESS_SEQUENCES as MANY
from seqdata.storage.arrow.write import write_arrow

COUNT = 2 * MANY + 77


def plain(number):
    x = np.arange(number % 7, dtype=np.int32) + number
    return {"id": f"sequence-{number}", "x": x, "y": number}


def odd(number):
    """The same values, as a view with gaps, or as a number of its own dtype."""
    one = plain(number)
    return {**one, "x": np.repeat(one["x"], 2)[::2], "y": np.array(number)}


def mixed(number):
    return odd(number) if number % 5 == 2 or 300 < number < 300 + MANY else plain(number)


@pytest.fixture(params=["c", "numpy"])
def engine(request, monkeypatch):
    if request.param == "c":
        pytest.importorskip("seqdata.kernel._fill")
    monkeypatch.setenv("SEQDATA_KERNEL", request.param)
    return request.param


def content(folder):
    return {
        path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix != ".json"
    }


def write(folder, make, shard_bytes=20_000):
    rows = (make(number) for number in range(COUNT))
    return write_arrow(folder, rows, shard_bytes=shard_bytes, progress=False)


@pytest.mark.parametrize("make", [plain, odd, mixed])
def test_the_store_is_the_same_however_sequences_are_given(
    tmp_path, engine, make, content_of_one_by_one
):
    store = write(tmp_path / "store", make)
    assert store.keys(range(COUNT)) == [f"sequence-{number}" for number in range(COUNT)]
    assert store.lengths.tolist() == [number % 7 for number in range(COUNT)]
    whole = np.array([[n, 0, n % 7] for n in range(COUNT)])
    columns = store.read(whole, ["x", "y"])
    values = np.empty(store.lengths.sum(), dtype=np.int32)
    bounds = np.concatenate([[0], np.cumsum(store.lengths)]).astype(np.int64)
    columns["x"].fill(values, bounds, None)
    assert values.tolist() == [n + step for n in range(COUNT) for step in range(n % 7)]
    assert content(tmp_path / "store") == content_of_one_by_one


@pytest.fixture(scope="module")
def content_of_one_by_one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one") / "by-one"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("seqdata.storage.arrow.write.pack_sequences", first_of)
        write(folder, plain)
    return content(folder)


def first_of(_engine, _packers, rows, _most, _stop):
    row = next(rows, None)
    return 0, 0, None if row is None else (row,)


def test_a_shard_ends_with_the_sequence_that_fills_it(tmp_path, engine):
    sizes = [len(f"sequence-{n}") + 8 + 4 * (n % 7) + 8 + 8 for n in range(COUNT)]
    for make in (plain, odd, mixed):
        store = write(tmp_path / make.__name__, make, 5_000)
        counts, taken = [0], 0
        for size in sizes:
            counts[-1] += 1
            taken += size
            if taken >= 5_000:
                counts.append(0)
                taken = 0
        assert [shard.sequences for shard in store.manifest.shards] == counts
