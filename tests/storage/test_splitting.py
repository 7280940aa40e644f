"""Splits and folds are partitions that never move, the same for every kind of store."""

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from seqdata.errors import ConfigError, CorruptSampleError
from seqdata.protocols import Store
from seqdata.storage import ids, splitting
from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.dataset import DatasetStore
from seqdata.storage.foreign.store import open_foreign
from seqdata.storage.memory import MemoryStore
from seqdata.storage.splitting import folds, split
from seqdata.storage.text_bytes import SupportsRawTexts
from seqdata.storage.views import View
from tests.storage.speakers import made, numbers


def test_a_split_is_a_partition_in_the_stores_order():
    parts = split(made(200), {"train": 0.8, "val": 0.1, "test": 0.1})
    assert list(parts) == ["train", "val", "test"]
    everything = [numbers(part) for part in parts.values()]
    assert all(one == sorted(one) for one in everything)
    assert sorted(itertools.chain(*everything)) == list(range(200))
    assert 140 < len(everything[0]) < 180


def test_a_split_is_pinned_for_ever():
    """The hash is part of what users rely on: a validation set must never move."""
    parts = split(made(20), {"train": 0.7, "val": 0.3}, seed=3)
    assert numbers(parts["val"]) == PINNED


PINNED = [2, 11, 12, 15, 16, 17, 18]


def test_a_split_stays_when_data_is_appended_or_reordered():
    parts = {"train": 0.7, "val": 0.3}
    short, long = split(made(50), parts), split(made(80), parts)
    assert numbers(short["val"]) == [i for i in numbers(long["val"]) if i < 50]
    turned = split(made(50).take(np.arange(50)[::-1]), parts)
    assert numbers(turned["val"]) == numbers(short["val"])[::-1]


def test_a_split_is_the_same_on_disk_and_in_memory(tmp_path):
    rows = [{"id": f"u{i}", "x": [i]} for i in range(40)]
    stored, held = write_arrow(tmp_path, rows, shard_bytes=99), MemoryStore.from_sequences(rows)
    parts = {"a": 0.5, "b": 0.5}
    assert numbers(split(stored, parts)["a"]) == numbers(split(held, parts)["a"])


def test_another_seed_gives_another_split():
    parts = {"a": 0.5, "b": 0.5}
    store = made(50)
    assert numbers(split(store, parts)["a"]) != numbers(split(store, parts, seed=1)["a"])


@pytest.mark.parametrize("by", ["speaker", "y"])
def test_a_split_by_a_field_keeps_its_values_together(by):
    store = made(60, speakers=20)
    parts = split(store, {"a": 0.5, "b": 0.5}, by=by, seed=1)
    key = (lambda i: i % 20) if by == "speaker" else (lambda i: i % 3)
    values = [{key(i) for i in numbers(part)} for part in parts.values()]
    assert not values[0] & values[1]


def test_a_split_of_more_sequences_than_are_hashed_together(tmp_path):
    store = MemoryStore.from_sequences([[0]] * 70_000)
    parts = split(store, {"a": 0.5, "b": 0.5})
    assert abs(len(parts["a"]) - 35_000) < 1_000


@pytest.mark.parametrize(
    "parts", [{}, {"a": 0.5}, {"a": 0.9, "b": 0.2}, {"a": 1.0, "b": 0.0}, {"a": 2.0, "b": -1.0}]
)
def test_fractions_that_do_not_add_up_are_an_error(parts):
    remedy = "Name the rest, too" if parts in ({"a": 0.5},) else "Change the fractions"
    text = rf"split: `parts` must be fractions above 0 that add up to 1, .*\. {remedy}"
    with pytest.raises(ConfigError, match=text if parts else "must be fractions above 0"):
        split(made(3), parts)


def test_an_empty_part_is_an_error():
    text = r"split: part 'val' must have at least one sequence, but is empty \(2 sequences in all"
    with pytest.raises(
        ConfigError, match=rf"{text}\). Make its fraction larger, try another `seed`"
    ):
        split(made(2), {"train": 0.999, "val": 0.001})
    with pytest.raises(ConfigError, match=rf"{text}\). Make its fraction larger, or cut within"):
        split(made(2), {"train": 0.999, "val": 0.001}, exact=True)


