"""Going on without the sequences that cannot be read: as many batches and rows as planned."""

import json

import numpy as np
import pytest
import torch

from seqdata import (
    TBPTT,
    Bucketed,
    ConfigError,
    Fixed,
    Loader,
    Mix,
    Packed,
    Weighted,
    Windows,
    write_store,
)
from seqdata.errors import DataError, LimitError
from seqdata.loading.bad_sequences import is_about_data
from seqdata.loading.transforms.declare import Ragged, columnar

RANDOM = np.random.default_rng(3)
ROWS = [
    {
        "id": f"s{number}",
        "x": RANDOM.normal(size=(length, 2)).astype(np.float32),
        "y": number,
        "text": RANDOM.integers(1, 9, 2 + number % 3),
    }
    for number, length in enumerate([4, 7, 5, 9, 6, 3, 8, 5, 7, 6])
]
BAD = (3, 5)


def fails(sequence, rng):
    if sequence["y"] in BAD:
        raise ValueError("no such tone")
    return sequence


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_store(tmp_path_factory.mktemp("store") / "s", ROWS, axes={"text": "text"})


def rows_of(batches):
    """Return row by row: number of the batch, id, weight, length and the tensor of x."""
    return [
        (batch.number, int(batch.ids[row]), float(batch.weight[row]), int(batch.lengths[row]),
         batch["x"][row])
        for batch in batches
        for row in range(len(batch))
    ]  # fmt: skip


def play(store, on_error, policy=None, transform=fails, **options):
    loader = Loader(
        store, policy or Fixed(4, shuffle=False), transform=transform, on_error=on_error, **options
    )
    return loader, list(loader)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1, "start_method": "fork"}])
def test_a_masked_row_keeps_its_place_and_has_no_weight(store, workers):
    loader, batches = play(store, "mask", **workers)
    _, due = play(store, "raise", transform=None)
    assert [batch["x"].shape for batch in batches] == [batch["x"].shape for batch in due]
    for found, planned in zip(rows_of(batches), rows_of(due), strict=True):
        assert found[:2] == planned[:2]
        assert found[3] == planned[3]
        bad = found[1] in BAD
        assert found[2] == (0 if bad else 1)
        assert torch.equal(found[4], torch.zeros_like(planned[4]) if bad else planned[4])
    assert [one["sequence"] for one in loader.errors] == list(BAD)
    loader.shutdown()


def test_a_replaced_row_is_the_longest_other_one_cropped(store):
    _, batches = play(store, "replace")
    rows = {(number, place): row for place, (number, *row) in enumerate(rows_of(batches))}
    identity, weight, length, values = rows[0, 3]  # for sequence 3 of 9 timesteps: 1 has only 7
    assert (identity, weight, length) == (1, 1, 7)
    assert torch.equal(values[:7], torch.from_numpy(ROWS[1]["x"]))
    identity, weight, length, values = rows[1, 5]  # for sequence 5 of 3 timesteps: part of 6
    assert (identity, weight, length) == (6, 1, 3)
    assert torch.equal(values[:3], torch.from_numpy(ROWS[6]["x"][:3]))
    assert batches[1]["y"].tolist() == [4, 6, 6, 7]
    assert batches[1]["id"] == ["s4", "s6", "s6", "s7"]


@pytest.mark.parametrize("on_error", ["mask", "replace"])
@pytest.mark.parametrize("layout", ["padded", "packed", "jagged", "varlen"])
def test_every_layout_has_as_many_rows_as_planned(store, on_error, layout):
    _, batches = play(store, on_error, Bucketed(4), collator=layout, seed=1)
    _, due = play(store, "raise", Bucketed(4), transform=None, collator=layout, seed=1)
    assert [len(batch) for batch in batches] == [len(batch) for batch in due]
    for batch, planned in zip(batches, due, strict=True):
        batch.validate()
        assert batch.global_num_tokens == planned.global_num_tokens
        good = batch.weight > 0
        assert batch.num_tokens == int(batch.lengths[good].sum())


@pytest.mark.parametrize("on_error", ["mask", "replace"])
def test_shifts_and_windows_are_mended_too(store, on_error):
    _, batches = play(store, on_error, shift={"x": 1}, fields=("x", "y"))
    for batch in batches:
        assert torch.equal(batch["x"][:, 1:], batch["targets"][:, :-1])
    windows = Windows(size=2, horizon=1, stride=1, batch_size=4)
    _, batches = play(store, on_error, windows, fields=("x", "y"))
    assert all(batch["x"].shape[1:] == (3, 2) for batch in batches)
    found = [row for batch in batches for row in batch.ids[batch.weight > 0].tolist()]
    assert set(found) == set(range(10)) - set(BAD)


@pytest.mark.parametrize("on_error", ["mask", "replace"])
def test_a_row_of_several_spans_is_masked(store, on_error):
    policy = Packed(rows=2, row_length=12)
    _, batches = play(store, on_error, policy, collator="varlen", fields=("x", "y"))
    for batch in batches:
        bad = {row for row, number, *_ in batch.segments.tolist() if number in BAD}
        assert {row for row in range(len(batch)) if batch.weight[row] == 0} == bad


