"""Sequences drawn by weight: how often each comes, what its batches are, and what is refused."""

from fractions import Fraction

import numpy as np
import pytest

import seqdata
from seqdata.errors import ConfigError, PlanError
from seqdata.index import SequenceIndex
from seqdata.planning.build import describe_policy
from seqdata.planning.draws import MAX_DRAWS, DrawRates
from seqdata.planning.randomness import Draw
from seqdata.policies.curriculum import Curriculum
from seqdata.policies.fixed import Bucketed, Fixed, Sorted
from seqdata.policies.mix import Mix, Part
from seqdata.policies.packed import Packed
from seqdata.policies.tbptt import TBPTT
from seqdata.policies.token_budget import TokenBudget
from seqdata.policies.weighted import Weighted, balanced
from seqdata.policies.windows import Windows
from seqdata.storage.memory import MemoryStore

INNER = [Fixed(4), Sorted(4), Bucketed(4), TokenBudget(64), Packed(2, 64), Windows(3, batch_size=4)]
LENGTHS = np.random.default_rng(0).integers(3, 30, 200)
WEIGHTS = np.random.default_rng(1).integers(0, 9, 200).astype(float)


def index_of(lengths=LENGTHS):
    return SequenceIndex.from_lengths(lengths)


def store_of(weights, lengths=LENGTHS, **fields):
    rows = [
        {"x": np.full(size, float(k)), "weight": weight, **{n: v[k] for n, v in fields.items()}}
        for k, (size, weight) in enumerate(zip(lengths, weights, strict=True))
    ]
    return MemoryStore.from_sequences(rows, {"weight": None, **dict.fromkeys(fields)})


def counts(plan, n=200):
    return np.bincount(plan.spans[:, 0], minlength=n)


