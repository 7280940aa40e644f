"""The contracts to inherit: for data that is there, policies and collators."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqdata import Bucketed, write_store
from seqdata.collators.padded import Padded
from seqdata.policies.token_budget import TokenBudget
from seqdata_testing import ConformanceError, locations
from seqdata_testing.contract import (
    CollatorContract,
    FormatContract,
    PolicyContract,
    sample_sequences,
)


class TestArrowLocation(FormatContract):
    """A store of seqdata: read by its path, compared with what was written."""

    sequences = sample_sequences()
    methods = ()

    def make(self, folder):
        write_store(folder / "store", self.sequences)
        return folder / "store"


class TestParquetLocation(FormatContract):
    """A table of the core, without checksums."""

    methods = ()

    def make(self, folder):
        rows = [[float(n)] * n for n in (1, 2, 30)]
        pq.write_table(pa.table({"x": rows, "y": [1, 2, 3]}), folder / "a.parquet")
        return folder / "a.parquet"


class TestBucketed(PolicyContract):
    policy = Bucketed(3)


class TestTokenBudget(PolicyContract):
    policy = TokenBudget(60, shuffle=False)
    shuffled = False


class TestPadded(CollatorContract):
    collator = Padded()


def test_every_check_of_a_location_is_a_test_of_the_contract():
    tests = {name for name in vars(FormatContract) if name.startswith("test_")}
    assert tests == {
        f"test_{name.replace(' ', '_').replace('-', '_')}" for name in locations.CHECKS
    }


def test_without_a_location_the_error_says_what_to_set(tmp_path):
    class Empty(FormatContract):
        pass

    with pytest.raises(ConformanceError, match="Empty: `location` must be the location of data"):
        Empty().test_it_describes_itself(tmp_path)


def test_a_location_is_enough(tmp_path):
    np.arange(50, dtype=np.uint16).tofile(tmp_path / "a.bin")

    class Tokens(FormatContract):
        location = tmp_path / "a.bin"

    Tokens().test_spans_are_parts_of_whole_sequences(tmp_path)


def test_a_function_is_a_backend(tmp_path):
    opened = []

    def open_none(location, *, verify=None):
        opened.append(location)
        raise ConformanceError("opened")

    class Function(FormatContract):
        location = tmp_path
        backend = open_none

    with pytest.raises(ConformanceError, match="opened"):
        Function().test_it_describes_itself(tmp_path)
    assert opened == [tmp_path]


def test_a_policy_whose_copies_differ_is_found():
    class Contract(PolicyContract):
        policy = _Unequal(3)

    with pytest.raises(ConformanceError, match=r"a copy must equal .* Make it a frozen dataclass"):
        Contract().test_a_copy_plans_the_same()


class _Unequal:
    axis = "time"

    def __init__(self, size):
        self.inner = Bucketed(size)

    def plan(self, index, *, seed, epoch):
        return self.inner.plan(index, seed=seed, epoch=epoch)

    def num_batches(self, index):
        return self.inner.num_batches(index)


def test_a_collator_that_leaves_a_field_out_is_found():
    def collate(columns, batch):
        made = Padded()(columns, batch)
        del made.data["label"]
        return made

    class Contract(CollatorContract):
        collator = staticmethod(collate)

    with pytest.raises(ConformanceError, match=r"batch 0 must have the fields \['label'\]"):
        Contract().test_a_batch_holds_every_field()


def test_a_collator_of_another_width_is_found():
    def collate(columns, batch):
        made = Padded()(columns, batch)
        made.data["frames"] = made.data["frames"][:, 1:]
        return made

    class Contract(CollatorContract):
        collator = staticmethod(collate)

    with pytest.raises(ConformanceError, match="collator: batch: field 'frames' must have"):
        Contract().test_its_batches_are_consistent()
