import numpy as np
import pytest

from seqdata.errors import ConfigError
from seqdata.loading.options import EngineOptions, UpdateSchedule


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"fields": "tokens"},
            "`fields` must be a tuple of names or None for all, but is 'tokens'",
        ),
        ({"fields": ()}, r"`fields` must be a tuple of names"),
        ({"tail": "pad"}, "`tail` must be 'fill', 'drop' or 'repeat', but is 'pad'"),
        ({"prefetch": -1}, r"`prefetch` must be an integer in .*, 0 for no thread, but is -1"),
        ({"prefetch": 0.5}, "`prefetch` must be an integer.*, but is 0.5"),
        ({"seed": -1}, r"`seed` must be an integer in \[0, 2\*\*64\), but is -1"),
        ({"seed": None}, "`seed` must be an integer in.*, but is None"),
        ({"seed": True}, "`seed` must be an integer in.*, but is True"),
        ({"fields": True}, "`fields` must be a tuple of names or None for all, but is True"),
        ({"fields": ["x", 1]}, r"`fields` must be a tuple of names .*, but is \['x', 1\]"),
        ({"num_workers": True}, "`num_workers` must be an integer .*, 0 for no p.*, but is True"),
        ({"stall_timeout": True}, "`stall_timeout` must be a number of seconds .*, but is True"),
        ({"pin_memory": "no"}, "`pin_memory` must be True or False, but is 'no'"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(options, message):
    with pytest.raises(ConfigError, match=f"loader: {message}"):
        EngineOptions(**options)


def test_integers_of_numpy_are_plain_ones():
    options = EngineOptions(seed=np.uint64(3), num_workers=np.int32(2), prefetch=np.int64(1))
    values = options.seed, options.num_workers, options.prefetch
    assert (values, {type(value) for value in values}) == ((3, 2, 1), {int})
    assert type(UpdateSchedule(np.int64(2)).accumulate) is int


@pytest.mark.parametrize("accumulate", [0, -2, 1.5, True])
def test_an_update_has_at_least_one_step(accumulate):
    with pytest.raises(
        ConfigError, match=r"`accumulate` must be an integer of at least.*, but is .*"
    ):
        UpdateSchedule(accumulate)
