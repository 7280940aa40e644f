"""A ring's process reads its part of each row's timesteps, and nothing else."""

import itertools

import numpy as np
import pytest
import torch

from seqdata import (
    TBPTT,
    ConfigError,
    Fixed,
    Loader,
    MeanStd,
    Packed,
    Remote,
    SequenceDataModule,
    TokenBudget,
    Windows,
    World,
    fit,
    measure_lengths,
    open_store,
    write_store,
)
from seqdata.runs.data_sources import RunContext
from seqdata_testing.faults.network import folder_of, served

RANDOM = np.random.default_rng(0)
TEXTS = [RANDOM.integers(0, 99, n) for n in RANDOM.integers(1, 40, 11)]
PER_ROW = ("lengths", "ids", "start", "weight", "lanes", "reset", "segments", "positions")
PER_BATCH = (
    "epoch", "number", "loss_scale", "sequence_scale", "update_num_tokens", "global_num_tokens",
    "lr_scale", "carry", "loader",
)  # fmt: skip


def batches(world, policy, shift=0, data=TEXTS, **options):
    return list(Loader(data, policy, seed=3, world=world, shift=shift, **options))


@pytest.mark.filterwarnings("ignore:share:seqdata.errors.SeqDataWarning")
@pytest.mark.parametrize(
    ("parts", "shift"),
    [
        pytest.param(*one, marks=[] if one in {(2, 1), (3, 0), (5, 2)} else pytest.mark.nightly)
        for one in itertools.product((2, 3, 5), (0, 1, 2))
    ],
)
@pytest.mark.parametrize(
    "policy",
    [
        Fixed(4), TokenBudget(80), Packed(2, 64), Windows(5, 2, 4), TBPTT(3, 7),
        TBPTT(3, 7, segments=True), TBPTT(4, 7, continuous=True),
    ],
    ids=lambda policy: f"{type(policy).__name__}{getattr(policy, 'lanes', '')}",
)  # fmt: skip
def test_the_parts_of_a_batch_hold_its_timesteps_and_say_what_the_whole_is(policy, shift, parts):
    found = [batches(World(1, 2, part, parts), policy, shift) for part in range(parts)]
    whole_batches = batches(World(1, 2), policy, shift)
    for whole, *own in zip(whole_batches, *found, strict=True):
        assert torch.equal(sum(part.lengths for part in own), whole.lengths)
        for name in whole.data:
            for row, length in enumerate(whole.lengths.tolist()):
                pieces = [part[name][row, : part.lengths[row]] for part in own]
                assert torch.equal(torch.cat(pieces), whole[name][row, :length])
        assert sum(part.num_tokens for part in own) == whole.num_tokens
        for part in own:
            described = part.validate().whole
            assert not described.data
            for name in PER_BATCH:
                assert getattr(part, name) == getattr(described, name) == getattr(whole, name)
            for name in PER_ROW:
                found_value, must = getattr(described, name), getattr(whole, name)
                assert found_value is must is None or torch.equal(found_value, must)
            assert described.num_tokens == whole.num_tokens
            assert described.padded_length == whole.padded_length


def test_a_part_resets_where_its_first_timestep_begins_a_sequence():
    data = [np.arange(5), np.arange(5), np.arange(20)]
    policy = TBPTT(1, 10, segments=True, shuffle=False)
    parts = [batches(World(0, 1, part, 2), policy, data=data) for part in range(2)]
    spans = [[span.tolist() for span in part[0].start] for part in parts]
    assert spans == [[0], [0]]
    assert [part[0].reset.tolist() for part in parts] == [[True], [True]]  # 0:5 of two sequences
    assert [part[1].reset.tolist() for part in parts] == [[True], [False]]
    policy = TBPTT(1, 10, continuous=True, shuffle=False)
    parts = [batches(World(0, 1, part, 2), policy, data=data) for part in range(2)]
    resets = [[bool(batch.reset) for batch in part] for part in parts]
    assert resets == [[True, False, False], [False, False, False]]


def test_rows_shorter_than_the_parts_have_empty_ones():
    parts = [
        batches(World(0, 1, part, 3), Fixed(2, shuffle=False), data=[[7, 8], [9]])
        for part in range(3)
    ]
    assert [part[0].lengths.tolist() for part in parts] == [[0, 0], [1, 0], [1, 1]]
    assert [part[0]["x"].tolist() for part in parts] == [[[0], [0]], [[7], [0]], [[8], [9]]]


