"""Braces expand as in bash; what is unbalanced is an error, and nothing is made to be counted."""

import shutil
import subprocess

import pytest

from seqdata.storage.braces import count_expansions, expand_braces
from seqdata_testing.waiting import patient

TEXTS = {
    "x.tar": ["x.tar"],
    "x-{000..002}.tar": ["x-000.tar", "x-001.tar", "x-002.tar"],
    "x-{8..10}": ["x-8", "x-9", "x-10"],
    "x-{3..1}": ["x-3", "x-2", "x-1"],
    "x-{1..9..4}": ["x-1", "x-5", "x-9"],
    "x-{-1..1}": ["x--1", "x-0", "x-1"],
    "{a..c}": ["a", "b", "c"],
    "{train,val}-{0..1}": ["train-0", "train-1", "val-0", "val-1"],
    "{a,b{1,2}}": ["a", "b1", "b2"],
    "{a,}x": ["ax", "x"],
    "{one}": ["{one}"],
}


@pytest.mark.parametrize("text", TEXTS)
def test_braces_stand_for_numbers_letters_and_choices(text):
    assert list(expand_braces(text)) == TEXTS[text]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_expands_the_same():
    done = subprocess.run(
        ["bash", "-c", "\n".join(f"printf '%s\\n' {text}; echo" for text in TEXTS)],
        capture_output=True, text=True, timeout=patient(), check=True,
    )  # fmt: skip
    groups = [group.split("\n") for group in done.stdout.rstrip("\n").split("\n\n")]
    assert groups == list(TEXTS.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x-{0..9", "an opening brace without a closing one"),
        ("x-0}", "a closing brace without an opening one"),
        ("}{0..1}", "a closing brace without an opening one"),
        ("{a,{b}", "an opening brace without a closing one"),
    ],
)
def test_an_unbalanced_brace_is_an_error(text, message):
    with pytest.raises(ValueError, match=message):
        list(expand_braces(text))


@pytest.mark.parametrize("text", TEXTS)
def test_no_text_has_more_expansions_than_are_counted(text):
    assert count_expansions(text) >= len(TEXTS[text])


def test_expansions_are_counted_and_yielded_without_being_made():
    text = "x-{0..999999999999}.tar"
    assert count_expansions(text) == 10**12
    assert next(expand_braces(text)) == "x-0.tar"
