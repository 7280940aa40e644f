"""``SequenceDataModule(remote=)``: URLs are read in the chosen way, in workers and replays too."""

import json
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from click.testing import CliRunner

import tests.s3
from seqdata import ConfigError, Fixed, Mix, Remote, SequenceDataModule, open_store, write_store
from seqdata.cli.app import app
from seqdata.errors import RemoteReadError
from seqdata.runs.options import DataOptions
from seqdata.runs.run_file import NAME
from seqdata_testing.faults import network
from seqdata_testing.s3 import check_equal_batches
from seqdata_testing.waiting import patient
from tests.lightning.harness import QUIET, Recorder, fit, quietly, sequences
from tests.runs.run_files import read_run_file, remake

server = tests.s3.server

pytestmark = pytest.mark.slow
KEY, SECRET = "AKIA77", "s1gn4ture"


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A folder with two stores."""
    folder = tmp_path_factory.mktemp("data")
    for number, name in enumerate(("a", "b")):
        write_store(
            folder / name,
            [{"id": f"{name}{i}", "x": x} for i, x in enumerate(sequences(40, number))],
            shard_bytes=1_000,
        )
    return folder


@pytest.fixture(scope="module")
def bucket(server, local):
    return server.upload(local)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Nothing but the option says where the server and the cache are."""
    found = tests.s3.hide_servers(monkeypatch, tmp_path)
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # what Lightning itself calls
    monkeypatch.setattr("sys.argv", ["train.py"])
    return found


@pytest.fixture
def remote(server, tmp_path):
    options = {"key": KEY, "secret": SECRET, "endpoint_url": server.storage_options["endpoint_url"]}
    return Remote(cache_dir=tmp_path / "cache", storage_options=options, retry_seconds=patient(5))


def data_of(train, **options):
    return SequenceDataModule(**{"train": train, "batching": Fixed(4), "seed": 3, **options})


def check_same(there, here):
    check_equal_batches(there.train_dataloader(), here.train_dataloader())


def list_cached(folder):
    """Return the cached files that are as long as shards."""
    return [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 1_000]


def test_urls_are_read_through_the_folder_of_the_option(bucket, local, remote, home):
    check_same(data_of(f"{bucket}/a", remote=remote), data_of(local / "a"))
    assert list_cached(remote.folder)
    assert not (home / ".cache").exists()


@pytest.fixture
def counted(server):
    """A server before the server; method, path, status and bytes of each answer."""
    answers = []

    def note(answer, handler):
        answers.append((handler.command, handler.path, answer.status, len(answer.body)))
        network.send(answer, handler)

    with network.served(network.before(server.host, server.port)) as made:
        made.fault = note
        yield made, answers


@pytest.mark.parametrize("is_word", [False, True])
def test_ranges_are_only_the_bytes_of_a_batch(
    bucket, local, remote, home, counted, is_word, monkeypatch
):
    front, answers = counted
    chosen = "ranges"
    if is_word:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_ENDPOINT_URL", front.url)
    else:
        options = {**remote.storage_options, "endpoint_url": front.url}
        chosen = Remote(how="ranges", cache_dir=remote.cache_dir, storage_options=options)
    there = data_of(f"{bucket}/a", remote=chosen, batching=Fixed(1, shuffle=False), prefetch=0)
    batches = iter(there.train_dataloader())
    answers.clear()
    batch = next(batches)
    read = [answer for answer in answers if ".arrow" in answer[1] and answer[0] == "GET"]
    assert {status for _, _, status, _ in read} == {206}
    size = max(path.stat().st_size for path in (local / "a").glob("*.arrow"))
    assert 0 < sum(count for *_, count in read) < size / 2
    assert np.array_equal(batch["x"][0], open_store(local / "a")[0]["x"])
    assert not list_cached(remote.folder.parent)
    assert not list_cached(home)


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
@pytest.mark.parametrize("how", ["cache", "ranges"])
def test_workers_read_in_the_same_way(bucket, local, remote, how, start_method):
    chosen = Remote(how=how, cache_dir=remote.cache_dir, storage_options=remote.storage_options)
    there = data_of(f"{bucket}/a", remote=chosen, num_workers=2, start_method=start_method)
    check_same(there, data_of(local / "a"))
    there.teardown("fit")
    assert bool(list_cached(remote.folder)) == (how == "cache")


def test_each_url_of_a_mixture_and_of_a_list(bucket, local, remote):
    mix = Mix({"a": 1, "b": 1}, Fixed(4))
    for make in (
        lambda root: {"a": f"{root}/a", "b": f"{root}/b"},
        lambda root: {"a": f"{root}/a", "b": f"{local}/b"},  # a path beside a URL
    ):
        there = data_of(make(bucket), remote=remote, batching=mix)
        check_same(there, data_of(make(local), batching=mix))
    for names in (("a", "b"), ("b", "a")):
        there = data_of([f"{bucket}/{names[0]}", local / names[1]], remote=remote)
        check_same(there, data_of([local / name for name in names]))


