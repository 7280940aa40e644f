"""The pages do what they show: every block of code on a page runs, in order, in an empty folder.

A block is fenced by its language: ``python`` and ``sh`` run, unless the fence says ``no-run`` (a
block with ``title="train.py"`` is written to that file instead); ``text`` is output or a drawing.
The blocks of one page share one namespace and one folder; commands find the environment's programs
first (those of most pages are forked from a process that has imported torch and lightning:
``preloaded.py``). The site itself is built by ``make docs``.
"""

import doctest
import importlib
import inspect
import os
import re
import subprocess
import sys
import textwrap
import tomllib
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

import seqdata
import seqdata.datasets
from seqdata import errors
from seqdata_testing.waiting import patient
from tests import preloaded

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "models" / "README.md",
    *sorted((ROOT / "plugins").glob("*/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PACKAGES = (
    "seqdata",
    "seqdata.backends",
    "seqdata.backends.files",
    "seqdata.datasets",
    "seqdata_models",
    "seqdata_models.parallel",
)
"""Packages whose public names have a page each."""
FRESH = (README, ROOT / "docs" / "get-started" / "files-to-model.md")
"""Pages whose commands are started as a user starts them; those of others are forked."""
FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\w*)(?P<rest>.*)$")
TITLE = re.compile(r'title="([\w./-]+)"')
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)[^)]*\)")
RUN = {"python", "sh"}
SHOWN = {"text", "toml", "yaml", "diff"}
DIRECTIVE = re.compile(r"^ *```\{[\w-]+\}")
COMMAND_TIMEOUT = 150  # seconds


@dataclass(frozen=True)
class Block:
    kind: str
    title: str | None
    line: int  # of the first line of code in the page, from 1
    code: str
    runs: bool = True


def blocks_of(text: str) -> list[Block]:
    """Return a page's fenced blocks in order."""
    blocks, opened, lines = [], None, []
    for number, line in enumerate(text.splitlines(), start=1):
        fence = FENCE.match(line)
        if opened is None and DIRECTIVE.match(line):  # of MyST, such as a toctree
            opened, lines = (None, number + 1), []
            continue
        if opened is None and fence:
            opened, lines = (fence, number + 1), []
        elif fence and not fence["kind"]:
            begin, first = opened
            if begin is not None:
                code, rest = textwrap.dedent("\n".join(lines)) + "\n", begin["rest"].strip()
                title = TITLE.fullmatch(rest)
                if rest not in ("", "no-run") and not title:
                    raise ValueError(f"the fence at line {first - 1} says {rest!r}")
                runs = begin["kind"] in RUN and not rest
                blocks.append(Block(begin["kind"], title and title[1], first, code, runs))
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
def test_every_block_of_a_page_runs(page, folder, monkeypatch, capsys):
    if page in FRESH:
        monkeypatch.setenv("PATH", os.environ["PATH"].partition(os.pathsep)[2])
    blocks = blocks_of(page.read_text("utf-8"))
    module = types.ModuleType("page_" + re.sub(r"\W", "_", page.stem))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks:
        place = f"{page}:{block.line}"
        if block.title:
            (folder / block.title).write_text(block.code, "utf-8")
        elif block.kind not in RUN | SHOWN:
            raise ValueError(f"{place}: a block is one of {sorted(RUN | SHOWN)}")
        elif block.runs and block.kind == "python":
            code = "\n" * (block.line - 1) + block.code  # tracebacks name the page's own lines
            exec(compile(code, str(page), "exec", dont_inherit=True), vars(module))
        elif block.runs:
            run_commands(block.code, place)
    if page == README:  # it shows what was printed
        shown = "".join(block.code for block in blocks if block.kind == "text").splitlines()
        assert [line for line in capsys.readouterr().out.splitlines() if line in shown] == shown


@pytest.fixture
def of_hydra(folder):
    """Return the config, program and output of the page, in a folder with its store."""
    pytest.importorskip("hydra")
    seqdata.write_store("store/train", seqdata.datasets.load_japanese_vowels("train"))
    page = ROOT / "docs" / "guides" / "training" / "lightning-cli.md"
    found = blocks_of(page.read_text("utf-8"))
    first = next(number for number, each in enumerate(found) if each.title == "hydra.yaml")
    return [each.code for each in found[first : first + 3]]


def test_the_config_of_hydra_makes_a_datamodule(of_hydra, folder, capsys):
    config, program, output = of_hydra
    (folder / "hydra.yaml").write_text(config, "utf-8")
    exec(compile(program, "page", "exec", dont_inherit=True), {})
    assert capsys.readouterr().out == output


def test_the_config_of_hydra_without_its_conversion_says_what_to_add(of_hydra, folder):
    config, program, _ = of_hydra
    (folder / "hydra.yaml").write_text(config.replace("  _convert_: all\n", ""), "utf-8")
    with pytest.raises(Exception, match="If Hydra made it, add `_convert_: all` to the config"):
        exec(compile(program, "page", "exec", dont_inherit=True), {})


def test_the_badges_say_what_the_package_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    version = "Programming Language :: Python :: 3."
    minors = [name.removeprefix(version) for name in project["classifiers"] if version in name]
    (lightning,) = [name for name in project["dependencies"] if name.startswith("lightning>=")]
    due = {
        "python": "Python: " + " | ".join(f"3.{minor}" for minor in minors),
        "lightning": f"Lightning: {lightning.removeprefix('lightning>=').split(',')[0]} or newer",
        "license": f"license: {project['license']}",
    }
    for name, title in due.items():
        badge = (ROOT / "docs" / "_static" / "badges" / f"{name}.svg").read_text("utf-8")
        assert f"<title>{title}</title>" in badge


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