def test_a_field_that_cannot_split_is_an_error():
    parts = {"a": 0.5, "b": 0.5}
    with pytest.raises(ConfigError, match=r"split: no field 'speeker'; did you mean 'speaker'"):
        split(made(9), parts, by="speeker")
    with pytest.raises(
        ConfigError, match="split: 'x' must have one value per sequence, but is a field of many"
    ):
        split(made(9), parts, by="x")


# ---- folds


def test_folds_are_a_partition_into_validation_views():
    pairs = folds(made(23), 5)
    assert sorted(itertools.chain(*(numbers(val) for _, val in pairs))) == list(range(23))
    assert {len(val) for _, val in pairs} == {4, 5}
    for train, val in pairs:
        assert sorted(numbers(train) + numbers(val)) == list(range(23))


def test_folds_by_a_field_keep_its_values_together():
    for train, val in folds(made(30, speakers=6), 3, by="speaker", seed=2):
        assert len({i % 6 for i in numbers(val)}) == 2
        assert not {i % 6 for i in numbers(val)} & {i % 6 for i in numbers(train)}


def test_another_seed_gives_other_folds():
    first, second = folds(made(30), 3), folds(made(30), 3, seed=1)
    assert numbers(first[0][1]) != numbers(second[0][1])


def test_too_many_or_too_few_folds_are_an_error():
    with pytest.raises(ConfigError, match=r"folds: `count` must be in \[2, 3\], .* but is 4"):
        folds(made(3), 4)
    with pytest.raises(ConfigError, match=r"`count` must be in \[2, 2\], .*, but is 3"):
        folds(made(9, speakers=2), 3, by="speaker")
    with pytest.raises(ConfigError, match=r"`count` must be in .*, but is 1"):
        folds(made(3), 1)


def test_a_pair_of_folds_is_made_when_it_is_asked_for():
    store = made(23)
    pairs = folds(store, 5)
    assert len(pairs) == 5
    assert repr(pairs) == f"Folds(5 of {store.title})"
    assert pairs[0][1] is not pairs[0][1]
    assert numbers(pairs[-1][1]) == numbers(pairs[4][1])
    assert [numbers(val) for _, val in pairs[1:3]] == [numbers(pairs[i][1]) for i in (1, 2)]
    with pytest.raises(IndexError):
        pairs[5]


@pytest.mark.parametrize("by", [None, "speaker"])
def test_folds_deal_on_over_runs(by, monkeypatch):
    store = made(100, speakers=40)
    whole = [numbers(val) for _, val in folds(store, 7, by=by)]
    monkeypatch.setattr(splitting, "IDS_PER_PASS", 8)
    monkeypatch.setattr(ids, "IDS_PER_PASS", 8)
    assert [numbers(val) for _, val in folds(store, 7, by=by)] == whole
    assert len({i % 40 for i in whole[0]} if by else whole[0]) in ((5, 6) if by else (14, 15))


def test_repeats_in_a_view_are_validated_in_one_fold():
    for train, val in folds(made(9).take([3, 1, 3, 0, 8, 3]), 4):
        assert not set(numbers(train)) & set(numbers(val))


# ---- every kind of store


@dataclass
class Foreign:
    """A store of somebody else: only what the protocol asks for."""

    inner: Store

    def __len__(self):
        return len(self.inner)

    fields = property(lambda self: self.inner.fields)
    lengths = property(lambda self: self.inner.lengths)
    lengths_of = property(lambda self: self.inner.lengths_of)
    shards = property(lambda self: self.inner.shards)
    fingerprint = property(lambda self: self.inner.fingerprint)

    def keys(self, numbers):
        return self.inner.keys(numbers)

    def base_numbers(self, numbers):
        return numbers

    def read(self, spans, fields, *, axis="time"):
        return self.inner.read(spans, fields, axis=axis)


