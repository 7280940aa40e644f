"""``seqdata index`` says what is there where nothing can be indexed."""

import pytest
from click.testing import CliRunner

from seqdata.cli.index import index


@pytest.mark.parametrize(
    ("location", "text"),
    [
        ("gone", "gone: must be a store's folder, but is not there ("),
        ("empty", "empty: must be a store's folder, but is empty. Write one with"),
        ("gone-*.none", "gone-*.none: must be a store's folder, but is not there ("),
        (
            "x.csv",
            "index: the location must hold files of a format with an index, such as tar",
        ),
        (
            "notes",
            "Other data needs no index; pass `--backend` for a format whose suffix no package ",
        ),
    ],
)
def test_what_is_not_there_or_needs_no_index_is_said(tmp_path, monkeypatch, location, text):
    monkeypatch.chdir(tmp_path)
    for folder in ("empty", "notes"):
        (tmp_path / folder).mkdir()
    (tmp_path / "notes" / "a.txt").write_text("a")
    (tmp_path / "x.csv").write_text("a\n1\n")
    result = CliRunner().invoke(index, [location])
    assert result.exit_code in (1, 2)
    assert text in result.output.replace("\n", " ")
