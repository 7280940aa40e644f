"""A text corpus behind s3:// has the documents, ids and tokens of the local files."""

import gzip
import json

import numpy as np
import pytest
from click.testing import CliRunner
from seqdata_text import Text, load_tokenizer, tokenize
from seqdata_text.command import command

import tests.s3
from seqdata import TBPTT, DecodeError, Loader, MissingShardError, open_store
from seqdata.errors import SeqDataWarning
from seqdata_testing.s3 import check_equal_batches

remote, server, url = tests.s3.remote, tests.s3.server, tests.s3.url

pytestmark = pytest.mark.slow
PLACES = ("plain", "plain/deep", "plain/*.txt", "rows.jsonl", "rows.jsonl.gz", "plain/{b,a}.txt")


@pytest.fixture
def folder(tmp_path, paragraphs):
    data = tmp_path / "data"
    (data / "plain" / "deep").mkdir(parents=True)
    for number, name in enumerate(("b.txt", "a.txt", "deep/part.10.txt", "deep/part.2.txt")):
        (data / "plain" / name).write_text("\n".join(paragraphs[number * 5 : number * 5 + 5]))
    rows = "".join(f"{json.dumps({'text': text})}\n" for text in paragraphs[:50])
    (data / "rows.jsonl").write_text(rows)
    (data / "rows.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    return data


def check_alike(there, here):
    assert list(there.ids) == list(here.ids)
    assert there.fingerprint == here.fingerprint
    for one, other in zip(there, here, strict=True):
        np.testing.assert_array_equal(one["tokens"], other["tokens"])


@pytest.mark.parametrize("place", PLACES)
def test_a_corpus_in_a_bucket_is_that_of_the_local_files(
    place, url, folder, remote, server, tmp_path
):
    text = Text("bytes", eos=True, num_workers=0)
    here = open_store(f"{folder}/{place}", backend=text)
    there = open_store(f"{url}/{place}", backend=text, remote=remote)
    check_alike(there, here)
    assert len(server.list_read()) == (len(here) if place.startswith("plain") else 1)
    assert list(remote.copies.glob("*/seqdata-index/text-*/seqdata.json"))
    times = [path.stat().st_mtime_ns for path in remote.copies.rglob("seqdata.json")]
    again = open_store(f"{url}/{place}", backend=text, remote=remote)
    check_alike(again, here)
    assert not server.list_read()
    assert times == [path.stat().st_mtime_ns for path in remote.copies.rglob("seqdata.json")]
    written = tokenize(f"{url}/{place}", tmp_path / "o", tokenizer="bytes", eos=True, remote=remote)
    check_alike(written, here)
    policy = TBPTT(2, 16)
    check_equal_batches(
        Loader(there, policy, shift=1, num_workers=1, start_method="spawn"),
        Loader(here, policy, shift=1),
    )


def test_processes_tokenize_the_copies(url, folder, remote, small_parts):
    here = open_store(f"{folder}/plain", backend=Text("bytes", num_workers=2))
    there = open_store(f"{url}/plain", backend=Text("bytes", num_workers=2), remote=remote)
    check_alike(there, here)


def test_corpora_of_one_cache_folder_have_tokens_of_their_own(url, remote, tmp_path):
    text = Text("bytes", cache_dir=tmp_path / "tokens", num_workers=0)
    stores = [open_store(f"{url}/plain/{name}.txt", backend=text, remote=remote) for name in "ab"]
    assert stores[0].fingerprint != stores[1].fingerprint
    assert len(list((tmp_path / "tokens").glob("text-*"))) == 2


def test_a_changed_corpus_is_tokenized_again(url, remote, server):
    text = Text("bytes", num_workers=0)
    open_store(f"{url}/plain", backend=text, remote=remote)
    server.list_read()
    server.filesystem.pipe_file(f"{url}/plain/a.txt", b"new")
    with pytest.warns(SeqDataWarning, match="1 file of the corpus changed"):
        store = open_store(f"{url}/plain", backend=text, remote=remote)
    assert load_tokenizer(store).decode(store[0]["tokens"]) == "new"
    assert server.list_read() == ["plain/a.txt"]


def test_errors_name_the_files_of_the_bucket(url, remote, server):
    with pytest.raises(MissingShardError, match=r"plain/c\.txt.*is not there|\"c\.txt\".*is not"):
        open_store(f"{url}/plain/c.txt", backend=Text("bytes"), remote=remote)
    server.filesystem.pipe_file(f"{url}/bad/x.jsonl", b'{"text": 1}\n')
    with pytest.raises(DecodeError, match=f"{url}/bad") as caught:
        open_store(f"{url}/bad", backend=Text("bytes", num_workers=0), remote=remote)
    assert "seqdata-copies" not in str(caught.value)


def test_the_command_tokenizes_a_corpus_of_a_bucket(url, folder, server, tmp_path, monkeypatch):
    for name, value in {**server.enter_environment(), "HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    for source, out in ((url, "there"), (folder, "here")):
        options = ["--tokenizer", "bytes", "--num-workers", "0"]
        done = CliRunner().invoke(command, [f"{source}/plain", str(tmp_path / out), *options])
        assert done.exit_code == 0, done.output
    check_alike(open_store(tmp_path / "there"), open_store(tmp_path / "here"))
