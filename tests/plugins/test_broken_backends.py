"""Each fault of a backend is found by the check that names it."""

import re

import pytest

from seqdata_testing.locations import CHECKS, check_location
from tests.plugins import broken_backends
from tests.plugins.broken_backends import Sound, write_shards

FAULTS = {
    "ScalarValue": (
        "values have the shape of their field",
        r"field 'y' of sequence 0 has shape \(\), but must have \(1,\)",
    ),
    "WrongLengths": (
        "values have the lengths of their axis",
        r"field 'x' of sequence 2 has 11 timesteps, but must have 12",
    ),
    "WrongDtype": (
        "values have the dtype of their field",
        r"field 'x' of sequence 0 must be float32, as its Field says, but is float64",
    ),
    "LostRows": (
        "sequences are the same together and alone",
        r"field 'x' of sequence 5 has shape \(1999, 2\) if it is read with others, but \(2000, 2\)",
    ),
    "RepeatedIds": ("ids are different texts", r"sequences 0 and 6 have the same id, 'r0'"),
    "SpansOffByOne": ("spans are parts of whole sequences", r"field 'x': piece \d+ differs"),
    "NotPicklable": (
        "it reopens after pickling", r"cannot be pickled \(TypeError: .*Return its class",
    ),
    "OtherFingerprint": ("each opening has one fingerprint", r"when it is opened again"),
    "SharedAfterFork": (
        "child processes read the same", r"a forked process that reads moves the position in .*rec",
    ),
    "SwallowedErrors": (
        "a file that is cut off or gone is an error",
        r"'s2.rec' is gone since it was opened, but other values are read without an error",
    ),
    "WritableView": ("values stay as they were read", r"two reads of field 'x' .* writable memory"),
    "ReusedBuffer": ("values stay as they were read", r"changed when others were read after it"),
    "IdWithoutUtf8": (
        "ids are different texts", r"id of sequence 0 must be a string that UTF-8 can encode, but",
    ),
}  # fmt: skip


def test_a_sound_backend_passes(tmp_path):
    found = list(check_location(write_shards(tmp_path / "data"), Sound))
    assert [result.name for result in found] == list(CHECKS)
    assert {result.state for result in found} == {"ok", "skipped"}
    assert [result.text for result in found if result.state == "skipped"] == [
        "the backend has no index",
        "the backend has no audit",
        "the backend has no audit",
        "the expected content (`sequences`) is not given",
    ]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_the_check_that_names_it(fault, tmp_path):
    kind = getattr(broken_backends, fault)
    methods = ("fork",) if fault == "SharedAfterFork" else ()
    location = write_shards(tmp_path / "data")
    results = check_location(location, kind, methods=methods)
    failed = next(each for each in results if each.state == "failed")
    name, text = FAULTS[fault]
    assert failed.name == name
    assert re.search(text, failed.text), failed.text


def test_every_fault_is_tried():
    kinds = [kind for kind in vars(broken_backends).values() if isinstance(kind, type)]
    faulty = {kind.__name__ for kind in kinds if issubclass(kind, Sound) and kind is not Sound}
    assert faulty == set(FAULTS)
    assert len(faulty) >= 12
