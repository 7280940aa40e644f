import pickle
import traceback

import pytest

from seqdata import errors


def test_facts_survive_pickling():
    error = errors.CorruptShardError.at(
        "store: shard 17 is cut off", shard=17, file="part-17.arrow"
    )
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.CorruptShardError
    assert str(again) == "store: shard 17 is cut off"
    assert again.facts == {"shard": 17, "file": "part-17.arrow"}


def test_facts_survive_a_traceback_made_into_text_by_another_library():
    error = errors.DecodeError.at("store: bad", sequence=3, field="x")
    text = "Caught DecodeError in a worker.\n" + "".join(traceback.format_exception(error))
    again = errors.DecodeError(text)
    assert again.facts == {"sequence": 3, "field": "x"}
    assert "store: bad" in str(again)


def test_a_message_stays_clean_of_its_facts():
    assert str(errors.DataError.at("store: bad", shard=None)) == "store: bad"
    assert errors.DataError.at("store: bad", shard=None).facts == {}


def test_a_broken_trailer_is_text():
    assert errors.DataError("bad\nseqdata: {no json").facts == {}


@pytest.mark.parametrize(
    "name", [name for name in dir(errors) if name.endswith("Error") and name != "SeqDataError"]
)
def test_every_error_is_a_seqdata_error(name):
    assert issubclass(getattr(errors, name), errors.SeqDataError)
