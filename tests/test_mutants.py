"""The planted bugs of tests/mutants fit the present code; `make mutants` shows them found."""

import ast
import gc
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from seqdata_testing.waiting import patient
from tests.mutants import draw, run
from tests.mutants.table import HERE, Bug, Edit, TableError, as_bug, plant, read_room, read_table

ROOT = Path(__file__).resolve().parents[1]
BUGS = read_table()
FILE = """\
class Queue:
    def take(self):
        item = self._items.pop()
        return item

    def drop(self):
        item = self._items.pop()
        item = self._items.pop()


item = None
"""
POP = "        item = self._items.pop()\n"


def test_every_bug_fits_the_code_once_changes_it_and_leaves_python():
    gc.disable()  # looking for cycles, of which trees have none, takes half of the time
    try:
        wrong = [f"{bug.name}: {found}" for bug in BUGS if (found := what_is_wrong(bug))]
    finally:
        gc.enable()
    assert not wrong, "\n".join(wrong)


def what_is_wrong(bug):
    """Return why a bug cannot be planted; "" if it can."""
    try:
        texts = plant(bug, ROOT)
        for file, text in texts.items():
            if text == (ROOT / file).read_text("utf-8"):
                return f"{file} stays as it was"
            if file.endswith(".py"):
                ast.parse(text, file)
    except (TableError, SyntaxError) as error:
        return str(error)
    return "" if all(edit.old != edit.new for edit in bug.edits) else "an edit changes nothing"


@pytest.mark.slow
def test_no_bug_is_an_unknown_name(tmp_path):
    """Such a bug is found by any test that comes there: it shows nothing."""
    for bug in BUGS:
        for file, text in plant(bug, ROOT).items():
            path = tmp_path / bug.name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    options = ["--isolated", "--no-cache", "--select=F821,F823", "--output-format=concise"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", *options, tmp_path],
        check=False, capture_output=True, text=True, timeout=patient(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_bug_names_tests_that_are_there():
    missing = [
        f"{bug.name}: {word}"
        for bug in BUGS
        for word in bug.tests
        if "/" in word and not (ROOT / word.split("::")[0]).exists()
    ]
    assert not missing
    assert not [bug.name for bug in BUGS if not any("/" in word for word in bug.tests)]


@pytest.mark.parametrize("room", sorted(HERE.glob("*.toml")), ids=lambda path: path.stem)
def test_the_bugs_of_a_room_are_sorted_by_name(room):
    names = [bug.name for bug in read_room(room)]
    assert not [later for name, later in pairwise(names) if later <= name]


def test_a_bug_is_planted_in_its_function_alone(tmp_path):
    planted = plant(bug_of(tmp_path, "Queue.take", POP, "        item = None\n"), tmp_path)
    assert planted == {"queue.py": FILE.replace(POP, "        item = None\n", 1)}


def test_edits_of_one_file_are_planted_one_after_the_other(tmp_path):
    first = bug_of(tmp_path, "Queue.take", POP, "").edits[0]
    second = Edit("queue.py", "", "item = None\n", "item = 1\n")
    planted = plant(Bug("both", "room", ("tests/",), (first, second)), tmp_path)
    assert planted == {"queue.py": FILE.replace(POP, "", 1).replace("item = None", "item = 1")}


def test_a_function_of_c_ends_with_its_brace(tmp_path):
    text = (
        "static int\nfirst(int a)\n{\n    return a;\n}\n\nint second(int a) {\n    return a;\n}\n"
    )
    (tmp_path / "two.c").write_text(text)
    edit = Edit("two.c", "second", "    return a;\n", "    return 0;\n")
    planted = plant(Bug("c", "room", ("tests/",), (edit,)), tmp_path)
    assert planted == {"two.c": text[:-16] + text[-16:].replace("a;", "0;")}


@pytest.mark.parametrize(
    ("function", "old", "said"),
    [
        ("Queue.take", "        item = 2\n", "once in Queue.take of queue.py, but is not there:"),
        ("Queue.drop", POP, "once in Queue.drop of queue.py, but is 2 times there:\n" + POP),
        ("", POP, "once in queue.py, but is 3 times there:"),
        ("Queue.take", POP.strip() + "\n", "but is not there"),  # whole lines only
        ("Queue.give", POP, "there is no function or class Queue.give of queue.py"),
    ],
)
def test_text_that_is_not_there_once_names_bug_file_and_function(tmp_path, function, old, said):
    with pytest.raises(TableError) as caught:
        plant(bug_of(tmp_path, function, old, ""), tmp_path)
    assert str(caught.value).startswith("pops-nothing: ")
    assert said in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    bug = bug_of(tmp_path, "Queue.take", POP, "")
    (tmp_path / "queue.py").unlink()
    with pytest.raises(TableError, match=r"pops-nothing: there is no file queue\.py"):
        plant(bug, tmp_path)


def bug_of(folder, function, old, new):
    """Return a bug of one edit in a file that is written for it."""
    (folder / "queue.py").write_text(FILE)
    edit = Edit("queue.py", function, old, new)
    return Bug("pops-nothing", "room", ("tests/",), (edit,))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tests": []}, "pops-nothing in room.toml: `tests` must be there"),
        ({"name": ""}, "`name` must be there"),
        (
            {"functoin": ""},
            "must have the keys file, function, new, old, but has file, function, functoin, ",
        ),
        ({"edit": [{}]}, "must have the keys file, function, new, old, but has edit"),
        ({"old": "    item"}, "`old` and `new` must be whole lines"),
    ],
)
def test_an_entry_that_is_not_as_it_must_be_is_named(changed, said):
    entry = {
        "name": "pops-nothing",
        "tests": ["tests/"],
        "file": "queue.py",
        "function": "",
        "old": "a\n",
        "new": "",
    }
    assert as_bug(entry, Path("room.toml")).room == "room"
    with pytest.raises(TableError) as caught:
        as_bug(entry | changed, Path("room.toml"))
    assert said in str(caught.value)


