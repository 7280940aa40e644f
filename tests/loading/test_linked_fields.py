"""Fields of linked axes: cut with the planned one, each timestep once, none lost or repeated."""

import json
from fractions import Fraction

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from seqdata import (
    TBPTT,
    Axis,
    Bucketed,
    ConfigError,
    DataError,
    Fixed,
    Loader,
    Mix,
    Part,
    Segments,
    SeqDataWarning,
    TokenBudget,
    Weighted,
    Windows,
    concat,
    open_store,
    split,
    write_store,
)
from seqdata.cli.app import app
from seqdata.linked_axes import round_half_up

RATES = {"acc": 100, "ecg": 500, "temp": 4}


def make_rows(seconds=(60, 31.25, 12)):
    return [
        {
            "id": f"r{number}",
            "acc": np.stack([np.arange(int(100 * each))] * 3, axis=1).astype("float32"),
            "ecg": np.arange(int(500 * each), dtype="float32"),
            "temp": np.arange(int(4 * each), dtype="float32"),
            "y": number,
        }
        for number, each in enumerate(seconds)
    ]


@pytest.fixture
def store():
    return open_store(make_rows(), rates=RATES)


def test_a_window_in_seconds_takes_the_same_time_of_every_field(store):
    policy = Windows(seconds=2.0, stride_seconds=1.0, batch_size=64)
    batch = next(iter(Loader(store, policy))).validate()
    assert batch["acc"].shape == (64, 200, 3)
    assert batch["ecg"].shape == (64, 1_000)
    assert batch["temp"].shape == (64, 8)
    assert batch["y"].shape == (64,)
    assert torch.equal(batch["ecg"][:, 0].long(), 5 * batch.start)
    assert torch.equal(batch["temp"][:, 0].long() * 25, batch.start)
    assert torch.equal(batch.start_of["ecg"], 5 * batch.start)
    assert batch.lengths_of["temp"].tolist() == [8] * 64


def test_context_and_future_are_cut_along_every_axis(store):
    policy = Windows(seconds=2, stride_seconds=1, horizon_seconds=0.5, batch_size=8)
    batch = next(iter(Loader(store, policy))).validate()
    context, future = batch.context, batch.future
    assert [context[name].shape[1] for name in RATES] == [200, 1_000, 8]
    assert [future[name].shape[1] for name in RATES] == [50, 250, 2]
    assert torch.equal(future["ecg"][:, 0], batch["ecg"][:, 0] + 1_000)


def collect(loader, names):
    """Return field -> sequence -> the delivered values, and their places."""
    found = {name: {} for name in names}
    for batch in loader:
        for name in names:
            axis = batch.axes.along(name)
            lengths = batch.lengths_of[axis].tolist()
            for row, number in enumerate(batch.ids.tolist()):
                if batch.weight[row] > 0:
                    values = batch[name][row, : lengths[row]].tolist()
                    found[name].setdefault(number, []).append(
                        (int(batch.start_of[axis][row]), values)
                    )
    return found


@st.composite
def recordings(draw):
    """Rates, offsets, sequences that last equally long along each axis, and a chunk."""
    rates = [
        draw(st.fractions(min_value=Fraction(1, 3), max_value=60, max_denominator=37))
        for _ in range(3)
    ]
    offsets = [draw(st.fractions(min_value=0, max_value=1, max_denominator=41)) for _ in rates]
    sequences = []
    for number in range(draw(st.integers(1, 4))):
        seconds = draw(st.fractions(min_value=4, max_value=40, max_denominator=11))
        row = {"id": str(number)}
        for name, rate in zip("abc", rates, strict=True):
            count = max(1, int(seconds * rate) + draw(st.integers(-1, 1)))
            row[name] = np.arange(count, dtype="int32")
        sequences.append(row)
    return rates, offsets, sequences, draw(st.fractions(min_value=3, max_value=9))


@settings(deadline=None, max_examples=60)
@given(recordings(), st.integers(1, 3), st.booleans())
def test_an_epoch_of_chunks_has_every_timestep_of_every_axis_once(drawn, lanes, segments):
    rates, offsets, sequences, seconds = drawn
    axes = {name: Axis(*clock) for name, *clock in zip("abc", rates, offsets, strict=True)}
    store = open_store(sequences, axes=axes)
    chunk = max(1, round_half_up(seconds * rates[0])) + 2
    policy = TBPTT(lanes, chunk, segments=segments)
    if segments:
        delivered = dict.fromkeys("abc", 0)
        for batch in Loader(store, policy, seed=3):
            for name in delivered:
                delivered[name] += int(batch.lengths_of[batch.axes.along(name)].sum())
        due = {name: sum(len(row[name]) for row in sequences) for name in delivered}
        assert delivered == due
        return
    found = collect(Loader(store, policy, seed=3), "abc")
    for name in "abc":
        for number, row in enumerate(sequences):
            pieces = sorted(found[name][number])
            values = [value for _, piece in pieces for value in piece]
            assert values == row[name].tolist()
            assert all(piece[:1] == [start][: len(piece)] for start, piece in pieces)


