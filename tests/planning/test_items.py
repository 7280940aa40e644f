import numpy as np
import pytest

from seqdata.errors import ConfigError, PlanError
from seqdata.index import SCAN_CHUNK, SequenceIndex
from seqdata.planning.items import WholeSequences, number_items, select_items
from seqdata.planning.randomness import Draw
from seqdata.policies.windows import GridWindows, RandomWindows


def spans(lengths, rule):
    items = number_items(SequenceIndex.from_lengths(lengths), "time", rule)
    return items.spans(0, len(items)).tolist()


def test_empty_sequences_are_no_items():
    assert spans([2, 0, 3], WholeSequences()) == [[0, 0, 2], [2, 0, 3]]


def test_long_sequences_are_split_to_the_last_timestep():
    rule = WholeSequences(max_length=3, too_long="split")
    assert spans([7, 3, 0], rule) == [[0, 0, 3], [0, 3, 6], [0, 6, 7], [1, 0, 3]]


def test_long_sequences_are_truncated_or_dropped():
    assert spans([7, 3], WholeSequences(3, "truncate")) == [[0, 0, 3], [1, 0, 3]]
    assert spans([7, 3], WholeSequences(3, "drop")) == [[1, 0, 3]]


@pytest.mark.parametrize("too_long", ["split", "truncate", "drop"])
def test_any_run_of_items_equals_that_part_of_all(too_long):
    lengths = np.random.default_rng(0).integers(0, 9, 3 * SCAN_CHUNK // 2)
    lengths[SCAN_CHUNK : SCAN_CHUNK + 50] = 0
    items = number_items(SequenceIndex.from_lengths(lengths), "time", WholeSequences(5, too_long))
    whole = items.spans(0, len(items))
    for first, stop in (
        (0, 7),
        (100, 100),
        (SCAN_CHUNK - 20, SCAN_CHUNK + 20),
        (len(items) - 3, len(items)),
    ):
        assert items.spans(first, stop).tolist() == whole[first:stop].tolist()


RULES = [
    WholeSequences(),
    *(WholeSequences(5, too_long) for too_long in ("split", "truncate", "drop")),
    WholeSequences(5, "truncate", keep="last"),
    GridWindows(3, 1, 2),
    GridWindows(6, 0, 6),
    RandomWindows(3, 0, 4),
]


@pytest.mark.parametrize("low", [0, 1], ids=["some are empty", "none is empty"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_items_at_any_places_are_those_of_all(rule, low):
    """Over ends of what is counted together, one, runs and all; and random ones by their draw."""
    lengths = np.random.default_rng(0).integers(low, 9, SCAN_CHUNK + 700)
    lengths[100:400] = 0 if low == 0 else 1  # whole bins without an item
    items = number_items(SequenceIndex.from_lengths(lengths), "time", rule)
    draw, random = Draw(3, 4), np.random.default_rng(1)
    whole = items.spans(0, len(items), draw)
    count = len(items)
    for numbers in (
        np.arange(count),
        np.array([0]),
        np.array([count - 1]),
        np.sort(random.choice(count, 500, replace=False)),
        np.sort(random.choice(count // 16, 40, replace=False)).repeat(16) * 16
        + np.tile(np.arange(16), 40),
        np.concatenate([np.arange(90, 130), np.arange(count - 70, count)]),
        *(np.array([k, k + 1, k + 40]) for k in (30, 31, 32, 63, 64, 99, 400)),
    ):
        assert items.spans_at(numbers, draw).tolist() == whole[numbers].tolist()


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64])
def test_items_of_few_sequences_are_found(count):
    items = number_items(
        SequenceIndex.from_lengths(np.arange(1, count + 1) % 7), "time", WholeSequences(2, "split")
    )
    numbers = np.arange(len(items))
    assert items.spans_at(numbers).tolist() == items.spans(0, len(items)).tolist()


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_longest_item_is_the_first_of_them(rule):
    lengths = np.random.default_rng(5).integers(0, 9, 2 * SCAN_CHUNK)
    lengths[: SCAN_CHUNK + 10] %= 3
    items = number_items(SequenceIndex.from_lengths(lengths), "time", rule)
    spans = items.spans(0, len(items))
    sizes = spans[:, 2] - spans[:, 1]
    assert items.find_longest() == int(np.argmax(sizes))


def test_a_virtual_billion_costs_no_memory():
    index = SequenceIndex.from_lengths(np.array([10**9, 5]))
    items = number_items(index, "time", WholeSequences(1, "split"))
    assert len(items) == 10**9 + 5
    assert items.spans(10**9 - 1, 10**9 + 1).tolist() == [[0, 10**9 - 1, 10**9], [1, 0, 1]]


def test_peaks_bound_the_longest_item():
    lengths = [9, 4, 2]
    for too_long, peak in (("split", 4), ("truncate", 4), ("drop", 4)):
        items = number_items(
            SequenceIndex.from_lengths(lengths), "time", WholeSequences(4, too_long)
        )
        assert items.peak(0, len(items)) == peak


def test_one_sequence_that_is_too_long_is_named_with_its_length():
    index = SequenceIndex.from_lengths([3, 9120], keys=["a", "utt-381"])
    message = (
        "policy 'token-budget': sequence 'utt-381' has 9120 timesteps, more than "
        "`max_tokens=8192`. Raise it, set `too_long='split'`, or filter with store.where(...)."
    )
    with pytest.raises(PlanError) as caught:
        select_items(index, "time", WholeSequences(8192), policy="token-budget", limit="max_tokens")
    assert str(caught.value) == message


def test_several_sequences_that_are_too_long_are_counted_and_named():
    index = SequenceIndex.from_lengths([9] * 8)
    with pytest.raises(
        PlanError, match=r"8 sequences are longer than `max_length=3`: 0, 1, 2, 3, 4 and 3 more"
    ):
        select_items(index, "time", WholeSequences(3), policy="fixed")


def test_empty_sequences_are_refused_where_that_is_asked_for():
    rule = WholeSequences(empty="error")
    with pytest.raises(PlanError, match="at least 1 timestep, but one has none: 1"):
        select_items(SequenceIndex.from_lengths([3, 0]), "time", rule, policy="fixed")
    with pytest.raises(PlanError, match="at least 1 timestep, but 2 have none: 0, 1"):
        select_items(SequenceIndex.from_lengths([0, 0]), "time", rule, policy="fixed")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"too_long": "cut"},
            "`too_long` must be 'error', 'split', 'truncate' or 'drop', but is 'cut'",
        ),
        ({"empty": "keep"}, "`empty` must be 'drop' or 'error', but is 'keep'"),
        ({"max_length": 0}, "`max_length` must be at least 1 or None, but is 0"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        WholeSequences(**options)


def test_an_unknown_axis_is_refused_on_empty_data_too():
    with pytest.raises(PlanError, match="no axis 'text'"):
        number_items(SequenceIndex.from_lengths([]), "text", WholeSequences())


def sizes_by(cost):
    index = SequenceIndex.from_lengths([3, 9, 5])
    items = select_items(index, "time", WholeSequences(), policy="yours", cost=cost)
    return items.sizes(items.spans(0, len(items)))


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64", "int16", ">i4"])
def test_costs_are_whole_numbers_that_can_be_negated(dtype):
    sizes = sizes_by(lambda lengths_of: lengths_of["time"].astype(dtype))
    assert sizes.dtype == np.int64
    assert sizes.tolist() == [3, 9, 5]
    assert sizes_by(lambda lengths_of: lengths_of["time"].tolist()).tolist() == [3, 9, 5]


@pytest.mark.parametrize(
    ("cost", "found"),
    [
        (lambda lengths_of: lengths_of["time"] * 1.5, r"float64 \(3,\)"),
        (lambda lengths_of: np.full(3, np.nan), r"float64 \(3,\)"),
        (lambda lengths_of: lengths_of["time"] > 3, r"bool \(3,\)"),
        (lambda lengths_of: 7, r"int64 \(\)"),
        (lambda lengths_of: None, r"object \(\)"),
        (lambda lengths_of: lengths_of, r"object \(\)"),
        (lambda lengths_of: lengths_of["time"][:-1], r"int64 \(2,\)"),
        (lambda lengths_of: lengths_of["time"][:, None], r"int64 \(3, 1\)"),
        (lambda lengths_of: [[1], [1, 2], [3]], "a list of unequal lists"),
        (lambda lengths_of: np.full(3, 2**63, np.uint64), "9223372036854775808"),
    ],
)
def test_a_cost_that_is_no_whole_number_per_row_is_refused(cost, found):
    text = rf"^policy: the result of `cost` must be int64 \(3,\), .*, but is {found}\."
    with pytest.raises(ConfigError, match=text):
        sizes_by(cost)
