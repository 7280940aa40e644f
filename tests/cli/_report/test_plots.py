"""Pictures of `seqdata plan --plot`."""

import numpy as np
import pytest

from seqdata import TBPTT, ConfigError, Zip
from seqdata.cli._report.plots import compare_padding, draw_plan
from seqdata.index import SequenceIndex
from seqdata.policies.fixed import Bucketed, Fixed

HEAVY_TAIL = (4 ** (np.random.Philox(2).random_raw(300) % 7)).astype(np.int64)


def draw_png(folder, policy, index):
    path = folder / "new" / "p.png"
    draw_plan(path, policy, index, policy.plan(index, seed=0, epoch=0), label="mine")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("policy", "lengths"),
    [
        (Bucketed(2), HEAVY_TAIL),
        (Bucketed(2), [1]),
        (Bucketed(2), [0, 3, 3, 7]),
        (Fixed(2), [0, 0]),
        (TBPTT(300, 2), [5] * 400),
        (TBPTT(2, 4), []),
    ],
)
def test_a_picture_is_drawn_of_any_lengths(tmp_path, policy, lengths):
    draw_png(tmp_path, policy, SequenceIndex.from_lengths(lengths))


def test_another_axis_may_be_drawn(tmp_path):
    index = SequenceIndex({"time": np.array([3, 4]), "text": np.array([1, 9])})
    draw_png(tmp_path, Bucketed(1, axis="text"), index)


def test_a_plan_is_compared_with_random_bucketed_and_token_budget_batches():
    index, policy = SequenceIndex.from_lengths(HEAVY_TAIL), Fixed(8)
    own = policy.plan(index, seed=0, epoch=0).measures
    lines = compare_padding(policy, index, own, label="fixed", seed=0).lines
    names = [name.partition(":")[0] for name in lines]
    assert names == ["bucketed", "fixed (random)", "token-budget"]
    padding = 100 * (1 - own.timesteps.sum() / own.padded.sum())
    assert f"fixed (random): {padding:.1f} % padding" in lines


def test_zipped_stores_have_a_page_but_no_picture(tmp_path):
    parts = SequenceIndex.from_parts({"a": SequenceIndex.from_lengths([1, 2])})
    policy = Zip({"a": Fixed(1)})
    with pytest.raises(ConfigError, match="Plot each store by itself, or write `--report`"):
        draw_png(tmp_path, policy, parts)