@settings(deadline=None, max_examples=10)
@given(recordings(), st.integers(0, 5))
def test_windows_are_within_half_a_sample_of_their_time(drawn, seed):
    rates, offsets, sequences, _ = drawn
    axes = {name: Axis(*clock) for name, *clock in zip("abc", rates, offsets, strict=True)}
    store = open_store(sequences, axes=axes)
    policy = Windows(2, 1, batch_size=5, axis="time")
    if not any(len(row["a"]) >= 2 for row in sequences):
        return
    try:
        loader = Loader(store, policy, seed=seed)
        batches = list(loader)
    except ConfigError as error:
        if "linked axes must begin and end together" not in str(error):
            raise
        reject()
    for batch in batches:
        for name, rate, offset in zip("bc", rates[1:], offsets[1:], strict=True):
            for row, number in enumerate(batch.ids.tolist()):
                count = len(sequences[number][name])
                begin = offsets[0] + batch.start[row].item() / rates[0]
                for bound, time in (
                    (int(batch.start_of[name][row]), begin),
                    (
                        int(batch.start_of[name][row] + batch.lengths_of[name][row]),
                        begin + 2 / rates[0],
                    ),
                ):
                    exact = (time - offset) * rate
                    due = min(max(round_half_up(exact), 0), count)
                    assert bound == due


def test_whole_sequences_are_whole_along_every_axis(store):
    found = collect(Loader(store, Bucketed(2)), list(RATES)[1:])
    for name in ("ecg", "temp"):
        for number, row in enumerate(make_rows()):
            assert found[name][number] == [(0, row[name].tolist())]


@pytest.mark.parametrize("keep", ["first", "last"])
def test_truncated_sequences_are_truncated_along_every_axis(store, keep):
    policy = Fixed(3, max_length=600, too_long="truncate", keep=keep)
    (batch,) = Loader(store, policy)
    assert batch.lengths_of["ecg"].tolist() == [3_000] * 3
    assert torch.equal(batch.start_of["ecg"], 5 * batch.start)


def test_several_sequences_in_a_row_follow_each_other_along_every_axis(store):
    loader = Loader(store, TBPTT(1, 700, segments=True, shuffle=False))
    ecg = torch.cat([batch["ecg"][0, : batch.lengths_of["ecg"][0]] for batch in loader])
    order = [row["ecg"] for row in make_rows()]
    assert ecg.tolist() == np.concatenate(order).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_workers_deliver_the_same(store, start_method):
    policy = Windows(seconds=0.7, stride_seconds=0.13, batch_size=16)
    options = {"num_workers": 1, "start_method": start_method}
    alone, apart = (list(Loader(store, policy, seed=2, **each)) for each in ({}, options))
    assert len(alone) == len(apart)
    for one, other in zip(alone, apart, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in RATES)
        assert torch.equal(one.start_of["ecg"], other.start_of["ecg"])


def test_a_run_continues_where_it_stopped(store):
    policy = TBPTT(2, seconds=2.5)
    loader = Loader(store, policy, seed=1)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    rest = [batch["ecg"] for batch in batches]
    again = Loader(store, policy, seed=1)
    again.load_state_dict(state)
    assert all(map(torch.equal, rest, (batch["ecg"] for batch in again)))
    by_hand = Loader(store, TBPTT(2, 250), seed=1)
    by_hand.load_state_dict(state)  # seconds are timesteps of the planned axis


def test_a_transform_sees_the_timesteps_of_each_axis(store):
    seen = []

    def note(sequence, rng):
        seen.append([len(sequence[name]) for name in RATES])
        return sequence

    batch = next(iter(Loader(store, Windows(seconds=2, batch_size=3), transform=note, prefetch=0)))
    assert seen[:3] == [[200, 1_000, 8]] * 3
    assert batch["temp"].shape == (3, 8)


