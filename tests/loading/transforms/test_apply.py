"""Transforms in process: what they see, what they may give, how they draw."""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from seqdata.collators.varlen import Varlen
from seqdata.errors import ConfigError, DecodeError
from seqdata.loading.engine import EpochEngine
from seqdata.loading.loader import Loader
from seqdata.loading.options import EngineOptions
from seqdata.loading.transforms.declare import Ragged, columnar
from seqdata.loading.transforms.rng import count_occurrences
from seqdata.planning.randomness import Purpose
from seqdata.policies.fixed import Fixed
from seqdata.policies.packed import Packed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.windows import Windows
from seqdata.sharing import World
from seqdata.storage.memory import MemoryStore
from tests.loading.transforms.samples import LONG, PLAIN, STORE, halve, make_batch


def test_it_sees_one_sequence_by_field():
    seen = []

    def look(sequence, rng):
        seen.append({name: np.asarray(value).tolist() for name, value in sequence.items()})
        return sequence

    make_batch(look)
    assert seen[1] == {"x": [20, 21], "y": 2, "v": [1, 1], "text": [0, 1, 2, 3], "id": "s2"}


def test_what_it_gives_is_the_batch():
    def change(sequence, rng):
        return {
            "x": sequence["x"] / 2,
            "pairs": np.column_stack([sequence["x"], sequence["x"]]),
            "length": len(sequence["x"]),
            "text": sequence["text"][: int(sequence["y"])],
            "id": sequence["id"].upper(),
            "raw": b"1",
        }

    made = make_batch(change).validate()
    assert made["x"].tolist() == [[20, 20.5, 21, 21.5], [10, 10.5, 0, 0], [15, 15.5, 16, 0]]
    assert made["pairs"].shape == (3, 4, 2)
    assert made["length"].tolist() == [4, 2, 3]
    assert made["text"].tolist() == [[0, 1, 2, 3], [0, 1, 0, 0], [0, 1, 2, 0]]
    assert made.lengths_of["text"].tolist() == [4, 2, 3]
    assert made["id"] == ["S4", "S2", "S3"]
    assert made["raw"] == [b"1", b"1", b"1"]
    assert "v" not in made


def test_it_may_write_into_what_it_gets():
    def double(sequence, rng):
        sequence["x"] *= 2
        sequence["v"] += 1
        return sequence

    assert make_batch(double)["x"][1].tolist() == [40, 42, 0, 0]
    assert make_batch(lambda sequence, rng: sequence)["x"][1].tolist() == [20, 21, 0, 0]


def test_it_sees_the_span_and_the_timesteps_past_it():
    seen = []
    policy = Fixed(9, shuffle=False, max_length=2, too_long="split")
    make_batch(
        lambda sequence, rng: seen.append(sequence["x"].tolist()) or sequence,
        policy=policy,
        shift={"x": 1},
    )
    assert seen == [[40, 41, 42], [42, 43], [20, 21], [30, 31, 32]]


def drawn(made):
    return dict(zip(made["id"], made["u"].tolist(), strict=True))


def noise(sequence, rng):
    return {"x": sequence["x"], "u": rng.random(), "id": sequence["id"]}


def test_draws_depend_on_seed_epoch_and_sequence_alone():
    one = drawn(make_batch(noise, seed=1))
    assert len(set(one.values())) == 3
    assert drawn(make_batch(noise, seed=1, policy=Fixed(3), prefetch=2)) == one
    assert drawn(make_batch(noise, store=STORE.take([2, 0]), seed=1)).items() <= one.items()
    assert set(drawn(make_batch(noise, seed=2)).values()).isdisjoint(one.values())
    assert set(drawn(make_batch(noise, seed=1, epoch=1)).values()).isdisjoint(one.values())


def test_draws_are_keyed_as_the_design_says():
    key = np.array([7, 0], dtype=np.uint64)
    counter = np.array([0, 0, Purpose.TRANSFORM, 1], dtype=np.uint64)
    rng = np.random.Generator(np.random.Philox(key=key, counter=counter))
    assert make_batch(noise, seed=7)["u"][1].item() == rng.random()