def may_be(found, weights, draws):
    """Whether each count is draws * p, rounded down or up: in fractions."""
    exact = [Fraction(float(weight)) for weight in weights]
    total = sum(exact)
    due = [draws * weight / total for weight in exact]
    return all(int(one) in (k // 1, -(-k // 1)) for one, k in zip(found, due, strict=True))


@pytest.mark.parametrize("inner", INNER[:4], ids=lambda policy: type(policy).__name__)
def test_each_sequence_is_drawn_as_often_as_expected_rounded_down_or_up(inner):
    policy = Weighted(inner, WEIGHTS, draws=333)
    for epoch in range(4):
        found = counts(policy.plan(index_of(), seed=3, epoch=epoch))
        assert found.sum() == 333
        assert may_be(found, WEIGHTS, 333)
        assert not found[WEIGHTS == 0].any()


def test_integer_expectations_are_met_exactly():
    for weights in ([1, 2, 3], [0.1, 0.2, 0.3], [1e-300, 2e-300, 3e-300], [1e308, 2e307, 3e307]):
        draws = 15 if weights[0] > 1e300 else 6
        due = [10, 2, 3] if draws == 15 else [1, 2, 3]
        for epoch in range(5):
            plan = Weighted(Fixed(2), weights, draws=draws).plan(
                index_of([4, 5, 6]), seed=0, epoch=epoch
            )
            assert counts(plan, 3).tolist() == due


def test_equal_weights_draw_each_sequence_once():
    for weights in (None, np.full(200, 0.3), np.ones(200, dtype=int), np.ones(200, dtype=bool)):
        plan = Weighted(Bucketed(8), weights).plan(index_of(), seed=0, epoch=2)
        assert (counts(plan) == 1).all()


@pytest.mark.parametrize("weights", [WEIGHTS, None], ids=["weights", "uniform"])
def test_the_mean_over_epochs_and_seeds_is_the_expectation(weights):
    policy = Weighted(Fixed(16), weights, draws=130)
    found = np.mean(
        [counts(policy.plan(index_of(), seed=k % 7, epoch=k)) for k in range(400)], axis=0
    )
    due = policy.expected_draws(index_of())
    assert np.isclose(due.sum(), 130)
    assert np.abs(found - due).max() < 5 * 0.5 / np.sqrt(400)


def test_which_sequences_are_drawn_together_is_random():
    rates = DrawRates.from_weights(np.ones(40), 20)
    together = np.zeros((40, 40))
    for epoch in range(600):
        drawn = rates.draw_numbers(Draw(0, epoch))
        together[np.ix_(drawn, drawn)] += 1
    apart = together[~np.eye(40, dtype=bool)] / 600
    assert 0.13 < apart.min() < apart.max() < 0.36  # 0.244; neighbours are neither tied nor apart


def test_more_sequences_meet_in_an_epoch_than_by_independent_draws():
    weights = np.random.default_rng(5).lognormal(0, 1.5, 100_000)
    rates = DrawRates.from_weights(weights, len(weights))
    met = np.count_nonzero(rates.count(Draw(0, 0))) / len(weights)
    by_chance = np.mean(1 - np.exp(-rates.to_float()))
    assert met > 1.1 * by_chance


@pytest.mark.parametrize("inner", INNER, ids=lambda policy: type(policy).__name__)
def test_an_epoch_is_a_pure_function_and_epochs_differ(inner):
    policy = Weighted(inner, WEIGHTS)
    plans = [policy.plan(index_of(), seed=s, epoch=e) for s, e in ((1, 1), (1, 1), (1, 2), (2, 1))]
    tables = [plan.spans.tolist() for plan in plans]
    assert tables[0] == tables[1] != tables[2] != tables[3] != tables[0]
    assert plans[0].fingerprint == plans[1].fingerprint
    assert len({plan.fingerprint for plan in plans}) == 3
    for plan in plans:
        numbers = np.arange(len(plan))
        spans = np.concatenate([plan.batch(k).spans for k in numbers])
        assert np.array_equal(spans, plan.spans)
        assert plan.totals(0, len(plan))[0] == (spans[:, 2] - spans[:, 1]).sum()


@pytest.mark.parametrize("inner", INNER, ids=lambda policy: type(policy).__name__)
def test_the_number_of_batches_is_known_before(inner):
    policy, index = Weighted(inner, WEIGHTS, draws=150), index_of()
    for seed, epoch in ((0, 0), (0, 1), (5, 0), (5, 3)):
        known = policy.count_batches(index, seed=seed, epoch=epoch)
        assert len(policy.plan(index, seed=seed, epoch=epoch)) == known
        if not policy.varies:
            assert known == policy.num_batches(index) == -(-150 // 4)


def test_epochs_vary_where_the_number_of_batches_depends_on_lengths():
    varies = {type(inner).__name__: Weighted(inner).varies for inner in INNER}
    assert varies == {
        "Fixed": False, "Sorted": False, "Bucketed": False, "TokenBudget": True, "Packed": True,
        "Windows": True,
    }  # fmt: skip
    assert Weighted(Bucketed(4, max_length=8, too_long="split")).varies
    assert not Weighted(Windows(3, random=True, per_sequence=2)).varies


def test_what_the_inner_policy_leaves_out_is_not_drawn():
    lengths = np.array([0, 5, 40, 7, 0, 9])
    inner = Fixed(2, max_length=20, too_long="drop")
    policy = Weighted(inner, [9, 1, 9, 1, 9, 0], draws=10)
    plan = policy.plan(index_of(lengths), seed=0, epoch=0)
    assert counts(plan, 6).tolist() == [0, 5, 0, 5, 0, 0]
    assert plan.report.dropped.tolist() == [0, 2, 4, 5]
    assert plan.report.sequences == 2
    assert len(Weighted(inner).plan(index_of(lengths), seed=0, epoch=0).spans) == 3


def test_what_the_inner_policy_refuses_is_named_before_it_is_drawn():
    policy = Weighted(Fixed(2, max_length=20), [1.0, 1e-6], draws=2)
    index = SequenceIndex.from_lengths([5, 40], keys=["a", "far too long"])
    with pytest.raises(PlanError, match=r"sequence 'far too long' has 40 timesteps"):
        policy.num_batches(index)
    without = Weighted(Fixed(2, max_length=20), [1.0, 0.0], draws=2)
    assert without.plan(index, seed=0, epoch=0).spans[:, 0].tolist() == [0, 0]


def test_split_and_truncated_sequences_are_reported_by_their_numbers():
    index = index_of([5, 50, 6, 60])
    split = Weighted(Fixed(2, max_length=20, too_long="split"), [1, 2, 1, 2], draws=6)
    assert split.plan(index, seed=0, epoch=0).report.split.tolist() == [1, 3]
    cut = Weighted(Fixed(2, max_length=20, too_long="truncate"), [1, 2, 1, 2], draws=6)
    assert cut.plan(index, seed=0, epoch=0).report.truncated.tolist() == [1, 3]


def test_weights_come_from_a_field_of_the_store():
    index = SequenceIndex.from_store(store_of(WEIGHTS))
    by_name = Weighted(Fixed(4), "weight", draws=100).plan(index, seed=0, epoch=0)
    by_array = Weighted(Fixed(4), WEIGHTS, draws=100).plan(index, seed=0, epoch=0)
    assert by_name.spans.tolist() == by_array.spans.tolist()
    numbers = np.arange(200)[::-2]
    view = SequenceIndex.from_store(store_of(WEIGHTS).take(numbers))
    drawn = Weighted(Fixed(4), "weight").expected_draws(view)
    assert np.allclose(drawn, 100 * WEIGHTS[numbers] / WEIGHTS[numbers].sum())


@pytest.mark.parametrize("kind", [np.int64, np.float32, str], ids=["int", "float", "str"])
def test_balanced_draws_every_label_equally_often(kind):
    labels = np.random.default_rng(2).choice([1, 2, 7], 200, p=[0.9, 0.07, 0.03])
    index = SequenceIndex.from_store(store_of(WEIGHTS, label=labels.astype(kind).tolist()))
    policy = Weighted(Bucketed(8), balanced("label"), draws=300)
    for epoch in range(3):
        found = counts(policy.plan(index, seed=0, epoch=epoch))
        assert [abs(found[labels == label].sum() - 100) <= 2 for label in (1, 2, 7)] == 3 * [True]


def test_balanced_counts_only_what_is_planned():
    labels = np.array([0, 0, 0, 0, 1, 1])
    lengths = np.array([5, 5, 0, 0, 5, 5])
    index = SequenceIndex.from_store(store_of(np.ones(6), lengths, label=labels))
    due = Weighted(Fixed(2), balanced("label"), draws=4).expected_draws(index)
    assert np.allclose(due, [1, 1, 0, 0, 1, 1])


def test_importance_weights_are_those_of_the_data_as_it_is():
    policy = Weighted(Fixed(7), WEIGHTS, draws=150, importance=True)
    plan = policy.plan(index_of(), seed=0, epoch=1)
    rows = plan.row_weights(range(len(plan)))
    assert rows.dtype == np.float32
    p = WEIGHTS / WEIGHTS.sum()
    assert np.allclose(rows, 1 / ((WEIGHTS > 0).sum() * p[plan.spans[:, 0]]), rtol=1e-5)
    assert Weighted(Fixed(7), WEIGHTS).plan(index_of(), seed=0, epoch=1).row_weights([0]) is None


def test_the_text_of_a_policy_has_all_that_determines_a_plan():
    policy = Weighted(TokenBudget(64, cost=sum), WEIGHTS, draws=7)
    assert describe_policy(policy) == (
        f"Weighted(policy={describe_policy(TokenBudget(64, cost=sum))}, "
        f"weights=WeightArray(200 of digest {policy.weights.digest}), draws=7, importance=False)"
    )
    assert Weighted(Fixed(4), WEIGHTS) == Weighted(Fixed(4), WEIGHTS.tolist())
    assert Weighted(Fixed(4), WEIGHTS) != Weighted(Fixed(4), WEIGHTS + 1)


def test_the_orders_are_those_of_the_first_release():
    plan = Weighted(Fixed(4), [5, 1, 1, 2, 0.5], draws=12).plan(
        index_of([3, 4, 5, 6, 7]), seed=7, epoch=3
    )
    assert plan.spans[:, 0].tolist() == GOLDEN


GOLDEN = [0, 1, 3, 0, 0, 3, 0, 3, 2, 0, 0, 4]


def test_a_policy_that_is_not_of_the_core_draws_too():
    class Pairs:
        axis = "time"

        def plan(self, index, *, seed, epoch):
            return Fixed(2).plan(index, seed=seed, epoch=epoch)

        def num_batches(self, index):
            return Fixed(2).num_batches(index)

    policy = Weighted(Pairs(), WEIGHTS, draws=40)
    assert policy.varies
    assert len(policy.plan(index_of(), seed=0, epoch=0)) == policy.num_batches(index_of()) == 20


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1, -2, 3], r"`weights` must be finite and at least 0, but is -2.0 for sequence 1\. Give"),
        ([1, np.nan, 3], "must be finite and at least 0, but is nan for sequence 1"),
        ([1, 2, np.inf], "must be finite and at least 0, but is inf for sequence 2"),
        ([0, 0, 0], "must be above 0 for at least one sequence, but all are 0"),
        ([[1, 2, 3]], r"one number per sequence, but has dtype int64 and shape \(1, 3\)"),
        ([[1], [1, 2]], r"one number per sequence, but has dtype object and shape \(2,\)"),
        (["a", "b", "c"], r"must be an array of one number per .* dtype <U1 and shape \(3,\)"),
    ],
)
def test_weights_that_mean_nothing_are_refused(weights, said):
    with pytest.raises(ConfigError, match=said):
        Weighted(Fixed(2), weights)