def test_the_readme_has_its_chart_for_both_themes():
    found = re.findall(r' (?:src|srcset)="([^"]+)"', README.read_text("utf-8"))
    assert [Path(name).name for name in found] == ["readme-dark.svg", "readme-light.svg"]
    assert all((ROOT / name).is_file() for name in found)


def test_links_of_llms_txt_are_checked_on_the_site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    check = importlib.import_module("check_site")
    (tmp_path / "index.html").write_text("<p>", "utf-8")
    absent = "llms.txt: must list the pages of the site, but is not there or has no link"
    assert list(check.find_problems(tmp_path)) == [absent]
    (tmp_path / "llms.txt").write_text("- [a](index.html)\n- [b](b.html): c\n", "utf-8")
    assert list(check.find_problems(tmp_path)) == ["llms.txt: b.html does not exist"]


@pytest.fixture
def groups(monkeypatch):
    """Return the groups of objects that have a page each."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    return importlib.import_module("api_groups").GROUPS


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_a_page_of_its_own(package, groups):
    names = [name for one in groups for name in one.names]
    public = {f"{package}.{name}" for name in importlib.import_module(package).__all__}
    assert len(names) == len(set(names))
    assert {name for name in names if name.rpartition(".")[0] == package} == public


def find_objects():
    """Return the public classes and functions of seqdata, but errors."""
    values = {name: getattr(seqdata, name) for name in seqdata.__all__}
    return {
        name: value
        for name, value in values.items()
        if inspect.isfunction(value)
        or (isinstance(value, type) and not issubclass(value, Exception | Warning))
    }


def test_every_public_object_has_an_example():
    texts = {name: inspect.getdoc(value) or "" for name, value in find_objects().items()}
    assert not [name for name, text in texts.items() if "Examples:" not in text]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_examples_with_a_prompt_hold(folder):
    tried = 0
    for name, value in find_objects().items():
        names = dict(vars(sys.modules[value.__module__]))
        test = doctest.DocTestParser().get_doctest(inspect.getdoc(value), names, name, None, 0)
        assert doctest.DocTestRunner().run(test).failed == 0, name
        tried += bool(test.examples)
    assert tried > 40


def error_classes() -> list[str]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return sorted(one.__name__ for one in found if issubclass(one, Exception | Warning))


@pytest.mark.parametrize("name", error_classes())
def test_an_error_is_explained_on_its_page(name):
    page = (ROOT / "docs" / "guides" / "trouble" / "errors.md").read_text("utf-8")
    assert re.search(rf"^#+ `{name}`", page, re.MULTILINE)


def test_blocks_are_found_with_their_titles_and_lines():
    page = 'text\n```python title="a.py"\nx = 1\n```\n- list\n\n  ```sh\n  ls\n  ```\n'
    assert blocks_of(page) == [
        Block("python", "a.py", 3, "x = 1\n", runs=False),
        Block("sh", None, 8, "ls\n"),
    ]


def test_directives_of_the_site_are_no_blocks_and_what_cannot_run_says_so():
    page = "```{toctree}\na\n```\n\n```sh no-run\nls\n```\n\n```text\n1\n```\n"
    assert blocks_of(page) == [
        Block("sh", None, 6, "ls\n", runs=False),
        Block("text", None, 10, "1\n", runs=False),
    ]


def test_a_fence_with_an_unknown_word_is_refused():
    with pytest.raises(ValueError, match="the fence at line 1 says 'norun'"):
        blocks_of("```sh norun\nls\n```\n")


def test_a_block_without_an_end_is_refused():
    with pytest.raises(ValueError, match="never closed"):
        blocks_of("```python\nx = 1\n")


def test_a_site_with_links_to_nowhere_or_files_from_elsewhere_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    find_problems = importlib.import_module("check_site").find_problems
    (tmp_path / "a.html").write_text(
        '<a id="here"></a><a href="#here"></a><a href="b.html#there"></a><a href="c.html"></a>'
        '<a href="https://example.org"></a><script src="https://cdn.example.org/x.js"></script>'
    )
    (tmp_path / "b.html").write_text('<a href="a.html#gone"></a><img src="no.png">')
    (tmp_path / "a.css").write_text('@font-face { src: url("//fonts.example.org/x.woff") }')
    assert list(find_problems(tmp_path)) == [
        "a.html: loads https://cdn.example.org/x.js from elsewhere",
        "a.html: b.html#there has no such anchor",
        "a.html: c.html does not exist",
        "b.html: a.html#gone has no such anchor",
        "b.html: no.png does not exist",
        "a.css: loads //fonts.example.org/x.woff from elsewhere",
        "llms.txt: must list the pages of the site, but is not there or has no link",
    ]


def test_words_of_users_lead_to_pages_that_exist():
    pages = (ROOT / "docs" / "_ext" / "search_words.py").read_text("utf-8")
    named = re.findall(r'^    "([\w/-]+)":', pages, re.MULTILINE)
    assert len(named) > 30
    assert [page for page in named if not (ROOT / "docs" / f"{page}.md").exists()] == []
