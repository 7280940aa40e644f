"""Nothing is left over, nothing names a machine; ``.ci/style.py`` finds what breaks a rule."""

import ast
import importlib.util
import subprocess

import pytest

from tests.library_files import ROOT, list_library

LEFTOVERS = ("TODO", "FIXME", "XXX", "raise NotImplementedError", "pragma: no cover")
spec = importlib.util.spec_from_file_location("style", ROOT / ".ci" / "style.py")
style = importlib.util.module_from_spec(spec)
spec.loader.exec_module(style)


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
