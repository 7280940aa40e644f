"""Zipped parts: options, transforms, layouts and policies of each part, and what is refused."""

import numpy as np
import pytest
import torch

from seqdata import (
    ConfigError,
    Curriculum,
    DataError,
    Fixed,
    Loader,
    Mix,
    Packed,
    Part,
    PlanError,
    Weighted,
    Windows,
    Zip,
    measure_lengths,
    write_store,
)
from tests.loading.loaders import ZIP, make_zip_data, make_zip_rows, play_whole_zip, play_zip
from tests.samples import add_noise


def test_options_that_name_fields_concern_the_parts_that_have_them():
    options = {"fields": ("x", "y"), "dtype": {"x": "float32", "y": "float64"}}
    step = next(iter(Loader(make_zip_data(), ZIP, **options)))
    assert step["labelled"]["x"].dtype == step["unlabelled"]["x"].dtype == torch.float32
    assert step["labelled"]["y"].dtype == torch.float64
    assert list(step["unlabelled"].keys()) == ["x"]
    only = next(iter(Loader(make_zip_data(), ZIP, dtype={"y": "float64"}, fields=("y", "x"))))
    assert only["unlabelled"]["x"].dtype == torch.int64


def test_a_dict_has_the_names_that_its_part_has():
    step = next(iter(Loader(make_zip_data(), ZIP, as_dict=("x", "y", "weight", "part"))))
    assert list(step["labelled"]) == ["x", "y", "weight", "part"]
    assert list(step["unlabelled"]) == ["x", "weight", "part"]


def test_a_tuple_has_the_same_names_for_all_parts():
    step = next(iter(Loader(make_zip_data(), ZIP, as_tuple=("x", "lengths", "weight"))))
    assert [len(part) for part in step.values()] == [3, 3]
    with pytest.raises(ConfigError, match=r"part 'unlabelled': loader: no field 'y'"):
        Loader(make_zip_data(), ZIP, as_tuple=("x", "y", "weight"))


def test_a_shift_is_that_of_the_field_where_it_is():
    text = {"text": [{"tokens": np.arange(9)}] * 6, "labelled": make_zip_rows(9, 1)}
    policy = Zip({"text": Fixed(2), "labelled": Fixed(2)})
    for step in Loader(text, policy, shift={"tokens": 1}):
        assert step["text"]["targets"][0].tolist() == list(range(1, 9))
        assert step["text"].lengths.tolist() == [8] * len(step["text"])
        assert "targets" not in step["labelled"]


def test_augmentation_is_that_of_the_parts_own_epoch_and_differs_between_parts():
    same = make_zip_rows(6, 1)
    policy = Zip({"a": Fixed(2), "b": Fixed(6)}, lead="a")
    found = {}
    loader = Loader({"a": same, "b": same}, policy, transform=add_noise)
    for step in (step for _ in range(2) for step in loader):
        for name, batch in step.items():
            for number, value in zip(batch.ids.tolist(), batch["r"].tolist(), strict=True):
                found[name, batch.part_epoch, number] = tuple(value)
    assert len(set(found.values())) == len(found) == 12 + 36


def test_random_crops_are_those_of_the_parts_own_epoch():
    long = [{"x": np.arange(400)} for _ in range(3)]
    windows = Windows(3, batch_size=3, random=True, per_sequence=1)
    policy = Zip({"a": Fixed(1), "b": windows}, lead="a")
    loader = Loader({"a": long, "b": long}, policy, transform=add_noise)
    starts = [tuple(step["b"].start.tolist()) for _ in range(2) for step in loader]
    assert len(set(starts)) == 6
    again = Loader({"a": long, "b": long}, policy, transform=add_noise)
    assert [tuple(step["b"].start.tolist()) for _ in range(2) for step in again] == starts


def doubled(sequence, rng):
    return {**sequence, "x": np.repeat(sequence["x"], 2)}


def test_each_part_may_carry_a_transform_of_its_own(tmp_path):
    parts = make_zip_data()
    parts["unlabelled"] = measure_lengths(
        write_store(tmp_path / "u", parts["unlabelled"]), doubled, cache=False
    )
    policy = Zip({"labelled": Fixed(4), "unlabelled": Fixed(4)}, lead="labelled")
    loader = Loader(parts, policy)
    step = next(iter(loader))
    own = step["unlabelled"]
    lengths = [2 * len(make_zip_data()["unlabelled"][number]["x"]) for number in own.ids.tolist()]
    assert own.lengths.tolist() == lengths
    assert list(step["labelled"].keys()) == ["x", "y"]
    assert "unlabelled: " in loader.state_dict()["transform"]


def test_windows_with_a_future_are_zipped_with_whole_sequences():
    long = [{"x": np.arange(20)} for _ in range(3)]
    policy = Zip({"a": Windows(4, horizon=2, batch_size=2, stride=2), "b": Fixed(2)})
    step = next(iter(Loader({"a": long, "b": make_zip_rows(5, 1)}, policy)))
    assert step["a"].future["x"].shape == (2, 2)
    assert step["b"].horizon == 0


def test_packed_rows_and_weights_are_those_of_their_part():
    weights = np.arange(1, 42)
    policy = Zip(
        {
            "labelled": Weighted(Fixed(4), weights, importance=True),
            "unlabelled": Packed(2, 40),
        },
        lead="labelled",
    )
    for step in Loader(make_zip_data(), policy):
        batch = step["labelled"]
        p = weights[batch.ids.numpy()] / weights.sum()
        assert np.allclose(batch.weight.numpy(), 1 / (41 * p))
        assert step["unlabelled"].segments is not None
        assert (step["unlabelled"].weight == 1).all()


