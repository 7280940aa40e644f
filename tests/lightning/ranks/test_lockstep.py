"""Errors of one rank arrive on the others as what they are."""

import os

from seqdata.errors import DecodeError, PeerFailedError
from seqdata.lightning.ranks.lockstep import _make_report, _rebuild_error


class Local(Exception):
    """An error that one rank makes, and another may not know."""

    def __reduce__(self):
        return made, (os.getpid(),)


def made(pid):
    if pid != int(os.environ.get("MADE", pid)):
        raise LookupError("there is no such thing here")
    return Local("local")


def test_an_error_that_cannot_be_made_on_another_rank_is_told_in_words(monkeypatch):
    told = _make_report(3, Local("local"), None)
    monkeypatch.setenv("MADE", "0")
    error = _rebuild_error(told, 2)
    assert isinstance(error, PeerFailedError)
    assert str(error) == (
        "ranks: rank 2 failed: Local: local (it cannot be unpickled here: there is no such "
        "thing here)"
    )


def test_an_error_of_ours_arrives_with_class_text_facts_and_rank():
    error = _rebuild_error(_make_report(3, DecodeError.at("field 'x' is bad", shard=7), None), 2)
    assert type(error) is DecodeError
    assert (str(error), error.facts) == ("rank 2: field 'x' is bad", {"shard": 7, "rank": 2})
