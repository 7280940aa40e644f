"""An error is the same wherever a batch is made: here, or in a worker process."""

import numpy as np
import pytest

from seqdata import Fixed, Loader, open_store
from seqdata.errors import CorruptSampleError, DecodeError
from seqdata_testing.faults import damage
from seqdata_testing.faults.processes import FaultTransform, Unheard, raise_unheard
from seqdata_testing.faults.targets import OWN

OF_WORKERS = {"worker", "pid"}
WHERE = {"shard": 7, "file": "part-00007.arrow", "epoch": 0, "rank": 0}


def refusing(sequence, rng):
    if sequence["id"] == "s41":
        raise DecodeError.at("the sound is no sound", frame=3)
    return sequence


def growing(sequence, rng):
    times = 2 if sequence["id"] == "s41" else 1
    return {**sequence, "x": np.repeat(sequence["x"], times, axis=0)}


@pytest.fixture
def root(tmp_path):
    OWN.write(tmp_path / "data", OWN.dataset())
    return tmp_path / "data"


def errors_of(root, kind, transform=None):
    """What is raised without workers, and with two."""
    found = []
    for workers in (0, 2):
        store = open_store(root, verify="always")
        loader = Loader(
            store, Fixed(4, shuffle=False), transform=transform, num_workers=workers
        )  # fmt: skip
        with pytest.raises(kind) as caught:
            list(loader)
        loader.shutdown()
        assert type(caught.value) is kind
        found.append(caught.value)
    return found


def without_workers(details):
    return {name: fact for name, fact in details.items() if name not in OF_WORKERS}


def check_alike(here, there):
    assert str(there).replace(f", worker {there.details['worker']})", ")") == str(here)
    assert without_workers(there.details) == here.details
    assert there.details["worker"] in (0, 1)


def test_damage_is_told_alike(root):
    name, position, size = next(one for one in OWN.values(root) if one[0] == "part-00007.arrow")
    damage.flip_bit(root / name, 8 * (position + size // 2))
    here, there = errors_of(root, CorruptSampleError)
    check_alike(here, there)
    assert here.details.items() >= WHERE.items()
    assert str(here).startswith(f'{root} shard 7 ("part-00007.arrow"), sequence ')
    lines = str(here).splitlines()
    assert lines[-1].startswith("  epoch 0, batch ")
    assert lines[-1].endswith(f"Verify: seqdata verify {root} --shard 7.")


@pytest.mark.parametrize("transform", [refusing, pytest.param(growing, marks=pytest.mark.nightly)])
def test_our_errors_about_a_transform_are_told_alike(root, transform):
    here, there = errors_of(root, DecodeError, transform)
    check_alike(here, there)
    assert here.details.items() >= {**WHERE, "sequence": 41, "key": "s41"}.items()


def test_errors_of_others_are_told_alike(root):
    here, there = errors_of(root, Unheard, FaultTransform(raise_unheard, "id", "s41"))
    assert here.args == there.args == ("nothing of this kind is known", 7)
    told = [note for note in there.__notes__ if not note.startswith("in worker ")]
    assert told == here.__notes__
    assert told[0] == "in the transform of sequence 's41'"
    assert here.details == there.details
    assert here.details.items() >= {"shard": 7, "sequence": 41, "key": "s41"}.items()
    assert "in raise_unheard" in str(there.__cause__)