def test_stores_on_disk_are_read_through(tmp_path):
    for name, part in make_zip_data().items():
        write_store(tmp_path / name, part)
    paths = {name: tmp_path / name for name in make_zip_data()}
    assert play_zip(Loader(paths, ZIP, seed=5)) == play_whole_zip()[0]


def test_the_same_store_may_be_two_parts(tmp_path):
    store = write_store(tmp_path / "one", make_zip_rows(30, 1))
    policy = Zip({"a": Fixed(3), "b": Fixed(3)})
    for step in Loader({"a": store, "b": store}, policy):
        assert step["a"].ids.tolist() != step["b"].ids.tolist()


@pytest.mark.parametrize(
    ("parts", "options", "said"),
    [
        ({"labelled": []}, {}, r"'labelled' must have at least one sequence|labelled"),
        ({}, {"fields": ("z",)}, r"`fields`: no field 'z'"),
        (
            {},
            {"fields": ("y",)},
            r"`fields` must name at least one field of part 'unlabelled', .* Add one of x",
        ),
        ({}, {"shift": {"z": 1}}, r"part 'labelled': loader: `shift`: no field 'z'"),
        ({"labelled": None}, {}, r"data: part 'labelled'"),
    ],
)
def test_a_part_that_does_not_fit_is_named(parts, options, said):
    with pytest.raises((ConfigError, DataError), match=said):
        Loader({**make_zip_data(), **parts}, ZIP, **options)


def test_missing_and_unknown_parts_are_named():
    with pytest.raises(ConfigError, match="part 'unlabelled' must be in the data"):
        Loader({"labelled": make_zip_rows(3, 1)}, ZIP)
    with pytest.raises(ConfigError, match="'more' of the data must have a policy"):
        Loader({**make_zip_data(), "more": make_zip_rows(3, 1)}, ZIP)
    with pytest.raises(ConfigError, match="policy 'zip': the data must be several named stores"):
        Loader(make_zip_rows(3, 1), ZIP)


def test_a_part_without_a_batch_is_named():
    parts = {**make_zip_data(), "unlabelled": [{"x": np.zeros(0, np.int64)}] * 3}
    with pytest.raises(PlanError, match=r"part 'unlabelled' must have a sequence to draw"):
        Loader(parts, ZIP)


def test_a_policy_around_a_zip_goes_into_its_parts():
    with pytest.raises(ConfigError, match=r"'weighted': .* is a Zip. To weight .* part, write Zip"):
        Weighted(ZIP, draws=10)
    with pytest.raises(ConfigError, match=r"'curriculum': .* is a Zip. Limit the lengths of a pa"):
        Curriculum(ZIP, max_length=[(0, 3)])

    class Around:
        axis, inner_policy, policies = "time", ZIP, {}

        def plan(self, index, *, seed, epoch):
            return ZIP.plan(index, seed=seed, epoch=epoch)

        def num_batches(self, index):
            return ZIP.num_batches(index)

    with pytest.raises(ConfigError, match=r"a Around must wrap the policy of a part, but"):
        Loader({"labelled": make_zip_rows(3, 1), "unlabelled": make_zip_rows(3, 2)}, Around())


def test_importance_weights_are_those_of_a_policy_that_is_wrapped():
    drawn = Weighted(Fixed(3), "w", draws=30, importance=True)
    staged = Curriculum(drawn, max_length=[(0, 50), (1, None)])
    rows = [{"x": np.ones(3), "w": 1.0 + number % 3} for number in range(12)]
    plain = [{"x": np.ones(3), "w": 1.0} for _ in range(30)]
    weights = [
        torch.cat([step["a"].weight for step in Loader({"a": rows, "b": plain}, policy)])
        for policy in (Zip({"a": drawn, "b": Fixed(3)}), Zip({"a": staged, "b": Fixed(3)}))
    ]
    assert len(weights[0].unique()) == 3
    assert torch.equal(weights[0].unique(), weights[1].unique())
    mixed = Loader({"a": rows, "b": plain}, Mix({"a": Part(1, staged), "b": 1}, Fixed(3)))
    found = torch.cat([batch.weight for batch in mixed if batch.part == "a"])
    assert set(found.tolist()) <= set(weights[0].tolist())
    assert set(found.tolist()) != {1.0}


def test_windows_with_a_future_may_be_drawn_by_weight():
    crops = Weighted(Windows(4, horizon=2, random=True, batch_size=3), "w", draws=30)
    rows = [{"x": np.ones(20), "w": 1.0 + number % 3} for number in range(12)]
    steps = list(Loader({"a": rows, "b": rows}, Zip({"a": crops, "b": Fixed(3)})))
    assert {step["a"].horizon for step in steps} == {2}
    mixed = list(Loader({"a": rows, "b": rows}, Mix({"a": Part(1, crops), "b": Part(1, crops)})))
    assert {batch.horizon for batch in mixed} == {2}


def test_a_curriculum_of_a_fixed_number_of_draws_may_be_a_part():
    short_first = Curriculum(Weighted(Fixed(4), draws=40), max_length=[(0, 5), (1, None)])
    policy = Zip({"labelled": Fixed(4), "unlabelled": short_first}, lead="unlabelled")
    loader = Loader(make_zip_data(), policy)
    longest = [max(int(step["unlabelled"].lengths.max()) for step in loader) for _ in range(2)]
    assert longest[0] <= 5 < longest[1]
