"""After an error the same iteration of a DataModule's loader never ends as if it were whole."""

import pytest

from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.lightning.ranks.coordinator import RankCoordinator
from seqdata.policies.fixed import Fixed
from tests.lightning.harness import sequences


def told_to_fail(sequence, rng):
    if len(sequence["x"]) == 3:
        raise ValueError("told to fail")
    return sequence


@pytest.mark.parametrize("kind", ["train", "val"])
def test_by_hand_it_goes_on_with_the_next_batch(kind):
    data = sequences(20)
    bad = [number for number, one in enumerate(data) if len(one) == 3]
    module = SequenceDataModule(
        **{kind: data}, batching=Fixed(1, shuffle=False), transform=told_to_fail
    )
    items = iter(getattr(module, f"{kind}_dataloader")())
    came, errors = [], 0
    for _ in range(2 * len(data)):
        try:
            came.append(next(items).number)
        except StopIteration:
            break
        except ValueError:
            errors += 1
    assert came == [number for number in range(20) if number not in bad]
    assert errors == len(bad) > 0


def test_what_all_ranks_have_agreed_on_is_raised_again():
    def fails():
        yield 1
        raise ValueError("told to fail")

    items = RankCoordinator().iterate_synchronized(fails(), 1)
    assert next(items) == 1
    for _ in range(3):
        with pytest.raises(ValueError, match="told to fail"):
            next(items)
    assert list(RankCoordinator().iterate_synchronized(iter([1, 2]), 1)) == [1, 2]
