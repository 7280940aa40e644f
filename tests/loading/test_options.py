import pytest

from seqdata.errors import ConfigError
from seqdata.loading.options import EngineOptions, UpdateSchedule


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fields": "tokens"}, "`fields` is 'tokens', must be a tuple of names or None for all"),
        ({"fields": ()}, r"`fields` is \(\), must be a tuple of names"),
        ({"tail": "pad"}, "`tail` is 'pad', must be 'fill', 'drop' or 'repeat'"),
        ({"prefetch": -1}, "`prefetch` is -1, must be a whole number, 0 for no thread"),
        ({"prefetch": 0.5}, "`prefetch` is 0.5, must be a whole number"),
        ({"seed": -1}, r"`seed` is -1, must be in \[0, 2\*\*64\)"),
        ({"seed": None}, "`seed` is None, must be in"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(options, message):
    with pytest.raises(ConfigError, match=f"loader: {message}"):
        EngineOptions(**options)


@pytest.mark.parametrize("accumulate", [0, -2, 1.5])
def test_an_update_has_at_least_one_step(accumulate):
    with pytest.raises(
        ConfigError, match=r"`accumulate` is .*, must be a whole number of at least"
    ):
        UpdateSchedule(accumulate)
