"""The stores and engines of a DataModule: opened once, made again where the world is another."""

import inspect
import pickle
import warnings

import numpy as np
import pytest

from seqdata import TBPTT, Bucketed, Fixed, Mix, SequenceDataModule, TokenBudget, Weighted, World
from seqdata.errors import ConfigError, SeqDataWarning
from seqdata.runs.data_sources import DataSources, RunContext
from seqdata.runs.options import DataOptions

DATA = [{"x": np.full(1 + number % 4, number), "y": number} for number in range(12)]
OTHER = DATA[:4]
DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(SequenceDataModule.__init__).parameters.items()
    if parameter.default is not parameter.empty
}
CONTEXT = RunContext(world=World(), seed=3, overfit=False)


def make(hint=None, **options):
    options = {"train": DATA, "batching": Bucketed(2), **options}
    return DataSources(DataOptions(**{**DEFAULTS, **options}), hint)


def test_engines_are_kept_until_the_context_is_another(tmp_path):
    sources = make(val={"a": OTHER, "b": OTHER})
    assert sources.get_engines("train") == []
    train = sources.prepare_engines("train", CONTEXT)
    val = sources.prepare_engines("val", CONTEXT)
    assert sources.prepare_engines("train", CONTEXT) is train
    assert [engine.options.name for engine in (*train, *val)] == ["train", "val/a", "val/b"]
    assert sources.prepared_kinds == ["train", "val"]
    fingerprints = sources.list_fingerprints(["train", "val", "test"])
    assert [len(found) for found in fingerprints.values()] == [1, 2, 0]
    other = RunContext(world=World(1, 2), seed=3, overfit=False, folder=tmp_path)
    again = sources.prepare_engines("train", other)
    assert again[0] is not train[0]
    assert again[0].options.world == World(1, 2)
    assert sources.prepare_engines("val", CONTEXT) is val
    assert again[0].options.error_log.path == tmp_path / "seqdata-errors-rank1.jsonl"
    sources.shutdown()


def test_a_copy_for_another_process_has_no_engines():
    sources = make()
    sources.prepare_engines("train", CONTEXT)
    copy = pickle.loads(pickle.dumps(sources))
    assert copy.prepared_kinds == []
    assert len(copy.prepare_engines("train", CONTEXT)) == 1


def test_other_options_make_what_is_kept_again():
    sources = make()
    (before,) = sources.prepare_engines("train", CONTEXT)
    changed = {**DEFAULTS, "train": DATA, "batching": Bucketed(3)}
    sources.change_options(DataOptions(**changed))
    (after,) = sources.get_engines("train")
    assert len(after.plan(0)) < len(before.plan(0))
    assert sources.options.batching == Bucketed(3)


def ids_of(engine):
    plan = engine.plan(0)
    return [id_ for number in range(len(plan)) for id_ in plan.batch(number).spans[:, 0].tolist()]


def test_evaluation_is_not_shuffled_and_a_frozen_part_neither():
    sources = make(val=DATA)
    (train,), (val,) = (sources.make_engines(kind, CONTEXT) for kind in ("train", "val"))
    assert ids_of(train) != ids_of(val)
    frozen = RunContext(world=World(), seed=3, overfit=True)
    (fixed,) = sources.make_engines("train", frozen)
    assert ids_of(fixed) == ids_of(val)
    assert fixed.options.overfit


def test_the_part_of_a_mixture_evaluates_its_own_data():
    mix = Mix({"a": 1, "b": 1}, Bucketed(2))
    sources = make(train={"a": DATA, "b": OTHER}, val={"a": OTHER}, batching=mix)
    (engine,) = sources.make_engines("val", CONTEXT)
    assert sorted(ids_of(engine)) == [0, 1, 2, 3]
    (train,) = sources.make_engines("train", CONTEXT)
    assert list(train.index.parts) == ["a", "b"]


def test_an_evaluation_meets_each_sequence_once():
    sources = make(val=DATA, eval_batching=Weighted(Bucketed(2), draws=30))
    with pytest.raises(
        ConfigError, match="`eval_batching` must return each sequence once, but draws"
    ):
        sources.make_engines("val", CONTEXT)
    (engine,) = make(val=DATA, batching=Weighted(Bucketed(2))).make_engines("val", CONTEXT)
    assert sorted(ids_of(engine)) == list(range(12))


@pytest.mark.parametrize("kind", ["val", "test", "predict"])
@pytest.mark.parametrize("tail", ["fill", "drop", "repeat"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 13])
@pytest.mark.parametrize("policy", [Fixed(1), TokenBudget(6), TBPTT(4, chunk=2)], ids=type)
def test_an_evaluation_delivers_each_row_once_whatever_the_tail_of_training(
    kind, tail, ranks, policy
):
    sources, counts, steps = make(batching=policy, tail=tail, **{kind: DATA}), {}, set()
    for rank in range(ranks):
        context = RunContext(world=World(rank, ranks), seed=0, overfit=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SeqDataWarning)  # 4 lanes on other ranks
            batches = list(sources.make_engines(kind, context)[0].iterate(0, 0))
        steps.add(len(batches))
        for batch in batches:
            for row, weight in zip(batch.ids.tolist(), batch.weight.tolist(), strict=True):
                counts[row] = counts.get(row, 0) + (weight > 0 and batch.lengths.sum() > 0)
    assert len(steps) == 1
    if not isinstance(policy, TBPTT):
        assert counts == dict.fromkeys(range(len(DATA)), 1)
    assert min(counts[row] for row in range(len(DATA))) > 0


def test_an_evaluation_that_cannot_mark_dummy_rows_is_refused_and_says_what_helps():
    sources = make(val=DATA[:3], batching=Fixed(1), tail="drop", as_tuple=("x", "lengths"))
    context = RunContext(world=World(0, 2), seed=0, overfit=False)
    assert sources.make_engines("train", context)[0].num_steps == 6
    match = (
        r"loader of 'val': 3 batches on 2 ranks leave 1 without one, and \('x', 'lengths'\) has no "
        r"'weight' to mark padding rows. Add 'weight', or pass an `eval_batching` of which 2 "
    )
    with pytest.raises(ConfigError, match=match):
        sources.make_engines("val", context)


def test_a_replay_engine_is_of_one_location_and_without_workers():
    sources = make(val={"a": OTHER}, num_workers=2, prefetch=4)
    engine = sources.make_replay_engine("val", "a", CONTEXT)
    assert (engine.options.num_workers, engine.options.prefetch) == (0, 0)
    for kind, name in [("val", "b"), ("val", None), ("test", None), ("dev", None)]:
        with pytest.raises(ConfigError, match=rf"no data for `kind` '{kind}' and `name` {name!r}"):
            sources.make_replay_engine(kind, name, CONTEXT)


def test_errors_name_the_command_that_replays_them():
    sources = make(lambda *place: f"replay {place}", val={"a": OTHER})
    (engine,) = sources.make_engines("val", CONTEXT)
    assert engine.options.replay_hint(2, 7) == "replay ('val', 'a', 2, 7)"
    assert make().make_engines("train", CONTEXT)[0].options.replay_hint is None