def test_a_batch_of_nothing_but_damaged_rows_is_zeros(tmp_path):
    damaged = write_store(tmp_path / "s", ROWS, axes={"text": "text"})
    place = damaged.manifest.shards[0].buffers["x"][0][0]
    with open(tmp_path / "s" / damaged.shards[0], "r+b") as file:
        for number in BAD:
            at = place + 8 * sum(len(row["x"]) for row in ROWS[:number])
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))
    policy = Fixed(1, shuffle=False)
    loader = Loader(tmp_path / "s", policy, on_error="replace", shift={"x": 1})
    batches = list(loader)
    weights = [float(batch.weight[0]) for batch in batches]
    assert weights == [float(number not in BAD) for number in range(10)]
    assert batches[3]["x"].shape == (1, 8, 2)
    assert not batches[3]["x"].any()
    assert batches[3]["text"].shape == (1, 2)
    assert batches[3]["id"] == [""]
    assert batches[3].num_tokens == 0
    assert [one["key"] for one in loader.errors] == ["s3", "s5"]
    assert {one["error"] for one in loader.errors} == {"CorruptSampleError"}


def test_a_transform_that_never_gave_anything_says_so(store):
    with pytest.raises(
        DataError, match="the transform fails for every sequence of a batch and for 16 oth"
    ):
        play(store.take([3, 5]), "mask")


def test_what_a_transform_makes_is_learned_from_other_sequences(store):
    _, batches = play(store, "mask", Fixed(1, shuffle=False), shift={"x": 1})
    assert batches[3]["x"].shape == (1, 8, 2)
    assert batches[3]["text"].shape == (1, 2)
    assert not batches[3]["x"].any()


def test_a_columnar_transform_is_called_again_for_each_sequence(store):
    @columnar
    def halve(columns, seeds):
        if set(columns["y"].tolist()) & set(BAD):
            raise ValueError("no such tone")
        return {"x": Ragged(columns["x"].values / 2, columns["x"].lengths)}

    _, batches = play(store, "mask", transform=halve)
    weights = {int(i): float(w) for b in batches for i, w in zip(b.ids, b.weight, strict=True)}
    assert weights == {number: float(number not in BAD) for number in range(10)}


def test_more_errors_than_the_cap_are_raised_with_advice(store, caplog):
    with pytest.raises(ValueError, match="no such tone") as caught:
        play(store, "mask", max_errors=1)
    notes = "\n".join(caught.value.__notes__)
    assert "skipped error 1 of at most 1" in caplog.text
    assert "skipped error 2" not in caplog.text  # it is raised
    assert (
        "2 errors in the data, more than `max_errors` allows (1). Repair the data, or raise"
        in notes
    )
    assert "epoch 0, batch 1" in notes


def test_errors_are_listed_in_a_file_that_counts_on(store, tmp_path, caplog):
    log = tmp_path / "log" / "errors.jsonl"
    play(store, "mask", error_log=log)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["sequence"] for line in lines] == list(BAD)
    assert {line["error"] for line in lines} == {"ValueError"}
    assert [line["batch"] for line in lines] == [0, 1]
    assert "skipped error 2 of at most 100: no such tone" in caplog.text
    with log.open("a") as file:
        file.write('{"cut off')  # by the end of its process
    loader, _ = play(store, "mask", error_log=log, max_errors=2)  # met again: no more
    assert len(loader.errors) == 2
    state = loader.state_dict()
    loader = Loader(
        store, Fixed(4, shuffle=False), transform=fails, on_error="mask", error_log=log,
        max_errors=3,
    )  # fmt: skip
    loader.load_state_dict(state)  # of the next epoch
    with pytest.raises(ValueError, match="no such tone"):
        list(loader)
    assert [json.loads(line)["epoch"] for line in log.read_text().splitlines()[::3]] == [0, 1]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("x"), True),
        (DataError("x"), True),
        (ConfigError("x"), False),
        (LimitError("x"), False),
        (MemoryError(), False),
    ],
)
def test_what_is_no_sequences_fault_is_raised(error, expected):
    assert is_about_data(error) is expected


def test_an_argument_that_cannot_be_meant_is_not_masked(store):
    def wrong(sequence, rng):
        raise ConfigError("`threshold` is 3, must be less than 1")

    with pytest.raises(ConfigError, match="`threshold` is 3"):
        play(store, "mask", transform=wrong)


def test_an_error_that_no_sequence_has_by_itself_is_raised(store):
    @columnar
    def together(columns, seeds):
        if len(seeds) > 1:
            raise ValueError("not together")
        return {"x": columns["x"]}

    with pytest.raises(ValueError, match="not together"):
        play(store, "mask", transform=together)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_error": "skip"}, "`on_error` must be 'raise', 'mask' or 'replace', but is 'skip'"),
        ({"max_errors": -1}, "`max_errors` must be an integer from 0.*, but is -1"),
    ],
)
def test_options_that_cannot_be_meant(store, options, text):
    with pytest.raises(ConfigError, match=text):
        Loader(store, Fixed(2), **options)


