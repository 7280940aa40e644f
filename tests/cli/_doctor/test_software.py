"""``seqdata doctor`` on what is installed: releases that harm, and a project of our import name."""

from pathlib import Path

import pytest

from seqdata.cli._doctor import software

ROOT = Path(__file__).resolve().parents[3]


def of(findings, name):
    (found,) = [one for one in findings if one.name == name]
    return found


@pytest.mark.parametrize("name", ["lightning", "pytorch-lightning"])
@pytest.mark.parametrize("version", ["2.6.2", "2.6.3"])
def test_malicious_releases_of_lightning_are_bad_and_not_imported(monkeypatch, name, version):
    def imported(module):
        raise AssertionError(f"{module} was imported")

    known = software.find_version
    monkeypatch.setattr(software, "find_version", lambda n: version if n == name else known(n))
    monkeypatch.setattr(software.importlib, "import_module", imported)
    found = of(software.check_software(), "lightning")
    assert found.state == "bad"
    assert f"{version} was malicious and is withdrawn (GHSA-w37p-236h-pfx3)" in found.seen
    assert "replace all credentials" in found.fix


def test_no_malicious_release_is_installed_with_us():
    for project in ("pyproject.toml", "models/pyproject.toml"):
        assert '"lightning>=2.6,!=2.6.2,!=2.6.3"' in (ROOT / project).read_text("utf-8")


def test_a_project_of_the_same_import_name_is_seen(monkeypatch):
    assert software.check_import_name().state == "ok"
    monkeypatch.setattr(software, "find_foreign_release", lambda: "seqdata 0.2.2")
    assert (
        software.check_import_name().state == "warn"
    )  # elsewhere: which is imported, the path decides
    monkeypatch.setattr(software, "find_foreign_files", lambda: ["seqdata/_io/read.py"])
    found = software.check_import_name()
    assert found.state == "bad"
    assert found.seen == (
        "seqdata 0.2.2 provides a package of the same name; in our folder: seqdata/_io/read.py"
    )
    assert "pip uninstall -y seqdata lightning-seqdata" in found.fix
