"""Items of a Dataset or a list go to a `collate_fn` as they are, whatever they hold."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from seqdata.errors import ConfigError, DecodeError
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.packed import Packed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.windows import Windows

LENGTHS = [3, 1, 4, 1, 5, 9, 2, 6]


class Point(NamedTuple):
    clip: Any
    label: Any


def time_last(n):
    return torch.zeros(2, LENGTHS[n]) + n, n


def nested(n):
    return {"wave": {"left": np.full(LENGTHS[n], n), "right": [n]}, "meta": {"speaker": f"s{n}"}}


def strings(n):
    return f"text {n}"


def nothing(n):
    return None if n % 2 else {"x": np.full(LENGTHS[n], n)}


def changing(n):
    return [n] * n if n % 2 else {"n": n}


def named(n):
    return Point(torch.full((LENGTHS[n] // 2,), n), {"a": None})


def shorter(n):
    return np.full(max(1, LENGTHS[n] - 1), n), n


MAKERS = [time_last, nested, strings, nothing, changing, named, shorter]


class Given(Dataset):
    def __init__(self, make, broken=()):
        self.make, self.broken = make, set(broken)

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, number):
        if number in self.broken:
            raise ValueError(f"item {number} is broken")
        return self.make(number)


def unchanged(items):
    return list(items)


def flatten(batches):
    return [repr(item) for batch in batches for item in batch]


def wanted(make):
    return [repr(make(number)) for number in range(len(LENGTHS))]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("is_list", [True, False])
def test_items_are_passed_as_they_are(make, is_list):
    data = [make(n) for n in range(len(LENGTHS))] if is_list else Given(make)
    batches = list(Loader(data, Fixed(3, shuffle=False), lengths=LENGTHS, collate_fn=unchanged))
    assert flatten(batches) == wanted(make)
    if is_list:
        assert batches[0][0] is data[0]


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.slow
def test_workers_pass_them_too(method):
    options = {"lengths": LENGTHS, "collate_fn": unchanged, "seed": 3}
    here = list(Loader(Given(nested), Bucketed(2), **options))
    loader = Loader(
        Given(nested), Bucketed(2), num_workers=2, start_method=method, stall_timeout=900, **options
    )
    assert flatten(loader) == flatten(here)
    loader.shutdown()


def test_the_lengths_plan_the_batches_and_a_function_counts_them():
    options = {"batching": Bucketed(2, shuffle=False), "collate_fn": unchanged}
    by_array = flatten(Loader(Given(strings), lengths=LENGTHS, **options))
    assert by_array[:2] == ["'text 5'", "'text 7'"]

    def count(item):
        return LENGTHS[int(item.split()[1])]

    assert flatten(Loader(Given(strings), lengths=count, **options)) == by_array
    assert flatten(Loader([strings(n) for n in range(8)], lengths=count, **options)) == by_array


def test_a_run_resumes_and_replays_a_batch():
    def loader():
        return Loader(Given(nothing), Bucketed(2), lengths=LENGTHS, collate_fn=unchanged, seed=1)

    first = loader()
    whole = flatten(first)
    again = loader()
    batches = iter(again)
    seen = flatten([next(batches), next(batches)])
    state = again.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    assert seen + flatten(resumed) == whole
    data = SequenceDataModule(
        train=Given(nothing), lengths=LENGTHS, batching=Bucketed(2), collate_fn=unchanged, seed=1
    )
    assert flatten(data.train_dataloader()) == whole
    assert [repr(item) for item in data.replay(epoch=0, batch=1)["collated"]] == whole[2:4]


def test_views_parts_and_mixtures_pass_them():
    options = {"lengths": LENGTHS, "collate_fn": unchanged}
    data = SequenceDataModule(
        train=Given(strings), split={"train": 0.5, "val": 0.5}, batching=Fixed(2, shuffle=False),
        **options,
    )  # fmt: skip
    halves = [*data.train_dataloader()], [*data.val_dataloader()]
    assert sorted(flatten(halves[0]) + flatten(halves[1])) == wanted(strings)
    mix = Mix({"a": 1, "b": 1}, Fixed(2, shuffle=False))
    both = {"a": Given(time_last), "b": [nested(n) for n in range(8)]}
    found = flatten(Loader(both, mix, **(options | {"lengths": {"a": LENGTHS, "b": LENGTHS}})))
    assert sorted(found) == sorted(wanted(time_last) + wanted(nested))


def test_a_dataset_that_has_fields_keeps_them_for_the_arguments_that_need_them():
    rows = [{"x": np.arange(n), "y": n % 2} for n in LENGTHS]
    data = SequenceDataModule(
        train=rows, lengths=LENGTHS, where={"y": 1}, batching=Fixed(8, shuffle=False),
        collate_fn=unchanged,
    )  # fmt: skip
    (items,) = data.train_dataloader()
    assert all(item is row for item, row in zip(items, [r for r in rows if r["y"]], strict=True))
    (items,) = Loader(
        rows, Fixed(8, shuffle=False), lengths=LENGTHS, collate_fn=unchanged, fields=["x"]
    )
    assert [list(item) for item in items] == [["x"]] * 8


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batching": Windows(2)}, "a policy that cuts sequences in windows"),
        ({"batching": TBPTT(2, 2)}, "a policy that cuts sequences in chunks"),
        ({"batching": Fixed(2, max_length=2, too_long="split")}, "`too_long='split'`"),
        ({"transform": lambda sequence, rng: sequence}, "a transform"),
        ({"dtype": "float32"}, "`dtype`"),
    ],
)
def test_what_needs_fields_is_refused_by_name(options, named):
    options = {"batching": Fixed(2), "lengths": LENGTHS, "collate_fn": unchanged, **options}
    message = f"passed whole to the `collate_fn`, but {named} needs their fields.*item 0, field"
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        Loader(Given(nested), **options)


def test_a_row_of_several_sequences_is_refused():
    with pytest.raises(ConfigError, match="a `collate_fn` takes one sequence per row, but rows of"):
        list(Loader(Given(nested), Packed(1, 20), lengths=LENGTHS, collate_fn=unchanged))


def test_without_a_collate_fn_items_must_have_fields():
    with pytest.raises(DecodeError, match="dataset: item 0, field 'wave'"):
        Loader(Given(nested), Fixed(2), lengths=LENGTHS)


def test_two_collators_and_a_collator_as_collate_fn_are_refused():
    with pytest.raises(ConfigError, match="`collator` and `collate_fn` cannot both be given"):
        Loader(Given(nested), Fixed(2), lengths=LENGTHS, collate_fn=unchanged, collator="padded")
    with pytest.raises(ConfigError, match=r"`collate_fn` must be a function of one argument"):
        Loader(Given(nested), Fixed(2), lengths=LENGTHS, collate_fn=max)


@pytest.mark.parametrize("on_error", ["mask", "replace"])
def test_an_item_that_fails_gives_its_row_to_another(on_error):
    def collate(items):
        return {"text": items}

    loader = Loader(
        Given(strings, broken=[1]), Fixed(4, shuffle=False), lengths=LENGTHS, collate_fn=collate,
        as_tuple=("text", "weight"), on_error=on_error,
    )  # fmt: skip
    (text, weight), _ = loader
    assert text == ["text 0", "text 2", "text 2", "text 3"]
    assert weight.tolist() == [1, float(on_error == "replace"), 1, 1]


def test_an_item_that_fails_is_named():
    with pytest.raises(ValueError, match="item 5 is broken") as caught:
        list(Loader(Given(strings, broken=[5]), Fixed(2), lengths=LENGTHS, collate_fn=unchanged))
    assert "in item 5 of the dataset" in caught.value.__notes__
