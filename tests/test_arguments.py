"""Arguments that are not known are answered with what they are called here."""

import pytest

from seqdata.arguments import check_arguments, select_options
from seqdata.errors import ConfigError


class Loading:
    @check_arguments
    def __init__(self, data, batching=None, *, num_workers=0, prefetch=2):
        self.passed = (data, num_workers, prefetch)


def test_known_arguments_are_passed_on():
    assert Loading(1, num_workers=2).passed == (1, 2, 2)
    assert Loading.__init__.__name__ == "__init__"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("batch_size", "pass the policy that makes batches, such as batching=Bucketed(32)"),
        ("prefetch_factor", "pass prefetch="),
        ("num_worker", "did you mean 'num_workers'?"),
        ("colour", "it takes data, batching, num_workers, prefetch"),
        ("world_size", "it takes data, batching"),  # advice names no argument that is not there
    ],
)
def test_an_unknown_argument_is_answered_with_advice(name, advice):
    with pytest.raises(TypeError) as caught:
        Loading(1, **{name: 3})
    assert str(caught.value).startswith(
        f"Loading() got an unexpected keyword argument {name!r}; {advice}"
    )


def test_what_is_missing_is_said_as_python_does():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'data'"):
        Loading()


def opened(location, *, verify=None, index="load"):
    return location, verify, index


def test_options_that_are_none_are_left_to_the_backend():
    assert select_options("x", opened, "tar", {"verify": "always", "index": None}) == {
        "verify": "always"
    }
    assert select_options("x", opened, "tar", {"lengths": None}) == {}


def test_a_backend_with_any_options_takes_each():
    def opener(location, **options):
        return location, options

    assert select_options("x", opener, "tar", {"lengths": [1]}) == {"lengths": [1]}


def test_an_option_that_a_backend_does_not_take_is_named_with_its_value():
    with pytest.raises(ConfigError) as caught:
        select_options("data.tar", opened, "tar", {"lengths": [1]})
    assert str(caught.value) == (
        "data.tar: backend 'tar' does not take `lengths`, but it is [1]. Leave it out."
    )
