"""The public API, pages, supported versions, changelog and forms of issues are as agreed on."""

import difflib
import re
import tomllib

import pytest
import yaml

import seqdata
from tests import golden


def test_names_and_signatures_are_as_they_were():
    kept, found = golden.API.read_text("utf-8"), golden.describe_api()
    changes = difflib.unified_diff(kept.splitlines(), found.splitlines(), "kept", "now", n=0)
    assert kept == found, "\n".join(
        ["if this change is meant, run `make golden` and add a line to CHANGELOG.md:", *changes]
    )


def test_a_changed_default_or_argument_is_noticed():
    def old(size: int, *, keep: str = "first") -> None: ...
    def new(size: int, *, keep: str = "last") -> None: ...

    assert golden.sign(old) == "(size: int, *, keep: str = 'first') -> None"
    assert golden.sign(old) != golden.sign(new)
    first, *members = golden.describe("Fixed", seqdata.Fixed)
    assert first.startswith("class Fixed(batch_size: ")
    assert any(line.startswith("  plan(self, index: ") for line in members)


def test_members_of_other_libraries_are_not_ours():
    members = list(golden.describe("SequenceDataModule", seqdata.SequenceDataModule))
    assert any(line.startswith("  setup(") for line in members)
    assert not any(line.startswith("  save_hyperparameters") for line in members)


def test_llms_txt_links_every_page_by_its_title():
    """What it says of each is written by ``make golden``, too."""
    links = [re.findall(r"^- (\[.+\]\([^)]+\))", text, re.MULTILINE)
             for text in (golden.PAGES.read_text("utf-8"), golden.describe_pages())]  # fmt: skip
    assert links[0] == links[1], "pages were added, moved or renamed: run `make golden`"
    assert len(links[0]) == len(golden.list_pages()) > 40


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a small site: its home lists a page before a folder, and pages that a build makes."""
    monkeypatch.setattr(golden, "DOCS", tmp_path)
    (tmp_path / "a").mkdir()
    contents = "```{{toctree}}\n:hidden:\n\n{}\n```\n"
    home = "# Home\n\nAll of it.\n\n" + contents.format("z\na/index\ngenerated/x")
    (tmp_path / "index.md").write_text(home, "utf-8")
    (tmp_path / "z.md").write_text("# Z\n\n`z` ends: here. Not here.\n", "utf-8")
    (tmp_path / "a" / "index.md").write_text("# A\n\n" + contents.format("one"), "utf-8")
    (tmp_path / "a" / "one.md").write_text("# One\n", "utf-8")
    return tmp_path


def test_llms_txt_has_the_order_of_the_site(site):
    assert golden.describe_pages().splitlines() == [
        "# Home", "", "> All of it.",
        "", "## Home", "", "- [Z](z.md): `z` ends: here.",
        "", "## A", "", "- [One](a/one.md)",
    ]  # fmt: skip
    (site / "a" / "index.md").write_text("# A\n\n## B\n\n```{toctree}\none\n```\n", "utf-8")
    assert "- [A](a/index.md)" in golden.describe_pages()


def test_a_page_that_no_other_lists_is_named(site):
    (site / "lost.md").write_text("# Lost\n", "utf-8")
    with pytest.raises(ValueError, match=r"in the contents of another: \[.*lost.md.*\]$"):
        golden.describe_pages()


def test_supported_versions_are_those_of_the_project():
    page = (golden.DOCS / "about" / "compatibility.md").read_text("utf-8")
    rows = re.findall(r"^\| ([A-Za-z]+) \| ([\d.]+) \| ([\d.]+) \|", page, re.MULTILINE)
    project = tomllib.loads((golden.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    bounds = [re.match(r"([\w-]+)>=([\d.]+)", each).groups() for each in project["dependencies"]]
    pins = (golden.ROOT / "constraints.txt").read_text("utf-8").lower()
    newest = dict(re.findall(r"^([\w-]+)==(.+)$", pins, re.MULTILINE))
    oldest = {**dict(bounds), "python": project["requires-python"].removeprefix(">=")}
    assert {name.lower() for name, *_ in rows} == {
        "python",
        "torch",
        "lightning",
        "numpy",
        "pyarrow",
    }
    for name, low, high in rows:
        assert low.removesuffix(".0") == oldest[name.lower()].removesuffix(".0")
        assert f"{newest.get(name.lower(), high)}.".startswith(f"{high}.")


def test_classifiers_name_the_versions_of_python_that_were_tried():
    page = (golden.DOCS / "about" / "compatibility.md").read_text("utf-8")
    ((oldest, newest),) = re.findall(r"^\| Python \| 3\.(\d+) \| 3\.(\d+) \|", page, re.MULTILINE)
    project = tomllib.loads((golden.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = re.findall(r"Python :: 3\.(\d+)", "\n".join(project["classifiers"]))
    assert (found[0], found[-1]) == (oldest, newest)


def test_the_changelog_has_ten_highlights_before_the_folded_rest():
    text = (golden.ROOT / "CHANGELOG.md").read_text("utf-8")
    unreleased = text.partition("## [Unreleased]")[2].partition("\n## [")[0]
    before, folded = unreleased.split("<details>")
    assert len(re.findall(r"^\d+\. \*\*", before, re.MULTILINE)) == 10
    assert folded.count("</details>") == 1
    assert folded.count("\n### ") >= 7


def test_forms_of_issues_are_complete():
    forms = sorted((golden.ROOT / ".github" / "ISSUE_TEMPLATE").glob("*_*.yml"))
    assert len(forms) == 3
    for path in forms:
        form = yaml.safe_load(path.read_text("utf-8"))
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert {"name", "description", "labels", "body"} == form.keys()
        assert len({field["id"] for field in fields}) == len(fields)
        assert any(field.get("validations", {}).get("required") for field in fields)
        assert "://" not in path.read_text("utf-8")
