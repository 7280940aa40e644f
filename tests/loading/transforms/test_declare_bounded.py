"""A transform may change lengths at random up to a bound: planned by it, delivered as they are."""

import numpy as np
import pytest
import torch

from seqdata.errors import ConfigError, DecodeError
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.mix import Mix, Part
from seqdata.policies.packed import Packed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted
from seqdata.policies.windows import Windows
from seqdata.policies.zip import Zip
from seqdata.sharing import World

LENGTHS = np.random.default_rng(0).integers(1, 60, 40)
ROWS = [{"x": np.arange(1, n + 1, dtype=np.float32), "y": n} for n in LENGTHS.tolist()]


def speed(sequence, rng):
    count = max(1, int(len(sequence["x"]) * rng.uniform(0.9, 1.1)))
    at = np.linspace(0, len(sequence["x"]) - 1, count).astype(int)
    return {"x": sequence["x"][at], "y": sequence["y"]}


speed.max_length = lambda lengths: lengths * 1.1


def content(loader):
    return [
        (int(one), row[:length].tolist())
        for batch in loader
        for one, row, length in zip(batch.ids, batch["x"], batch.lengths.tolist(), strict=True)
        if length
    ]


@pytest.mark.parametrize("policy", [Bucketed(8), TokenBudget(100), Fixed(8, shuffle=False)])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_lengths_are_true_masks_too_and_padding_is_zero(policy, prefetch):
    seen = []
    for batch in Loader(ROWS, policy, transform=speed, seed=3, prefetch=prefetch):
        batch.validate()
        assert batch["x"].shape[1] == int(batch.lengths.max())
        assert torch.equal(batch["x"] > 0, batch.mask)  # every true value is above 0
        assert batch.num_tokens == int(batch.lengths.sum())
        assert batch.num_tokens <= batch.global_num_tokens
        seen += batch.ids.tolist()
        lengths = LENGTHS[batch.ids.numpy()]
        assert (batch.lengths.numpy() <= np.floor(lengths * 1.1 + 1e-6)).all()
        assert (batch.lengths.numpy() >= np.floor(lengths * 0.9)).all()
    assert sorted(seen) == list(range(40))


def test_a_budget_holds_for_the_bound():
    batches = list(Loader(ROWS, TokenBudget(100), transform=speed))
    assert all(batch["x"].numel() <= 100 for batch in batches)
    assert any(int(batch.lengths.sum()) != batch.global_num_tokens for batch in batches)


def test_ranks_resumes_and_prefetch_give_the_same():
    options = {"transform": speed, "seed": 5}
    whole = dict(content(Loader(ROWS, Bucketed(8), **options)))
    ranks = [Loader(ROWS, Bucketed(8), world=World(rank, 2), **options) for rank in range(2)]
    assert dict(pair for one in ranks for pair in content(one)) == whole
    counts = [[batch.global_num_tokens for batch in one] for one in ranks]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("collator", ["padded", "varlen", "packed"])
def test_a_shift_and_other_layouts_follow_the_true_length(collator):
    rows = [row for row in ROWS if row["y"] > 2]  # none that ends up empty
    loader = Loader(rows, Fixed(8), transform=speed, shift=1, collator=collator)
    for batch in loader:
        real = batch.lengths
        if collator == "varlen":
            assert len(batch["x"]) == len(batch["targets"]) == int(real.sum())
        elif collator == "padded":
            for x, targets, length in zip(batch["x"], batch["targets"], real.tolist(), strict=True):
                assert targets[: length - 1].tolist() == x[1:length].tolist()
        assert torch.equal(batch.weight > 0, real > 0)


def test_packed_rows_hold_what_there_is():
    for batch in Loader(ROWS, Packed(2, 80), transform=speed, collator="varlen"):
        assert len(batch["x"]) == int(batch.lengths.sum()) == int((batch["x"] > 0).sum())


def test_a_collate_fn_gets_true_lengths():
    (rows,) = Loader(ROWS, Fixed(40, shuffle=False), transform=speed, collator=lambda rows: rows)
    assert [bool((row["x"] > 0).all()) for row in rows] == [True] * 40
    assert [len(row["x"]) for row in rows] != LENGTHS.tolist()


