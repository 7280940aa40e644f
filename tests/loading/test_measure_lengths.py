"""Measured lengths: what they are, where they are kept, who carries the transform on."""

import os
import pickle
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from seqdata.api import concat, open_store, write_store
from seqdata.errors import ConfigError, DecodeError, StallError, WorkerDiedError
from seqdata.fitting.fit import fit
from seqdata.fitting.mean_std import MeanStd
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.loading.loader import Loader
from seqdata.loading.measure_lengths import CHUNK_SEQUENCES, measure_lengths
from seqdata.loading.options import EngineOptions
from seqdata.loading.transforms.declare import Ragged, columnar
from seqdata.policies.fixed import Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.token_budget import TokenBudget
from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.memory import MemoryStore
from seqdata.storage.parts import join_parts
from seqdata.storage.splitting import folds, split
from seqdata.storage.views import take, where
from tests.loading.transforms.failing import dies, fails, hangs, stops
from tests.loading.transforms.samples import runs
from tests.loading.workers.light import one_more_with_torch

COUNT = CHUNK_SEQUENCES * 2 + 5


def rows(count=COUNT):
    random = np.random.default_rng(4)
    for number in range(count):
        values = random.integers(0, 6, size=int(random.integers(1, 12)))
        yield {"x": values, "id": f"s{number}", "speaker": f"p{number % 7}", "y": number}


@columnar
def runs_of_all(columns, seeds):
    x = columns["x"]
    first = np.zeros(len(x.values), dtype=bool)
    first[np.cumsum(x.lengths) - x.lengths] = True
    keep = (np.diff(x.values, prepend=-1) != 0) | first
    which = np.repeat(np.arange(len(x.lengths)), x.lengths)
    return {"x": Ragged(x.values[keep], np.bincount(which[keep], minlength=len(x.lengths)))}


@pytest.fixture
def folder(tmp_path):
    write_arrow(tmp_path / "store", rows())
    return tmp_path / "store"


def expected():
    return [len(runs(row, np.random.default_rng())["x"]) for row in rows()]


def kept(folder):
    return sorted(path.name for path in folder.glob(".seqdata-measured-*"))


@pytest.mark.parametrize("transform", [runs, runs_of_all])
def test_the_view_has_the_lengths_of_what_the_transform_makes(folder, transform):
    view = measure_lengths(open_store(folder), transform)
    assert view.lengths.tolist() == expected()
    assert view.lengths_of["time"].dtype == np.uint32
    assert view.ids[3] == "s3"


@pytest.mark.parametrize("transform", [runs, runs_of_all])
def test_a_loader_plays_the_view_without_a_transform(folder, transform):
    view = measure_lengths(folder, transform)
    seen = {}
    for batch in Loader(view, TokenBudget(64), seed=2):
        batch.validate()
        for row, number in enumerate(batch.ids.tolist()):
            seen[number] = batch["x"][row, : batch.lengths[row]].tolist()
    made = [runs(row, np.random.default_rng())["x"].tolist() for row in rows()]
    assert seen == dict(enumerate(made))


@pytest.mark.slow
def test_lengths_do_not_depend_on_the_workers(folder):
    view = measure_lengths(folder, runs, num_workers=2, cache=False)
    assert view.lengths.tolist() == expected()
    assert len(set(expected())) > 3


@pytest.mark.slow
def test_workers_that_measure_import_no_torch(folder):
    view = measure_lengths(folder, one_more_with_torch, num_workers=1, cache=False)
    assert set(view.lengths.tolist()) == {1}


def test_lengths_are_kept_beside_the_data(folder):
    calls = []

    def counting(sequence, rng):
        calls.append(1)
        return runs(sequence, rng)

    def measure(**options):
        calls.clear()
        view = measure_lengths(folder, counting, **options)
        return view.lengths.tolist(), len(calls)

    assert measure() == (expected(), COUNT)
    assert len(kept(folder)) == 1
    assert measure() == (expected(), 0)
    assert measure(cache=False) == (expected(), COUNT)
    (file,) = folder.glob(".seqdata-measured-*")
    for content in (b"", file.read_bytes()[:-9], b"no array"):
        file.write_bytes(content)
        assert measure() == (expected(), COUNT)
    np.save(file, np.ones(3, dtype=np.uint32))
    assert measure() == (expected(), COUNT)
    assert len(kept(folder)) == 1
    assert open_store(folder).fingerprint == write_arrow(folder.parent / "b", rows()).fingerprint


