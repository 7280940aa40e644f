"""How a remote location is read is checked where it is said."""

import pytest

from seqdata.errors import ConfigError
from seqdata.storage.remote.options import (
    Remote,
    redact_remote,
    resolve_remote,
    select_remote,
)


def test_a_word_or_nothing_stands_for_options():
    assert resolve_remote(None) == Remote() == resolve_remote("cache")
    assert resolve_remote("ranges") == Remote(how="ranges")
    given = Remote(gap=0)
    assert resolve_remote(given) is given


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("how", "stream"),
        ("cache_bytes", 0),
        ("cache_bytes", True),
        ("retry_seconds", True),
        ("cache_dir", 5),
        ("cache_dir", b"cache"),
        ("memory_bytes", -1),
        ("gap", 1.5),
        ("connections", 0),
        ("retry_seconds", 0),
        ("stall_seconds", float("nan")),
        ("stall_seconds", "30"),
    ],
)
def test_a_value_that_no_reading_could_have_is_refused_by_its_name(name, value):
    with pytest.raises(ConfigError, match=f"^Remote: `{name}`") as caught:
        Remote(**{name: value})
    assert repr(value) in str(caught.value)


def test_the_least_values_are_taken():
    Remote(cache_bytes=1, memory_bytes=0, gap=0, connections=1, retry_seconds=1e-9)


def test_what_is_no_option_is_refused():
    with pytest.raises(ConfigError, match=r"`remote`.* dict"):
        resolve_remote({"how": "cache"})


def test_folders_of_the_cache_are_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Remote().folder == tmp_path / ".cache/seqdata/seqdata-shards"
    assert Remote(cache_dir="~/here").writing == tmp_path / "here/seqdata-writing"


def test_credentials_are_not_shown():
    assert "secret" not in repr(Remote(storage_options={"key": "secret"}))


@pytest.mark.parametrize("value", [None, 5, [("key", "secret")]])
def test_options_of_the_transport_are_a_mapping(value):
    with pytest.raises(ConfigError, match=r"^Remote: `storage_options` must be a dict") as caught:
        Remote(storage_options=value)
    assert "secret" not in str(caught.value)


def test_what_may_be_secret_is_not_written_to_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = Remote(
        how="ranges",
        cache_dir="near",
        storage_options={
            "key": "k3y", "anon": False, "endpoint_url": "http://host:9000", "new_option": 3,
            "client_kwargs": {"region_name": "eu", "aws_secret_access_key": "k3y", "verify": None},
            "config_kwargs": {"s3": {"addressing_style": "path"}, "proxies": {"http": "k3y"}},
            "region_name": ["k3y"], "project": "https://me:k3y@host/x",
        },
    )  # fmt: skip
    kept, left_out = redact_remote(given)
    assert kept.storage_options == {
        "anon": False, "endpoint_url": "http://host:9000",
        "client_kwargs": {"region_name": "eu", "verify": None},
        "config_kwargs": {"s3": {"addressing_style": "path"}},
    }  # fmt: skip
    assert left_out == [
        f"storage_options.{name}"
        for name in (
            "key", "new_option", "client_kwargs.aws_secret_access_key", "config_kwargs.proxies",
            "region_name", "project",
        )
    ]  # fmt: skip
    assert (kept.how, kept.cache_dir) == ("ranges", str(tmp_path / "near"))
    assert redact_remote(Remote(cache_dir="~/here"))[0].cache_dir == "~/here"
    assert redact_remote(Remote()) == (Remote(), [])


def test_a_path_is_without_options_only_beside_a_url(tmp_path):
    chosen = Remote()
    assert select_remote(chosen, "s3://a/b", ["c"]) is chosen
    assert select_remote(chosen, "c", ["s3://a/b", tmp_path]) is None
    assert select_remote(chosen, tmp_path, ["c", tmp_path]) is chosen
    assert select_remote(chosen, "c::s3://a/b", ["c"]) is chosen
