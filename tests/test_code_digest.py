"""A digest of what a function does, and of what it uses."""

import functools
import json
import operator
import os
import pathlib
import random
import re
import subprocess
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqdata.code_digest import code_digest, describe_code
from seqdata_testing.waiting import patient
from tests.loading.transforms.samples import runs


class Scale:
    def __init__(self, by):
        self.by = by

    def __call__(self, sequence, rng):
        return self.by * sequence

    def other(self, sequence):
        return sequence


class Closed(Scale):
    def __reduce__(self):
        raise TypeError("not to be sent")


def scaled(by, more=()):
    def inner(sequence, rng, factor=by):
        return [factor * one for one in sequence] + [by, more, {1, 2} & {2}]

    return inner


def recursive(depth):
    return recursive(depth - 1) if depth else HOP


HOP = 3


def test_a_digest_is_of_what_a_function_does():
    different = [
        scaled(2), scaled(3), scaled(2, {"a": [1]}), scaled(2, {"a": [2]}), Scale(2), Scale(3),
        Scale(2).other, Closed(2), functools.partial(runs, 1), functools.partial(runs, 2),
        recursive, runs, Scale,
    ]  # fmt: skip
    assert len({code_digest(one) for one in different}) == len(different)
    assert code_digest(scaled(2)) == code_digest(scaled(2))
    assert code_digest(Scale(2)) == code_digest(Scale(2))


def test_a_digest_sees_values_of_the_module(monkeypatch):
    before = code_digest(recursive)
    monkeypatch.setitem(globals(), "HOP", 4)
    assert code_digest(recursive) != before


FACTOR, RANK, CACHE = 2.0, 0, "/tmp/of-rank-0"


def with_globals(sequence, rng):
    return [FACTOR * one + len(CACHE) * RANK for one in sequence]


def closed(**values):
    """Return a function that holds the values."""

    def inner(sequence, rng):
        return values_of(held, sequence)

    held = values["held"]
    return inner


def values_of(held, sequence):
    return [held, sequence]


@dataclass
class Part:
    """What a process has of its own, beside what it was given."""

    scale: float = 2.0
    rng: object = field(default_factory=np.random.default_rng)
    drawn: object = field(default_factory=random.Random)
    lock: object = field(default_factory=threading.Lock)
    generator: object = field(default_factory=lambda: torch.Generator().manual_seed(os.getpid()))
    folder: object = field(default_factory=lambda: pathlib.Path(f"/tmp/{random.random()}"))
    cache_dir: str = field(default_factory=lambda: f"/tmp/{random.random()}")
    rank: int = field(default_factory=lambda: random.randrange(1 << 60))
    device: object = field(default_factory=lambda: f"cuda:{random.randrange(99)}")
    marker: object = field(default_factory=object)

    def __call__(self, sequence, rng):
        return sequence


class Twice(Scale):
    """Another class with the same values."""


class Left(Scale):
    """Leaves out of its state what differs."""

    def __getstate__(self):
        return {"by": 1}


@functools.lru_cache
def cached(number):
    return number


EQUAL = {
    "a lambda": lambda: lambda sequence, rng: sequence,
    "a closure": lambda: closed(held=[1, (2.5, "a"), None]),
    "an array": lambda: closed(held=np.arange(4.0)),
    "a tensor": lambda: closed(held=torch.arange(4, dtype=torch.bfloat16)),
    "a lock": lambda: closed(held=threading.Lock()),
    "an unpicklable function within": lambda: closed(held=[lambda: 0, threading.Lock()]),
    "an object without a state": lambda: closed(held=object()),
    "a process's own": Part,
    "what is left out": lambda: Left(random.random()),
    "a partial": lambda: functools.partial(values_of, Scale(2), sequence=OrderedDict(a=1)),
    "a method": lambda: Scale(2).other,
    "a module": lambda: (
        torch.nn.Linear(2, 2).apply(lambda one: one.weight.data.fill_(1)) and cached
    ),
    "a getter": lambda: operator.itemgetter("x"),
    "a ufunc": lambda: np.exp,
    "a class": lambda: Scale,
    "a pattern": lambda: closed(held=re.compile("a.b")),
    "closed to pickle": lambda: Closed(2),
    "itself": lambda: (lambda one: setattr(one, "by", one) or one)(Scale(0)),
    "globals": lambda: with_globals,
    "a set of strings": lambda: closed(held=frozenset("abcdefgh")),
    "a dict": lambda: closed(held={"a": 1, "b": {2, 3}}),
}


