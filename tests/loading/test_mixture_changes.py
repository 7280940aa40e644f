"""A Loader that resumes over other parts of a mixture: where it begins, and what it says."""

import json
import warnings

import numpy as np
import pytest

from seqdata.errors import ConfigError, ResumeError, SeqDataWarning
from seqdata.loading.loader import Loader
from seqdata.planning.parts import Part
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.mix import Mix
from seqdata.policies.segments import Segments
from seqdata.policies.weighted import Weighted
from seqdata.policies.zip import Zip

DATA = {"a": [np.ones(2)] * 9, "b": [np.ones(3)] * 5}
OTHER = {"a": DATA["a"], "c": [np.ones(1)] * 6}
GROWN = {"a": [np.ones(2)] * 12, "b": DATA["b"]}
NEXT = {"on_changed": "next_segment"}


def mix(data, batches=20, **weights):
    parts = dict.fromkeys(data, 1) | weights
    return Mix(parts, Fixed(1), batches=batches, keep="batch")


def load(data, policy=None, state=None, **options):
    loader = Loader(data, policy or Segments(mix(data), 8), prefetch=0)
    if state is not None:
        loader.load_state_dict(state, **options)
    return loader


def state_after(batches, data=DATA, policy=None):
    loader = load(data, policy)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    return json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize(
    ("trained", "on_changed", "begin", "text"),
    [
        (0, "next_segment", (0, 0), "No batch is dropped. It continues at batch 0 of epoch 0."),
        (5, "next_segment", (0, 8), r"Batches 5 to 7 of epoch 0 are dropped \(3\): .* at batch 8"),
        (8, "next_segment", (0, 8), "No batch is dropped. It continues at batch 8 of epoch 0."),
        (17, "next_segment", (1, 0), r"Batches 17 to 19 of epoch 0 are dropped \(3\): .* epoch 1"),
        (20, "next_segment", (1, 0), "No batch is dropped. It continues at batch 0 of epoch 1."),
        (5, "next_epoch", (1, 0), r"Batches 5 to 19 of epoch 0 are dropped \(15\): .* epoch 1"),
        (20, "next_epoch", (1, 0), "No batch is dropped. It continues at batch 0 of epoch 1."),
    ],
)
def test_the_run_continues_where_the_next_segment_or_epoch_begins(trained, on_changed, begin, text):
    state = state_after(trained)
    text = f"loader: the mixture has changed: 'c' was added, 'b' was removed. {text}"
    with pytest.warns(SeqDataWarning, match=text):
        loader = load(OTHER, state=state, on_changed=on_changed)
    batches = list(loader)
    assert (batches[0].epoch, batches[0].number) == begin
    assert len(batches) == 20 - begin[1]
    assert len(loader) == 20


def test_the_end_of_an_epoch_is_that_of_the_run_before():
    """Batch 20 is the end of the epoch, though a longer one would have a segment at 24."""
    state = {**state_after(20), "epoch": 0, "position": 20}  # as a Trainer may save it
    with pytest.warns(SeqDataWarning, match="No batch is dropped. It continues at batch 0 of ep"):
        loader = load(OTHER, Segments(mix(OTHER, batches=40), 8), state, **NEXT)
    assert len(list(loader)) == 40
    with pytest.warns(
        SeqDataWarning, match=r"Batches 18 to 19 of .*continues at batch 0 of epoch 1"
    ):
        load(OTHER, state=state_after(18), **NEXT)
    with pytest.warns(
        SeqDataWarning, match=r"Batches 18 to 23 of .*continues at batch 24 of epoch"
    ):
        load(OTHER, Segments(mix(OTHER, batches=40), 8), state_after(18), **NEXT)
    with pytest.warns(
        SeqDataWarning, match=r"Batches 13 to 15 of .*continues at batch 0 of epoch 1"
    ):
        load(OTHER, Segments(mix(OTHER, batches=12), 8), state_after(13), **NEXT)


