"""What URLs of each kind need, are called, and are told from one another by."""

import importlib.util

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqdata import ConfigError, MissingShardError, Remote, open_store, write_store
from seqdata.storage.indexed.find_files import find_remote
from seqdata.storage.indexed.index_folder import DataIndex
from seqdata.storage.remote.file_cache import CacheRequest, make_cache
from seqdata.storage.remote.transport import make_remote_files
from seqdata.storage.remote.urls import (
    PACKAGES,
    check_url,
    encode_url,
    identify_url,
    join_url,
    redact_secrets,
    redact_url,
    split_url,
)
from seqdata_testing.faults.network import Answer, folder_of, served
from tests.storage.indexed.samples import make_index

ABSENT = [name for name, package in PACKAGES.items() if not importlib.util.find_spec(package)]
URLS = {
    "s3": "s3://bucket/data",
    "gs": "gs://bucket/data",
    "gcs": "gcs://bucket/data",
    "az": "az://container/data",
    "abfs": "abfs://container@account.dfs.core.windows.net/data",
    "hf": "hf://datasets/user/name@refs%2Fpr%2F1/data",
    "http": "http://host/data",
    "https": "https://host/data",
    "memory": "memory://data",
}


@pytest.mark.parametrize(
    ("url", "named"),
    [("s3://a/b::memory://c", r"is a chain of URLs \('::'\)"), ("ftp://host/a", "is of 'ftp'"),
     ("http://host/a::b", r"is a chain of URLs \('::'\)"), ("bucket/a", "has no scheme")],
)  # fmt: skip
def test_what_is_no_plain_url_of_a_known_scheme_is_refused(url, named):
    with pytest.raises(ConfigError, match=f"must be a plain URL of .*, but {named}"):
        check_url(url)


@pytest.mark.parametrize("scheme", PACKAGES)
def test_each_scheme_is_known_to_fsspec(scheme):
    assert scheme in fsspec.available_protocols()
    assert scheme in URLS


@pytest.mark.skipif(not ABSENT, reason="all of the packages are installed")
@pytest.mark.parametrize("scheme", ABSENT)
def test_what_a_scheme_needs_and_is_not_there_is_named(scheme):
    package = PACKAGES[scheme]
    text = (
        rf"{scheme}:// needs the package '{package}', which is not installed\. Run: pip "
        rf"install {package}"
    )
    for call in (
        lambda: open_store(URLS[scheme]),
        lambda: open_store(f"{URLS[scheme]}/file.parquet"),
        lambda: open_store(f"{URLS[scheme]}/x-000.tar", index="build"),
        lambda: make_remote_files(URLS[scheme], Remote()),
    ):
        with pytest.raises(ConfigError, match=text):
            call()
    if not scheme.startswith("http"):
        with pytest.raises(ConfigError, match=text):
            write_store(URLS[scheme], [[1]])


@pytest.mark.parametrize("url", URLS.values(), ids=URLS)
def test_urls_of_each_kind_keep_their_names(url):
    assert redact_url(url) == identify_url(url) == url
    assert redact_url(f"{url}/") == identify_url(f"{url}/") == url
    assert join_url(url, "part-0.arrow") == f"{url}/part-0.arrow"
    assert split_url(f"{url}/part-0.arrow") == (url, "part-0.arrow")


def test_what_is_secret_is_no_part_of_what_tells_locations_apart():
    assert identify_url("https://me:pw@host/data?Signature=1") == "https://host/data"
    assert identify_url("https://me:pw@host/get?file=1") == "https://host/get?file=1"
    assert identify_url("s3://key:pw@bucket/data") == "s3://bucket/data"
    assert identify_url("s3://key@bucket/data") == "s3://bucket/data"
    assert identify_url("abfs://me:pw@host/data") == "abfs://host/data"
    different = ("s3://b/data#1", "s3://b/data#2", "s3://b/data?1", "gs://b/data#1")
    assert len({identify_url(one) for one in different}) == 4
    two = [f"abfs://{name}@account.dfs.core.windows.net/x" for name in ("a", "b")]
    assert len({*map(identify_url, two), *map(redact_url, two)}) == 2


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("X-Amz-Signature=s&X-Amz-Date=1&x-amz-expires=2&versionId=7", "?versionId=7"),
        ("X-Goog-Signature=s&X-Goog-Credential=me&generation=7", "?generation=7"),
        ("AWSAccessKeyId=k&Signature=s&Expires=1", ""),
        ("GoogleAccessId=k&Expires=1&Signature=s", ""),
        ("Policy=p&Signature=s&Key-Pair-Id=k&a=1&b=2", "?a=1&b=2"),
        (
            "sv=1&ss=b&srt=o&sp=r&se=2&st=1&spr=https&sip=1&si=p&sr=b&sig=s&snapshot=3",
            "?snapshot=3",
        ),
        ("skoid=1&sktid=2&skt=3&ske=4&sks=b&skv=5&sr=b&sig=s", ""),
        ("signature=s&id=1", "?id=1"),
        ("x-oss-signature=s&x-oss-date=1&versionId=3", "?versionId=3"),
        ("OSSAccessKeyId=k&Expires=1&Signature=s&security-token=t", ""),
        (
            "q-sign-algorithm=sha1&q-ak=k&q-sign-time=1;2&q-key-time=1;2&q-header-list=host"
            "&q-url-param-list=&q-signature=s&file=2",
            "?file=2",
        ),
        ("q-ak=1", "?q-ak=1"),
        ("token=t&name=x", "?name=x"),
        ("access_token=t&hdnts=exp=1~hmac=2&hdnea=3", ""),
        ("id=1&id=2", "?id=1&id=2"),
        ("si=1&sp=2", "?si=1&sp=2"),  # no signature: they may name a file
        ("Policy=1&Expires=2", "?Policy=1&Expires=2"),
        ("Xsig=1&signatures=2", "?Xsig=1&signatures=2"),
    ],
)
def test_of_a_query_only_a_signature_is_no_part_of_what_tells_locations_apart(query, kept):
    assert identify_url(f"https://host/get?{query}#part") == f"https://host/get{kept}"
    bucket = f"s3://bucket/get?{query}"
    assert identify_url(bucket) == bucket