def test_a_bad_sequence_keeps_the_place_of_its_row(store):
    def fail(sequence, rng):
        if sequence["y"] == 1:
            raise ValueError("broken")
        return sequence

    for on_error in ("mask", "replace"):
        loader = Loader(
            store, Windows(seconds=2, batch_size=4, shuffle=False), transform=fail,
            on_error=on_error,
        )  # fmt: skip
        for batch in loader:
            assert batch["ecg"].shape[1] == 1_000
            assert batch["temp"].shape[1] == 8


def test_a_replaced_row_is_cropped_along_every_axis(store):
    def fail(sequence, rng):
        if sequence["y"] == 1:
            raise ValueError("broken")
        return sequence

    (batch,) = Loader(store, Fixed(3, shuffle=False), transform=fail, on_error="replace")
    assert batch.lengths.tolist() == [6_000, 3_125, 1_200]
    assert batch.lengths_of["ecg"].tolist() == [30_000, 15_625, 6_000]
    assert batch["ecg"][1, :15_625].tolist() == make_rows()[0]["ecg"][:15_625].tolist()


def test_a_shift_leaves_no_timestep_of_another_axis_out(store):
    found = collect(Loader(store, TBPTT(2, 700), shift={"acc": 1}), ["ecg", "temp"])
    for name in ("ecg", "temp"):
        for number, row in enumerate(make_rows()):
            pieces = sorted(found[name][number])
            assert [value for _, piece in pieces for value in piece] == row[name].tolist()


def test_the_command_plans_in_seconds(tmp_path):
    write_store(tmp_path / "s", make_rows(), rates=RATES)
    options = ["--batching", "windows", "--seconds", "2", "--stride-seconds", "0.5", "--json"]
    done = CliRunner().invoke(app, ["plan", str(tmp_path / "s"), *options])
    assert done.exit_code == 0, done.output
    assert "Windows(size=200, stride=50, " in json.loads(done.output)["policy"]


def test_values_that_are_not_finite_are_named_by_their_own_timestep():
    rows = make_rows([20])
    rows[0]["ecg"][6_000] = np.nan
    loader = Loader(open_store(rows, rates=RATES), TBPTT(1, 1_000), check_values=True)
    with pytest.raises(DataError, match=r"field 'ecg': timestep 6000 is nan"):
        list(loader)


# Stores


def test_a_written_store_knows_its_rates(store, tmp_path):
    axes = {"ecg": Axis(500, 0.12)}
    written = write_store(tmp_path / "a", make_rows(), rates={"acc": 100, "temp": 4}, axes=axes)
    assert written.linked_axes == {"time": Axis(100), "temp": Axis(4), "ecg": Axis(500, "3/25")}
    again = open_store(tmp_path / "a")
    assert again.linked_axes == written.linked_axes
    assert write_store(tmp_path / "b", again).linked_axes == written.linked_axes
    assert write_store(tmp_path / "c", again.take([1])).linked_axes == written.linked_axes
    assert open_store(tmp_path / "a", rates={"ecg": 250}).linked_axes["ecg"] == Axis(250)


def test_rates_change_the_fingerprint_and_nothing_else_does(tmp_path):
    axes = {"ecg": "ecg", "temp": "temp"}
    plain = write_store(tmp_path / "plain", make_rows(), axes=axes)
    rated = write_store(tmp_path / "rated", make_rows(), rates=RATES)
    assert '"rates"' not in (tmp_path / "plain" / "seqdata.json").read_text()
    assert plain.fingerprint != rated.fingerprint
    opened = open_store(tmp_path / "plain", rates=RATES)
    assert opened.fingerprint not in (plain.fingerprint, rated.fingerprint)
    assert opened.fingerprint == open_store(tmp_path / "plain", rates=RATES).fingerprint


def test_views_and_joined_stores_keep_the_rates_of_their_axes(store):
    assert store.take([2, 0]).linked_axes == store.linked_axes
    assert list(store.select("ecg", "acc").linked_axes) == ["time", "ecg"]
    assert concat([store, store.take([0])]).linked_axes == store.linked_axes
    other = open_store(make_rows(), rates={**RATES, "temp": 8})
    assert list(concat([store, other]).linked_axes) == ["time", "ecg"]


def test_a_split_in_time_cuts_every_axis_once(store, tmp_path):
    parts = split(store, {"train": "..1233", "val": "1233.."}, along="time")
    for name in ("ecg", "temp"):
        for number, row in enumerate(make_rows()[:2]):
            pieces = [part[number][name] for part in parts.values()]
            assert np.concatenate(pieces).tolist() == row[name].tolist()
    batch = next(iter(Loader(parts["val"], Windows(100, batch_size=2, shuffle=False))))
    assert batch["ecg"][0, 0] == 5 * 1_233
    first = round_half_up(Fraction(1_233, 25))
    assert batch["temp"][0].tolist() == [float(first + step) for step in range(4)]
    with pytest.warns(SeqDataWarning, match=r"sampling rates are dropped: the pieces"):
        written = write_store(tmp_path / "val", parts["val"])
    assert written.linked_axes == {}
    parts = split(store, {"train": "..1250", "val": "1250.."}, along="time")  # of all axes
    assert write_store(tmp_path / "kept", parts["val"]).linked_axes == store.linked_axes