def test_other_data_code_or_axis_is_measured_for_itself(folder):
    def made(hop):
        return lambda sequence, rng: {"x": sequence["x"][::hop]}

    view = measure_lengths(folder, made(2))
    assert measure_lengths(folder, made(3)).lengths.sum() < view.lengths.sum()
    assert len(kept(folder)) == 2
    part = open_store(folder).take([1, 0])
    assert measure_lengths(part, made(2)).lengths.tolist() == view.lengths[[1, 0]].tolist()
    assert len(kept(folder)) == 3


class Hops:
    """Keeps some timesteps; what it keeps is said by a base class and by a static method."""

    def __call__(self, sequence, rng):
        return {"x": self.keep(sequence["x"])}

    @staticmethod
    def keep(values):
        return values[::2]


class MoreHops(Hops):
    pass


def keep_from(firsts, hops, sequence, rng):
    return {"x": sequence["x"][:: sum(hops)]}


@pytest.mark.parametrize("make", [Hops, MoreHops])
@pytest.mark.parametrize("changed", ["keep", "__call__"])
def test_a_transform_whose_class_was_changed_is_measured_again(folder, make, changed, monkeypatch):
    before = measure_lengths(folder, make()).lengths.sum()
    value = (
        staticmethod(lambda values: values[::3])
        if changed == "keep"
        else lambda self, sequence, rng: {"x": sequence["x"][::3]}
    )
    monkeypatch.setattr(Hops, changed, value)
    assert measure_lengths(folder, make()).lengths.sum() < before


def test_lists_that_hold_the_same_numbers_in_other_places_are_measured_again(folder):
    before = measure_lengths(folder, partial(keep_from, [1, 2], [1])).lengths.sum()
    assert measure_lengths(folder, partial(keep_from, [1], [2, 1])).lengths.sum() < before


def test_a_folder_that_cannot_be_written_has_none(folder):
    def made(sequence, rng):
        return {"x": sequence["x"][::2]}

    blocked = [path for path in (folder,) if os.geteuid()]
    for path in blocked:
        path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    if not blocked:  # root may write anywhere but under a file
        measure_lengths(folder, made)
        (file,) = folder.glob(".seqdata-measured-*")
        file.unlink()
        file.mkdir()
        (file / "in the way").touch()
    assert measure_lengths(folder, made).lengths.sum() > 0
    assert not list(folder.glob("*.new")) + list(folder.glob(".*.new"))
    for path in blocked:
        path.chmod(stat.S_IRWXU)


def test_what_is_in_memory_is_measured_too():
    view = measure_lengths([[1, 1, 2], [3, 3]], runs)
    assert view.lengths.tolist() == [2, 1]
    assert len(measure_lengths(MemoryStore.from_sequences(rows(2)).take([]), runs)) == 0


def test_views_of_the_view_carry_the_transform(folder):
    base = open_store(folder)
    view = measure_lengths(base.take(np.arange(COUNT)[::-1]), runs)
    lengths = np.array(expected())[::-1]
    chosen = np.array([5, 2, 5, 100])
    parts = {
        "take": (take(view, chosen), lengths[chosen]),
        "method": (view.take(chosen), lengths[chosen]),
        "where": (where(view, view.lengths > 3), lengths[lengths > 3]),
        "again": (view.where(view.lengths > 3).take([0]), lengths[lengths > 3][:1]),
        "pickled": (pickle.loads(pickle.dumps(view.take(chosen))), lengths[chosen]),
    }
    for one in (*split(view, {"a": 0.5, "b": 0.5}, by="speaker").values(), *folds(view, 2)[0]):
        parts[f"part of {len(one)}"] = (one, lengths[COUNT - 1 - one.numbers])
    for what, (part, right) in parts.items():
        assert part.lengths.tolist() == right.tolist(), what
        assert part.measured_transform.transform is runs, what
        (batch,) = Loader(part, Fixed(200, shuffle=False))
        assert batch.lengths.tolist() == right.tolist(), what
        assert batch.ids.tolist() == part.base_numbers(np.arange(len(part))).tolist(), what


def test_each_occurrence_draws_for_itself_as_without_measuring(folder):
    view = measure_lengths(folder, runs).take([3, 3, 4])
    (batch,) = Loader(view, Fixed(3, shuffle=False))
    (one,) = Loader(measure_lengths(folder, runs).take([4, 3]), Fixed(2, shuffle=False))
    assert len(set(batch["u"].tolist())) == 3
    assert {*one["u"].tolist()} <= {*batch["u"].tolist()}


