"""Arguments as class paths: what comes back, what is not replayable, what is refused."""

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
from seqdata.runs.class_paths import (
    ArgumentReader,
    ArgumentWriter,
    NotReplayableError,
    import_object,
    make_call,
    make_tuple,
)
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


def plain(value: Any) -> Any:
    made = ArgumentWriter().to_plain(value, "transform")
    return yaml.safe_load(yaml.safe_dump(made))


def why_not(value: Any) -> str:
    with pytest.raises(NotReplayableError) as found:
        plain(value)
    return str(found.value)


def back(made: Any) -> Any:
    return ArgumentReader("run.yaml").from_plain(made, "transform")


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 0.1, float("inf"), "a\nb: [", [1, "2"], (1, (2.5, None)), {"a": [1]},
        {"path": 1, "items": [2]}, noisy, Scaled, Scaled(0.5), Scaled(2, around=(1, 2)), Fixed(3),
        Padded({"x": -1.0}), np.empty, yaml.safe_load,
    ],
)  # fmt: skip
def test_what_has_a_name_or_is_plain_comes_back(value):
    made = plain(value)
    assert back(made) == value
    assert type(back(made)) is type(value)


def test_numbers_of_numpy_become_pythons():
    assert plain({"a": np.float32(0.5), "b": np.int64(3)}) == {"a": 0.5, "b": 3}


def test_a_partial_comes_back_with_its_arguments():
    made = back(plain(functools.partial(noisy, {"x": 1}, rng=(1,))))
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
        ({"class_path": "a"}, "a dict has the key 'class_path'; use a dataclass"),
    ],
)
def test_what_has_no_name_is_said(value, why):
    assert why in why_not(value)


def test_functions_in_functions_have_no_name():
    def inner(sequence, rng):
        return sequence

    assert "inner, defined in a function, has no import path" in why_not(inner)


def test_a_name_that_means_something_else_is_not_used(monkeypatch):
    old = replaced
    monkeypatch.setitem(globals(), "replaced", local)
    assert why_not(old) == f"the import path {__name__}.replaced does not lead to this object"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            make_call(import_object, path="no_such_module.f"),
            "which cannot be imported (ModuleNotFoundError: No module",
        ),
        ({"class_path": "no_such_module.F"}, "which cannot be imported (ModuleNotFoundError: No"),
        ({"class_path": f"{__name__}.gone"}, "which cannot be restored (module "),
        (
            {"class_path": f"{__name__}.Scaled", "init_args": {"no": 1}},
            "which cannot be restored (",
        ),
        ({"class_path": f"{__name__}.Scaled"}, "cannot be restored (Scaled.__init__() missing"),
        ({"class_path": "seqdata.runs.class_paths.import_object"}, "cannot be restored ('path')"),
    ],
)
def test_what_cannot_be_made_again_is_an_error(made, message):
    with pytest.raises(ConfigError) as found:
        back(made)
    assert str(found.value).startswith("run.yaml: `transform` is ")
    assert message in str(found.value)


@pytest.mark.parametrize(
    ("script", "message"),
    [("none.py", "(FileNotFoundError: "), ("none", "(ImportError: none is not a Python file)")],
)
def test_a_script_that_is_gone_is_an_error(script, message):
    reader = ArgumentReader("run.yaml", script=script)
    with pytest.raises(ConfigError) as found:
        reader.from_plain({"class_path": "__main__.F"}, "transform")
    assert message in str(found.value)


SCRIPT = """
import sys
import yaml
from helping import shift
from seqdata.runs.class_paths import ArgumentWriter, NotReplayableError

def own(sequence, rng):
    return shift

{guard}
    writer, made = ArgumentWriter(), []
    for one in (own, shift):
        try:
            made.append(writer.to_plain(one, "transform")["init_args"]["path"])
        except NotReplayableError as error:
            made.append(str(error))
    print(yaml.safe_dump([made, writer.roots, writer.script]))
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
    (own, shift), roots, path = script(tmp_path, "if __name__ == '__main__':")
    assert (own, path) == ("__main__.own", str(tmp_path / "train.py"))
    assert (shift, roots) == ("helping.shift", [str(tmp_path)])
    reader = ArgumentReader("run.yaml", roots=roots, script=path)
    for name, result in ((own, 7), (shift, 7)):
        function = reader.from_plain(make_call(import_object, path=name), "transform")
        found = function({}, None)
        assert (found({}, None) if callable(found) else found) == result


def test_functions_of_a_script_without_a_guard_are_named(tmp_path):
    (own, _), _, path = script(tmp_path, "if sys:")
    why = "own is defined in train.py, which has no `if __name__ == '__main__':`; put the training"
    assert own.startswith(why)
    assert path is None


def test_functions_of_a_module_that_runs_are_named_by_it(tmp_path):
    (own, _), roots, path = script(tmp_path, "if __name__ == '__main__':", "-m", "train")
    assert (own, roots, path) == ("train.own", [str(tmp_path)], None)


def test_functions_of_a_prompt_are_named(tmp_path):
    code = "exec(open('train.py').read())"
    (own, _), _, _ = script(tmp_path, "if __name__ == '__main__':", "-c", code)
    assert own == "own was defined at a prompt or in a notebook; define it in a module"


def test_public_names_are_written_by_their_public_path():
    paths = [plain(value)["init_args"]["path"] for value in (seqdata.Ragged, Samples)]
    assert paths == ["seqdata.Ragged", "seqdata.collators.collate_fn.Samples"]
    assert plain(Fixed(3)) == {"class_path": "seqdata.Fixed", "init_args": {"batch_size": 3}}


def test_what_takes_a_tuple_has_a_list_in_the_file():
    assert plain(Scaled(2, around=(1, 2)))["init_args"]["around"] == [1, 2]
    assert plain((1, 2)) == make_call(make_tuple, items=[1, 2])
