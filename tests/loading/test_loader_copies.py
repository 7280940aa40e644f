"""A Loader is pickled and deep-copied without its threads, and the copy continues where it is."""

import copy
import pickle

import numpy as np
import pytest

from seqdata import Segments, Weighted
from seqdata.policies.fixed import Bucketed
from tests.loading.loaders import LENGTHS, ZIP, make_loader, make_zip_data, start_loader

COPIED = pytest.mark.parametrize(
    "copied", [lambda loader: pickle.loads(pickle.dumps(loader)), copy.deepcopy]
)


def ids_of(batches):
    return [batch.ids.tolist() for batch in batches]


def broken_at_seven(sequence, rng):
    if sequence["x"][0] == 700:
        raise ValueError("seven is broken")
    return sequence


@COPIED
@pytest.mark.parametrize("delivered", [0, 3, 13])
@pytest.mark.parametrize("options", [{}, {"prefetch": 2}, {"num_workers": 1}, {"seed": 7}])
def test_a_copy_continues_at_the_same_position_by_itself(copied, delivered, options):
    loader, batches = start_loader(delivered, **options)
    state = loader.state_dict()
    made = copied(loader)
    assert made.state_dict() == state
    if delivered in (0, 13):
        batches = iter(loader)
    first = ids_of(made)
    assert loader.state_dict() == state
    assert first == ids_of(batches)
    assert ids_of(made) == ids_of(loader)
    loader.shutdown()
    made.shutdown()


@COPIED
def test_a_copy_has_the_weights_that_were_set(copied):
    loader = make_loader(Segments(Weighted(Bucketed(8)), batches=5))
    loader.set_weights(np.arange(len(LENGTHS)) + 1.0)
    made = copied(loader)
    assert made.state_dict() == loader.state_dict()
    assert ids_of(made) == ids_of(loader)


@COPIED
def test_a_copy_has_the_errors_and_counts_its_own(copied):
    loader = make_loader(transform=broken_at_seven, on_error="mask", max_errors=2)
    list(loader)
    made = copied(loader)
    assert [entry["sequence"] for entry in made.errors] == [7]
    list(made)
    assert (len(made.errors), len(loader.errors)) == (2, 1)


@COPIED
def test_a_copy_of_zipped_parts_has_all_of_them(copied):
    loader = make_loader(ZIP, make_zip_data())
    made = copied(loader)
    for batch, other in zip(made, loader, strict=True):
        assert {name: part.ids.tolist() for name, part in batch.items()} == {
            name: part.ids.tolist() for name, part in other.items()
        }


@COPIED
def test_a_copy_has_the_weights_that_were_set_where_errors_are_replaced(copied):
    loader = make_loader(Segments(Weighted(Bucketed(8)), batches=5), on_error="replace")
    loader.set_weights(np.arange(len(LENGTHS)) + 1.0)
    assert ids_of(copied(loader)) == ids_of(loader)