@pytest.mark.slow
def test_a_process_reads_the_bytes_of_its_part_only(tmp_path):
    timesteps, parts = 1 << 17, 4  # a MiB each; checksums are compared by blocks of 64 KiB
    rows = [{"x": RANDOM.normal(size=timesteps)} for _ in range(4)]
    write_store(tmp_path / "store", rows)
    sent, source = [], folder_of(tmp_path / "store")

    def counting(asked):
        answer = source(asked)
        if asked.path.endswith(".arrow") and asked.method == "GET":
            sent.append(len(answer.body))
        return answer

    with served(counting) as server:
        for part in range(parts):
            remote = Remote(how="ranges", cache_dir=tmp_path / "cache", gap=0)
            store = open_store(server.url, remote=remote)
            sent.clear()
            loader = Loader(store, Fixed(2), world=World(0, 1, part, parts))
            assert [tuple(batch["x"].shape) for batch in loader] == [(2, timesteps // parts)] * 2
            loader.shutdown()
            own = 4 * timesteps * 8 // parts
            assert own <= sum(sent) <= own + 4 * (2 << 16) + (1 << 16)


def test_the_state_of_a_loader_does_not_depend_on_the_parts():
    loaders = [
        Loader(TEXTS, TBPTT(2, 5), seed=3, world=World(0, 1, *part)) for part in ((0, 1), (2, 3))
    ]
    whole, own = loaders
    for loader in loaders:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
    assert whole.state_dict() == own.state_dict()
    for loader in loaders:
        loader.load_state_dict(own.state_dict())
    batch, following = next(iter(whole)), next(iter(own))
    assert (batch.number, following.number, len(own)) == (3, 3, len(whole))
    assert following.whole.lengths.tolist() == batch.lengths.tolist()


def halve(sequence, rng):
    return {"x": sequence["x"] / 2}


def test_a_transform_must_say_that_it_works_by_timestep(monkeypatch):
    world = World(0, 1, 1, 2)
    with pytest.raises(ConfigError, match=r"test_time_parts\.halve must work timestep by timestep"):
        Loader(TEXTS, Fixed(4), world=world, transform=halve)
    assert Loader(TEXTS, Fixed(4), world=World(0, 1), transform=halve)
    monkeypatch.setattr(halve, "by_timestep", True, raising=False)
    plain = batches(world, Fixed(4))
    for whole, found in zip(plain, batches(world, Fixed(4), transform=halve), strict=True):
        assert torch.equal(found["x"], whole["x"] / 2)
    monkeypatch.setattr(halve, "lengths", lambda lengths: lengths, raising=False)
    with pytest.raises(ConfigError, match="because rows are split along time into 2 parts"):
        Loader(TEXTS, Fixed(4), world=world, transform=halve)


def test_a_view_with_measured_lengths_is_refused():
    view = measure_lengths([{"x": text} for text in TEXTS], halve, cache=False)
    with pytest.raises(ConfigError, match=r"halve\.by_timestep = True if it keeps lengths"):
        Loader(view, Fixed(4), world=World(0, 1, 0, 2))


def test_statistics_work_by_timestep_but_ids_of_texts_do_not():
    rows = [{"x": text.astype(np.float64)} for text in TEXTS]
    statistics = fit(rows, {"x": MeanStd()})
    world = World(0, 1, 0, 2)
    (part, *_) = batches(world, Fixed(4), data=rows, transform=statistics.transform())
    (whole, *_) = batches(World(), Fixed(4), data=rows, transform=statistics.transform())
    width = part["x"].shape[1]
    mask = part.mask
    assert torch.equal(part["x"][mask], whole["x"][:, :width][mask])


def test_fields_of_other_axes_and_skipped_errors_are_refused(tmp_path):
    rows = [{"x": np.arange(4), "y": np.arange(9), "label": 1}] * 3
    store = write_store(tmp_path / "two", rows, axes={"x": "time", "y": "text"})
    world = World(0, 1, 0, 2)
    with pytest.raises(ConfigError, match=r"but 'y' \(text\) would be read whole by every process"):
        Loader(store, Fixed(2), world=world)
    loader = Loader(store, Fixed(2), world=world, fields=("x", "label"))
    assert next(iter(loader))["label"].tolist() == [1, 1]
    with pytest.raises(ConfigError, match=r"`on_error` must be 'raise' where rows are split .* 2"):
        Loader(TEXTS, Fixed(2), world=world, on_error="mask")


@pytest.mark.parametrize("policy", [Windows(5, horizon=2), TBPTT(2, 5, advance=3)])
def test_rows_with_overlap_or_horizon_are_refused(policy):
    with pytest.raises(ConfigError, match="along time into 2 parts must have no overlap and"):
        next(iter(Loader(TEXTS, policy, world=World(0, 1, 0, 2))))


def test_what_is_known_of_whole_rows_goes_where_the_batch_goes():
    batch = batches(World(0, 1, 0, 2), TBPTT(12, 40))[0]
    assert (batch.weight == 0).any()
    assert batch.to("meta").whole.weight.device.type == "meta"
    real = batch.real()
    assert len(real) == len(real.whole) == int((batch.weight > 0).sum())


def test_a_datamodule_reads_parts_for_training_and_whole_rows_for_evaluation():
    world = World(0, 1, 1, 2)
    data = SequenceDataModule(train=TEXTS, val=TEXTS, batching=Fixed(4))
    context = RunContext(world=world, seed=0, overfit=False)
    worlds = {
        kind: data._sources.make_engines(kind, context)[0].options.world
        for kind in ("train", "val")
    }
    assert worlds == {"train": world, "val": World(0, 1)}