def rows_of(count, *, ids=True):
    for i in range(count):
        row = {"x": np.arange(i % 4), "speaker": f"größe-{i % 7}", "raw": b"%d" % (i % 5)}
        row |= {"level": i % 11, "gain": np.float32(i % 6 / 3)}
        yield row | ({"id": f"u{i:05d}/é"} if ids else {})


def every_kind(folder, count, *, ids):
    import pyarrow
    from pyarrow import feather, parquet

    rows = list(rows_of(count, ids=ids))
    held = MemoryStore.from_sequences(rows)
    table = pyarrow.Table.from_pylist([{**row, "x": row["x"].tolist()} for row in rows])
    parquet.write_table(table, folder / "t.parquet", row_group_size=37)
    feather.write_feather(table, folder / "t.feather", compression="uncompressed")
    return {
        "memory": held,
        "arrow": write_arrow(folder / "store", rows, shard_bytes=700),
        "parquet": open_foreign(folder / "t.parquet"),
        "feather": open_foreign(folder / "t.feather"),
        "dataset": DatasetStore.from_dataset(rows, held.lengths),
        "somebody's": Foreign(held),
        "view": held.take(np.arange(count)),
        "view of somebody's": View(Foreign(held), np.arange(count)),
    }


@pytest.mark.parametrize("has_ids", [True, False])
def test_a_split_is_the_same_for_every_kind_of_store(tmp_path, has_ids, monkeypatch):
    monkeypatch.setattr(splitting, "IDS_PER_PASS", 64)
    monkeypatch.setattr(ids, "IDS_PER_PASS", 64)
    stores = every_kind(tmp_path, 200, ids=has_ids)
    assert isinstance(stores["arrow"], SupportsRawTexts)
    assert not isinstance(stores["somebody's"], SupportsRawTexts)
    parts = {"a": 0.6, "b": 0.4}
    for by in (None, "speaker", "raw", "level"):
        found = {kind: split(store, parts, by=by, seed=5) for kind, store in stores.items()}
        expected = [numbers(part) for part in found["memory"].values()]
        for kind, views in found.items():
            assert [numbers(part) for part in views.values()] == expected, (kind, by)


@pytest.mark.parametrize("by", [None, "speaker", "raw", "level"])
def test_a_view_in_another_order_is_split_by_the_values_of_its_sequences(tmp_path, by):
    order = np.random.default_rng(0).permutation(120)[:90]
    for kind, store in every_kind(tmp_path, 120, ids=True).items():
        view = store.take(order) if isinstance(store, View) else View(store, order)
        parts, found = (split(each, {"a": 0.5, "b": 0.5}, by=by, seed=5) for each in (store, view))
        for name, part in parts.items():
            expected = set(numbers(part)) & set(order.tolist())
            assert set(numbers(found[name])) == expected, (kind, name)


def test_a_number_splits_as_its_value_not_as_its_type():
    parts = {"a": 0.5, "b": 0.5}

    def at(values):
        rows = [{"x": [0], "by": value} for value in values]
        return numbers(split(MemoryStore.from_sequences(rows), parts, by="by", seed=2)["a"])

    for dtype in (np.int8, np.uint8, np.int32, np.uint64):
        assert at(np.arange(40, dtype=dtype)) == at(np.arange(40))
    quarters = np.arange(-40, 40) / 4
    assert at(quarters.astype(np.float16)) == at(quarters.astype(np.float32)) == at(quarters)
    mixed = np.array([0.0, -0.0, np.nan, -np.nan, *range(20)])
    for group in ((0, 1), (2, 3)):
        assert len(set(group) & set(at(mixed))) in (0, 2)
    assert at([False] * 20 + [True] * 20) == at([0] * 20 + [1] * 20)


