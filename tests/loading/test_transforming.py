"""Transforms in process: what they see, what they may give, how they draw."""

import numpy as np
import pytest

from seqdata.errors import ConfigError, DecodeError
from seqdata.loading.options import PlayOptions
from seqdata.loading.player import Player
from seqdata.loading.transforming import occurrences_of
from seqdata.planning.randomness import Purpose
from seqdata.policies.fixed import Fixed
from seqdata.storage.memory import MemoryStore

STORE = MemoryStore.of(
    [
        {"x": np.arange(n) + 10 * n, "y": n, "v": np.ones(2), "text": np.arange(4), "id": f"s{n}"}
        for n in (4, 2, 3)
    ],
    axes={"text": "text", "v": None},
)
PLAIN = Fixed(3, shuffle=False)


def batch(transform, store=STORE, policy=PLAIN, epoch=0, **options):
    options = {"prefetch": 0, **options}
    return next(Player(store, policy, PlayOptions(transform=transform, **options)).play(epoch, 0))


def test_it_sees_one_sequence_by_field():
    seen = []

    def look(sequence, rng):
        seen.append({name: np.asarray(value).tolist() for name, value in sequence.items()})
        return sequence

    batch(look)
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

    made = batch(change).validate()
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

    assert batch(double)["x"][1].tolist() == [40, 42, 0, 0]
    assert batch(lambda sequence, rng: sequence)["x"][1].tolist() == [20, 21, 0, 0]


def test_it_sees_the_span_and_the_timesteps_past_it():
    seen = []
    policy = Fixed(9, shuffle=False, max_length=2, too_long="split")
    batch(
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
    one = drawn(batch(noise, seed=1))
    assert len(set(one.values())) == 3
    assert drawn(batch(noise, seed=1, policy=Fixed(3), prefetch=2)) == one
    assert drawn(batch(noise, store=STORE.take([2, 0]), seed=1)).items() <= one.items()
    assert set(drawn(batch(noise, seed=2)).values()).isdisjoint(one.values())
    assert set(drawn(batch(noise, seed=1, epoch=1)).values()).isdisjoint(one.values())


def test_draws_are_keyed_as_the_design_says():
    key = np.array([7, 0], dtype=np.uint64)
    counter = np.array([0, 0, Purpose.TRANSFORM, 1], dtype=np.uint64)
    rng = np.random.Generator(np.random.Philox(key=key, counter=counter))
    assert batch(noise, seed=7)["u"][1].item() == rng.random()


def test_each_occurrence_in_a_view_draws_for_itself():
    view = STORE.take([1, 0, 1, 1])
    made = batch(noise, store=view, policy=Fixed(4, shuffle=False))
    assert made.ids.tolist() == [1, 0, 1, 1]
    assert len(set(made["u"].tolist())) == 4
    assert made["u"][0].item() == batch(noise)["u"][1].item()
    assert occurrences_of(view).tolist() == [0, 0, 1, 2]
    assert occurrences_of(STORE) is None


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (lambda s, r: [s["x"]], "gave list, must give a dict of arrays"),
        (lambda s, r: {"x": s["x"][1:]}, "gave field 'x' 3 timesteps, must keep the planned 4"),
        (lambda s, r: {"new": np.ones(9)}, "gave field 'new' 9 timesteps, must keep the planned 4"),
        (lambda s, r: {"x": 3.0}, "gave field 'x' as 3.0, must be an array"),
        (lambda s, r: {"x": s["x"].astype(object)}, "gave field 'x' as array.*, must be an array"),
    ],
)
def test_a_result_that_does_not_fit_is_an_error_naming_the_sequence(transform, message):
    match = (
        f"transform of sequence 's4': {message}(.|\n)*; change the transform(.|\n)*epoch 0, batch 0"
    )
    with pytest.raises(DecodeError, match=match) as caught:
        batch(transform)
    assert caught.value.facts["sequence"] == 0


@pytest.mark.parametrize(
    "transform",
    [
        lambda s, r: {"x": s["x"].astype("f4" if s["y"] == 2 else "f8")},
        lambda s, r: {"x": s["x"], "y": 1} if s["y"] == 2 else {"x": s["x"]},
        lambda s, r: {"x": s["x"]} if s["y"] == 2 else {"x": s["x"], "y": 1},
        lambda s, r: {"x": np.ones((len(s["x"]), int(s["y"])))},
        lambda s, r: {"id": "a" if s["y"] == 2 else b"a"},
    ],
    ids=["dtype", "more fields", "fewer fields", "shape", "text"],
)
def test_results_must_be_alike(transform):
    with pytest.raises(
        DecodeError, match=r"of sequence 's2': gave {.*, must be like {.*} of seq.* 's4'"
    ):
        batch(transform)


def test_what_a_transform_raises_says_where():
    def broken(sequence, rng):
        return {"x": sequence["x"] + 1 // (int(sequence["y"]) - 2)}

    with pytest.raises(ZeroDivisionError) as caught:
        batch(broken)
    assert caught.value.__notes__ == [
        "in the transform of sequence 's2'",
        'seqdata: {"sequence": 1}',
        "in epoch 0, batch 0 (step 0, rank 0 of 1)",
    ]


def test_a_transform_is_a_function():
    with pytest.raises(ConfigError, match="`transform` is 'noise', must be a function"):
        batch("noise")
