"""What the core makes has the members that the protocols name, and others are told apart."""

import numpy as np
import pytest

from seqdata import Fixed, Segments, Weighted, Windows, Zip
from seqdata.protocols import (
    Field,
    Policy,
    SupportsParts,
)
from seqdata.storage.memory import MemoryStore
from seqdata.storage.parts import join_parts

STORE = MemoryStore.from_sequences([{"x": np.zeros(2)}])
PARTS = {"a": Fixed(1), "b": Fixed(2)}


@pytest.mark.parametrize(
    ("protocol", "has_it", "lacks_it"),
    [
        (SupportsParts, join_parts({"a": STORE}), STORE),
    ],
)
def test_a_capability_is_its_members(protocol, has_it, lacks_it):
    assert isinstance(has_it, protocol)
    assert not isinstance(lacks_it, protocol)


@pytest.mark.parametrize(
    "policy", [Fixed(2), Windows(4), Zip(PARTS, lead="a"), Segments(Weighted(Fixed(2)), batches=4)]
)
def test_policies_plan_along_an_axis(policy):
    members = {"axis", "plan", "num_batches"}
    assert members <= set(dir(policy))
    assert members <= set(dir(Policy))


def test_a_field_is_equal_to_one_of_the_same_description():
    field = STORE.fields["x"]
    assert field == Field(field.dtype, field.shape, field.axis)
    assert field != Field("float32", field.shape, field.axis)
    assert hash(field) == hash(Field(field.dtype, field.shape, field.axis))
