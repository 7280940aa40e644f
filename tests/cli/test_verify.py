"""``seqdata verify``: what is damaged is named, what is not is ok."""

import json
import os
import pty
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

from seqdata.api import open_store, write_store
from seqdata.cli.app import app
from seqdata.storage.integrity.audit import MAX_FINDINGS
from seqdata_testing.waiting import patient
from tests.storage.integrity.checked import flip, place_of, rewrite


@pytest.fixture
def store(tmp_path):
    rows = [
        {"id": f"s{i}", "x": np.full((i % 5, 2), i, dtype=np.float32), "y": i} for i in range(40)
    ]
    write_store(tmp_path / "store", rows, shard_bytes=300)
    return tmp_path / "store"


def run(*arguments, status=0):
    done = CliRunner().invoke(app, ["verify", *map(str, arguments)])
    assert done.exit_code == status, done.output
    return done.output


def facts(*arguments, status=0):
    return json.loads(run(*arguments, "--json", status=status))


def test_a_good_store_is_one_line(store):
    count = len(open_store(store).shards)
    assert count > 3
    contents = rf"{count + 1} files, 40 sequences, \d+\.\d KiB"
    assert re.fullmatch(rf"{store}: every byte is as written \({contents}\)\n", run(store))


def test_the_same_as_json(store):
    found = facts(store)
    assert (found["location"], found["damages"], found["verified"]) == (str(store), 0, True)
    assert [one["by"] for one in found["files"][1:]] == ["checksums"] * (len(found["files"]) - 1)
    assert sum(one["sequences"] for one in found["files"][1:]) == 40


def test_several_stores_are_verified_one_after_the_other(store, tmp_path):
    write_store(tmp_path / "other", [{"x": [1.0, 2.0]}])
    lines = run(store, tmp_path / "other").splitlines()
    assert [line.partition(" (")[0] for line in lines] == [
        f"{place}: every byte is as written" for place in (store, tmp_path / "other")
    ]
    found = facts(store, tmp_path / "other")
    assert found["location"] == f"{store}, {tmp_path / 'other'}"
    assert len(found["files"]) == len(facts(store)["files"]) + len(
        facts(tmp_path / "other")["files"]
    )
    file, place = place_of(open_store(tmp_path / "other"), 0, "x")
    flip(tmp_path / "other" / file, place)
    text = run(store, tmp_path / "other", status=1)
    assert text.startswith(f"{store}: every byte is as written")
    assert f"{file}): DAMAGED in 1 place\n" in text
    assert text.splitlines()[-1].startswith(f"{tmp_path / 'other'}: damaged in 1 place: restore")
    said = run(store, tmp_path / "other", "--shard", 0, status=2)
    assert "`--shard` requires a single store, but 2 are given" in said


def test_every_damaged_sequence_is_named(store):
    opened = open_store(store)
    damaged = {3: "x", 4: "x", 21: "id", 39: "x"}
    for number, name in damaged.items():
        file, place = place_of(opened, number, name)
        flip(store / file, place)
    found = facts(store, status=1)
    places = [one["details"] for file in found["files"] for one in file["findings"]]
    assert {one["sequence"]: one["field"] for one in places} == damaged
    assert found["damages"] == 4
    assert {one["sequence"]: one.get("key") for one in places} == {
        3: "s3", 4: "s4", 21: None, 39: "s39"
    }  # fmt: skip
    text = run(store, status=1)
    assert 'sequence 39 ("s39"), field "x", bytes ' in text
    assert "must have" in text
    assert "Verify: " not in text
    assert "damaged in 4 places: restore these files, or write the store again" in text


def test_one_shard_can_be_looked_at_alone(store):
    file, place = place_of(open_store(store), 3, "x")
    flip(store / file, place)
    shard = int(file[5:10])
    text = run(store, "--shard", shard, status=1)
    assert f"shard {shard} ({file}): DAMAGED in 1 place\n" in text
    assert "every byte is as written (2 files, " in run(store, "--shard", shard + 1)
    assert "verify: the shard must be in [0, " in run(store, "--shard", 99, status=2)


def test_a_wrong_place_is_named_and_so_is_what_lies_before_it(store):
    opened = open_store(store)
    per = opened.manifest.shards[0].sequences
    assert per >= 5
    file, place = place_of(opened, 1, "x")
    flip(store / file, place)
    file, place = place_of(opened, 4, "x", buffer=1, offset=4)
    flip(store / file, place)
    found = facts(store, "--shard", 0, status=1)["files"][1]
    numbers = {one["details"].get("sequence") for one in found["findings"]}
    assert {1, 3, 4} <= numbers


