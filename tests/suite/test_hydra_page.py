"""The page's config of Hydra makes a DataModule, where Hydra is installed."""

import pytest

from seqdata import write_store
from seqdata.datasets import load_japanese_vowels
from tests.test_docs import ROOT, blocks_of

pytest.importorskip("hydra")
PAGE = ROOT / "docs" / "guides" / "training" / "lightning-cli.md"


@pytest.fixture
def blocks(tmp_path, monkeypatch):
    """Return the config, the program and the output of the page, in a folder with its store."""
    monkeypatch.chdir(tmp_path)
    write_store("store/train", load_japanese_vowels("train"))
    found = blocks_of(PAGE.read_text("utf-8"))
    first = next(number for number, each in enumerate(found) if each.title == "hydra.yaml")
    return [each.code for each in found[first : first + 3]]


def test_the_config_makes_a_datamodule(blocks, capsys):
    config, program, output = blocks
    with open("hydra.yaml", "w", encoding="utf-8") as file:
        file.write(config)
    exec(compile(program, str(PAGE), "exec", dont_inherit=True), {})
    assert capsys.readouterr().out == output


def test_the_config_without_its_conversion_says_what_to_add(blocks):
    config, program, _ = blocks
    with open("hydra.yaml", "w", encoding="utf-8") as file:
        file.write(config.replace("  _convert_: all\n", ""))
    with pytest.raises(Exception, match="If Hydra made it, add `_convert_: all` to the config"):
        exec(compile(program, str(PAGE), "exec", dont_inherit=True), {})