@pytest.mark.parametrize("name", ["part 1.parquet", "größe's.parquet", 'a"b.parquet'])
def test_no_name_keeps_a_query_from_being_hidden(name):
    url = f"https://me:pw@host/data/{name}"
    shown = f"https://host/data/{name}"
    assert redact_url(f"{url}?Signature=secret") == shown
    assert redact_secrets(f"{url}?Signature=secret") == shown
    assert encode_url(f"{url}?id=a b").isascii()
    assert not set(encode_url(f"{url}?id=a b")) & set(" '\"")


def test_brackets_do_not_end_a_query():
    text = "403, message='Forbidden', url='https://host/get?name=a(1)&sig=secret' (try again)"
    shown = "403, message='Forbidden', url='https://host/get' (try again)"
    assert redact_secrets(text) == shown
    text = "(see https://host/get?sig=secret), then"
    assert redact_secrets(text) == "(see https://host/get), then"


@pytest.mark.parametrize(
    "url", ["https://hôst/a%20b+c%2B=?id=%2F&b#x", "memory://b/a b?", "s3://b/ö"]
)
def test_what_is_encoded_stays_as_it_is(url):
    assert encode_url(url) == url


@pytest.mark.parametrize("name", ["a#b", "a?b", "a#b?c=d", "a[1]"])
def test_names_in_buckets_keep_the_signs_of_queries(name, tmp_path):
    url = f"s3://bucket/{name}.csv"
    assert redact_url(url) == redact_secrets(url) == url
    assert redact_secrets(f"'{url}': must") == f"'{url}': must"
    assert redact_url(f"S3://me:pw@bucket/{name}") == f"S3://bucket/{name}"
    text = f"{url} and https://host/x?key=secret"
    assert redact_secrets(text) == f"{url} and https://host/x"
    assert redact_secrets("'HTTPS://host/x?key=secret'") == "'HTTPS://host/x'"
    bucket = fsspec.filesystem("memory")
    pq.write_table(pa.table({"v": [[1.0, 2.0]]}), tmp_path / "x.parquet")
    bucket.pipe_file(f"/{tmp_path.name}/{name}.parquet", (tmp_path / "x.parquet").read_bytes())
    store = open_store(
        f"memory://{tmp_path.name}/{name}.parquet", remote=Remote(cache_dir=tmp_path / "cache")
    )
    assert store[0]["v"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("name", ["a?1.bin", "a[1].bin", "a*1.bin"])
def test_a_file_with_the_very_name_wins_over_a_glob(name, tmp_path):
    bucket, index = fsspec.filesystem("memory"), DataIndex(make_index().format_identity)
    remote = Remote(cache_dir=tmp_path / "cache")
    url = f"memory://{tmp_path.name}-globs/{name}"
    for each in ("axx1.bin", "a1.bin", "ax1.bin", name):
        bucket.pipe_file(f"/{tmp_path.name}-globs/{each}", b"x")
    found, _ = find_remote(url, remote, (".bin",), index)
    assert [shard.name for shard in found] == [name]
    bucket.rm_file(f"/{tmp_path.name}-globs/{name}")
    found, _ = find_remote(url, remote, (".bin",), index)
    assert name not in [shard.name for shard in found]
    assert found


def test_nothing_at_a_url_is_said_of_the_url_and_not_of_a_manifest(tmp_path):
    remote = Remote(cache_dir=tmp_path / "cache")
    with pytest.raises(MissingShardError) as error:
        open_store(f"memory://{tmp_path.name}/none.csv", remote=remote)
    assert str(error.value) == (
        f"memory://{tmp_path.name}/none.csv: is not there: no file or folder has this name. "
        "Check the URL"
    )


def at_one_time(root):
    """Serve a folder whose files the query names, with the same time for all of them."""
    inner = untagged(root)

    def answer(asked):
        said = inner(asked)
        headers = (*said.headers, ("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT"))
        return Answer(said.status, headers, said.body, said.size)

    return answer


def untagged(root):
    """Serve a folder whose files the query names, without tags."""
    inner = folder_of(root)

    def answer(asked):
        name = asked.path.partition("?file=")[2].partition("&")[0]
        said = inner(type(asked)(asked.method, f"/{name}", asked.headers))
        kept = tuple(one for one in said.headers if one[0] not in ("ETag", "Last-Modified"))
        return Answer(said.status, kept, said.body, said.size)

    return answer


@pytest.mark.parametrize("serve", [untagged, at_one_time])
def test_files_that_only_a_query_tells_apart_are_two_in_the_cache(tmp_path, serve):
    (tmp_path / "data").mkdir()
    remote = Remote(cache_dir=tmp_path / "cache")
    for name in ("one", "two"):
        (tmp_path / "data" / name).write_bytes(name.encode() * 10)
    with served(serve(tmp_path / "data")) as web:
        for number, name in enumerate(("one", "two", "one")):
            files = make_remote_files(f"{web.url}?file={name}&Signature=s3cret{number}", remote)
            held = make_cache(files).acquire(CacheRequest("get"))
            assert bytes(memoryview(held.mapping)) == name.encode() * 10
            assert "s3cret" not in repr((files, held, list(remote.folder.iterdir())))
    assert len([path for path in remote.folder.iterdir() if path.name.startswith("u")]) == 2