@pytest.mark.parametrize("name", EQUAL)
def test_facts_of_two_callables_that_do_the_same_are_equal(name):
    assert describe_code("t", EQUAL[name]()) == describe_code("t", EQUAL[name]())


def test_facts_are_equal_in_every_process():
    code = (
        "import json; from tests import test_code_digest as t; "
        "print(json.dumps({name: t.describe_code('t', make()) for name, make in t.EQUAL.items()}))"
    )
    own = {name: list(describe_code("t", make())) for name, make in EQUAL.items()}
    told = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": "7"},
        cwd=pathlib.Path(__file__).parents[1], capture_output=True, text=True, check=True,
        timeout=patient(),
    )  # fmt: skip
    assert json.loads(told.stdout) == own


DIFFERENT = {
    "code": (lambda s, r: s + 1, lambda s, r: s + 2, "t"),
    "a number within": (closed(held=2), closed(held=3), "t.held"),
    "a number in a list": (closed(held=[2]), closed(held=[3]), "t.held"),
    "a long string": (closed(held="a" * 99), closed(held="a" * 98 + "b"), "t.held"),
    "an array": (closed(held=np.arange(3)), closed(held=np.array([0, 1, 3])), "t.held"),
    "a dtype": (closed(held=np.arange(3.0)), closed(held=np.arange(3)), "t.held"),
    "a tensor": (closed(held=torch.zeros(2)), closed(held=torch.ones(2)), "t.held"),
    "an inner object": (closed(held=[Scale(2)]), closed(held=[Scale(3)]), "t.held"),
    "an attribute": (Scale(2), Scale(3), "t.by"),
    "a class": (Scale(2), Twice(2), "t"),
    "what cannot be pickled": (Closed(2), Closed(3), "t.by"),
    "of a method": (Scale(2).other, Scale(3).other, "t.by"),
    "an argument": (functools.partial(runs, 1), functools.partial(runs, 2), "t[0]"),
    "a keyword": (functools.partial(runs, by=1), functools.partial(runs, by=2), "t.by"),
    "a default": (lambda s, r, by=1: s, lambda s, r, by=2: s, "t.by"),
    "a field": (Part(2.0), Part(3.0), "t.scale"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_difference_is_told_by_its_name(name):
    one, other, where = DIFFERENT[name]
    one, other = describe_code("t", one), describe_code("t", other)
    assert {
        key for key in one.fixed | other.fixed if one.fixed.get(key) != other.fixed.get(key)
    } == {where}


def test_what_may_be_a_cache_is_told_apart():
    one, other = (describe_code("t", closed(held={"a": value})) for value in (1, 2))
    assert one.fixed == other.fixed
    assert one.changing.keys() == other.changing.keys() == {"t.held"}
    assert one.changing != other.changing


def test_values_of_the_module_that_do_not_change_count(monkeypatch):
    before = describe_code("t", with_globals)
    monkeypatch.setitem(globals(), "RANK", 1)
    monkeypatch.setitem(globals(), "CACHE", "/tmp/of-rank-1")
    assert describe_code("t", with_globals) == before
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert describe_code("t", with_globals) != before


TEXTS = st.text(max_size=4)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=8,
)


@given(PLAIN)
def test_equal_values_are_equal_facts_and_copies_too(value):
    copied = eval(repr(value), {"nan": float("nan"), "inf": float("inf")})
    assert describe_code("t", Scale(value)) == describe_code("t", Scale(copied))
    assert describe_code("t", closed(held=[value, value])) == describe_code(
        "t", closed(held=[value, copied])
    )
