"""Names of fields and axes, and what is said of one that is not there."""

import pytest

from seqdata import Loader, Windows
from seqdata.batch.axes import format_unknown_name
from seqdata.errors import ConfigError
from tests.batch.batches import make_batch


def test_a_field_that_is_not_there_is_named_with_its_neighbours():
    with pytest.raises(
        ConfigError, match=r"batch: no field 'xx'; did you mean 'x'. Choose one of x, y"
    ):
        make_batch()["xx"]
    assert format_unknown_name("a", ()) == "no field 'a'. There is none"


def test_a_name_that_is_not_there_is_told_with_the_nearest():
    (batch,) = Loader([{"load": [1, 2, 3], "site": 3}], Windows(2, batch_size=1, horizon=1))
    for part in (batch, batch.context, batch.future):
        with pytest.raises(ConfigError, match=r"batch: no field 'laod'; did you mean 'load'\?"):
            part["laod"]
        with pytest.raises(KeyError):
            part["z"]
    with pytest.raises(ConfigError, match=r"no field 'site'. Choose one of load"):
        batch.context["site"]
