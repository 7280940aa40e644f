"""What is secret in a URL or in options is in no message, log, output or file."""

import json
import logging
import re
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from seqdata import (
    Bucketed,
    Loader,
    Remote,
    SequenceDataModule,
    SequenceIndex,
    open_store,
    write_store,
)
from seqdata.cli.app import app
from seqdata.errors import SeqDataError
from seqdata_testing.faults import network
from seqdata_testing.faults.network import folder_of, served
from seqdata_testing.waiting import patient
from tests.storage.remote.samples import sequences, write

SECRETS = ("p4ssw0rd", "AKIA77", "s1gn4ture", "t0k3n", "k3y-of-s3")
SECRET = re.compile(f".{{0,60}}(?:{'|'.join(SECRETS)}).{{0,20}}")
QUERY = "?X-Amz-Credential=AKIA77&X-Amz-Signature=s1gn4ture"
OPTIONS = {"headers": {"X-Key": "t0k3n"}}


def with_secrets(url):
    return url.replace("://", "://someone:p4ssw0rd@") + QUERY


@pytest.fixture
def shown(caplog):
    """Collects all that anybody could see; none of it may hold a secret."""
    caplog.set_level(logging.DEBUG, "seqdata")
    told = []
    yield told.append
    everything = "\n".join([*map(str, told), caplog.text])
    assert len(told) > 0
    assert SECRET.findall(everything) == []


def error_of(call):
    """All that a user sees of an error: text, facts, notes, and what it came from."""
    with pytest.raises(SeqDataError) as caught:
        call()
    facts = json.dumps(caught.value.details, default=str)
    lines = traceback.format_exception(caught.value)
    return "".join(line for line in lines if not line.lstrip().startswith("File ")) + facts


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write(folder / "arrow", shard_bytes=20_000)
    write_store(folder / "tar", sequences(), format="webdataset", shard_bytes=30_000)
    return folder


@pytest.fixture
def web(data):
    with served(folder_of(data)) as made:
        yield made


@pytest.fixture
def remote(tmp_path):
    return Remote(cache_dir=tmp_path / "cache", storage_options=OPTIONS)


def files_of(folder):
    return "".join(f"{one} " for one in Path(folder).rglob("*")) + "".join(
        one.read_bytes().decode("latin1") for one in Path(folder).rglob("*") if one.is_file()
    )


@pytest.mark.slow
def test_an_arrow_store_shows_no_secret(web, remote, tmp_path, shown):
    store = open_store(with_secrets(f"{web.url}/arrow"), remote=remote)
    shown(f"{store!r} {store} {store.location} {remote!r} {store.locate(3)} {store.take([1])!r}")
    loader = Loader(store, Bucketed(24), seed=1)
    next(iter(loader))
    shown(json.dumps(loader.state_dict()) + repr(loader) + repr(SequenceIndex.from_store(store)))
    data = SequenceDataModule(train=store, batching=Bucketed(24))
    shown(f"{data!r} {data.hparams if hasattr(data, 'hparams') else ''}")
    shown(files_of(tmp_path / "cache"))
    many = np.array([[number, 0, 1] for number in range(len(store))])
    other = replace(remote, cache_dir=tmp_path / "other", retry_seconds=patient(0.5))
    for fault in (network.refused(), network.unavailable(), network.reset()):
        web.fault = fault
        shown(error_of(lambda: open_store(with_secrets(f"{web.url}/arrow"), remote=other)))
    web.fault = None
    fresh = open_store(with_secrets(f"{web.url}/arrow"), remote=replace(remote, how="ranges"))
    web.fault = network.refused()
    shown(error_of(lambda: fresh.read(many, ["x"])["x"][0]))


def test_tar_shards_show_no_secret(web, remote, tmp_path, shown, monkeypatch):
    pytest.importorskip("seqdata_webdataset")
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "kept"))
    location = with_secrets(f"{web.url}/tar/shard-000000.tar")
    store = open_store(location, remote=remote, index="build")
    shown(f"{store!r} {store} {store.location} {store.locate(3)} {store.take([1])!r}")
    next(iter(Loader(store, Bucketed(8), seed=1)))
    shown(files_of(tmp_path / "cache") + files_of(tmp_path / "kept"))
    other = replace(remote, cache_dir=tmp_path / "other", retry_seconds=patient(0.5))
    for fault in (network.refused(), network.unavailable(), network.reset()):
        web.fault = fault
        shown(error_of(lambda: open_store(location, remote=other, index="build")))
        shown(error_of(lambda: open_store(location, remote=other)))


def test_wrong_arguments_show_no_secret(web, tmp_path, shown):
    for location in (
        with_secrets(f"{web.url}/arrow"), with_secrets(f"{web.url}/tar/shard-000000.tar"),
        with_secrets(f"{web.url}/nothing"), with_secrets(f"{web.url}/x-{{000..003}}.tar"),
        with_secrets("ftp://host/x"), with_secrets("gs://host/x"), with_secrets("s3://host/x"),
        with_secrets("https://host/x.tar.gz"), with_secrets(f"{web.url}/x.parquet"),
    ):  # fmt: skip
        short = Remote(
            retry_seconds=patient(0.2),
            stall_seconds=patient(0.2),
            cache_dir=tmp_path,
            storage_options=OPTIONS,
        )
        for options in (
            {"verify": "sometimes"}, {"index": "sometimes"}, {"schema": {"nope": "int32"}},
            {"remote": 3}, {"remote": "sometimes"}, {"backend": "nope"},
            {"backend": "webdataset", "remote": replace(short, how="ranges")},
            {"backend": "foreign", "remote": short}, {"backend": "memory"},
            {"remote": replace(short, storage_options={"nope": "t0k3n", "headers": 3})},
        ):  # fmt: skip
            try:
                open_store(location, **{"remote": short, **options})
            except SeqDataError as error:
                shown(error_of(lambda error=error: raised(error)))
            except TypeError as error:
                shown(error)
        shown(error_of(lambda location=location: write_store(location, [[1]], remote=3)))


def raised(error):
    raise error


COMMANDS = {
    "stats": [], "plan": [], "index": [], "replay": [], "doctor": [],
    "verify": [["--repair-index"], ["--shard", "0"], ["--keep-bad", "bad"]],
    "write": [["out"], ["out", "--group", "site"], ["out", "--field", "x", "--backend", "foreign"],
              ["out", "--field", "x", "--format", "store"], ["out", "--backend", "nope"]],
}  # fmt: skip
"""Command -> its options in further calls."""


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_shows_no_secret(web, command, tmp_path, shown, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SEQDATA_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr("seqdata.cli._report.console.redact_secrets", str)  # what each place says
    monkeypatch.chdir(tmp_path)
    for path in ("arrow", "tar/shard-000000.tar", "nothing", "x.parquet"):
        location = with_secrets(f"{web.url}/{path}")
        for more in ([], ["--json"], *COMMANDS[command]):
            done = CliRunner().invoke(app, [command, location, *more])
            shown(done.output)
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                raise done.exception
