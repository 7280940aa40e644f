"""A mistake, and what is said to it: the place, what is wrong, and the next step."""

import functools
import re

import numpy as np
import pytest


def says(error, *parts):
    """Make a test of a function that makes a mistake: it must raise, and say all of the parts.

    Notes count as said, since tracebacks show them. A part that begins and ends with ``/`` is a
    regular expression.
    """

    def decorate(make):
        @functools.wraps(make)
        def test(*args, **kwargs):
            with pytest.raises(error) as caught:
                make(*args, **kwargs)
            text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
            for part in parts:
                found = re.search(part[1:-1], text) if part[0] == "/" else part in text
                assert found, f"{part!r} is not said: {text}"

        return test

    return decorate


def rows(count=12, seed=0):
    """Sequences of 2 to 29 timesteps: ``x`` (T, 4) float32, a label, an id."""
    rng = np.random.default_rng(seed)
    return [
        {
            "id": f"s{number}",
            "x": rng.normal(size=(length, 4)).astype("float32"),
            "y": number % 3,
        }
        for number, length in enumerate(rng.integers(2, 30, count).tolist())
    ]