def test_paths_beside_urls_are_read_as_paths(bucket, local, remote):
    there = data_of(f"{bucket}/a", val=local / "b", test={"b": local / "b"}, remote=remote)
    here = data_of(local / "a", val=local / "b", test={"b": local / "b"})
    check_equal_batches(there.val_dataloader(), here.val_dataloader())
    check_equal_batches(there.test_dataloader()[0], here.test_dataloader()[0])
    mixed = [f"{bucket}/a", open_store(local / "b")]
    check_same(data_of(mixed, remote=remote), data_of([local / "a", local / "b"]))


def test_a_table_beside_the_url_of_one(server, remote, tmp_path):
    (tmp_path / "tables").mkdir()
    table = pd.DataFrame({"site": list("aabb"), "hour": [0, 1, 0, 1], "x": [1.0, 2, 3, 4]})
    table.to_csv(tmp_path / "tables/one.csv", index=False)
    table.assign(site=list("ccdd")).to_csv(tmp_path / "tables/two.csv", index=False)
    url = server.upload(tmp_path / "tables")
    by = {"group": "site", "order": "hour", "batching": Fixed(2)}
    there = data_of([f"{url}/one.csv", tmp_path / "tables/two.csv"], remote=remote, **by)
    check_same(there, data_of([tmp_path / f"tables/{name}.csv" for name in ("one", "two")], **by))
    alone = data_of(f"{url}/one.csv", remote=remote, **by)
    assert f"are copied to {remote.copies}" in alone.describe()


@pytest.mark.parametrize(
    ("train", "text"),
    [
        (lambda local: local / "a", "a: `remote` must be left out for a local path"),
        (lambda local: [local / "a", local / "b"], "`remote` must be left out for a local path"),
        (lambda local: open_store(local / "a"), "`remote` is for a path or URL, but .*Store"),
        (lambda local: sequences(3), "`remote` is for a path or URL, but the data is a list"),
    ],
)
def test_data_that_has_no_url_is_refused(train, text, local, remote):
    with pytest.raises(ConfigError, match=text):
        data_of(train(local), remote=remote).train_dataloader()


def test_an_opened_store_beside_a_url_is_refused(bucket, local, remote):
    data = data_of(f"{bucket}/a", val=open_store(local / "b"), remote=remote)
    with pytest.raises(ConfigError, match="`remote` is for a path or URL, but the data is a"):
        data.setup("fit")


@pytest.mark.parametrize(
    ("remote", "text"),
    [
        (3, "`remote` must be 'cache', 'ranges' or a Remote, but is a int"),
        ({"how": "ranges"}, "`remote` must be 'cache', 'ranges' or a Remote, but is a dict"),
        ("sometimes", "`remote` must be 'cache', 'ranges' or a Remote, but is 'sometimes'"),
    ],
)
def test_what_is_no_access_to_urls_is_refused_at_once(remote, text):
    with pytest.raises(ConfigError, match=text):
        data_of("s3://bucket/a", remote=remote)


def test_ranks_may_have_other_folders(bucket, remote):
    described = [
        DataOptions(train=bucket, batching=Fixed(4), remote=each).describe()
        for each in (remote, Remote(cache_dir="other"), None, "ranges")
    ]
    assert described[1:] == described[:-1]