def test_two_bugs_of_one_name_are_an_error(tmp_path):
    entry = '[[bug]]\nname = "same"\ntests = ["tests/"]\nfile = "a"\nfunction = ""\n'
    for room in ("planning", "storage"):
        (tmp_path / f"{room}.toml").write_text(entry + "old = '''\nx\n'''\nnew = ''\n")
    with pytest.raises(TableError, match=r"same: two bugs .* planning\.toml, storage\.toml"):
        read_table(tmp_path)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("FAILED tests/test_x.py::test_y - assert 0\n1 failed, 2 passed in 0.1s", "killed"),
        ("===== 2 errors in 0.1s =====", "killed"),
        ("Traceback (most recent call last):\nOSError: broken", "broken: no test failed"),
    ],
)
def test_a_bug_is_killed_by_a_failed_test_and_not_by_a_process_that_ends(
    said, expected, monkeypatch, tmp_path
):
    ended = subprocess.CompletedProcess([], 1, stdout=said, stderr="")
    monkeypatch.setattr(run.subprocess, "run", lambda *command, **options: ended)
    assert run.run_tests(tmp_path, ("tests/test_x.py",), 1)[0] == expected


def test_mutants_are_drawn_from_each_kind_in_turn_and_once_a_place():
    many = [
        draw.Mutation("a.py", f"core/Replace_{new}", 0, line, 1)
        for line in range(50)
        for new in "abc"
    ]
    few = [draw.Mutation("a.py", "core/AddNot", 0, line, 2) for line in range(3)]
    drawn = draw.draw(many + few, 20, 1)
    assert len(drawn) == 20
    assert sum(one.kind == "AddNot" for one in drawn) == 3
    assert len({(one.line, one.column) for one in drawn}) == 20
    assert draw.draw(few + many, 20, 1) == drawn
    assert draw.draw(many + few, 20, 2) != drawn


def test_annotations_are_no_place_for_mutants():
    source = "def find(x: int | None = 1 | 2) -> str | None:\n    y: int | str = x | 4\n"
    found = draw.find_annotations(source)
    assert sorted(found) == [((1, 12), (1, 22)), ((1, 35), (1, 45)), ((2, 7), (2, 16))]


@pytest.mark.parametrize("room", draw.ROOMS)
def test_rooms_of_mutants_name_files_that_are_there(room):
    assert [
        word for words in draw.ROOMS[room] for word in words.split() if not (ROOT / word).exists()
    ] == []
