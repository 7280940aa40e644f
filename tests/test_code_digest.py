"""A digest of what a function does, and of what it uses."""

import functools

from seqdata.code_digest import code_digest
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