def test_each_occurrence_in_a_view_draws_for_itself():
    view = STORE.take([1, 0, 1, 1])
    made = make_batch(noise, store=view, policy=Fixed(4, shuffle=False))
    assert made.ids.tolist() == [1, 0, 1, 1]
    assert len(set(made["u"].tolist())) == 4
    assert made["u"][0].item() == make_batch(noise)["u"][1].item()
    assert count_occurrences(view).earlier_counts.tolist() == [0, 0, 1, 2]
    assert count_occurrences(STORE).earlier_counts is None


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda s, r: [s["x"]], "must return a dict of arrays, but returned list"),
        (lambda s, r: None, "must return a dict of arrays, but returned None. It cannot drop"),
        (lambda s, r: {"x": s["x"][1:]}, "returned 3 timesteps of field 'x', but 4 are planned"),
        (
            lambda s, r: {"new": np.ones(9)},
            "returned 9 timesteps of field 'new', but 4 are planned",
        ),
        (lambda s, r: {"x": 3.0}, "must return field 'x' as an array, but returned 3.0"),
        (
            lambda s, r: {"x": s["x"].astype(object)},
            "must return field 'x' as an array, but returned array",
        ),
    ],
)
def test_a_result_that_does_not_fit_is_an_error_naming_the_sequence(transform, message):
    match = (
        f"transform of sequence 's4': {message}(.|\n)*. Change the transform(.|\n)*epoch 0, batch 0"
    )
    with pytest.raises(DecodeError, match=match) as caught:
        make_batch(transform)
    assert caught.value.details["sequence"] == 0


@pytest.mark.parametrize(
    "transform",
    [
        lambda s, r: {"x": s["x"].astype("f4" if s["y"] == 2 else "f8")},
        lambda s, r: {"x": s["x"], "y": 1} if s["y"] == 2 else {"x": s["x"]},
        lambda s, r: {"x": s["x"]} if s["y"] == 2 else {"x": s["x"], "y": 1},
        lambda s, r: {"x": np.ones((len(s["x"]), int(s["y"])))},
        lambda s, r: {"id": "a" if s["y"] == 2 else b"a"},
        lambda s, r: {"x": s["x"], "y": np.ones(int(s["y"]))},
    ],
    ids=["dtype", "more fields", "fewer fields", "shape", "text", "shape without an axis"],
)
def test_results_must_be_alike(transform):
    with pytest.raises(
        DecodeError, match=r"of sequence 's2': returned {.*, unlike {.*} of seq.* 's4'"
    ):
        make_batch(transform)


