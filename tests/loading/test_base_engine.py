"""A loop that catches an error and asks again gets the rest of the epoch, never an early end."""

import gc
import itertools

import numpy as np
import pytest

from seqdata import TBPTT, Fixed, Loader, World
from seqdata.errors import ConfigError, DecodeError, IncompleteEpochError, SeqDataWarning
from seqdata.loading.pipeline import BatchPipeline
from tests.loading.workers.parts import ITEMS, STORE

BATCHES = ITEMS // 4
BAD = (0, 21, 22, 59)  # of the batches 0, 5 and 14
WAYS = [{"prefetch": 0}, {"prefetch": 2}, {"num_workers": 2, "start_method": "fork"}]


class Fails:
    """Raises at these sequences."""

    def __init__(self, error=ValueError, numbers=BAD):
        self.error, self.numbers = error, numbers

    def __call__(self, sequence, rng):
        if int(sequence["x"][0]) // 100 in self.numbers:
            raise self.error("told to fail")
        return sequence


def loader(transform=None, **options):
    return Loader(STORE, Fixed(4, shuffle=False), transform=transform, **options)


def caught(items, most=2 * BATCHES):
    """What comes of a loop that catches each error and asks again: numbers of batches, errors."""
    came, errors = [], []
    for _ in range(most):
        try:
            came.append(next(items).number)
        except StopIteration:
            return came, errors
        except Exception as error:
            errors.append(error)
    raise AssertionError(f"no end after {len(came)} batches and {len(errors)} errors")


@pytest.mark.parametrize("way", WAYS, ids=["plain", "ahead", "workers"])
@pytest.mark.parametrize("error", [ValueError, StopIteration])
def test_after_an_error_the_iteration_goes_on_with_the_next_batch(way, error):
    mine = loader(Fails(error), **way)
    try:
        came, errors = caught(iter(mine))
        assert came == [k for k in range(BATCHES) if k not in (0, 5, 14)]
        assert len(errors) == 3
        assert mine.state_dict()["epoch"] == 1
        again, errors = caught(iter(mine))
        assert again == came
        assert len(errors) == 3
    finally:
        mine.shutdown()


def test_a_state_taken_after_an_error_tries_the_batch_again():
    mine = loader(Fails(), prefetch=0)
    items = iter(mine)
    with pytest.raises(ValueError, match="told to fail"):
        next(items)
    assert mine.state_dict()["position"] == 0
    assert [next(items).number for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="told to fail"):
        next(items)
    state = mine.state_dict()
    assert state["position"] == 5
    repaired = loader(prefetch=0)
    with pytest.warns(SeqDataWarning, match="`transform` was"):
        repaired.load_state_dict(state)
    assert next(iter(repaired)).number == 5


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_goes_on_with_its_own_next_step(rank):
    came, errors = caught(iter(loader(Fails(), prefetch=0, world=World(rank, 2))))
    assert came == [k for k in range(rank, BATCHES, 2) if k not in (0, 5, 14)] + [14] * rank
    assert len(errors) == (2 if rank == 0 else 1)  # rank 1 ends with padding rows of batch 14


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_batch_that_ctrl_c_interrupts_is_made_again(prefetch):
    interrupt = iter([KeyboardInterrupt])

    def transform(sequence, rng):
        if int(sequence["x"][0]) == 2100:
            raise next(interrupt, None) or ValueError("twice")
        return sequence

    items = iter(loader(transform, prefetch=prefetch))
    assert [next(items).number for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyboardInterrupt):
        next(items)
    with pytest.raises(ValueError, match="twice"):
        next(items)
    assert next(items).number == 6


def test_an_error_of_no_single_batch_is_raised_again():
    mine = loader()
    mine._engine.iterate_share = lambda *args: (_ for _ in ()).throw(ConfigError("never works"))
    items = iter(mine)
    for _ in range(3):
        with pytest.raises(ConfigError, match="never works"):
            next(items)


