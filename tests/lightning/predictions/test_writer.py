"""Predictions become a store: each sequence once, in the data's own order, or an error."""

import errno
import os
import pickle
import resource
import signal
from contextlib import contextmanager
from dataclasses import dataclass

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from seqdata.api import concat, open_store
from seqdata.errors import ConfigError, PlanError, SeqDataError
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.lightning.predictions.outputs import PredictionSpec
from seqdata.lightning.predictions.writer import PredictionWriter, _PredictionSession
from seqdata.plan import Plan
from seqdata.policies.fixed import Bucketed, Fixed
from seqdata.policies.packed import Packed
from seqdata.policies.windows import Windows
from seqdata.sharing import World
from seqdata.storage.memory import MemoryStore
from seqdata.storage.views import take
from tests.lightning.harness import QUIET, Lanes, quietly, sequences
from tests.lightning.predictions.predicting import Predictor, files_of, predict, read

COUNT = 23
DATA = sequences(COUNT)
NAMED = [{"id": f"utt-{number}", "x": one} for number, one in enumerate(DATA)]


def data_of(given=NAMED, batching=None, **options):
    return SequenceDataModule(predict=given, batching=batching or Bucketed(4), **options)


def running(one):
    return pytest.approx(np.cumsum(one, axis=0).ravel())


def flat(rows):
    return [np.ravel(row).tolist() for row in rows]


def test_predictions_lie_in_the_order_of_the_data_each_once(tmp_path):
    predict(data_of(), tmp_path / "out")
    made = read(tmp_path / "out")
    assert list(made) == ["id", "position", "steps", "sum", "spans"]
    assert made["id"] == [f"utt-{number}" for number in range(COUNT)]
    assert made["position"] == list(range(COUNT))
    assert flat(made["steps"]) == [running(one) for one in DATA]
    assert [one[0] for one in made["sum"]] == [pytest.approx(one.sum()) for one in DATA]
    assert made["spans"] == [[[0, len(one)]] for one in DATA]


def test_the_store_is_keyed_by_the_sequences_ids(tmp_path):
    predict(data_of(), tmp_path / "out")
    store = open_store(tmp_path / "out")
    assert store.keys([3, 1]) == ["utt-3", "utt-1"]
    assert store.lengths.tolist() == [len(one) for one in DATA]