def test_a_mixture_in_seconds_plans_each_part_by_its_own_rates():
    slow = open_store(make_rows(), rates=RATES)
    policy = Mix({"a": 1, "b": 1}, Windows(seconds=2, batch_size=4), rows=False, batches=8)
    for batch in Loader({"a": slow, "b": slow.take([0])}, policy):
        assert batch["ecg"].shape[1:] == (1_000,)
    weighted = Segments(Weighted(Windows(seconds=2, batch_size=4), draws=8), batches=2)
    for batch in Loader(slow, weighted):
        assert batch["ecg"].shape[1:] == (1_000,)


# Refusals


@pytest.mark.parametrize(("policy", "unit"), [(TBPTT(2, 100), "chunk"), (Windows(100), "window")])
def test_a_field_of_another_axis_does_not_come_whole_unless_it_is_named(policy, unit):
    store = open_store(make_rows(), axes={"ecg": "ecg", "temp": "temp"})
    with pytest.raises(
        ConfigError,
        match=rf"'ecg' runs along 'ecg' and would come whole, up to 30,000 timesteps, with each "
        rf"{unit}\. Link the axes by their sampling rates, e\.g\. rates={{'acc': 100, 'ecg': 500}}"
        rf" .* leave it out with `fields`, or pass whole=\('ecg',\) if it is meant",
    ):
        Loader(store, policy)
    batch = next(iter(Loader(store, policy, fields=("acc", "y"))))
    assert set(batch) == {"acc", "y"}
    batch = next(iter(Loader(store, policy, whole=("ecg", "temp"))))
    assert batch["ecg"].shape[1] == batch.lengths_of["ecg"].max()
    assert set(next(iter(Loader(store, TokenBudget(9_000))))) == {"acc", "ecg", "temp", "y", "id"}


def test_a_linked_field_may_come_whole_where_it_is_named(store):
    batch = next(iter(Loader(store, Windows(seconds=2, batch_size=4), whole=("temp",))))
    assert batch["temp"].shape[1] in (240, 125, 48)
    assert batch["ecg"].shape[1] == 1_000


@pytest.mark.parametrize(("whole", "found"), [(("acc",), "'acc'"), (("beat",), "'beat'")])
def test_only_fields_of_other_axes_come_whole(store, whole, found):
    with pytest.raises(ConfigError, match=rf"`whole` must name fields of axes other.*{found}"):
        Loader(store, Windows(100), whole=whole)


def test_whole_is_a_tuple_of_names(store):
    with pytest.raises(ConfigError, match=r"loader: `whole` must be a tuple of names"):
        Loader(store, Windows(100), whole="ecg")