def test_damage_outside_of_all_sequences_is_found_by_the_digest(store):
    flip(store / "part-00000.arrow", 3)
    (finding,) = facts(store, status=1)["files"][1]["findings"]
    assert (
        "No sequence is damaged, but other readers may need the rest: restore it"
        in (finding["text"])
    )
    assert finding["details"]["offset"] == 0


def test_a_damaged_footer_is_named(store):
    path = store / "part-00001.arrow"
    flip(path, os.path.getsize(path) - 20)
    (finding,) = facts(store, status=1)["files"][2]["findings"]
    assert "must have a footer with SHA-256" in finding["text"]


def test_a_shard_that_is_cut_off_or_gone_does_not_keep_others_from_being_looked_at(store):
    file, place = place_of(open_store(store), 39, "x")
    flip(store / file, place)
    os.truncate(store / "part-00000.arrow", 500)
    (store / "part-00001.arrow").unlink()
    found = facts(store, status=1)["files"]
    assert "bytes, but has 500." in found[1]["findings"][0]["text"]
    assert "is missing" in found[2]["findings"][0]["text"]
    assert [one["damages"] for one in found[1:4]] == [1, 1, 0]
    assert found[-1]["findings"][0]["details"]["sequence"] == 39


def test_damaged_checksums_are_not_taken_for_damaged_sequences(store):
    flip(store / "part-00002.crc", 0)
    found = facts(store, status=1)["files"][3]
    (finding,) = found["findings"]
    assert 'checksums of shard 2 ("part-00002.crc"), bytes 0..' in finding["text"]
    assert "must have sha256 " in finding["text"]


def test_damaged_lengths_are_not_taken_for_damaged_sequences(store):
    flip(store / "lengths-time.u32", 0)
    found = facts(store, status=1)["files"]
    assert [one["damages"] for one in found] == [1] + [0] * (len(found) - 1)
    assert 'lengths of axis "time"' in found[0]["findings"][0]["text"]


def test_a_store_without_checksums_is_compared_with_its_digests(store):
    rewrite(store, checksums=None)
    assert ": every byte is as written (" in run(store)
    assert facts(store)["files"][1]["by"] == "digest"
    file, place = place_of(open_store(store), 3, "x")
    flip(store / file, place)
    text = run(store, status=1)
    assert "must have sha256 " in text
    assert "Restore it, or write the store again" in text


def test_a_damaged_manifest_is_an_error(store):
    flip(store / "seqdata.json", 40)
    assert "error: " in run(store, status=1)


def test_damaged_bytes_are_kept_aside(store, tmp_path):
    file, place = place_of(open_store(store), 3, "x")
    flip(store / file, place)
    text = run(store, "--keep-bad", tmp_path / "bad", status=1)
    (kept,) = (tmp_path / "bad").iterdir()
    assert f"kept {kept}" in text
    assert kept.name == f"{file}.{place}-{place + 24}.bad"
    assert kept.read_bytes() == (store / file).read_bytes()[place : place + 24]


def test_of_many_damaged_sequences_some_are_shown_and_all_are_counted(tmp_path):
    count = MAX_FINDINGS + 50
    write_store(tmp_path / "store", [{"x": [i, i]} for i in range(count)])
    path = tmp_path / "store" / "part-00000.arrow"
    place, size = open_store(tmp_path / "store").manifest.shards[0].buffers["x"][0]
    content = bytearray(path.read_bytes())
    content[place : place + size] = bytes(byte ^ 1 for byte in content[place : place + size])
    path.write_bytes(content)
    found = facts(tmp_path / "store", status=1)["files"][1]
    assert (found["damages"], len(found["findings"])) == (count, MAX_FINDINGS)
    text = run(tmp_path / "store", status=1)
    assert f"DAMAGED in {count:,} places" in text
    assert f"\n  and {count - 20:,} more; --json lists some of them" in text


def test_what_cannot_be_read_of_files_that_others_wrote_is_named(tmp_path):
    offsets = np.arange(5, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"a\xffc\xfe")]
    names = pa.Array.from_buffers(pa.utf8(), 4, buffers)
    table = pa.table({"x": [[1, 2], [3], [], [4]], "name": names})
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)
    found = facts(tmp_path / "a.arrow", status=1)
    assert found["damages"] == 2
    places = [one["details"] for one in found["files"][0]["findings"]]
    assert [(one["sequence"], one["field"]) for one in places] == [(1, "name"), (3, "name")]