def test_what_a_transform_raises_says_where():
    def broken(sequence, rng):
        return {"x": sequence["x"] + 1 // (int(sequence["y"]) - 2)}

    with pytest.raises(ZeroDivisionError) as caught:
        make_batch(broken)
    assert caught.value.__notes__ == [
        "in the transform of sequence 's2'",
        "in epoch 0, batch 0 (step 0, rank 0 of 1)",
    ]
    assert caught.value.details == {"dataset": "memory", "key": "s2", "sequence": 1}


def test_a_transform_is_a_function():
    with pytest.raises(ConfigError, match=r"`transform` must be a function.*, but is 'noise'"):
        make_batch("noise")


def halves(number):
    x = LONG.read(np.array([[number, 0, LONG.lengths[number]]]), ["x"])["x"][0]
    return halve({"x": x}, None)["x"].tolist()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_transform_that_says_its_lengths_is_planned_with_them(prefetch):
    policy = Fixed(9, shuffle=False, max_length=2, too_long="split")
    made = make_batch(halve, store=LONG, policy=policy, prefetch=prefetch).validate()
    assert made.ids.tolist() == [0, 0, 1, 3, 3]  # number 2 has nothing left and is dropped
    assert made.start.tolist() == [0, 2, 0, 0, 2]
    assert made.lengths.tolist() == [2, 2, 2, 2, 1]
    whole = {number: halves(number) for number in (0, 1, 3)}
    rows = zip(made.ids.tolist(), made.start.tolist(), made["x"].tolist(), strict=True)
    for number, start, row in rows:
        assert row == [*whole[number][start : start + 2], 0][:2]


def test_a_transform_that_changes_lengths_sees_the_whole_sequence():
    seen = []

    def look(sequence, rng):
        seen.append(len(sequence["x"]))
        return halve(sequence, rng)

    look.lengths = halve.lengths
    make_batch(look, store=LONG, policy=Fixed(9, shuffle=False, max_length=2, too_long="split"))
    assert seen == [9, 9, 4, 6, 6]


@pytest.mark.parametrize("collator", [None, Varlen()])
def test_a_shift_comes_after_the_transform(collator):
    made = make_batch(halve, store=LONG, policy=Fixed(9, shuffle=False), shift=1, collator=collator)
    made = made.validate().as_layout("padded")
    assert made.ids.tolist() == [0, 1, 3]
    assert made.lengths.tolist() == [3, 1, 2]
    for row, number in enumerate(made.ids.tolist()):
        length = int(made.lengths[row])
        assert made["x"][row, :length].tolist() == halves(number)[:-1]
        assert made["targets"][row, :length].tolist() == halves(number)[1:]


@pytest.mark.parametrize("collator", [None, Varlen()])
def test_a_shift_of_what_keeps_its_length_reads_all_fields_further(collator):
    store = MemoryStore.from_sequences([{"x": np.arange(n), "z": -np.arange(n)} for n in (3, 5)])

    def add(sequence, rng):
        return {"sum": sequence["x"] - 2 * sequence["z"], "z": sequence["z"]}

    options = {"shift": {"sum": 1}, "policy": Fixed(2, shuffle=False), "collator": collator}
    made = make_batch(add, store=store, **options).validate().as_layout("padded")
    assert made["sum"][0, :2].tolist() == [0, 3]
    assert made["targets"][0, :2].tolist() == [3, 6]
    assert made["sum"][1].tolist() == [0, 3, 6, 9]
    assert made["targets"][1].tolist() == [3, 6, 9, 12]
    assert made["z"][1].tolist() == [0, -1, -2, -3]


def test_rows_of_several_sequences_are_cut_and_shifted_one_by_one():
    made = make_batch(halve, store=LONG, policy=Packed(rows=1, row_length=6), shift=1).validate()
    expected = [
        (halves(number)[:-1], halves(number)[1:]) for number in made.segments[:, 1].tolist()
    ]
    assert made["x"][0].tolist() == [*chain(*(inputs for inputs, _ in expected))]
    assert made["targets"][0].tolist() == [*chain(*(targets for _, targets in expected))]


def test_windows_are_cut_from_what_the_transform_made():
    made = make_batch(halve, store=LONG, policy=Windows(2, 1, 9, horizon=1, shuffle=False))
    assert made.ids.tolist() == [0, 0, 3]
    assert made.context["x"][1].tolist() == halves(0)[1:3]
    assert made.future["x"][1].tolist() == halves(0)[3:4]


def test_other_axes_come_out_as_they_are():
    def spell(sequence, rng):
        return {**halve(sequence, rng), "letters": np.frombuffer(b"ab" * len(sequence["x"]), "u1")}

    spell.lengths = halve.lengths
    spell.axes = {"letters": "text"}
    made = make_batch(spell, store=LONG, policy=Fixed(9, shuffle=False)).validate()
    assert made.lengths_of["text"].tolist() == [18, 8, 12]
    assert made["letters"].shape == (3, 18)


def test_text_becomes_an_array_of_its_own_name():
    def encode(sequence, rng):
        return {"id": np.full(len(sequence["x"]), len(sequence["id"]))}

    assert make_batch(encode)["id"].tolist() == [[2, 2, 2, 2], [2, 2, 0, 0], [2, 2, 2, 0]]


def other(lengths, axes=None):
    def transform(sequence, rng):
        return halve(sequence, rng)

    transform.lengths = lengths
    transform.axes = axes
    return transform


def test_a_length_that_was_not_planned_is_an_error_naming_the_sequence():
    with pytest.raises(
        DecodeError,
        match=r"of sequence 's9': returned 4 timesteps of field 'x', but 3 are planned. "
        "Change the transform, or its `.lengths`",
    ) as caught:
        make_batch(other(lambda lengths: lengths // 3), store=LONG)
    facts = caught.value.details
    assert (facts["sequence"], facts["field"], facts["planned"], facts["found"]) == (0, "x", 3, 4)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            other(lambda n: n / 2),
            r"other.<locals>.transform: `.lengths` must .* float64 of shape \(4",
        ),
        (other(lambda n: n[1:]), r"of shape \(4,\), but returned int64 of shape \(3,\). Return an"),
        (
            other(lambda n: n - 5),
            "`.lengths` must return at least 0, but returned -4 for length 1. Use np.max",
        ),
        (other(3), "`.lengths` must be a function, but is 3"),
        (other(None, axes=3), "`axes` must be a dict of field -> axis, but is 3"),
    ],
)
def test_what_a_transform_says_of_itself_is_checked(transform, message):
    with pytest.raises(ConfigError, match=message):
        make_batch(transform, store=LONG)


