"""What does not fit in a batch is named."""

import pytest
import torch

from seqdata.batch.axes import Axes
from seqdata.errors import ConfigError
from tests.batch.batches import make_batch


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"lengths": torch.tensor([3, 1, 2], dtype=torch.int32)},
            "`lengths` must be int64 .*, but is torch.int32",
        ),
        (
            {"ids": torch.tensor([3])},
            r"`ids` must be int64 \(3,\) on the CPU, but is torch.int64 \(1,\)",
        ),
        ({"weight": torch.ones(2)}, r"`weight` must have shape \(3,\), but has \(2,\)"),
        ({"lengths": torch.tensor([9, 1, 2])}, "`lengths` must be at most 3, but go up to 9"),
        ({"data": {"x": torch.ones(2, 3)}}, "field 'x' must have 3 rows, but has 2"),
        (
            {"data": {"x": torch.ones(3, 4)}},
            r"field 'x' must have 3 timesteps, but has shape \(3, 4\)",
        ),
        (
            {"segments": torch.ones(3, 2)},
            r"`segments` must have shape \(spans, 4\), but has \(3, 2\)",
        ),
        ({"num_tokens": 5}, r"`num_tokens` must be score.sum\(\) = 6, but is 5"),
    ],
)
def test_validate_names_what_does_not_fit(change, message):
    batch = make_batch()
    for name, value in change.items():
        setattr(batch, name, value)
    with pytest.raises(ConfigError, match=rf"batch: {message}.*\. Check the collator"):
        batch.validate()


def test_validate_looks_at_every_axis():
    batch = make_batch()
    batch.data["text"] = torch.ones(3, 5)
    batch.axes = Axes("time", {"text": "text", "y": None, "id": None})
    batch.lengths_of = {"text": torch.tensor([1, 4, 2])}
    with pytest.raises(ConfigError, match=r"field 'text' must have 4 timesteps, but has shape"):
        batch.validate()
    assert make_batch().validate()
