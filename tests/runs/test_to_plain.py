"""Arguments as plain data: what comes back, what is named as not replayable, what is refused."""

import functools
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import seqdata
from seqdata.collators.collate_fn import Samples
from seqdata.collators.padded import Padded
from seqdata.errors import ConfigError
from seqdata.policies.fixed import Fixed
from seqdata.runs.to_plain import PlainReader, PlainWriter
from seqdata_testing.waiting import patient
from tests.lightning.crashing import noisy
from tests.preloaded import python


@dataclass(frozen=True)
class Scaled:
    by: float
    around: tuple[int, ...] = ()
    how: Any = noisy
    made: dict = field(default_factory=dict, init=False)

    def __call__(self, sequence, rng):
        return sequence


class Plain:
    def __call__(self, sequence, rng):
        return sequence

    def method(self, sequence, rng):
        return sequence


def plain(value: Any) -> tuple[Any, list[str]]:
    names = PlainWriter()
    made = names.to_plain(value, "transform")
    return yaml.safe_load(yaml.safe_dump(made)), names.missing


def back(made: Any) -> Any:
    return PlainReader((), "run.yaml").from_plain(made, "transform")


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 0.1, float("inf"), "a\nb: [", [1, "2"], (1, (2.5, None)), {"a": [1]},
        {"import": 1, "tuple": 2}, noisy, Scaled, Scaled(0.5), Scaled(2, around=(1, 2)), Fixed(3),
        Padded({"x": -1.0}), np.empty, yaml.safe_load,
    ],
)  # fmt: skip
def test_what_has_a_name_or_is_plain_comes_back(value):
    made, missing = plain(value)
    assert not missing
    assert back(made) == value
    assert type(back(made)) is type(value)


def test_numbers_of_numpy_become_pythons():
    assert plain({"a": np.float32(0.5), "b": np.int64(3)})[0] == {"a": 0.5, "b": 3}


def test_a_partial_comes_back_with_its_arguments():
    made = back(plain(functools.partial(noisy, {"x": 1}, rng=(1,)))[0])
    assert (made.func, made.args, made.keywords) == (noisy, ({"x": 1},), {"rng": (1,)})


def local(sequence, rng):
    return sequence


def replaced(sequence, rng):
    return sequence


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (lambda sequence, rng: sequence, "a lambda has no import path; define it in a module"),
        (functools.partial(lambda a: a), "a lambda has no import path"),
        ([1, np.zeros(2)], "a ndarray has no import path"),
        (Plain(), "a Plain has no import path"),
        (Plain().method, "a method has no import path; use a function of a module, or a dataclass"),
        ({1: 2}, "a dict has no import path"),
    ],
)
def test_what_has_no_name_is_said(value, why):
    made, missing = plain(value)
    assert len(missing) == 1
    assert missing[0].startswith("transform: ")
    assert why in missing[0]
    with pytest.raises(ConfigError, match=r"run\.yaml: `transform` cannot be restored: "):
        back(made)


def test_functions_in_functions_have_no_name():
    def inner(sequence, rng):
        return sequence

    assert "inner, defined in a function, has no import path" in plain(inner)[1][0]


def test_a_name_that_means_something_else_is_not_used(monkeypatch):
    old = replaced
    monkeypatch.setitem(globals(), "replaced", local)
    assert plain(old)[1] == [f"transform: {__name__}:replaced is another object"]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            {"import": "no_such_module:f"},
            "which cannot be imported (ModuleNotFoundError: No module",
        ),
        ({"import": f"{__name__}:gone"}, "which cannot be restored (module "),
        ({"object": f"{__name__}:Scaled", "fields": {"no": 1}}, "which cannot be restored ("),
        ({"object": f"{__name__}:Scaled"}, "which cannot be restored ('fields')"),
        ({"import": "__main__:f", "script": "none.py"}, "(FileNotFoundError: "),
        ({"import": "__main__:f", "script": "none"}, "(ImportError: none is not a Python file)"),
    ],
)
def test_what_cannot_be_made_again_is_an_error(made, message):
    with pytest.raises(ConfigError) as found:
        back(made)
    assert str(found.value).startswith("run.yaml: `transform` is ")
    assert message in str(found.value)


SCRIPT = """
import sys
import yaml
from helping import shift
from seqdata.runs.to_plain import PlainWriter

def own(sequence, rng):
    return shift

{guard}
    names = PlainWriter()
    made = [names.to_plain(one, "transform") for one in (own, shift)]
    print(yaml.safe_dump([made, names.roots, names.missing]))
"""


def script(folder: Path, guard: str, *how: str) -> list[Any]:
    """Run a script that writes its own functions down."""
    (folder / "helping.py").write_text("def shift(sequence, rng):\n    return 7\n")
    (folder / "train.py").write_text(SCRIPT.format(guard=guard))
    done = subprocess.run(
        [python(), *(how or ("train.py",))],
        cwd=folder, capture_output=True, text=True, timeout=patient(), check=True,
    )  # fmt: skip
    return yaml.safe_load(done.stdout)


def test_functions_of_a_guarded_script_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (own, shift), roots, missing = script(tmp_path, "if __name__ == '__main__':")
    assert not missing
    assert own == {"import": "__main__:own", "script": str(tmp_path / "train.py")}
    assert (shift, roots) == ({"import": "helping:shift"}, [str(tmp_path)])
    objects = PlainReader(roots, "run.yaml")
    assert objects.from_plain(own, "transform")({}, None)({}, None) == 7
    assert objects.from_plain(shift, "transform")({}, None) == 7


def test_functions_of_a_script_without_a_guard_are_named(tmp_path):
    (own, _), _, missing = script(tmp_path, "if sys:")
    why = "own is defined in train.py, which trains when it is imported; put that under `if __name"
    assert own["unreplayable"].startswith(why)
    assert len(missing) == 1


def test_functions_of_a_module_that_runs_are_named_by_it(tmp_path):
    (own, _), roots, missing = script(tmp_path, "if __name__ == '__main__':", "-m", "train")
    assert (own, roots, missing) == ({"import": "train:own"}, [str(tmp_path)], [])


def test_functions_of_a_prompt_are_named(tmp_path):
    code = "exec(open('train.py').read())"
    (own, _), _, _ = script(tmp_path, "if __name__ == '__main__':", "-c", code)
    assert own == {"unreplayable": "own was defined at a prompt or in a notebook; define it in a "
                   "module"}  # fmt: skip


def test_paths_of_earlier_releases_are_still_read():
    """Run files name modules: those that have moved since are found where they are now."""
    objects = PlainReader(roots=(), file="seqdata-run.yaml")
    moved = {
        "streams": "RandomStreams", "transforms": "Ragged", "storage.remote.options": "Remote",
        "world": "World", "loader": "Loader", "recurrent.states": "LaneStates",
        "lightning.prediction": "PredictionWriter", "measuring": "measure_lengths",
        "opening.stores": "open_store", "opening.writing": "write_store",
    }  # fmt: skip
    for module, name in moved.items():
        path = {"import": f"seqdata.{module}:{name}"}
        assert objects.from_plain(path, "transform") is getattr(seqdata, name)
    path = {"import": "seqdata.collators.samples:Samples"}
    assert objects.from_plain(path, "collator") is Samples


def test_public_names_are_written_by_their_public_path():
    names = PlainWriter()
    assert names.to_plain(seqdata.Ragged, "transform") == {"import": "seqdata:Ragged"}
    assert names.to_plain(Samples, "collator") == {"import": "seqdata.collators.collate_fn:Samples"}