def test_a_transform_that_changes_lengths_ends_the_link(store):
    def halve(sequence, rng):
        return {**sequence, "acc": sequence["acc"][::2]}

    halve.lengths = lambda lengths: -(-lengths // 2)
    with pytest.raises(ConfigError, match=r"The transform changes lengths, so that the axes"):
        Loader(store, Windows(100), transform=halve)
    with pytest.raises(ConfigError, match=r"must keep lengths with a policy in `seconds`"):
        Loader(store, Windows(seconds=2), transform=halve)


@pytest.mark.parametrize(
    "policy", [TBPTT(1, 1_000), Windows(1_000), Windows(seconds=10), TBPTT(1, seconds=10)]
)
@pytest.mark.parametrize(("field", "kept"), [("acc", 5_000), ("ecg", 25_000), ("temp", 200)])
def test_an_axis_that_ends_a_window_or_chunk_from_the_planned_one_is_named(policy, field, kept):
    rows = make_rows([60, 60])
    rows[1][field] = rows[1][field][:kept]  # 50 seconds
    store = open_store(rows, rates=RATES)
    other, rate = ("ecg", 500) if field == "acc" else (field, RATES[field])
    ends = (60, 50) if field == "acc" else (50, 60)
    message = (
        r"less than 1000 timesteps of '\w+' apart, but do not in 1 of 2 sequences: "
        rf"in 'r1' axis '{other}' \({rate} Hz\) is from 0 to {ends[0]} s and axis 'time' "
        rf"\(100 Hz\) is from 0 to {ends[1]} s\. Correct `rates`, or crop"
    )
    with pytest.raises(ConfigError, match=message):
        Loader(store, policy)


@pytest.mark.parametrize("rate", [250, 1_000])
def test_wrong_rates_are_refused_for_windows(rate):
    store = open_store(make_rows([20, 20]), rates={**RATES, "ecg": rate})
    with pytest.raises(ConfigError, match=r"do not in 2 of 2 sequences: in 'r0' axis 'ecg'"):
        Loader(store, Windows(seconds=2))


def test_an_axis_that_ends_less_than_a_window_earlier_is_warned_of():
    rows = make_rows([60, 60])
    rows[1]["ecg"] = rows[1]["ecg"][:-300]  # 0.6 s
    store = open_store(rows, rates=RATES)
    with pytest.warns(SeqDataWarning, match=r"in 1 of 2 sequences: in 'r1' axis 'ecg' .* 59\.4 s"):
        loader = Loader(store, Windows(seconds=2, shuffle=False))
    ecg = [int(n) for batch in loader for n in batch.lengths_of["ecg"][batch.weight > 0]]
    assert ecg == [1_000] * 59 + [700]


def test_axes_that_end_within_a_timestep_of_the_slower_one_are_not_warned_of():
    rows = make_rows([60.2])  # 240.8 timesteps of temp
    rows[0]["ecg"] = rows[0]["ecg"][:-5]  # a timestep of acc
    Loader(open_store(rows, rates=RATES), Windows(seconds=2))


def test_a_continuous_stream_has_no_shift_over_linked_axes(store):
    policy = TBPTT(2, 100, continuous=True)
    with pytest.raises(ConfigError, match=r"a shift of a continuous stream must have fields of"):
        list(Loader(store, policy, shift={"acc": 1}))


def test_windows_and_whole_sequences_are_not_mixed_over_linked_axes(store):
    policy = Mix({"a": Part(1, Windows(100, batch_size=2)), "b": Part(1, Fixed(2))}, batches=4)
    with pytest.raises(ConfigError, match=r"must all be read in windows, or none of them"):
        Loader({"a": store, "b": store}, policy)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rates": {"eeg": 3}}, r"rates: no field or axis 'eeg'"),
        ({"rates": {"y": 3}}, r"field 'y' must run along an axis, but has one value"),
        ({"rates": {"ecg": -3}}, r"`rates\['ecg'\]`: axis: `rate` must be a number above 0"),
        ({"rates": [500]}, r"`rates` must be a dict by field or axis"),
        ({"axes": {"ecg": {"hz": 3}}}, r"`axes\['ecg'\]` must be a rate, Axis\(rate, offset\)"),
        ({"rates": {"ecg": 3}, "axes": {"ecg": Axis(4)}}, r"`rates` and `axes` must agree"),
        ({"rates": {"acc": 100, "time": 50}}, r"fields of one axis must have the same clock"),
        ({"axes": {"ecg": "ecg"}}, r"`axes` is for data in memory, but the data is a path"),
    ],
)
def test_rates_that_do_not_fit_are_refused(tmp_path, arguments, message):
    write_store(tmp_path / "s", make_rows(), axes={"ecg": "ecg", "temp": "temp"})
    with pytest.raises(ConfigError, match=message):
        open_store(tmp_path / "s", **arguments)


def test_seconds_need_a_rate():
    store = open_store(make_rows(), axes={"ecg": "ecg", "temp": "temp"})
    with pytest.raises(
        ConfigError,
        match=r"policy 'windows': `seconds` needs the sampling rate of axis 'time', .* \(known: "
        r"none\)\. Pass e\.g\. rates={'acc': 100} to open_store",
    ):
        Loader(store, Windows(seconds=2), fields=("acc",))


def test_axes_are_given_as_plain_values(store):
    axes = {"acc": {"rate": 100}, "ecg": {"rate": "500", "offset": 0.12}, "temp": 4}
    opened = open_store(make_rows(), axes=axes)
    assert opened.linked_axes["ecg"] == Axis(500, Fraction(3, 25))
    named = open_store(
        make_rows(), axes={"acc": "body", "ecg": "heart"}, rates={"body": 100, "heart": 500}
    )
    assert named.linked_axes == {"body": Axis(100), "heart": Axis(500)}
    named = named.select("acc", "ecg")
    batch = next(iter(Loader(named, Windows(seconds=1, batch_size=2))))
    assert batch.axes.axis == "heart"  # there is no 'time' with a rate: the fastest