def test_the_later_parts_of_a_split_sequence_may_be_shorter_or_empty():
    policy = Fixed(4, max_length=10, too_long="split")
    found = {}
    for batch in Loader(ROWS, policy, transform=speed):
        for one, start, row, n, weight in zip(
            batch.ids, batch.start, batch["x"], batch.lengths, batch.weight, strict=True
        ):
            found.setdefault(int(one), {})[int(start)] = row[: int(n)].tolist()
            assert bool(weight) == bool(n)
    whole = dict(content(Loader(ROWS, Fixed(4), transform=speed)))
    joined = {
        one: [value for at in sorted(parts) for value in parts[at]] for one, parts in found.items()
    }
    assert joined == whole


def test_more_than_the_bound_is_an_error():
    def doubled(sequence, rng):
        return {"x": np.repeat(sequence["x"], 2)}

    doubled.max_length = lambda lengths: lengths
    with pytest.raises(
        DecodeError, match=r"but at most .* are planned. Change the transform, or its `.max_length`"
    ):
        list(Loader(ROWS, Bucketed(8), transform=doubled))


def test_masked_rows_and_true_lengths_go_together():
    def fails(sequence, rng):
        if sequence["y"] == LENGTHS[3]:
            raise ValueError("told to fail")
        return speed(sequence, rng)

    fails.max_length = speed.max_length
    loader = Loader(ROWS, Fixed(8, shuffle=False), transform=fails, on_error="mask", max_errors=40)
    first = next(iter(loader))
    assert first.weight.tolist()[3] == 0
    assert torch.equal((first["x"] > 0).sum(1)[:3], first.lengths[:3])


@pytest.mark.parametrize(
    ("policy", "options", "said"),
    [
        (TBPTT(2, 4), {}, r"TBPTT\(.* needs exact lengths, .*random"),
        (Windows(4), {}, "windows need exact lengths"),
        (Fixed(4), {"on_error": "replace"}, "`on_error='replace'` needs exact lengths"),
        (Fixed(4, max_length=5, too_long="truncate", keep="last"), {}, "`keep='last'` needs exact"),
    ],
)
def test_what_needs_exact_lengths_is_refused(policy, options, said):
    with pytest.raises(ConfigError, match=said):
        len(Loader(ROWS, policy, transform=speed, **options))


def test_attributes_that_are_invalid_are_refused():
    def both(sequence, rng):
        return sequence

    both.lengths = both.max_length = lambda lengths: lengths
    with pytest.raises(ConfigError, match=r"must have `.lengths` or `.max_length`, but has both"):
        Loader(ROWS, Fixed(4), transform=both)
    both.lengths, both.max_length = None, 7
    with pytest.raises(ConfigError, match=r"`.max_length` must be a function, but is 7"):
        Loader(ROWS, Fixed(4), transform=both)
    both.max_length = lambda lengths: lengths.sum()
    with pytest.raises(ConfigError, match=r"`.max_length` must return integers .*Return an"):
        Loader(ROWS, Fixed(4), transform=both)
    both.max_length = lambda lengths: -lengths
    with pytest.raises(ConfigError, match=r"`.max_length` must return at least 0"):
        Loader(ROWS, Fixed(4), transform=both)


@pytest.mark.parametrize("name", ["lengths", "max_length"])
def test_a_law_of_lengths_that_raises_stop_iteration_is_named(name):
    def keep(sequence, rng):
        return sequence

    def law(lengths):
        return next(iter(()))

    setattr(keep, name, law)
    with pytest.raises(
        ConfigError, match=rf"keep: `.{name}` \(.*law\) must return a value, but raised StopI"
    ):
        Loader(ROWS, Fixed(4), transform=keep)


@pytest.mark.nightly
def test_workers_deliver_the_same():
    options = {"transform": speed, "seed": 5}
    assert content(Loader(ROWS, Bucketed(8), num_workers=2, **options)) == content(
        Loader(ROWS, Bucketed(8), **options)
    )


def test_wrapped_policies_of_parts_are_looked_at_too():
    last = Weighted(Bucketed(8, max_length=40, too_long="truncate", keep="last"))
    for policy in (Zip({"a": last, "b": Fixed(4)}), Mix({"a": Part(1, last), "b": 1}, Fixed(4))):
        with pytest.raises(ConfigError, match="`keep='last'` needs exact lengths"):
            Loader({"a": ROWS, "b": ROWS}, policy, transform=speed)