def test_an_iteration_that_was_shut_down_says_so_as_often_as_it_is_asked():
    mine = Loader(STORE, Fixed(1), prefetch=1)
    items = iter(mine)
    next(items)
    mine.shutdown()
    for _ in range(2):
        with pytest.raises(IncompleteEpochError, match=r"\d+ batches of epoch 0 were delivered"):
            list(items)


@pytest.mark.parametrize("number", [0, 5])
def test_a_batch_is_not_asked_for_while_another_is_made(number):
    def transform(sequence, rng):
        if int(sequence["x"][0]) == 400 * number and not asked:
            asked.append(number)
            with pytest.raises(ConfigError, match="must be asked for one batch at a time, but is"):
                next(items)
        return sequence

    asked = []
    items = iter(loader(transform, prefetch=0))
    assert [batch.number for batch in items] == list(range(BATCHES))
    assert asked == [number]


def test_an_iterator_at_its_end_holds_nothing():
    def count():
        gc.collect()
        return sum(type(one) is BatchPipeline for one in gc.get_objects())

    before = count()
    items = iter(loader(prefetch=0))
    assert next(items).number == 0
    assert count() == before + 1
    assert len(list(items)) == BATCHES - 1
    assert count() == before
    assert list(items) == []


def test_an_iteration_that_was_closed_is_at_its_end():
    for drawn, prefetch in itertools.product((0, 1, 20), (0, 2)):
        items = iter(loader(prefetch=prefetch))
        list(itertools.islice(items, drawn))
        items.close()
        assert list(items) == []


def test_a_transform_that_raises_stop_iteration_is_told_with_its_place():
    def takes_from_an_empty_iterator(sequence, rng):
        return next(iter(()))

    with pytest.raises(RuntimeError, match=r"raised StopIteration. Pass a default") as caught:
        next(iter(loader(takes_from_an_empty_iterator, prefetch=0)))
    assert isinstance(caught.value.__cause__, StopIteration)
    notes = "\n".join(caught.value.__notes__)
    assert "in the transform of sequence 's0'" in notes
    assert "in epoch 0, batch 0 (step 0, rank 0 of 1)" in notes


@pytest.mark.parametrize("on_error", ["mask", "replace"])
def test_a_transform_that_raises_stop_iteration_can_be_gone_past(on_error):
    mine = loader(Fails(StopIteration), on_error=on_error, prefetch=0)
    assert [batch.number for batch in mine] == list(range(BATCHES))
    assert [one["sequence"] for one in mine.errors] == list(BAD)
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(loader(Fails(StopIteration), on_error=on_error, prefetch=0, max_errors=0))


def test_a_collate_function_and_a_data_set_may_not_end_an_epoch_either():
    def collate(rows):
        return next(iter(()))

    class Dataset:
        def __len__(self):
            return 8

        def __getitem__(self, item):
            return {"x": next(iter(()))} if item == 5 else {"x": [1.0, 2.0]}

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(loader(collator=collate, prefetch=0))
    with pytest.raises((RuntimeError, DecodeError), match="StopIteration"):
        list(Loader(Dataset(), Fixed(4), lengths=[2] * 8, prefetch=0))


LONG = [np.arange(300.0)]  # 150 batches of chunks of 2


def test_lanes_without_a_sequence_are_told_once():
    loader = Loader(LONG, TBPTT(4, 2))
    with pytest.warns(
        SeqDataWarning, match=r"sequences fill 1 of 4 lanes, and the .* `continuous=True`, with"
    ):
        list(loader)
    list(loader)  # a second warning would be an error here


@pytest.mark.parametrize(
    ("data", "policy"),
    [
        (LONG, TBPTT(4, 2, continuous=True, shuffle=False)),
        (LONG, TBPTT(2, 2)),  # half of them
        (LONG, TBPTT(4, 4)),  # a short epoch
        (LONG * 2, TBPTT(4, 2)),
        (LONG, Fixed(4)),
    ],
)
def test_other_epochs_have_no_warning_of_lanes(data, policy):
    assert next(iter(Loader(data, policy))) is not None