def test_files_that_others_wrote_are_read_and_called_unverified(tmp_path):
    table = pa.table({"x": [[1, 2], [3]], "id": ["a", "b"]})
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)
    text = run(tmp_path / "a.arrow")
    missing = "there are no checksums of sequences; all could be read, sizes are right"
    assert text == f"{tmp_path}/a.arrow: unverified: {missing} (1 file, 2 sequences)\n"
    assert facts(tmp_path / "a.arrow")["verified"] is False
    assert "`--shard` cannot be used with" in run(tmp_path / "a.arrow", "--shard", 0, status=2)


@pytest.fixture
def shards(tmp_path):
    """Return a function that makes a damaged tar shard in a folder: its path and damaged bytes."""
    pytest.importorskip("seqdata_webdataset")

    def give(name):
        write_store(tmp_path / name, [{"x": np.arange(9)}], format="webdataset")
        (path,) = (tmp_path / name).glob("*.tar")
        content = bytearray(path.read_bytes())
        begin = content.find(np.arange(9).tobytes())
        content[begin] ^= 1
        path.write_bytes(content)
        return path, bytes(content[begin : begin + 72])

    return give


@pytest.mark.parametrize("source", ["", "/*.tar", "/shard-000000.tar", "/shard-{000000..0}.tar"])
def test_damaged_bytes_of_a_shard_are_kept_however_it_is_named(shards, tmp_path, source):
    path, damaged = shards("tar")
    text = run(f"{path.parent}{source}", "--keep-bad", tmp_path / "bad", status=1)
    (kept,) = (tmp_path / "bad").iterdir()
    assert kept.read_bytes() == damaged
    assert text.endswith(f"write the store again\nkept {kept}\n")
    assert "note" not in text


def test_what_cannot_be_kept_is_said(shards, store, tmp_path):
    location = f"{shards('a')[0]}::{shards('b')[0]}"
    said = run(location, "--keep-bad", tmp_path / "bad", status=1)
    assert "note: nothing is saved of 2 places: their bytes are unknown, or their file" in said
    assert not (tmp_path / "bad").exists()
    (store / "part-00001.arrow").unlink()
    assert "is saved of 1 place: their" in run(store, "--keep-bad", tmp_path / "bad", status=1)


def test_bytes_of_a_url_are_not_kept_which_is_said_first(store, tmp_path):
    url = "https://someone:p4ssw0rd@host/a?X-Amz-Signature=s1gn4ture"
    for location in (url, f"{tmp_path}/a.tar::{url}"):
        said = run(store, location, "--keep-bad", tmp_path / "bad", status=2)
        assert said == (
            "error: verify: `--keep-bad` requires files on this machine, but "
            "'https://host/a' is a URL. Copy it to this machine first, or leave the option out.\n"
        )


def test_the_report_comes_though_bytes_cannot_be_kept(store, tmp_path):
    file, place = place_of(open_store(store), 3, "x")
    flip(store / file, place)
    (tmp_path / "bad").touch()
    text = CliRunner().invoke(app, ["verify", str(store), "--keep-bad", f"{tmp_path}/bad/er"])
    assert "damaged in 1 place: restore these files" in text.stdout
    assert text.stderr.startswith("error: ")


def test_on_a_terminal_a_bar_is_shown_and_the_report_goes_where_it_should(store, tmp_path):
    ours, theirs = pty.openpty()
    with open(tmp_path / "report.txt", "wb") as report:
        command = [sys.executable, "-m", "seqdata", "verify", str(store)]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
        done = subprocess.run(
            command, stdout=report, stderr=theirs, env=environment, timeout=patient(), check=False
        )
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.returncode == 0
    assert f"verifying {store}" in shown
    assert (tmp_path / "report.txt").read_text() == run(store)


@pytest.mark.parametrize("others", [["verified"], ["foreign"], ["verified", "verified"]])
@pytest.mark.parametrize("at", [0, 1, -1])
def test_stores_are_called_verified_only_if_all_have_checksums(store, tmp_path, others, at):
    table = pa.table({"x": [[1, 2], [3]], "id": ["a", "b"]})
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)
    places = {"verified": store, "foreign": tmp_path / "a.arrow"}
    stores = [places[name] for name in others]
    stores.insert(at if at >= 0 else len(stores), tmp_path / "a.arrow")
    stores = list(dict.fromkeys(stores))
    assert facts(*stores)["verified"] is False
    lines = run(*stores).splitlines()
    assert len(lines) == len(stores)
    assert "unverified: there are no checksums" in lines[stores.index(tmp_path / "a.arrow")]
    assert facts(store)["verified"] is True