def test_a_lane_reads_no_other_sequence_instead(store):
    with pytest.raises(ConfigError, match="`on_error` must be 'mask' or 'raise' with lanes"):
        Loader(store, TBPTT(2, 4), on_error="replace", whole=("text",))
    played = play(store, "mask", TBPTT(2, 4), whole=("text",))[1]
    weights = [batch.weight for batch in played]
    assert any((weight == 0).any() for weight in weights)


@pytest.mark.parametrize("policy", [Bucketed(1), TBPTT(1, 4), TBPTT(1, 4, segments=True)], ids=str)
def test_a_batch_of_which_all_is_bad_has_targets_too(store, policy):
    options = {"fields": ("x", "y"), "shift": 1, "max_errors": 1000, "transform": fails}
    loader = Loader(store, policy, on_error="mask", prefetch=0, **options)
    masked = 0
    for batch in loader:
        assert batch["targets"].shape == batch["x"].shape
        masked += not bool(batch.weight.any())
    assert masked


@pytest.mark.parametrize("policy", [Packed(2, 12), TBPTT(2, 6, segments=True)])
def test_a_row_of_several_sequences_is_masked_wherever_the_bad_one_lies(policy):
    rows = [{"x": np.ones(length, np.float32)} for length in (3, 4, 5, 2, 6, 1, 1, 1)]
    rows[7]["x"][0] = np.nan
    batches = list(Loader(rows, policy, check_values=True, on_error="mask"))
    assert any((batch.weight == 0).any() for batch in batches)
    assert all(torch.isfinite(batch["x"]).all() for batch in batches)


@pytest.mark.parametrize("on_error", ["mask", "replace"])
def test_an_output_that_does_not_tell_masked_rows_is_refused(store, on_error):
    with pytest.raises(ConfigError, match=r"must be told from others, .* Add 'weight'\."):
        Loader(store, Fixed(4), on_error=on_error, as_tuple=("x", "y"))
    said = r"has no 'weight' .* Pass `as_tuple=\('collated', 'weight'\)`\."
    with pytest.raises(ConfigError, match=said):
        Loader(store, Fixed(4), on_error=on_error, collator=lambda samples: len(samples))
    _, batches = play(store, on_error, as_tuple=("x", "weight"))
    assert min(weight.min() for _, weight in batches) >= 0
    rows = [{"x": np.ones(3), "weight": 1.0}]
    with pytest.raises(ConfigError, match=r"Add 'score'\."):
        Loader(rows, Fixed(1), on_error=on_error, as_tuple=("x", "weight"))


def test_a_replaced_row_of_a_mixture_has_the_part_of_its_donor():
    def positive(sequence, rng):
        if sequence["x"][0, 0] < 0:
            raise ValueError("negative")
        return sequence

    parts = {
        name: [
            {"x": np.full((3, 1), sign * (100 * at + number + 1.0))}
            for number, sign in enumerate([1, -1, 1, 1] * 5)
        ]
        for at, name in enumerate("ab")
    }
    policy = Mix({"a": 1, "b": 1}, Fixed(8), rows=True)
    loader = Loader(parts, policy, transform=positive, on_error="replace")
    replaced = 0
    for batch in loader:
        for part, number, x in zip(batch.part, batch.ids.tolist(), batch["x"], strict=True):
            assert x[0, 0] == parts[part][number]["x"][0, 0]
        replaced += len(batch) - len({*zip(batch.part, batch.ids.tolist(), strict=True)})
    assert replaced > 3


def test_a_replaced_row_has_the_weight_of_its_donor():
    policy = Weighted(Fixed(4), [1.0, 2.0, 4.0, 8.0] * 3, draws=40, importance=True)
    rows = [{"x": np.full((3 + number, 1), number)} for number in range(12)]

    def odd(sequence, rng):
        if sequence["x"][0, 0] % 5 == 2:
            raise ValueError("not odd")
        return sequence

    weight_of = {}
    for batch in Loader(rows, policy, transform=odd, on_error="replace"):
        for number, weight in zip(batch.ids.tolist(), batch.weight.tolist(), strict=True):
            assert weight_of.setdefault(number, weight) == weight


def test_errors_are_listed_by_the_epoch_of_the_mixture():
    def positive(sequence, rng):
        if sequence["x"][0] < 0:
            raise ValueError("negative")
        return sequence

    parts = {"a": [{"x": np.ones(3)}] * 60, "b": [{"x": np.ones(3)}, {"x": -np.ones(3)}]}
    policy = Mix({"a": 1, "b": 1}, Fixed(2), keep="batch", batches=20)
    loader = Loader(parts, policy, transform=positive, on_error="mask")
    masked = [(0, batch.number) for batch in loader if not batch.weight.all()]
    assert [(entry["epoch"], entry["batch"]) for entry in loader.errors] == masked
    assert len(masked) > 3
