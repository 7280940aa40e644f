"""Plain English in docstrings and messages, as far as a program can check it; and the glossary."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import seqdata
import seqdata.backends
from tests.library_files import ROOT, list_library, walk

OPENINGS = re.compile(
    r"(Gives?|Tells?|Says?|Lets?|What|Where|How|Which|Who|Whose|Those|Its|Of (a|an|the))\b"
)
"""No docstring begins so: it begins with "Return", another verb of what is done, or a noun."""

UNCLEAR = re.compile(
    r"""
      cannot\ be\ meant           # is invalid
    | ,\ must\b                   # `x` must be B, but is A
    | \banew\b                   # again
    | \bwhoever\b                 # the caller
    | \b(go|goes|going|went)\ on(?!\ (a|an|the|one|another|its|to)\b)   # continue
    | \b(?<!set\ )beside\b        # next to
    | \blets?\ go\ of\b           # release
    | \bbehind\ one\ another\b    # contiguous
    | \bfor\ ever\b               # leak
    | \bhad\ better\b             # should
    | \bdata\ sets?\b             # dataset
    | \b(filler|dummy)\ (batch|row)    # padding batch, padding row
    | \b(is|are|was|were)\ left\ out\b  # dropped, omitted, skipped
    | \bwhole\ numbers?\b         # integer
    | \bfilter\ the\ index\b      # filter with store.where(...)
    | (?<!\bthere\ )\b(is|are)\ no\ (?!longer|more|less|fewer|such|\w+'s)\w    # is not a
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""Words and patterns that a docstring or message does not have; what to write instead."""


GLOSSARY = ROOT / "docs" / "about" / "glossary.md"

MOST_TERMS = 60

WORDS_OF_THE_FIELD = {
    "access", "allocator", "array", "audit", "base", "batch", "bucketed", "cache", "change",
    "collate", "config", "consistency", "content", "copy", "corrupt", "data", "dataset", "decode",
    "died", "differ", "encoder", "error", "event", "exact", "failed", "file", "finished", "fixed",
    "forecast", "form",
    "format", "header", "host", "incomplete", "index", "item", "joint", "label", "learning",
    "limit", "loader", "locality", "logger", "long", "mean", "memory", "mismatch",
    "missing", "mix",
    "module", "monitor", "name", "observer", "offset", "opened", "option", "output", "padded",
    "peer", "plugin", "prediction", "preempted", "preemption", "prefetch", "quantile", "ragged",
    "random", "rank", "rate", "raw", "read", "reader", "remote", "rescale", "robust", "speech",
    "sample", "seq",
    "shard", "single", "sorted", "stage", "stall", "state", "statistic", "std", "support", "table",
    "target", "tbptt", "text", "token", "unknown", "unsafe", "varying", "vocabulary", "warning",
    "wav", "worker", "world", "writable", "writer", "writing",
}  # fmt: skip
"""Words in names of public classes that mean what they mean elsewhere: none of ours."""


def texts(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield the docstrings and other strings of a module: line, text, whether it is a docstring."""
    nodes = walk(path.read_text("utf-8"))
    docstrings, parts = set(), set()
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.add(id(node.value))  # of modules, classes, functions and attributes
        elif isinstance(node, ast.JoinedStr):
            parts.update(id(part) for part in node.values)
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(literal(part) for part in node.values), False
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        ):
            yield node.lineno, node.value, id(node) in docstrings


def literal(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "{}"


def unclear(text: str, is_docstring: bool) -> list[str]:
    """Return what a text should not say."""
    flat = " ".join(text.split())
    found = [match[0] for match in UNCLEAR.finditer(flat)]
    if is_docstring and OPENINGS.match(flat):
        found.append(flat.split()[0])
    return found


def test_docstrings_and_messages_are_plain_english():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words!r}"
        for path in list_library()
        for line, text, is_docstring in texts(path)
        for words in unclear(text, is_docstring)
    ]
    assert not found, "\n".join(["say it plainly (UNCLEAR, OPENINGS):", *found])


@pytest.mark.parametrize(
    ("text", "is_docstring", "expected"),
    [
        ("Give the length.", True, ["Give"]),
        ("Gives the length.", True, ["Gives"]),
        ("Let a batch come.", True, ["Let"]),
        ("Give way", False, []),
        ("What a store is.", True, ["What"]),
        ("How long ranks wait.", True, ["How"]),
        ("Of the plan.", True, ["Of"]),
        ("Whether a file exists.", True, []),
        ("`size` is 0, must be at least 1", False, [", must"]),
        ("it is not there, must; restore it", False, [", must"]),
        ("`size` must be at least 1, but is 0. Pass 1.", False, []),
        ("the lane goes on\n    with it", True, ["goes on"]),
        ("ranks go on to the next", True, []),
        ("it is no store, and there is no index", True, ["is no s"]),
        ("it is no longer needed", True, []),
        ("a data set of\n    two", True, ["data set"]),
        ("the filler row is left out", False, ["filler row", "is left out"]),
        ("the filler rows are dropped", False, ["filler row"]),
        ("a whole number", False, ["whole number"]),
    ],
)
def test_what_is_found_in_a_text(text, is_docstring, expected):
    assert unclear(text, is_docstring) == expected


def test_every_noun_of_a_public_class_is_of_the_field_or_in_the_glossary():
    explained = {word for term in terms() for word in re.split(r"[ -]", term)}
    missing = [
        word for word in nouns() if not explained & {word, f"{word}s", word.removesuffix("ed")}
    ]
    assert not missing


def test_every_word_of_the_glossary_is_used():
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path != GLOSSARY]
    written = "\n".join(path.read_text("utf-8") for path in [*list_library(), *pages]).lower()
    patterns = {term: re.sub(r"[ -]", r"[\\s_-]*", term) for term in terms()}
    assert not [term for term, pattern in patterns.items() if not re.search(pattern, written)]


def test_the_glossary_is_short_and_explains_a_word_once():
    assert len(set(terms())) == len(terms()) <= MOST_TERMS


def terms() -> list[str]:
    """Return the words that the glossary explains."""
    rows = re.findall(r"^\| ([^|]+) \|", GLOSSARY.read_text("utf-8"), re.MULTILINE)
    named = [term.lower() for row in rows for term in row.split(", ")]
    return [term for term in named if term not in ("word", "---")]


def nouns() -> list[str]:
    """Return the nouns in names of public classes and of capabilities, in the singular."""
    public = {
        name
        for module in (seqdata, seqdata.backends)
        for name in module.__all__
        if isinstance(getattr(module, name), type)
    }
    names = {*public, *capabilities()}
    words = {word for name in names for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+", name)}
    lower = {re.sub(r"(?<=[^s])s$", "", word.lower()) for word in words}
    return sorted({word.replace("indexing", "index") for word in lower} - WORDS_OF_THE_FIELD)


def capabilities() -> Iterator[str]:
    for path in list_library():
        yield from re.findall(r"^class (Supports\w+)", path.read_text("utf-8"), re.MULTILINE)