def test_what_is_read_of_the_view_is_whole_and_not_transformed(folder):
    view = measure_lengths(folder, runs)
    columns = view.read(np.array([[2, 0, 1]]), ["x", "id"])
    assert columns["x"][0].tolist() == list(rows(3))[2]["x"].tolist()
    assert columns["id"] == ["s2"]


def test_an_axis_may_be_new():
    letters = MemoryStore.from_sequences(
        [{"raw": b"a bc d"}, {"raw": b"efg"}], axes={"raw": "bytes"}
    )

    def words(sequence, rng):
        return {"tokens": np.array([len(word) for word in sequence["raw"].tobytes().split()])}

    view = measure_lengths(letters, words)
    assert {axis: one.tolist() for axis, one in view.lengths_of.items()} == {
        "bytes": [6, 3],
        "time": [3, 1],
    }
    (batch,) = Loader(view, Fixed(2, shuffle=False), shift=1)
    assert batch.validate()["tokens"].tolist() == [[1, 2]]
    assert batch["targets"].tolist() == [[2, 1]]
    assert view.read(np.array([[1, 0, 1]]), ["raw"])["raw"][0].tobytes() == b"efg"
    with pytest.raises(ConfigError, match=r"on axis 'bytes', .* on axis 'time'\. Pass axis='time'"):
        Loader(view, Fixed(2, axis="bytes"))


def test_the_view_has_a_fingerprint_of_its_lengths(folder):
    base = open_store(folder)
    view, other = measure_lengths(base, runs), measure_lengths(base, lambda s, r: s)
    prints = {base.fingerprint, view.fingerprint, other.fingerprint, view.take([0]).fingerprint}
    assert len(prints) == 4
    assert measure_lengths(base, runs).fingerprint == view.fingerprint


def test_a_resumed_loader_goes_on_with_a_measured_view(folder):
    view = measure_lengths(folder, runs)
    loader = Loader(view, TokenBudget(50), seed=1)
    iterator = iter(loader)
    first = [next(iterator)["u"].tolist() for _ in range(3)]
    state = loader.state_dict()
    again = Loader(measure_lengths(folder, runs), TokenBudget(50), seed=1, prefetch=0)
    again.load_state_dict(state)
    rest = [batch["u"].tolist() for batch in again]
    whole = [batch["u"].tolist() for batch in Loader(view, TokenBudget(50), seed=1)]
    assert first + rest == whole


def test_a_data_module_plays_the_view(folder):
    parts = split(measure_lengths(folder, runs), {"train": 0.8, "val": 0.2})
    data = SequenceDataModule(**parts, batching=Fixed(500))
    data.setup("fit")
    (train,), (val,) = list(data.train_dataloader()), list(data.val_dataloader())
    assert len(train) + len(val) == COUNT
    assert train.validate().lengths.sum() + val.lengths.sum() == sum(expected())


@pytest.mark.parametrize("make", [Loader, lambda *a, **k: SequenceDataModule(
    train=a[0], batching=a[1], **k).setup("fit")])  # fmt: skip
def test_one_transform_is_enough(folder, make):
    view = measure_lengths(folder, runs)
    with pytest.raises(
        ConfigError, match=r"`transform` is .*runs_of_all, but the data carries .*runs"
    ):
        make(view, Fixed(2), transform=runs_of_all)


def test_a_length_that_was_not_measured_is_an_error_when_it_is_read():
    more = []

    def grows(sequence, rng):
        return {"x": np.concatenate([sequence["x"], more])}

    view = measure_lengths([[1.0, 2.0], [3.0]], grows)
    more.append(1.0)
    with pytest.raises(
        DecodeError, match=r"'0': returned 3 timesteps of field 'x', but 2 are planned. Call `me"
    ):
        list(Loader(view, Fixed(2, shuffle=False)))


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda s, r: None, "must return a dict of arrays, but returned None"),
        (
            lambda s, r: {"y": 3},
            "must return a field along axis 'time' to be measured, but returned y",
        ),
        (lambda s, r: {}, "must return .* to be measured, but returned nothing"),
        (
            lambda s, r: {"x": s["x"], "z": s["x"][:1]},
            "returned 1 timesteps of field 'z' and 2 of 'x', which must be equal along axis 'time'",
        ),
    ],
)
def test_what_cannot_be_measured_names_the_sequence(transform, message):
    with pytest.raises(DecodeError, match=f"transform of sequence 'a': {message}") as caught:
        measure_lengths([{"x": [1, 2], "id": "a"}], transform)
    assert caught.value.details["sequence"] == 0


@pytest.mark.slow
def test_what_a_transform_raises_in_a_worker_says_where(folder):
    with pytest.raises(ValueError, match="no s0") as caught:
        measure_lengths(open_store(folder).take([0]), fails, num_workers=1)
    assert "in the transform of sequence 's0'" in caught.value.__notes__