def test_a_part_that_has_grown_begins_its_next_epoch():
    state = state_after(12)
    text = "'a' has other data or another policy.*The rest of epoch 0 of 'a' from its batch 6 on is"
    with pytest.warns(SeqDataWarning, match=text):
        loader = load(GROWN, state=state, **NEXT)
    epochs = {(batch.part, batch.part_epoch) for batch in loader}
    assert ("a", 1) in epochs
    assert ("a", 0) not in epochs
    with pytest.warns(
        SeqDataWarning, match="'a' has other data or another policy. No batch is dropped"
    ):
        load(GROWN, state=state_after(0), **NEXT)


@pytest.mark.filterwarnings("ignore:.*the mixture has changed:seqdata.errors.SeqDataWarning")
def test_a_part_of_weight_zero_keeps_its_place():
    state = state_after(12)
    resting = Segments(mix(DATA, b=0), 8)
    second = load(DATA, resting, state, **NEXT)
    assert {batch.part for batch in second} == {"a"}
    parts = second.state_dict()["parts"]
    third = load(DATA, state=second.state_dict(), **NEXT)
    fourth = load(DATA, state=third.state_dict())
    places = [part.partition("@")[2] for part in state["parts"].split(";")]
    assert parts.partition("b=")[2].partition("@")[2] == places[2]
    met = [(batch.part, batch.part_epoch, batch.ids.item()) for batch in fourth]
    assert next(epoch for part, epoch, _ in met if part == "b") == 1
    assert met == [(batch.part, batch.part_epoch, batch.ids.item()) for batch in third]


@pytest.mark.filterwarnings("ignore:.*the mixture has changed:seqdata.errors.SeqDataWarning")
def test_ten_changes_of_twenty_parts_are_less_than_a_kilobyte():
    data = {f"part {number}": [np.ones(2)] * 2 for number in range(20)}
    state = None
    for change in range(10):
        parts = {name: data[name] for name in list(data)[change % 2 :]}
        policy = Segments(Mix(dict.fromkeys(parts, 1), Fixed(1), batches=10_000), 80)
        loader = load(parts, policy, state, on_changed="next_segment")
        iterator = iter(loader)
        for _ in range(100):
            next(iterator)
        state = loader.state_dict()
    assert 400 < len(state["parts"]) + len(state["weights"]) < 1_000


def test_a_state_of_weights_holds_over_the_next_resumes():
    with pytest.warns(SeqDataWarning, match="the mixture has changed"):
        loader = load(OTHER, state=state_after(5), on_changed="next_segment")
    loader.set_weights({"a": 1, "c": 0})
    iterator = iter(loader)
    assert [next(iterator).part for _ in range(8)] == ["a"] * 8
    loader.set_weights({"a": 0, "c": 1})
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["weights"].count(";") == 2
    expected = [(batch.part, batch.part_epoch, batch.ids.item()) for batch in iterator]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = load(OTHER, state=state)
    assert [(batch.part, batch.part_epoch, batch.ids.item()) for batch in again] == expected
    assert {part for part, _, _ in expected} == {"c"}


def test_a_mixture_without_segments_gets_them_at_a_resume():
    plain = mix(DATA)
    with pytest.warns(SeqDataWarning, match=r"other weights or options\. Batches 5 to 7 of epoch"):
        loader = load(DATA, state=state_after(5, policy=plain), on_changed="next_segment")
    met = [(batch.part, batch.part_epoch, batch.ids.item()) for batch in loader]
    before = [(b.part, b.part_epoch, b.ids.item()) for b in load(DATA, plain) if b.number < 5]
    assert len(set(before + met)) == 5 + 12
    with pytest.warns(SeqDataWarning, match="'c' was added, 'b' was removed"):
        loader = load(OTHER, state=state_after(5, policy=plain), **NEXT)
    met = [(b.part, b.part_epoch, b.ids.item()) for b in loader]
    own = [batch[1:] for batch in before + met if batch[0] == "a"]
    assert len(set(own)) == len(own) > 6
    assert {epoch for epoch, _ in own[:9]} == {0}