def test_weights_of_another_length_are_refused():
    policy = Weighted(Fixed(2), [1, 2])
    with pytest.raises(ConfigError, match="a value for each of 3 sequences, but has 2"):
        policy.num_batches(index_of([4, 5, 6]))


def test_fields_that_hold_no_weights_are_refused():
    weights = WEIGHTS.copy()
    weights[17] = -1
    index = SequenceIndex.from_store(store_of(weights, label=["a"] * 200))
    for weights, said in (
        ("weight", r"field 'weight' must be finite and at least 0, but is -1.0 for sequence '17'"),
        ("weigth", "no field 'weigth'; did you mean 'weight'"),
        ("x", "field 'x' must have one value for each sequence, but has many"),
        ("label", "field 'label' must be an array of one number per sequence, but has dtype <U1"),
        (balanced("lable"), "no field 'lable'; did you mean 'label'"),
        (balanced("x"), "field 'x' must have one value for each sequence"),
    ):
        with pytest.raises(ConfigError, match=said):
            Weighted(Fixed(2), weights).num_batches(index)
    with pytest.raises(ConfigError, match="must come from a store, but only lengths are known"):
        Weighted(Fixed(2), "weight").num_batches(index_of())


def test_a_label_that_is_not_a_number_is_refused():
    index = SequenceIndex.from_store(store_of(np.ones(3), [4, 5, 6], label=[0.0, np.nan, 1.0]))
    with pytest.raises(ConfigError, match=r"field 'label' must be a label .* for sequence '1'"):
        Weighted(Fixed(2), balanced("label")).num_batches(index)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"draws": 0}, "`draws` must be an integer of at least 1, but is 0"),
        ({"draws": 2.5}, "`draws` must be an integer of at least 1, but is 2.5"),
        ({"draws": MAX_DRAWS + 1}, f"`draws` must be at most {MAX_DRAWS}"),
        ({"importance": 1}, "`importance` must be True or False, but is 1"),
        ({"policy": TBPTT(4, 8)}, "must make independent batches, but has 4 lanes"),
        ({"policy": Weighted(Fixed(2))}, "must plan each sequence once, but draws by weight"),
        ({"policy": Mix({"a": 1}, Fixed(2))}, "must plan one dataset, but is a mixture"),
        ({"policy": "bucketed"}, "`policy` must be a policy, but is 'bucketed'"),
        ({"policy": Fixed}, "`policy` must be a policy, but is <class"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(arguments, said):
    with pytest.raises(ConfigError, match=said):
        Weighted(**{"policy": Fixed(2), **arguments})


RULES = [(0, 10), (2, None)]


@pytest.mark.parametrize("options", [{"draws": 300}, {"weights": WEIGHTS}], ids=str)
def test_a_limit_that_follows_the_epoch_goes_around_weights(options):
    """Within, what it leaves out had been drawn, and was missing in the epoch."""
    message = (
        r"the limit of Curriculum follows the epoch. Write Curriculum\(Weighted\(\.\.\.\), \.\.\.\)"
    )
    with pytest.raises(ConfigError, match=message):
        Weighted(Curriculum(Bucketed(4), RULES), **options)
    advised = Curriculum(Weighted(Bucketed(4), **options), RULES)
    weights, draws = options.get("weights", np.ones(200)), options.get("draws")
    for epoch, limit in enumerate((10, 10, 99)):
        due = np.where(limit >= LENGTHS, weights, 0)
        found = counts(advised.plan(index_of(), seed=0, epoch=epoch))
        assert may_be(found, due, draws or int((limit >= LENGTHS).sum()))


def test_a_limit_that_leaves_out_nothing_that_is_drawn_may_be_within():
    every = Weighted(Curriculum(Bucketed(4), RULES))
    for epoch, limit in enumerate((10, 10, 99)):
        found = counts(every.plan(index_of(), seed=0, epoch=epoch))
        assert (found == (limit >= LENGTHS)).all()
    cut = Weighted(Curriculum(Bucketed(4, too_long="truncate"), RULES), WEIGHTS, draws=300)
    plan = cut.plan(index_of(), seed=0, epoch=1)
    assert may_be(counts(plan), WEIGHTS, 300)
    assert plan.measures.longest.max() == 10


def test_lanes_that_only_the_plan_tells_are_refused():
    class Hidden:
        axis = "time"
        num_batches = staticmethod(TBPTT(2, 8).num_batches)
        plan = staticmethod(TBPTT(2, 8).plan)

    with pytest.raises(ConfigError, match="has 2 lanes, which carry a state"):
        Weighted(Hidden()).plan(index_of(), seed=0, epoch=0)


def test_importance_is_refused_where_a_row_has_several_sequences():
    with pytest.raises(ConfigError, match="`importance` must be False where a row holds several"):
        Weighted(Packed(2, 64), importance=True).plan(index_of(), seed=0, epoch=0)


def test_no_sequences_give_an_empty_plan():
    for lengths in ([], [0, 0]):
        policy, index = Weighted(Bucketed(4)), index_of(np.array(lengths, dtype=int))
        assert policy.num_batches(index) == len(policy.plan(index, seed=0, epoch=0)) == 0


def test_a_part_of_a_mixture_may_be_weighted():
    weighted = Weighted(Fixed(4), "weight", draws=100, importance=True)
    mix = Mix({"a": Part(0.5, weighted), "b": Part(0.5, Fixed(4))}, keep="batch")
    stores = {"a": store_of(WEIGHTS), "b": store_of(WEIGHTS)}
    parts = {name: SequenceIndex.from_store(store) for name, store in stores.items()}
    plan = mix.plan(SequenceIndex.from_parts(parts), seed=0, epoch=0)
    numbers = [k for k, label in enumerate(plan.label_parts(range(len(plan)))) if label.part == "a"]
    drawn = np.concatenate([plan.batch(k).spans[:, 0] for k in numbers[:25]])
    assert may_be(np.bincount(drawn, minlength=200), WEIGHTS, 100)
    p = WEIGHTS / WEIGHTS.sum()
    assert np.allclose(plan.row_weights(numbers[:25]), 1 / (np.count_nonzero(p) * p[drawn]))
    others = [k for k in range(len(plan)) if k not in numbers]
    assert (plan.row_weights(others) == 1).all()
    assert plan.drawn_batch(others[0]) is None
    assert plan.drawn_batch(numbers[0]).spans[:, 0].max() < 100
    assert weighted.count_planned(parts["a"])[0] == 100


def test_it_is_a_public_name():
    assert seqdata.Weighted is Weighted
    assert seqdata.balanced is balanced
