"""The pages do what they show: every block of code on a page runs, in order, in an empty folder.

A block says what it is: ``python`` and ``sh`` run (a ``python`` block with ``title="train.py"`` is
written to that file instead), ``text`` and ``toml`` are only looked at by people. The blocks of one
page share one namespace and one folder; commands find the environment's programs first (those of
most pages are forked from a process that has imported torch and lightning: ``preloaded.py``).
"""

import os
import re
import subprocess
import sys
import textwrap
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

import seqdata
from seqdata import errors
from seqdata_testing.waiting import patient
from tests import preloaded

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "models" / "README.md",
    *sorted((ROOT / "plugins").glob("*/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FRESH = (ROOT / "README.md", ROOT / "docs" / "tutorial" / "first-run.md")
"""Pages whose commands are started as a user starts them; those of others are forked."""
FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\w*)(?P<rest>.*)$")
TITLE = re.compile(r'title="([\w./-]+)"')
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)[^)]*\)")
KINDS = {"python", "sh", "text", "toml"}
COMMAND_TIMEOUT = 150  # seconds


@dataclass(frozen=True)
class Block:
    kind: str
    title: str | None
    line: int  # of the first line of code in the page, from 1
    code: str


def blocks_of(text: str) -> list[Block]:
    """Return a page's fenced blocks in order."""
    blocks, opened, lines = [], None, []
    for number, line in enumerate(text.splitlines(), start=1):
        fence = FENCE.match(line)
        if opened is None and fence:
            opened, lines = (fence, number + 1), []
        elif fence and not fence["kind"]:
            begin, first = opened
            title = TITLE.search(begin["rest"])
            code = textwrap.dedent("\n".join(lines)) + "\n"
            blocks.append(Block(begin["kind"], title and title[1], first, code))
            opened = None
        elif opened is not None:
            lines.append(line)
    if opened is not None:
        raise ValueError(f"the block at line {opened[1]} is never closed")
    return blocks


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to stand in, with no network-like surroundings and a home of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "agg")
    programs = [os.environ[preloaded.FOLDER], str(Path(sys.executable).parent)]
    monkeypatch.setenv("PATH", os.pathsep.join([*programs, os.environ["PATH"]]))
    return tmp_path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.filterwarnings("error::seqdata.errors.SeqDataWarning")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
@pytest.mark.slow
def test_every_block_of_a_page_runs(page, folder, monkeypatch):
    if page in FRESH:
        monkeypatch.setenv("PATH", os.environ["PATH"].partition(os.pathsep)[2])
    blocks = blocks_of(page.read_text("utf-8"))
    module = types.ModuleType("page_" + re.sub(r"\W", "_", page.stem))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks:
        place = f"{page}:{block.line}"
        if block.title:
            (folder / block.title).write_text(block.code, "utf-8")
        elif block.kind == "python":
            code = "\n" * (block.line - 1) + block.code  # tracebacks name the page's own lines
            exec(compile(code, str(page), "exec", dont_inherit=True), vars(module))
        elif block.kind == "sh":
            run_commands(block.code, place)
        else:
            assert block.kind in KINDS, f"{place}: a block is one of {sorted(KINDS)}"


def run_commands(code: str, place: str) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=patient(COMMAND_TIMEOUT),
        check=False,
    )
    assert done.returncode == 0, f"{place}:\n{code}\n{done.stdout}"


def test_links_between_pages_lead_somewhere():
    broken = [
        f"{name_of(page)}: {target}"
        for page in PAGES
        for target in LINK.findall(page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not broken


def all_text() -> str:
    return "\n".join(page.read_text("utf-8") for page in PAGES)


@pytest.mark.parametrize("name", sorted(seqdata.__all__))
def test_a_public_name_is_in_the_docs(name):
    assert re.search(rf"(?<![\w.]){re.escape(name)}\b", all_text())


def error_classes() -> list[str]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return sorted(one.__name__ for one in found if issubclass(one, Exception | Warning))


@pytest.mark.parametrize("name", error_classes())
def test_an_error_is_explained_on_its_page(name):
    page = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8")
    assert re.search(rf"^#+ `{name}`", page, re.MULTILINE)


def test_blocks_are_found_with_their_titles_and_lines():
    page = 'text\n```python title="a.py"\nx = 1\n```\n- list\n\n  ```sh\n  ls\n  ```\n'
    assert blocks_of(page) == [
        Block("python", "a.py", 3, "x = 1\n"),
        Block("sh", None, 8, "ls\n"),
    ]


def test_a_block_without_an_end_is_refused():
    with pytest.raises(ValueError, match="never closed"):
        blocks_of("```python\nx = 1\n")