def refuse(data, policy, state=None, /, **options):
    state = {**state_after(5), **(state or {})}
    load(
        data, policy, {name: value for name, value in state.items() if value is not ...}, **options
    )


REMEDY = "pass on_changed='next_segment' to continue with it where the next segment begins, or"
NEXT_EPOCH = {"on_changed": "next_epoch"}
HEAVIER = Segments(mix(DATA, a=2), 8)


@pytest.mark.parametrize(
    ("data", "policy", "options", "message"),
    [
        (OTHER, None, {}, f"'c' was added, 'b' was removed. Restore what changed, or {REMEDY} on"),
        (GROWN, None, {}, f"'a' has other data or another policy. Restore what changed, or {REMEDY}"
         " on_changed='next_epoch' to do so where the next epoch begins, or begin a new run"),
        (OTHER, mix(OTHER), {}, r"or write Segments\(Mix\({...}, ...\), batches=...\) and pass on"),
        (OTHER, mix(OTHER), NEXT_EPOCH, r"'b' was removed. .* or write Segments"),
        (DATA, HEAVIER, {}, "other weights or options: `policy` was .* but is .*"
         f"Restore what changed, or {REMEDY} begin a new run"),
        (DATA, HEAVIER, NEXT_EPOCH, "other weights or options: `policy` was"),
    ],
)  # fmt: skip
def test_a_state_of_other_parts_is_refused_with_the_remedies(data, policy, options, message):
    with pytest.raises(ResumeError, match=message):
        refuse(data, policy, **options)


def test_other_options_of_a_plan_are_refused_as_ever():
    loader = Loader(OTHER, Segments(mix(OTHER), 8), seed=3)
    with pytest.raises(ResumeError, match=r"`policy` was .*; `seed` was 0, but is 3"):
        loader.load_state_dict(state_after(5), on_changed="next_segment")


@pytest.mark.parametrize(
    ("data", "policy"),
    [
        (OTHER, mix(OTHER)),
        (DATA["a"], Bucketed(2)),
        (DATA["a"], Segments(Weighted(Fixed(1)), 8)),
        (DATA, Zip({"a": Fixed(1), "b": Fixed(1)}, lead="a")),
        (DATA, Mix({"a": 1, "b": 1}, Fixed(2), rows=True)),
        (DATA, Segments(Mix({"a": 1, "b": 1}, Fixed(2), rows=True), 4)),
    ],
    ids=["mix", "bucketed", "weighted", "zip", "rows", "rows in segments"],
)
def test_what_has_no_segments_of_a_mixture_is_refused(data, policy):
    message = (
        r"must be segments of a mixture .*Write Segments\(Mix\({...}, ...\), batches=...\), or"
    )
    with pytest.raises(ConfigError, match=message):
        refuse(data, policy, on_changed="next_segment")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            {"parts": ...},
            "`parts` of the state must be the positions of the mixture's parts, but is m",
        ),
        ({"parts": "hello"}, "`parts` of the state must be parts of a mixture, but is 'hello'"),
        ({"parts": 5}, "`parts` of the state must be a string, but is 5"),
        (
            {"position": 21},
            "`position` of the state must be at most 20, the batches of epoch 0, but",
        ),
    ],
)
def test_a_state_that_does_not_say_where_parts_were_is_refused(state, message):
    with pytest.raises(ResumeError, match=message):
        refuse(OTHER, None, state, on_changed="next_segment")


def test_weights_of_other_data_and_unknown_choices_are_refused():
    with pytest.raises(
        ResumeError, match="`weights` must be None, since the mixture or the data ha"
    ):
        refuse(OTHER, None, on_changed="next_segment", weights={"a": 1, "c": 1})
    with pytest.raises(
        ConfigError, match="`on_changed` must be 'error', 'next_epoch' or 'next_seg"
    ):
        refuse(OTHER, None, on_changed="next")


