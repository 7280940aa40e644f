"""A Loader says what has changed around it: another transform, ranks that came after it."""

import json
import re
from pathlib import Path

import pytest
import torch

from seqdata.errors import ConfigError, SeqDataWarning
from seqdata.policies.token_budget import TokenBudget
from seqdata.sharing import World
from tests.loading.loaders import make_loader, resume_loader, start_loader

README = Path(__file__).resolve().parents[2] / "README.md"


def test_a_saved_state_is_as_small_as_the_readme_says(tmp_path):
    (most,) = re.findall(r"a state below (\d+) kB", README.read_text("utf-8"))
    for transform in (None, doubled):
        made = make_loader(TokenBudget(2_048), transform=transform)
        torch.save({"loader": made.state_dict()}, tmp_path / "state.pt")
        assert (tmp_path / "state.pt").stat().st_size < int(most) * 1_000
        assert len(json.dumps(made.state_dict())) < 1_000


def doubled(sequence, rng):
    return {**sequence, "x": sequence["x"] * 2}


@pytest.mark.parametrize(
    ("now", "name"),
    [
        (lambda sequence, rng: sequence, r"test_loader_changes.<lambda> \([0-9a-f]{16}\)"),
        (None, "none"),
    ],
)
def test_another_transform_than_before_is_told_with_both_names(now, name):
    made = make_loader(transform=doubled)
    next(iter(made))
    state = made.state_dict()
    assert len(json.dumps(state)) < 1_000
    before = r"`transform` was .*test_loader_changes.doubled \([0-9a-f]{16}\)"
    with pytest.warns(SeqDataWarning, match=rf"loader: {before}, but is now .*{name}: the next"):
        again = resume_loader(state, transform=now)
    assert next(iter(again)).number == 1
    resume_loader(state, transform=doubled)  # warnings are errors here
    del state["transform"]
    resume_loader(state)


def test_other_code_of_the_same_name_is_another_transform():
    one, other = ((lambda sequence, rng, k=k: {**sequence, "y": k}) for k in (1, 2))
    made = make_loader(transform=one)
    next(iter(made))
    with pytest.warns(
        SeqDataWarning, match=r"was .*<lambda> \(\w+\), but is now .*<lambda> \(\w+\): "
    ):
        resume_loader(made.state_dict(), transform=other)


def test_a_transform_that_changes_while_it_is_used_is_the_same():
    class Counts:
        def __init__(self):
            self.calls = 0

        def __call__(self, sequence, rng):
            self.calls += 1
            return sequence

    made = make_loader(transform=Counts())
    next(iter(made))
    resume_loader(made.state_dict(), transform=Counts())


def test_a_loader_of_one_process_refuses_the_ranks_that_came_after_it(monkeypatch):
    made, told = make_loader(), make_loader(world=World(1, 2))
    begun = start_loader(1)[1]
    monkeypatch.setattr(World, "current", lambda: World(0, 2))
    message = (
        r"made for one process, before the process group of 2 ranks .* `world=World\(rank, 2\)"
    )
    with pytest.raises(ConfigError, match=message):
        len(made)
    with pytest.raises(ConfigError, match=message):
        next(iter(made))
    assert made.epoch == 0
    next(begun)
    assert len(told) == len(make_loader()) == 7
    assert len(make_loader(world=World())) == 13  # who says so when ranks are there means it