@pytest.mark.slow
def test_long_texts_are_looked_at_in_smaller_runs(monkeypatch):
    monkeypatch.setattr(ids, "TEXT_BYTES_PER_PASS", 4_000)
    monkeypatch.setattr(splitting, "IDS_PER_PASS", 8)
    monkeypatch.setattr(ids, "IDS_PER_PASS", 8)
    rows = [{"x": [0], "doc": str(i) * (1 if i < 1500 else 2_000)} for i in range(1_600)]
    store, sizes = MemoryStore.from_sequences(rows), []
    parts = split(store, {"a": 0.5, "b": 0.5}, by="doc")
    for run, _ in splitting._iter_hashes("split", store, 0, "doc"):
        sizes.append(len(run))
    assert sizes[:2] == [8, 8]
    assert sizes[-1] == 1
    assert sum(sizes) == 1_600
    monkeypatch.undo()
    assert numbers(parts["a"]) == numbers(split(store, {"a": 0.5, "b": 0.5}, by="doc")["a"])


def test_the_texts_of_a_sequence_that_is_not_there_are_an_error(tmp_path):
    stores = every_kind(tmp_path, 9, ids=True)
    for kind in ("memory", "arrow", "parquet", "feather"):
        for number in (9, -1):
            with pytest.raises(ConfigError, match=rf"must be in \[0, 9\), but is {number}"):
                stores[kind].raw_texts(None, np.array([0, number]))
        with pytest.raises(
            ConfigError, match=r"no field of strings 'level'. Choose one of id, raw,"
        ):
            stores[kind].raw_texts("level", np.array([0]))
    with pytest.raises(ConfigError, match=r"must be in \[0, 5\), but is -3"):
        MemoryStore.from_sequences([[0]] * 5).raw_texts(None, np.array([1, -3]))


def test_ids_that_lie_outside_of_their_shard_are_an_error_of_split(tmp_path):
    store = write_arrow(tmp_path / "s", rows_of(9))
    [_, (at, _)] = store.manifest.shards[0].buffers["id"]
    path = tmp_path / "s" / store.shards[0]
    raw = bytearray(path.read_bytes())
    raw[at + 8 * 4 : at + 8 * 5] = (1 << 62).to_bytes(8, "little")
    path.write_bytes(raw)
    with pytest.raises(CorruptSampleError, match=r"sequence 3.*must be inside .* bytes, but is at"):
        split(store, {"a": 0.5, "b": 0.5})


def shares(parts):
    return {name: len(view) for name, view in parts.items()}


@pytest.mark.parametrize("count", [10, 11, 997])
@pytest.mark.parametrize("fractions", [(0.8, 0.2), (0.7, 0.2, 0.1), (1 / 3, 1 / 3, 1 / 3)])
def test_exact_parts_have_their_fractions(count, fractions):
    store = MemoryStore.from_sequences(rows_of(count))
    parts = split(store, {str(i): one for i, one in enumerate(fractions)}, exact=True)
    assert sorted(np.concatenate([view.numbers for view in parts.values()])) == [*range(count)]
    for view, fraction in zip(parts.values(), fractions, strict=True):
        assert abs(len(view) - fraction * count) < 1
        assert (np.diff(view.numbers) > 0).all()
    again = split(store, {str(i): one for i, one in enumerate(fractions)}, exact=True, seed=1)
    assert again["0"].numbers.tolist() != parts["0"].numbers.tolist()


def test_exact_parts_of_groups_count_the_groups():
    store = MemoryStore.from_sequences(rows_of(210))
    parts = split(store, {"a": 5 / 7, "b": 2 / 7}, by="speaker", exact=True)
    assert shares(parts) == {"a": 150, "b": 60}
    speakers = [{one["speaker"] for one in view} for view in parts.values()]
    assert not speakers[0] & speakers[1]


def test_few_sequences_change_their_exact_part_when_data_is_appended():
    before = split(MemoryStore.from_sequences(rows_of(1000)), {"a": 0.8, "b": 0.2}, exact=True)
    after = split(MemoryStore.from_sequences(rows_of(1010)), {"a": 0.8, "b": 0.2}, exact=True)
    moved = set(before["b"].numbers.tolist()) - set(after["b"].numbers.tolist())
    assert len(moved) <= 10