def test_a_replay_reads_in_the_way_of_the_run(bucket, local, remote, monkeypatch, caplog):
    val = {"here": local / "b", "there": f"{bucket}/b"}
    data = data_of(f"{bucket}/a", val=val, remote=remote)
    fit(data, max_epochs=1)
    text = Path(NAME).read_text()
    assert SECRET not in text
    assert KEY not in text
    plain = read_run_file()
    arguments = plain["data"]["remote"]["init_args"]
    assert plain["data"]["remote"]["class_path"] == "seqdata.Remote"
    assert arguments["cache_dir"] == remote.cache_dir
    assert arguments["storage_options"] == {"endpoint_url": remote.storage_options["endpoint_url"]}
    assert plain["left_out"] == ["remote.storage_options.key", "remote.storage_options.secret"]
    assert not plain["not_replayable"]
    assert data.replay_command(epoch=0, batch=1) == f"seqdata replay {NAME} --epoch 0 --batch 1"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    for kind, name in (("train", None), ("val", "there"), ("val", "here")):
        made = remake(1, kind=kind, name=name)
        expected = data.replay(epoch=0, batch=1, kind=kind, name=name)
        assert torch.equal(made["x"], expected["x"])
    assert (
        f"{NAME}: does not have remote.storage_options.key, remote.storage_options.secret, which "
        "may be secret"
    ) in caplog.text
    done = CliRunner().invoke(app, ["replay", NAME, "--epoch", "0", "--batch", "1", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["error"] is None


def test_a_replay_without_credentials_says_so(bucket, remote):
    fit(data_of(f"{bucket}/a", remote=remote), max_epochs=1)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with pytest.raises(RemoteReadError, match="permissions and credentials"):
        remake(1)


def test_a_replay_of_a_list_with_a_store(bucket, local, remote, monkeypatch):
    data = data_of([f"{bucket}/a", open_store(local / "b").take(range(20))], remote=remote)
    fit(data, max_epochs=1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert torch.equal(remake(2)["x"], data.replay(epoch=0, batch=2)["x"])


def test_doctor_opens_the_data_of_a_run_as_the_run_did(bucket, local, remote, monkeypatch):
    data = data_of(f"{bucket}/a", val=f"{bucket}/b", test=local / "b", remote=remote)
    fit(data, max_epochs=1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    done = CliRunner().invoke(app, ["doctor", NAME, "--json"])
    findings = json.loads(done.stdout)["findings"]
    shards = [one for one in findings if one["name"] == "shards"]
    assert [one["state"] for one in shards] == ["ok", "ok", "ok"], done.output
    done = CliRunner().invoke(app, ["doctor", "--leaks", NAME])
    assert "val and test: same sequences: 40 sequences are in both" in done.output
    assert done.exit_code in (0, 1), done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)


def add_dimension(sequence, rng):
    return {**sequence, "x": sequence["x"][:, None]}


def test_another_backend_for_a_replay_keeps_the_other_options(
    server, remote, tmp_path, monkeypatch
):
    (tmp_path / "tables").mkdir()
    table = pd.DataFrame({"site": list("aabb"), "hour": [0, 1, 0, 1], "x": [1.0, 2, 3, 4]})
    table.to_parquet(tmp_path / "tables/one.parquet", index=False)
    url = server.upload(tmp_path / "tables")
    data = data_of(
        f"{url}/one.parquet", remote=remote, group="site", order="hour", batching=Fixed(1),
        transform=add_dimension,
    )  # fmt: skip
    fit(data, max_epochs=1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    options = ["--epoch", "0", "--batch", "1", "--json", "--backend", "frames"]
    done = CliRunner().invoke(app, ["replay", NAME, *options])
    assert done.exit_code == 0, done.output


def write_config(remote, train):
    data = {"train": train, "batching": {"class_path": "Fixed", "init_args": {"batch_size": 4}}}
    config = {
        "seed_everything": 1,
        "data": {"class_path": "SequenceDataModule", "init_args": {**data, "remote": remote}},
        "model": {"class_path": "tests.lightning.harness.Recorder"},
        "trainer": {**QUIET, "max_epochs": 1, "enable_checkpointing": False, "accelerator": "cpu"},
    }
    with open("config.yaml", "w") as file:
        yaml.safe_dump(config, file)


@pytest.mark.parametrize("name", ["Remote", "seqdata.Remote"])
def test_a_configuration_file_has_all_options(name, bucket, remote):
    cli = pytest.importorskip("seqdata.suite.cli")
    pytest.importorskip("jsonargparse")
    options = {
        "how": "ranges", "cache_dir": remote.cache_dir, "cache_bytes": 1_000_000,
        "retry_seconds": 7.5, "storage_options": dict(remote.storage_options),
    }  # fmt: skip
    write_config({"class_path": name, "init_args": options}, f"{bucket}/a")
    with quietly():
        made = cli.run_cli(["fit", "--config", "config.yaml"])
    assert made.datamodule._options.remote == Remote(**options)
    assert made.model.log_of.train


def test_a_configuration_file_has_a_word(bucket, remote, monkeypatch):
    cli = pytest.importorskip("seqdata.suite.cli")
    pytest.importorskip("jsonargparse")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", remote.storage_options["endpoint_url"])
    write_config("ranges", f"{bucket}/a")
    with quietly():
        made = cli.run_cli(["fit", "--config", "config.yaml"])
    assert made.datamodule._options.remote == "ranges"
    assert made.model.log_of.train


def test_a_run_file_is_a_configuration_file(bucket, remote, monkeypatch):
    cli = pytest.importorskip("lightning.pytorch.cli")
    pytest.importorskip("jsonargparse")
    first = fit(data_of(f"{bucket}/a", remote=remote), max_epochs=1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with quietly():
        made = cli.LightningCLI(
            Recorder, SequenceDataModule, args=["fit", "--config", NAME],
            seed_everything_default=False, save_config_callback=None,
            trainer_defaults={**QUIET, "max_epochs": 1, "enable_checkpointing": False},
        )  # fmt: skip
    assert made.model.log_of.train == first.model.log_of.train
    found = made.datamodule._options.remote
    assert (found.cache_dir, found.retry_seconds) == (remote.cache_dir, remote.retry_seconds)


class Chosen(SequenceDataModule):
    """Saves what it is given in checkpoints."""

    def __init__(self, train, remote=None):
        super().__init__(train=train, batching=Fixed(4), seed=1, remote=remote)
        self.save_hyperparameters()


def test_a_checkpoint_has_it_among_hyperparameters(bucket, remote, tmp_path):
    data = Chosen(f"{bucket}/a", remote)
    fit(data, max_epochs=1, folder=tmp_path / "saved")
    (path,) = (tmp_path / "saved").glob("*.ckpt")
    loaded = torch.load(path, weights_only=True)
    assert loaded[Chosen.CHECKPOINT_HYPER_PARAMS_KEY]["remote"] == remote
    assert Chosen.load_from_checkpoint(path)._options.remote == remote
    fit(Chosen(f"{bucket}/a", remote), max_epochs=2, ckpt=path)