def test_nothing_but_the_store_is_left(tmp_path):
    predict(data_of(), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not list((tmp_path / "out").glob(".*"))


def test_one_entry_may_be_chosen_and_several(tmp_path):
    predict(data_of(), tmp_path / "one", field="steps")
    assert list(read(tmp_path / "one")) == ["id", "position", "steps", "spans"]
    predict(data_of(), tmp_path / "two", fields=("sum", "steps"))
    assert list(read(tmp_path / "two")) == ["id", "position", "sum", "steps", "spans"]


def test_a_tensor_is_named_by_field(tmp_path):
    predict(data_of(), tmp_path / "out", field="logits", model=Predictor("steps"))
    assert flat(read(tmp_path / "out")["logits"]) == [running(one) for one in DATA]
    predict(data_of(), tmp_path / "other", model=Predictor("steps"))
    assert flat(read(tmp_path / "other")["prediction"]) == [running(one) for one in DATA]


def test_one_value_per_sequence_makes_a_store_that_reads(tmp_path):
    predict(data_of(), tmp_path / "out", model=Predictor("sum"))
    store = open_store(tmp_path / "out")
    assert store.fields["prediction"].axis is None
    assert store.fields["prediction"].shape == (2,)
    assert list(store.lengths_of) == ["spans"]


def test_an_output_may_have_the_rows_of_real(tmp_path):
    predict(data_of(), tmp_path / "out", model=Predictor("real"))
    assert read(tmp_path / "out")["prediction"] == [pytest.approx(one.sum()) for one in DATA]


def test_a_view_is_predicted_in_its_own_order_repeats_and_all(tmp_path):
    numbers = [5, 2, 5, 0, 2, 22]
    predict(
        data_of(take(MemoryStore.from_sequences(NAMED), numbers), Bucketed(2)), tmp_path / "out"
    )
    made = read(tmp_path / "out")
    assert made["id"] == [f"utt-{number}" for number in numbers]
    assert made["position"] == numbers
    assert flat(made["steps"]) == [running(DATA[number]) for number in numbers]
    assert open_store(tmp_path / "out").keys([0, 2]) == ["0", "2"]


def test_a_view_without_repeats_is_keyed_by_id(tmp_path):
    predict(data_of(take(MemoryStore.from_sequences(NAMED), [5, 2]), Bucketed(1)), tmp_path / "out")
    assert open_store(tmp_path / "out").keys([0, 1]) == ["utt-5", "utt-2"]


def test_stores_that_share_ids_are_predicted_without_a_key(tmp_path):
    first, second = MemoryStore.from_sequences(NAMED), MemoryStore.from_sequences(NAMED)
    predict(data_of(concat([first, second]), Bucketed(2)), tmp_path / "out")
    out = open_store(tmp_path / "out")
    assert [one["id"] for one in out] == 2 * [row["id"] for row in NAMED]
    numbers = [COUNT + 2, 1, *range(3, 9)]
    predict(data_of(concat([first, second]).take(numbers), Bucketed(2)), tmp_path / "some")
    assert open_store(tmp_path / "some").keys([0, 1]) == ["utt-2", "utt-1"]


def test_pieces_of_a_split_sequence_are_put_together(tmp_path):
    split = Bucketed(4, max_length=3, too_long="split")
    predict(data_of(batching=split), tmp_path / "out", field="steps")
    made = read(tmp_path / "out")
    wanted = [
        np.concatenate([np.cumsum(one[at : at + 3]) for at in range(0, len(one), 3)])
        for one in DATA
    ]
    assert flat(made["steps"]) == [pytest.approx(one) for one in wanted]
    long = max(range(COUNT), key=lambda number: len(DATA[number]))
    assert made["spans"][long] == [[0, 3], [3, 6], [6, 9]]


@dataclass(frozen=True)
class Overlapping:
    """Chunks of four timesteps, of which the first was in the chunk before."""

    axis: str = "time"

    def plan(self, index, *, seed, epoch):
        spans = [
            (number, start, min(start + 4, length))
            for number, length in enumerate(index.lengths.tolist())
            for start in range(0, max(1, length - 1), 3)
        ]
        return Plan(spans, offsets=[*range(0, len(spans), 3), len(spans)], overlap=1)

    def num_batches(self, index):
        return len(self.plan(index, seed=0, epoch=0))


def test_timesteps_that_are_context_only_are_left_out(tmp_path):
    predict(data_of(batching=Overlapping()), tmp_path / "out", model=Predictor("flags"))
    made = read(tmp_path / "out")
    assert made["prediction"] == [(one[:, 0] > 0.5).tolist() for one in DATA]
    assert made["spans"][1] == [[0, 4], [4, 7], [7, 8]]


def test_chunks_in_lanes_are_put_together_without_idle_rows(tmp_path):
    predict(data_of(batching=Lanes(4)), tmp_path / "out", model=Predictor("flags"), per="timestep")
    made = read(tmp_path / "out")
    assert made["prediction"] == [(one[:, 0] > 0.5).tolist() for one in DATA]


def test_a_truncated_sequence_says_how_far_it_was_predicted(tmp_path):
    policy = Bucketed(4, max_length=3, too_long="truncate")
    predict(data_of(batching=policy), tmp_path / "out", per={"steps": "timestep"})
    assert read(tmp_path / "out")["spans"] == [[[0, min(3, len(one))]] for one in DATA]


def test_the_kept_end_of_a_truncated_sequence_is_predicted(tmp_path):
    policy = Bucketed(4, max_length=3, too_long="truncate", keep="last")
    predict(
        data_of(batching=policy), tmp_path / "out", per={"steps": "timestep", "sum": "sequence"}
    )
    made = read(tmp_path / "out")
    assert made["spans"] == [[[max(0, len(one) - 3), len(one)]] for one in DATA]
    assert flat(made["steps"]) == [running(one[-3:]) for one in DATA]


def test_windows_give_a_row_for_each(tmp_path):
    policy = Windows(2, 1, 4, horizon=2)
    predict(data_of(batching=policy), tmp_path / "out", per="span", model=Predictor("forecast"))
    made = read(tmp_path / "out")
    places = [(number, at) for number, one in enumerate(DATA) for at in range(len(one) - 3)]
    assert [(n, spans[0][0]) for n, spans in zip(made["position"], made["spans"], strict=True)] == (
        places
    )
    assert made["prediction"] == [
        pytest.approx(DATA[number][at + 2 : at + 4, 0] * 2) for number, at in places
    ]


def test_other_types_are_kept_and_small_floats_widened(tmp_path):
    predict(data_of(), tmp_path / "flags", model=Predictor("flags"))
    assert read(tmp_path / "flags")["prediction"] == [(one[:, 0] > 0.5).tolist() for one in DATA]
    predict(data_of(), tmp_path / "half", model=Predictor("bfloat16"))
    store = open_store(tmp_path / "half")
    assert store.fields["prediction"].dtype == "float32"


def test_data_sets_with_names_go_to_folders_of_these_names(tmp_path):
    data = data_of({"first": NAMED[:5], "second": NAMED[5:]})
    predict(data, tmp_path / "out")
    assert read(tmp_path / "out" / "first")["id"] == [f"utt-{number}" for number in range(5)]
    assert flat(read(tmp_path / "out" / "second")["steps"]) == [running(one) for one in DATA[5:]]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["first", "second"]


def test_a_width_met_by_chance_does_not_make_timesteps(tmp_path):
    data = [np.ones((length, 1)) for length in (11, 11, 9, 9, 3)]
    predict(data_of(data, Fixed(2)), tmp_path / "out", model=Predictor("wide"))
    assert open_store(tmp_path / "out").fields["prediction"].shape == (9,)


def test_a_guess_that_was_wrong_is_refused(tmp_path):
    data = [np.ones((length, 1)) for length in (9, 9, 3)]
    with pytest.raises(ConfigError, match=r"and `per`, but is float32 \(9,\) per sequence in batch "
                       r"1, and float32 \(\) per timestep elsewhere.*pass `per`"):  # fmt: skip
        predict(data_of(data, Fixed(2)), tmp_path / "out", model=Predictor("wide"))
    predict(data_of(data, Fixed(2)), tmp_path / "out", model=Predictor("wide"), per="sequence")
    assert open_store(tmp_path / "out").fields["prediction"].shape == (9,)


def test_what_cannot_be_guessed_is_refused(tmp_path):
    data = [np.ones((9, 1))] * 3
    with pytest.raises(ConfigError, match="`per` is None, but the second dimension of prediction "
                       "'prediction' is 9, as is the width of every batch"):  # fmt: skip
        predict(data_of(data, Fixed(2)), tmp_path / "out", model=Predictor("nine"))
    predict(data_of(data, Fixed(2)), tmp_path / "out", model=Predictor("nine"), per="timestep")
    assert open_store(tmp_path / "out").fields["prediction"].shape == (2,)


@pytest.mark.parametrize(
    ("gives", "options", "message"),
    [
        (
            "many",
            {},
            r"must have 4 rows like the batch, or 4 like batch.real\(\), but has shape \(5, 2\)",
        ),
        ("empty", {}, r"must have a number in each row, but has shape \(4, 0\)"),
        ("complex", {}, "the dtype of prediction 'prediction' must be one of bool"),
        ("number", {}, "'prediction' must be a padded tensor with a row .*, but is a number"),
        ("list", {}, "'prediction' must be a padded tensor with a row .*, but is a list"),
        ("reserved", {}, "must be a non-empty string other than id, position, spans, but is 'id'"),
        ("varying", {}, r"is float32 \(21,\) per sequence in batch 1, and float32 \(20,\) per"),
        ("entries", {}, "are True in batch 1, and False elsewhere"),
        ("both", {"field": "stps"}, "no field 'stps'; did you mean 'steps'"),
        ("both", {"per": {"summ": "sequence"}}, "`per`: no field 'summ'; did you mean 'sum'"),
        (
            "steps",
            {"fields": ("a", "b")},
            "must return a dict for the fields a, b, but returned a Tensor",
        ),
        ("sum", {"per": "timestep"}, r"must have shape \(rows, 9, …\) to be per timestep of"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused(tmp_path, gives, options, message):
    with pytest.raises(ConfigError, match=message):
        predict(data_of(), tmp_path / "out", model=Predictor(gives), **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"field": "a", "fields": ("b",)}, "`field` and `fields` cannot both be given"),
        ({"fields": True}, "`fields` must be a tuple of names.*, but is True"),
        ({"fields": ()}, r"`fields` must be a tuple of names.*, but is \(\)"),
        ({"field": "position"}, "the name of a prediction must be a non-empty string other than"),
        ({"per": "token"}, "must be 'sequence', 'timestep', 'span' or None, but is 'token'"),
        ({"per": {"a": "row"}}, "`per` must be"),
        ({"overwrite": "no"}, "PredictionWriter: `overwrite` must be True or False, but is 'no'"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        PredictionWriter("out", **options)


def test_a_row_per_sequence_of_pieces_is_refused(tmp_path):
    split = Bucketed(4, max_length=3, too_long="split")
    with pytest.raises(ConfigError, match=r"'sum' has one row per sequence, but batch \d+ has "
                       r"timesteps \d\.\.\d of sequence \d+.*`per='span'`"):  # fmt: skip
        predict(data_of(batching=split), tmp_path / "out", field="sum")


def test_pieces_may_have_a_row_each(tmp_path):
    split = Bucketed(4, max_length=3, too_long="split")
    predict(data_of(batching=split), tmp_path / "out", per={"sum": "span"})
    made = read(tmp_path / "out")
    assert len(made["id"]) == sum(-(-len(one) // 3) for one in DATA)
    assert [len(steps) for steps in made["steps"]] == [
        spans[0][1] - spans[0][0] for spans in made["spans"]
    ]


def test_rows_of_several_sequences_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="a row of the batch must have one sequence, but may"):
        predict(data_of(batching=Packed(2, 12)), tmp_path / "out", model=Predictor("flags"))


def test_a_batch_that_knows_no_sequences_is_refused(tmp_path):
    class Plain(Predictor):
        def predict_step(self, batch, batch_idx):
            return batch[0]

    with pytest.raises(ConfigError, match=r"the batch must be a SequenceBatch, .* but is a tuple"):
        predict(data_of(as_tuple=("x", "lengths")), tmp_path / "out", model=Plain())


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
def test_loaders_of_somebody_else_are_refused(tmp_path):
    trainer = pl.Trainer(**QUIET, callbacks=[PredictionWriter(tmp_path / "out")])
    loader = torch.utils.data.DataLoader([torch.zeros(1)])
    with (
        quietly(),
        pytest.raises(
            ConfigError,
            match="the loader must be the loader of a SequenceDataModule, but is a DataLoader",
        ),
    ):
        trainer.predict(Predictor(), loader)


def test_a_limit_is_refused_unless_a_part_is_enough(tmp_path):
    limited = {"limit_predict_batches": 2}
    with pytest.raises(ConfigError, match="only 2 of 6 batches would be predicted"):
        predict(data_of(), tmp_path / "out", trainer=limited)
    predict(data_of(), tmp_path / "out", trainer=limited, partial=True)
    made = read(tmp_path / "out")
    assert len(made["id"]) == 8
    assert flat(made["steps"]) == [running(DATA[number]) for number in made["position"]]
    with pytest.raises(ConfigError, match="`limit_predict_batches` must be above 0, but is 0"):
        predict(data_of(), tmp_path / "none", trainer={"limit_predict_batches": 0}, partial=True)


def test_sequences_that_the_policy_leaves_out_are_named_before_it_begins(tmp_path):
    data = [*NAMED[:3], {"id": "nothing", "x": np.empty((0, 1))}, *NAMED[3:5]]
    model = Predictor(fail_at=0)
    with pytest.raises(PlanError, match=r"drops 1 of 6 sequences, the first is sequence 3 "
                       r"\('nothing'\). Check `empty`"):  # fmt: skip
        predict(data_of(data), tmp_path / "out", model=model)
    predict(data_of(data), tmp_path / "out", partial=True)
    assert read(tmp_path / "out")["position"] == [0, 1, 2, 4, 5]


def test_a_name_that_is_no_folders_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"the name of a dataset must be a plain file name, .* but is '\.\./x'"
    ):
        predict(data_of({"../x": NAMED}), tmp_path / "out")


def test_a_store_that_is_there_stays_unless_it_may_be_overwritten(tmp_path):
    predict(data_of(NAMED[:3]), tmp_path / "out", field="sum")
    before = files_of(tmp_path)
    with pytest.raises(ConfigError, match="already holds a store"):
        predict(data_of(), tmp_path / "out", model=Predictor(fail_at=0))
    with pytest.raises(OSError, match="told to fail"):
        predict(data_of(), tmp_path / "out", overwrite=True, model=Predictor(fail_at=2))
    assert files_of(tmp_path) == before
    predict(data_of(), tmp_path / "out", overwrite=True)
    assert len(open_store(tmp_path / "out")) == COUNT


def test_nothing_is_left_behind_after_an_exception(tmp_path):
    with pytest.raises(OSError, match="told to fail"):
        predict(data_of(), tmp_path / "out", model=Predictor(fail_at=2))
    assert not list(tmp_path.iterdir())


def test_what_a_killed_run_has_left_is_removed(tmp_path):
    old = tmp_path / ".out.predicting" / ".seqdata-tmp-old"
    old.mkdir(parents=True)
    (old / "0-0.spans").write_bytes(b"123")
    predict(data_of(), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"must be in a folder, but is below .*, which is a file"):
        predict(data_of(), tmp_path / "file" / "out")


def test_a_rank_that_cannot_see_the_folder_is_named(tmp_path):
    run = _PredictionSession(World(1, 2), PredictionSpec(None, None))
    run._folder = tmp_path / "elsewhere"
    with pytest.raises(ConfigError, match=r"rank 1 cannot see .*elsewhere, which rank 0 made"):
        run._check_shared_folder()


def test_a_writer_may_be_pickled_and_does_nothing_outside_of_predict(tmp_path):
    writer = pickle.loads(pickle.dumps(PredictionWriter(tmp_path / "out", field="logits")))
    trainer = pl.Trainer(**QUIET, callbacks=[writer])
    writer.setup(trainer, Predictor(), "fit")
    writer.teardown(trainer, Predictor(), "fit")
    assert not list(tmp_path.iterdir())


@contextmanager
def limited(size):
    """Let no file grow beyond some bytes, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 100, 3_000, 40_000])
def test_a_full_disk_leaves_nothing_and_names_the_path(size, tmp_path):
    """In the first batch, when files are closed, and in the middle."""
    data = SequenceDataModule(predict=[np.ones((30 + number % 20, 1)) for number in range(200)])
    with limited(size), pytest.raises(ConfigError, match="cannot be written") as raised:
        predict(data, tmp_path / "out")
    assert str(tmp_path) in str(raised.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_when_the_store_is_written_leaves_nothing(call, tmp_path, monkeypatch):
    def fail(*arguments, **keywords):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    data = SequenceDataModule(predict=sequences(29))
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(SeqDataError) as raised:
        predict(data, tmp_path / "out", model=Predictor("sum"))
    monkeypatch.undo()
    assert str(tmp_path) in str(raised.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
