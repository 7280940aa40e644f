"""Recordings with transcripts: one rate, a column to split by, texts that fit their frames."""

import re
import warnings

import numpy as np
import pytest

from seqdata import ConfigError, open_store
from seqdata.errors import SeqDataWarning
from seqdata.suite.recordings import CheckRecordings, check_rates


def make_store(texts=("no", "yes", "on"), rates=None, lengths=None, **columns):
    lengths = lengths or [100] * len(texts)
    rows = [
        {"audio": np.zeros(length, np.float32), "text": text,
         "rate": (rates or [8000] * len(texts))[number]}
        for number, (text, length) in enumerate(zip(texts, lengths, strict=True))
    ]  # fmt: skip
    rows = [
        {**row, **{name: each[number] for name, each in columns.items()}}
        for number, row in enumerate(rows)
    ]
    return open_store(rows, axes={"audio": "time"})


def check(store, **options):
    chosen = {"rate": 8000, "by": None, "features": None, "tokenizer": None, "is_ctc": True}
    return CheckRecordings(**{**chosen, **options})(store)


def refuses(message):
    return pytest.raises(ConfigError, match=f"^{re.escape(message)}")


class Frames:
    """Features of ten samples a frame."""

    def lengths(self, lengths):
        return lengths // 10


class Pairs:
    """A tokenizer with a token for each two bytes; it notes what it was asked."""

    def __init__(self):
        self.asked = []

    def encode(self, texts):
        self.asked += texts
        return None, np.array([-(-len(text.encode()) // 2) for text in texts])


def test_recordings_that_fit_are_returned_as_they_are():
    store = make_store(speaker=list("abc"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, notes = check(store, by="speaker")
    assert found is store
    assert notes == []


def test_a_source_without_texts_has_only_its_rates_checked():
    store = make_store().select("audio", "rate")
    assert check(store) == (store, [])
    with refuses("speech: all recordings must have the sampling rate 9 Hz (`rate`), but they have"):
        check(store, rate=9)
    assert check(make_store().select("audio", "text"), rate=9)[1] == []  # no rate is known


@pytest.mark.parametrize("blank", ["", "  ", "\n\t"])
def test_recordings_with_a_blank_text_are_dropped_with_a_warning(blank):
    store = make_store(("no", blank, "on", *[blank] * 4), rates=[8000] * 7)
    note = "5 of 7 recordings have a blank text and are dropped ('1', '3', '4', ...)"
    with pytest.warns(SeqDataWarning, match=f"^speech: {re.escape(note)}$"):
        found, notes = check(store)
    assert notes == [note]
    assert list(found.ids) == ["0", "2"]


def test_texts_that_are_all_blank_are_refused():
    message = (
        "speech: recordings must have a text in the transcript, but all of the 2 texts are blank "
        "('0', '1'). Check the column of the text"
    )
    with refuses(message):
        check(make_store(("", " ")))


@pytest.mark.parametrize("features", [None, Frames()])
def test_texts_with_more_characters_than_frames_are_counted_and_kept(features):
    per_frame = 1 if features is None else 10
    lengths = [n * per_frame for n in (3, 3, 0, 4)]
    store = make_store(("abc", "abcd", "", "aaaaé"), lengths=lengths)
    note = (
        "2 of 3 recordings have more tokens than frames, for which the loss of CTC is infinite "
        "(the first: '1', 4 tokens, 3 frames). Correct or remove their rows of the transcript, "
        "or pass zero_infinity=True to the loss"
    )
    with pytest.warns(SeqDataWarning) as caught:
        found, notes = check(store, features=features)
    assert [str(each.message) for each in caught] == [f"speech: {each}" for each in notes]
    assert notes[1:] == [note]
    assert len(found) == 3
    with pytest.warns(SeqDataWarning, match="blank"):
        assert len(check(store, features=features, is_ctc=False)[1]) == 1


def test_recordings_of_a_view_are_named_by_their_own_ids():
    store = make_store(("no", "too long", " "), rates=[8000, 8000, 16000], lengths=[9, 2, 9])
    view = store.take([2, 1, 0])
    with refuses("who: all recordings must have one sampling rate, but they have 8000 Hz: 2 (the "
                 "first: '1'), 16000 Hz: 1 (the first: '2')"):  # fmt: skip
        check_rates("who", view)
    with pytest.warns(SeqDataWarning):
        _, notes = check(view.select("audio", "text"))
    assert "dropped ('2')" in notes[0]
    assert "(the first: '1', 8 tokens, 2 frames)" in notes[1]


def test_a_tokenizer_is_asked_only_where_a_text_may_be_too_long():
    tokenizer = Pairs()
    store = make_store(("abcdef", "abcd", "ab", "éé"), lengths=[2, 2, 2, 2])
    with pytest.warns(SeqDataWarning, match=r"1 of 4 recordings .*: '0', 3 tokens, 2 frames"):
        check(store, tokenizer=tokenizer)
    assert tokenizer.asked == ["abcdef", "abcd", "éé"]


def test_a_column_to_split_by_must_be_there():
    message = (
        "speech: `split_by` must be a further column of the transcript (speaker, room), but is "
        "'person'. Name the column of the speakers, or pass split_by=None, with which one "
        "speaker may be in two parts"
    )
    with refuses(message):
        check(make_store(speaker=list("abc"), room=list("abc")), by="person")
    with refuses("speech: `split_by` must be a further column of the transcript (none), but is "
                 "'person'. Name"):  # fmt: skip
        check(make_store(), by="person")


def test_recordings_of_one_rate_are_accepted_whatever_it_is():
    check_rates("who", make_store())
    check_rates("who", make_store(), 8000)


@pytest.mark.parametrize(
    ("rates", "rate", "message"),
    [
        (
            [16000, 8000, 16000], None,
            "who: all recordings must have one sampling rate, but they have 8000 Hz: 1 (the first: "
            "'1'), 16000 Hz: 2 (the first: '0'). Resample the files of the others, or move "
            "them out of the source",
        ),
        (
            [16000, 8000, 16000], 8000,
            "who: all recordings must have the sampling rate 8000 Hz (`rate`), but they have 8000 "
            "Hz: 1 (the first: '1'), 16000 Hz: 2 (the first: '0'). Resample the files of",
        ),
        (
            [16000] * 3, 8000,
            "who: all recordings must have the sampling rate 8000 Hz (`rate`), but they have 16000 "
            "Hz: 3 (the first: '0'). Pass rate=16000, or resample the files",
        ),
    ],
)  # fmt: skip
def test_other_rates_are_named_with_their_first_recording(rates, rate, message):
    with refuses(message):
        check_rates("who", make_store(rates=rates), rate)
