"""Nothing is left over, nothing names a machine; ``.ci/style.py`` finds what breaks a rule."""

import ast
import importlib.util
import pkgutil
import subprocess
import sys

import pytest

from tests.library_files import ROOT, list_library

LEFTOVERS = ("TODO", "FIXME", "XXX", "raise NotImplementedError", "pragma: no cover")


def load(name):
    """Return a module of ``.ci``."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


style, names = load("style"), load("names")


def test_nothing_is_left_over():
    assert not [
        f"{path.relative_to(ROOT)}: {word}"
        for path in list_library()
        for word in LEFTOVERS
        if word in path.read_text("utf-8")
    ]


def test_nothing_names_a_machine():
    """Paths and hosts of the machine that something was written on have no place here."""
    names = [
        "".join(parts) for parts in (("/wo", "rk/"), ("/ro", "ot/"), ("/ho", "me/"), ("pyp", "i."))
    ]
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    texts = {path: path.read_bytes() for path in paths if path.is_file()}
    assert not [
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in texts.items()
        for name in names
        if name.encode() in text
    ]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("thread.join()", True),
        ("thread.join(timeout=5)", False),
        ("', '.join(names)", False),
        ("event.wait()", True),
        ("event.wait(0.1)", False),
        ("queue.get()", True),
        ("queue.get(True)", True),
        ("queue.get(block=False)", False),
        ("queue.get(block=True)", True),
        ("table.get('x')", False),
        ("_CONTEXT.get()", False),
        ("queue.put(item)", True),
        ("queue.put(item, timeout=1)", False),
        ("lanes.put(state)", False),
        ("lock.acquire()", True),
        ("lock.acquire(blocking=False)", False),
        ("future.result()", True),
        ("subprocess.run(['ls'])", True),
        ("subprocess.run(['ls'], timeout=9)", False),
        ("connection.wait([pipe])", True),
        ("wait(futures)", True),
        ("wait(futures, 5)", False),
        ("select.select([a], [], [])", True),
        ("select.select([a], [], [], 1)", False),
    ],
)
def test_the_guard_tells_bounded_from_endless_waits(code, expected):
    assert style.waits_for_ever(ast.parse(code).body[0].value) is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", True),
        ("value = None", True),
        ("raise", False),
        ("failures.append(error)", False),
    ],
)
def test_the_guard_tells_swallowed_errors(code, expected):
    tried = ast.parse(f"try:\n    f()\nexcept Exception as error:\n    {code}")
    assert style.swallows(tried.body[0].handlers[0]) is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass\n" * 399, []),
        ("pass\n" * 600, [(1, "a file must have less than 600 lines, but has 600")]),
        ("def f():\n" + "    pass\n" * 58, []),
        (
            "def f():\n" + "    pass\n" * 59,
            [(1, "f must have less than 60 lines, but has 60")],
        ),
        ("thread.join()  # ends: the process does", []),
        ("\nthread.join()", [(2, "thread.join() must have a timeout, or say `# ends: why`")]),
        ("torch.arange(3)", [(1, "torch.arange(3) must name its device")]),
        ("\ntorch.zeros(3)", [(2, "torch.zeros(3) must name its device and dtype")]),
        (
            "torch.full((3,), 0, device='cpu')",
            [(1, "torch.full((3,), 0, device='cpu') must name its dtype")],
        ),
        ("torch.ones(3, device='cpu', dtype=torch.int64)", []),
        ("torch.zeros(3, **options), x.new_zeros(3), torch.zeros_like(x), np.zeros(3)", []),
        (
            "try:\n    f()\nexcept Exception:\n    pass",
            [(3, "what is caught must be raised, or looked at, but is swallowed")],
        ),
    ],
)
def test_what_breaks_a_rule_is_named(code, expected):
    assert list(style.find_problems(code, True)) == expected


@pytest.mark.parametrize("indent", ["", "def f():\n    "])
def test_a_module_that_imports_itself_is_named(indent):
    code = f"{indent}from seqdata.plan import Plan"
    line = code.count("\n") + 1
    problem = "a module must not import itself, but does: seqdata.plan"
    assert list(style.find_problems(code, True, "seqdata.plan")) == [(line, problem)]
    assert not list(style.find_problems(code, True, "seqdata.other.planning"))


CODE = '''
"""A module."""

class Base:
    """A base."""

    limit: int

class Store(Base):
    """A store, with ``Store.limit``, ``Store.peak`` and ``self._open``."""

    def read(self) -> None:
        # calls ``opened``
        self._open = self.peak = "by_shard"
'''


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`Store`, ``read`` and 'nothing' exist, as does ``by_shard``, not ``store3``", ["store3"]),
        ("``Store.read``, ``Store.limit``, ``Store.peak`` and ``Base.limit``", []),
        ("``Store.write``", ["write", "Store.write"]),
        ("``Base.peak`` is of the other class", ["Base.peak"]),
        ("a docstring does not make ``module``, a comment not ``opened``", ["module", "opened"]),
        (
            "``storage/store`` and ``tests/flow.py``, but not ``storage/moved.py``",
            ["storage/moved.py"],
        ),
        ("``docs/index.md`` and ``docs/gone/index.md``", ["docs/gone/index.md"]),
        ("``numpy.quantile`` is known, ``1_000`` is a number", []),
    ],
)
def test_names_in_backticks_that_do_not_exist_are_found(text, missing):
    made, _ = names.read_module(CODE)
    assert list(names.find_missing(text, made)) == missing


def test_docstrings_and_comments_are_read():
    _, texts = names.read_module(CODE)
    assert [(line, text.split()[0]) for line, text in texts] == [
        (2, "A"), (5, "A"), (10, "A"), (13, "#"),
    ]  # fmt: skip


def test_a_page_may_name_what_its_code_has(tmp_path, monkeypatch):
    monkeypatch.setattr(names, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("`mine` and `gone`\n\n```python\nmine = 1\n```\n")
    found = list(names.find_problems(*names.read_page(page, names.Names())))
    assert found == ["page.md: `gone` must be a name in the code, but is not. Name what is there"]


@pytest.mark.parametrize("name", names.OTHER_LIBRARIES)
def test_names_of_other_libraries_exist(name):
    pytest.importorskip(name.split(".")[0])
    assert pkgutil.resolve_name(name)