def test_a_plan_is_of_the_lengths_that_a_transform_says():
    def fingerprint(transform):
        player = EpochEngine(LONG, PLAIN, EngineOptions(transform=transform))
        return player.describe()["data"]

    half, third = other(lambda n: n // 2), other(lambda n: n // 3)
    assert fingerprint(half) == fingerprint(other(lambda n: n >> 1)) != fingerprint(third)


@pytest.mark.parametrize(
    ("transform", "shift", "message"),
    [
        (lambda s, r: {**s, "more": s["x"]}, 1, r"there are x, more. Name one, .*=\{'x': 1\}"),
        (lambda s, r: {"y": 3}, 1, "there are none. Leave `shift` out"),
        (
            lambda s, r: s,
            {"token": 1},
            "axis 'time': no field 'token'. Choose one of x",
        ),
        (lambda s, r: {"targets": s["x"]}, 1, "but the transform returns one"),
        (lambda s, r: s, -1, "`shift` must be an integer of at least 0 .*, but is -1"),
    ],
)
def test_a_shift_names_what_the_transform_gives(transform, shift, message):
    with pytest.raises(ConfigError, match=message):
        make_batch(transform, store=LONG, shift=shift)


def test_an_error_of_ours_in_a_transform_gets_the_sequence():
    def fail(sequence, rng):
        raise DecodeError.at("frame 3 is not there", frame=3)

    with pytest.raises(
        DecodeError, match=r"not there\n  in the transform of sequence 's9'"
    ) as error:
        make_batch(fail, store=LONG)
    assert error.value.details.items() >= {"frame": 3, "sequence": 0, "batch": 0}.items()


def to_peak(sequence, rng):
    return {"x": sequence["x"] / sequence["x"].max()}


@columnar
def to_peaks(columns, seeds):
    x = columns["x"]
    peaks = np.maximum.reduceat(x.values, np.cumsum(x.lengths) - x.lengths)
    return {"x": Ragged(x.values / np.repeat(peaks, x.lengths), x.lengths)}


@pytest.mark.parametrize("transform", [to_peak, to_peaks])
@pytest.mark.parametrize("options", [{}, {"on_error": "mask"}, {"world": World(1, 2)}])
def test_idle_lanes_are_not_transformed(transform, options):
    rows = [np.full(3, number + 1.0) for number in range(3)]
    loader = Loader(rows, TBPTT(2, 3), transform=transform, **options)
    batches = list(loader)
    assert [batch.lengths.tolist() for batch in batches][-1][-1] == 0  # an idle lane
    values = np.concatenate([batch["x"][batch.weight > 0].flatten() for batch in batches])
    assert set(values.tolist()) == {1.0}
    assert not loader.errors


def test_idle_lanes_are_no_errors_where_another_row_is_one():
    rows = [np.full(3, value) for value in (-1.0, 2.0, -1.0)]

    def positive(sequence, rng):
        if sequence["x"].max() < 0:
            raise ValueError("negative")
        return to_peak(sequence, rng)

    loader = Loader(rows, TBPTT(2, 3, shuffle=False), transform=positive, on_error="mask")
    batches = list(loader)
    assert [batch.weight.tolist() for batch in batches] == [[0.0, 1.0], [0.0, 0.0]]
    assert [entry["sequence"] for entry in loader.errors] == [0, 2]


@dataclass(frozen=True)
class CountedDouble:
    """Repeats each value, and writes a line for each call."""

    calls: Path

    def __call__(self, sequence, rng):
        with open(self.calls, "a") as file:
            file.write(f"{len(sequence['x'])}\n")
        return {"x": np.repeat(sequence["x"], 2) + rng.integers(1 << 40)}

    def lengths(self, lengths):
        return lengths * 2


def spoil(samples):
    """Write into what a collate function gets, which is its own."""
    parts = [sample["x"].clone() for sample in samples]
    for sample in samples:
        sample["x"][:] = -1
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_lanes_transform_a_sequence_once_however_many_chunks_it_has(num_workers, tmp_path):
    """Once per process: batches of one sequence may be made by several workers."""
    store = MemoryStore.from_sequences([{"x": np.arange(n) + 1} for n in (30, 47, 5, 61, 18)])
    policy, calls = TBPTT(lanes=2, chunk=3), tmp_path / "calls"
    options = {"transform": CountedDouble(calls), "num_workers": num_workers, "seed": 3}
    batches = [batch["x"].clone() for batch in Loader(store, policy, **options)]
    assert 5 <= len(calls.read_text().splitlines()) <= 5 * max(1, num_workers)
    spoiled = list(Loader(store, policy, collator=spoil, **options))
    for batch, again in zip(batches, spoiled, strict=True):
        assert torch.equal(batch[:, : again.shape[1]], again)
    loader = Loader(store, policy, **options)
    for _ in zip(range(11), loader, strict=False):
        state = loader.state_dict()
    resumed = Loader(store, policy, **options)
    resumed.load_state_dict(state)
    for batch, again in zip(batches[state["position"] :], resumed, strict=True):
        assert torch.equal(batch, again["x"])