def test_changed_data_may_begin_the_next_epoch_of_a_loader():
    state = state_after(3, DATA["a"], Bucketed(2))
    with pytest.raises(
        ResumeError, match="pass on_changed='next_epoch' to begin the next epoch ove"
    ):
        load(GROWN["a"], Bucketed(2), state)
    loader = load(GROWN["a"], Bucketed(2), state, on_changed="next_epoch")
    assert [batch.epoch for batch in loader] == [1] * 6
    weighted = Segments(Weighted(Bucketed(2)), 2)
    state = state_after(3, DATA["a"], weighted)
    loader = load(GROWN["a"], weighted, state, on_changed="next_epoch")
    assert [batch.epoch for batch in loader] == [1] * 6


@pytest.mark.parametrize(("policy", "seed"), [(Bucketed(3), 0), (Fixed(4), 0), (Bucketed(2), 7)])
def test_another_policy_or_seed_may_begin_an_epoch_of_a_loader(policy, seed):
    def make():
        return Loader(DATA["a"], policy, seed=seed, prefetch=0)

    state = state_after(5, DATA["a"], Bucketed(2))
    with pytest.raises(ResumeError, match="on_changed='next_epoch' to begin epoch 1 with it, or"):
        make().load_state_dict(state)
    loader, fresh = make(), make()
    with pytest.warns(SeqDataWarning, match=r"`(policy|seed)` was .*, but is .*, from epoch 1 on"):
        loader.load_state_dict(state, on_changed="next_epoch")
    list(fresh)
    assert [batch.ids.tolist() for batch in loader] == [batch.ids.tolist() for batch in fresh]


def test_another_seed_of_a_mixture_is_refused_since_its_parts_are_in_their_own_epochs():
    state = state_after(20, DATA, mix(DATA))
    made = Loader(DATA, mix(DATA), seed=7, prefetch=0)
    with pytest.raises(ResumeError, match="restore what changed, or begin a new run"):
        made.load_state_dict(state, on_changed="next_epoch")


def test_parts_of_their_own_policies_are_compared_with_them():
    parts = {"a": Part(1, Fixed(1)), "b": Part(1, Fixed(1))}
    other = {**parts, "b": Part(1, Fixed(2))}
    first, second = (Segments(Mix(p, batches=20, keep="batch"), 8) for p in (parts, other))
    with pytest.warns(SeqDataWarning, match="changed: 'b' has other data or another policy"):
        load(DATA, second, state_after(5, policy=first), on_changed="next_segment")


@pytest.mark.filterwarnings("ignore:.*the mixture has changed:seqdata.errors.SeqDataWarning")
@pytest.mark.parametrize("changes", [0, 1, 2])
def test_a_resting_part_keeps_its_place_while_weights_change(changes):
    """First the parts are replaced, then weights change: the part that rests is where it was."""
    state, data = state_after(12), {**DATA, "c": OTHER["c"]}
    second = load(data, Segments(mix(data, b=0), 8), state, **NEXT)
    list(second)
    for number in range(changes):
        second.set_weights({"a": 1 + number, "b": 0, "c": 2})
        list(second)
    rested = json.loads(json.dumps(second.state_dict()))
    places = [
        {part.partition("=")[0]: part.partition("@")[2] for part in one["parts"].split(";")[1:]}
        for one in (state, rested)
    ]
    assert places[0]["b"] == places[1]["b"] == "1.1"
    third = load(data, Segments(mix(data), 8), rested, **NEXT)
    met = [(one.part_epoch, one.ids.item()) for one in third if one.part == "b"]
    whole = [one for one in load(DATA, state=state) if one.part == "b"]
    due = [(one.part_epoch, one.ids.item()) for one in whole]
    assert met[: len(due)] == due[: len(met)]
