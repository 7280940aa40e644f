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
        ({"prefetch": -1}, "`prefetch` must be a whole number, 0 for no thread.*, but is -1"),
        ({"prefetch": 0.5}, "`prefetch` must be a whole number.*, but is 0.5"),
        ({"seed": -1}, r"`seed` must be in \[0, 2\*\*64\).*, but is -1"),
        ({"seed": None}, "`seed` must be in.*, but is None"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(options, message):
    with pytest.raises(ConfigError, match=f"loader: {message}"):
        EngineOptions(**options)


@pytest.mark.parametrize("accumulate", [0, -2, 1.5])
def test_an_update_has_at_least_one_step(accumulate):
    with pytest.raises(
        ConfigError, match=r"`accumulate` must be a whole number of at least.*, but is .*"
    ):
        UpdateSchedule(accumulate)
