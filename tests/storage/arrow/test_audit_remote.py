"""``seqdata verify URL`` looks at every byte where it lies."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from seqdata.cli.app import app
from seqdata_testing.faults.network import folder_of, served
from tests.storage.remote.samples import write


@pytest.fixture
def web(tmp_path):
    store = write(tmp_path / "store")
    with served(folder_of(Path(store.location))) as made:
        yield made, store


def facts(*arguments, status):
    done = CliRunner().invoke(app, ["verify", *arguments, "--json"])
    assert done.exit_code == status, done.output
    return json.loads(done.output)


def test_a_good_store_is_good_file_by_file(web):
    made, store = web
    found = facts(made.url, status=0)
    assert found["damages"] == 0
    assert found["verified"] is True
    names = [one["file"] for one in found["files"]]
    assert sorted([*names, "seqdata.json"]) == sorted(
        one.name for one in Path(store.location).iterdir()
    )


def test_damaged_cut_and_missing_files_are_named(web):
    made, store = web
    root = Path(store.location)
    content = bytearray((root / "part-00001.arrow").read_bytes())
    content[5000] ^= 4
    (root / "part-00001.arrow").write_bytes(content)
    (root / "part-00000.crc").write_bytes(b"")
    (root / "part-00002.arrow").unlink()
    found = {one["file"]: one for one in facts(made.url, status=1)["files"]}
    bad = {name: one["findings"][0]["text"] for name, one in found.items() if one["damages"]}
    assert sorted(bad) == ["part-00000.crc", "part-00001.arrow", "part-00002.arrow"]
    assert "bytes, but have 0" in bad["part-00000.crc"]
    assert "must have sha256" in bad["part-00001.arrow"]
    assert "is not there. Check the URL, or restore it" in bad["part-00002.arrow"]
    assert facts(made.url, "--shard", "1", status=1)["damages"] == 1


def test_a_shard_that_is_not_there_is_refused(web):
    done = CliRunner().invoke(app, ["verify", web[0].url, "--shard", "99"])
    assert done.exit_code == 2
    assert "verify: the shard must be in [0," in done.output