@pytest.mark.slow
def test_a_worker_that_dies_is_an_error(folder):
    with pytest.raises(WorkerDiedError, match=r"worker 0 \(pid \d+\) ended with exit code"):
        measure_lengths(open_store(folder).take([0]), dies, num_workers=1)


@pytest.mark.slow
def test_a_stall_is_not_met_by_an_option_that_only_loaders_have(folder, monkeypatch):
    impatient = partial(EngineOptions, stall_timeout=1)
    monkeypatch.setattr("seqdata.loading.measure_lengths.EngineOptions", impatient)
    with pytest.raises(StallError, match="Look at its stack, or pass num_workers=0"):
        measure_lengths(open_store(folder).take([0]), hangs, num_workers=1)


def said(sequence, rng):
    return sequence


said.lengths = lambda lengths: lengths


def bounded(sequence, rng):
    return sequence


bounded.max_length = lambda lengths: lengths


@pytest.mark.parametrize(
    ("transform", "options", "message"),
    [
        (said, {}, r"said has `.lengths` and needs no measuring. Pass it as `transform`"),
        (bounded, {}, "bounded has `.max_length`, so its lengths are random and cannot be"),
        ("x", {}, "`transform` must be a function.*, but is 'x'"),
        (runs, {"num_workers": -1}, "`num_workers` must be an integer from 0.*, but is -1"),
        (
            lambda s, r: s,
            {"num_workers": 1},
            "cannot be pickled for a worker process .*Define functions .*, or pass num_workers=0",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(transform, options, message):
    with pytest.raises(ConfigError, match=message):
        measure_lengths([[1, 2]], transform, **options)


def test_a_view_carries_one_transform():
    with pytest.raises(ConfigError, match=r"the data already carries .*runs. Combine both"):
        measure_lengths(measure_lengths([[1, 2]], runs), runs)


def test_a_bar_shows_how_far_it_is(capsys):
    measure_lengths([[1, 2]] * 3, runs, progress=True)
    shown = capsys.readouterr().err
    assert "measuring" in shown
    assert "3 sequences, " in shown
    assert "per second" in shown
    measure_lengths([[1, 2]] * 3, runs)
    assert capsys.readouterr().err == ""


# The digest of code


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_transform_that_raises_stop_iteration_is_named(folder, num_workers):
    with pytest.raises(
        ConfigError,
        match=r"measure_lengths: `transform` \(stops\) must return a value, but raised "
        "StopIteration. Pass a default",
    ) as caught:
        measure_lengths(folder, stops, num_workers=num_workers)
    assert "in the transform of sequence 's0'" in "\n".join(caught.value.__notes__)


# What is written is what the loader plays


def texts_and_vectors(sequence, rng):
    kept_timesteps = sequence["x"][sequence["x"] > 2]
    return {
        "x": np.concatenate([[7], kept_timesteps]).astype("float32"),
        "name": f"n{sequence['y']}",
        "pair": np.array([sequence["y"], rng.random()]),
        "one": np.float32(sequence["y"]),
    }


AXES = {"pair": None}
texts_and_vectors.axes = AXES


def play(store):
    """Return id -> the values of all fields that a loader makes."""
    found = {}
    for batch in Loader(store, Fixed(8, shuffle=False)):
        for row, key in enumerate(store.keys(batch)):
            values = {
                name: (
                    value[row]
                    if isinstance(value, list)
                    else value[row, : batch.lengths[row]].tolist()
                    if batch.axes.along(name)
                    else value[row].tolist()
                )
                for name, value in batch.items()
                if name != "id"
            }
            found.setdefault(key, []).append(values)
    return found


SELECTIONS = {
    "all": lambda view: view,
    "some in another order": lambda view: view.take([9, 2, 70, 3]),
    "where": lambda view: view.where(view.lengths > 3),
    "a part": lambda view: split(view, {"a": 0.5, "b": 0.5}, by="speaker")["a"],
    "joined": lambda view: concat([view.take([4]), view.take([2, 1])]),
    "pickled": lambda view: pickle.loads(pickle.dumps(view.take([4, 1]))),
}


@pytest.mark.parametrize("select", SELECTIONS.values(), ids=SELECTIONS)
@pytest.mark.parametrize("transform", [runs, runs_of_all, texts_and_vectors])
def test_what_a_view_makes_is_what_is_written(folder, tmp_path, transform, select):
    view = select(measure_lengths(folder, transform))
    written = write_store(tmp_path / "out", view)
    assert written.lengths.tolist() == view.lengths.tolist()
    assert list(written.ids) == list(view.ids)
    assert play(written) == play(view)


@pytest.mark.parametrize("options", [{"shuffle": 3}, {"shard_bytes": 200}, {"executor": True}])
def test_what_a_view_makes_is_written_in_any_way(folder, tmp_path, options):
    if "executor" in options:
        options = {"executor": ThreadPoolExecutor(2), "shard_bytes": 200}
    view = measure_lengths(folder, texts_and_vectors)
    played = play(view)
    assert play(write_store(tmp_path / "out", view, **options)) == played


def test_what_a_view_makes_is_written_as_tar_shards(folder, tmp_path):
    view = measure_lengths(folder, texts_and_vectors).take([5, 2])
    written = write_store(tmp_path / "out", view, format="webdataset")
    assert [row["x"].tolist() for row in written] == [
        played[0]["x"] for played in play(view).values()
    ]


def test_an_empty_view_is_refused_as_any_other(tmp_path):
    view = measure_lengths([[1, 1, 2]], runs).take([])
    with pytest.raises(ConfigError, match="at least one sequence"):
        write_store(tmp_path / "out", view)


def test_numbers_in_place_of_ids_are_not_written(tmp_path):
    view = measure_lengths([[1, 1, 2], [3, 3], [4]], runs).take([2, 0])
    written = write_store(tmp_path / "out", view)
    assert list(written.fields) == list(runs({"x": np.ones(2)}, np.random.default_rng()))
    assert written.lengths.tolist() == [1, 2]


def test_a_stopped_writing_continues_with_what_the_view_makes(folder, tmp_path):
    view = measure_lengths(folder, texts_and_vectors)
    whole = write_store(tmp_path / "whole", view, shard_bytes=400)
    stopped = view.take(np.arange(COUNT))
    calls = []

    def stop(done, size):
        calls.append(done)
        if done > 64:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_store(tmp_path / "out", stopped, shard_bytes=400, progress=stop)
    again = write_store(tmp_path / "out", stopped, shard_bytes=400)
    assert again.fingerprint == whole.fingerprint
    assert play(again) == play(whole)


def test_a_result_of_another_length_than_measured_is_not_written(tmp_path):
    more = []
    view = measure_lengths(
        [{"id": "a", "x": [1.0, 2.0]}], lambda s, r: {"x": np.concatenate([s["x"], more])}
    )
    more.append(1.0)
    with pytest.raises(
        DecodeError,
        match=r"sequence 'a': returned 3 timesteps along axis 'time', but 2 were measured. Call",
    ):
        write_store(tmp_path / "out", view)
    assert not list(tmp_path.glob("out/*.arrow"))


def test_parts_of_a_mixture_are_written_as_they_are_played(folder, tmp_path):
    view = measure_lengths(folder, runs)
    parts = {"a": view.take([3, 4]), "b": view.take([1])}
    store = Loader(parts, Mix(dict.fromkeys(parts, 1), Fixed(1), batches=3)).store
    written = write_store(tmp_path / "out", store)
    assert written.lengths.tolist() == [*parts["a"].lengths, *parts["b"].lengths]
    with pytest.raises(ConfigError, match=r"fit: the view must not carry a transform, .*runs"):
        fit(store, {"x": MeanStd()})
    for select in (
        lambda: store.take([0]),
        lambda: store.where(lambda row: True),
        lambda: store.select("x"),
        lambda: store[:1],
    ):
        with pytest.raises(ConfigError, match=r"must be selected from one by one"):
            select()


def test_parts_with_different_transforms_are_not_written_as_one(folder, tmp_path):
    parts = {"a": measure_lengths(folder, runs), "b": open_store(folder)}
    store = join_parts(parts, read_together=False)
    with pytest.raises(ConfigError, match="all must carry the same transform, or none"):
        write_store(tmp_path / "out", store)
    with pytest.raises(ConfigError, match="all must carry the same transform, or none"):
        fit(store, {"x": MeanStd()})


# The lengths of every axis are its own


def test_each_axis_of_one_transform_is_measured_for_itself(folder):
    def both(sequence, rng):
        return {"x": sequence["x"][:1], "z": np.repeat(sequence["x"], 2)}

    both.axes = {"z": "fine"}
    fine = [2 * len(row["x"]) for row in rows()]
    for _ in range(2):  # measured, and from what was kept
        assert set(measure_lengths(folder, both).lengths.tolist()) == {1}
        assert measure_lengths(folder, both, axis="fine").lengths_of["fine"].tolist() == fine