@pytest.mark.parametrize("by", ["level", "raw", "gain"])
def test_stratified_parts_and_folds_have_every_value_evenly(by):
    store = MemoryStore.from_sequences(rows_of(523))
    fractions = {"train": 0.7, "val": 0.2, "test": 0.1}
    values = np.array([hash(one[by]) for one in store])
    parts = split(store, fractions, stratify=by)
    for name, view in parts.items():
        assert abs(len(view) - fractions[name] * 523) < 1
        for value in np.unique(values):
            due = fractions[name] * (values == value).sum()
            assert abs((values[view.numbers] == value).sum() - due) < 2
    counts = [
        [(values[val.numbers] == value).sum() for _, val in folds(store, 4, stratify=by)]
        for value in np.unique(values)
    ]
    assert max(max(one) - min(one) for one in counts) <= 1
    assert shares(split(store, fractions, stratify=by, seed=2)) == shares(parts)


def test_stratified_folds_keep_copies_together():
    once = MemoryStore.from_sequences(rows_of(60))
    copies = [*range(60), *range(0, 60, 3), 9, 9]
    whole = [set(val.numbers.tolist()) for _, val in folds(once, 4, stratify="level")]
    for (train, val), expected in zip(
        folds(once.take(copies), 4, stratify="level"), whole, strict=True
    ):
        assert set(val.numbers.tolist()) == expected
        assert not set(train.numbers.tolist()) & expected
    with pytest.raises(ConfigError, match=r"folds: `count` must be in \[2, 3\], .* but is 4"):
        folds(once.take([5, 7, 8, 5, 5]), 4, stratify="level")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda s: split(s, [0.8, 0.2]),
            r"must be a mapping of names to fractions, but is \[0.8, 0.2\]",
        ),
        (lambda s: split(s, {"a": "0.8", "b": 0.2}), "must be fractions above 0 that add up to 1"),
        (lambda s: split(s, {"a": 1}, by="level", stratify="raw"), "cannot both be given, but are"),
        (lambda s: folds(s, 2, by="level", stratify="raw"), "cannot both be given"),
        (lambda s: split(s, {"a": 1}, stratify="levl"), "no field 'levl'; did you mean 'level'"),
        (
            lambda s: folds(s, 2, stratify="x"),
            "folds: 'x' must have one value per sequence, but is",
        ),
        (
            lambda s: split(s, {"a": 0.99, "b": 0.01}, exact=True),
            "part 'b' must have at least one sequence",
        ),
        (lambda s: split(s, {"train": 1}, seed=None), "split: `seed` must be an integer, but"),
        (lambda s: folds(s, 2, seed=0.5), "folds: `seed` must be an integer, but is 0.5"),
        (lambda s: split(s, {"train": 1})["trian"], "no part 'trian'; did you mean 'train'"),
    ],
)
def test_divisions_that_cannot_be_are_refused(change, text):
    with pytest.raises(ConfigError, match=text):
        change(MemoryStore.from_sequences(rows_of(20)))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "fractions",
    [(np.nan, 0.5), (0.5, np.nan), (np.inf, -np.inf), (1.5, -0.5), (0.0, 1.0), (1e-300, 1e300)],
)
def test_fractions_that_are_no_shares_are_refused(fractions, exact):
    with pytest.raises(ConfigError, match="`parts` must be fractions above 0 that add up to 1"):
        split(made(9), dict(zip("ab", fractions, strict=True)), exact=exact)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("fraction", [1e-300, 1e-11])
def test_a_fraction_below_one_sequence_is_refused_and_not_rounded_up(fraction, exact):
    with pytest.raises(ConfigError, match="part 'a' must have at least one sequence, but is empty"):
        split(made(9), {"a": fraction, "b": 1 - fraction}, exact=exact)


@pytest.mark.parametrize("count", [2.0, 1e300, np.nan, "2", None, True])
def test_folds_are_a_whole_number(count):
    with pytest.raises(ConfigError, match="folds: `count` must be an integer, but is"):
        folds(made(9), count)
