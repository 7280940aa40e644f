"""A manifest is input: whatever it says is checked, and what is wrong is named."""

import copy
import json
import os
from dataclasses import replace

import numpy as np
import pytest

from seqdata.errors import DataError, FingerprintMismatch, LimitError
from seqdata.storage.arrow import manifest
from seqdata.storage.arrow.manifest import (
    DIGEST_PLACEHOLDER,
    MANIFEST,
    compute_digest,
    compute_fingerprint,
    dump_manifest,
    load_manifest,
    parse_manifest,
)
from seqdata.storage.arrow.store import open_arrow
from seqdata.storage.arrow.write import write_arrow
from seqdata.storage.data_location import DataLocation
from seqdata.storage.integrity.checksums import ChecksumFile, ChecksumSpec

PLACE = DataLocation(dataset="store", file_kind="manifest", file="seqdata.json")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    rows = [{"id": f"u{i}", "x": np.ones((i, 2), dtype=np.int16), "y": i} for i in range(3)]
    root = tmp_path_factory.mktemp("parsing")
    write_arrow(root, rows, shard_bytes=60)
    return root


@pytest.fixture
def whole(root):
    return json.loads((root / MANIFEST).read_text())


def parse(whole):
    whole = {**whole, "fingerprint": compute_fingerprint(whole), "digest": DIGEST_PLACEHOLDER}
    text = json.dumps(whole)
    sealed = text.replace(DIGEST_PLACEHOLDER, compute_digest(text.encode(), DIGEST_PLACEHOLDER))
    return parse_manifest(sealed.encode(), PLACE)


def test_a_manifest_survives_writing_and_reading(root):
    manifest = load_manifest(root)
    assert parse_manifest(dump_manifest(manifest), PLACE) == manifest
    assert (root / MANIFEST).read_bytes() == dump_manifest(manifest)


def with_checksums(manifest):
    """Return a manifest with checksums, as if its longest field had two in one sequence."""
    places = {"id": ((0, 12),), "x": ((16, 16), (32, 32)), "y": ((64, 12),)}
    (shard,) = manifest.shards
    file = ChecksumFile(file="part-00000.crc", bytes=80, sha256="0", places=places)
    lengths = {axis: replace(one, checksum=7) for axis, one in manifest.lengths.items()}
    return replace(
        manifest,
        checksums=ChecksumSpec(algorithm="crc32c", bytes_per_checksum=4),
        shards=(replace(shard, checksums=file),),
        lengths=lengths,
    )


def test_a_manifest_has_checksums_statistics_and_a_seed_outside_of_the_fingerprint(root):
    manifest = load_manifest(root)
    more = replace(with_checksums(manifest), statistics={"block": 4}, shuffle=(1 << 64) - 1)
    found = parse_manifest(dump_manifest(more), PLACE)
    assert found == more
    assert found.fingerprint == manifest.fingerprint


def changed(whole, path, value):
    whole = copy.deepcopy(whole)
    place = whole
    for step in path[:-1]:
        place = place[step]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return whole


S, B = ("shards", 0), ("shards", 0, "buffers")
WRONG = [
    (("format",), "zarr", "format must be 'seqdata', but is 'zarr'"),
    (
        ("version",),
        2,
        "version must be 1, but is 2",
    ),
    (("shuffle",), "7", "manifest, 'shuffle', must be an integer, but is a str"),
    (("shuffle",), None, "manifest, 'shuffle', must be an integer, but is a NoneType"),
    (("shuffle",), -1, r"manifest, 'shuffle', must be in \[0, 18446744073709551615\], but is -1"),
    (("fields",), KeyError, "manifest must have 'fields', but does not"),
    (("fields",), [], "manifest, 'fields', must be an object.*, but is a list"),
    (("fields", "x"), 3, "field 'x' must be an object.*, but is a int"),
    (("fields", "x", "dtype"), "object", "field 'x' must have one of.*, but has dtype 'object'"),
    (
        ("fields", "x", "shape"),
        [0],
        r"field 'x' must have sizes of at least 1.*, but has shape \[0\]",
    ),
    (
        ("fields", "x", "shape"),
        [2.0],
        r"field 'x' must have sizes of at least 1.*, but has shape \[2.0\]",
    ),
    (
        ("fields", "x", "shape"),
        [1] * 33,
        "field 'x' must have sizes of at least 1, 32 at most, but has shape .*",
    ),
    (
        ("fields", "x", "shape"),
        [1 << 40],
        "field 'x' must take less than 2147483648.*, but has shape .*",
    ),
    (
        ("fields", "id", "shape"),
        [2],
        r"field 'id' must have no shape as 'str', but has shape \[2\]",
    ),
    (("fields", "x", "axis"), 3, r"field 'x' must have a name or null as axis.*\), but has axis 3"),
    (
        ("fields", "id", "axis"),
        "time",
        r"field 'id' must .* as axis \(text: null\), but has axis 'time'",
    ),
    (
        ("fields", "x", "axis"),
        None,
        "'fields' must have at least one field with an axis, but have none",
    ),
    (("key",), "x", "'key' must be a 'str' field or null.*, but is 'x'"),
    (("key",), ["x"], r"'key' must be a 'str' field or null.*, but is \['x'\]"),
    (("lengths",), {}, r"'lengths' must have \['time'\].*, but has axes \[\]"),
    (
        ("lengths", "time", "dtype"),
        "int8",
        "lengths of 'time' must have one of.*, but has dtype 'int8'",
    ),
    (
        ("lengths", "time", "file"),
        "../x",
        "lengths of 'time', 'file', must be a name ins.*, but is '../x'",
    ),
    (("lengths", "time", "sha256"), 3, "lengths of 'time', 'sha256', must be text.*, but is a int"),
    (("sequences",), 7, "'sequences' must be 3, the sum over its shards.*, but is 7"),
    (("sequences",), True, "manifest, 'sequences', must be an integer.*, but is a bool"),
    (("sequences",), -1, r"manifest, 'sequences', must be in \[0, 281474976710656\].*, but is -1"),
    (("shards",), [], "'sequences' must be at least 1 in its shards.*, but is 3"),
    (("shards",), {}, "manifest, 'shards', must be a list.*, but is a dict"),
    (
        (*S, "file"),
        "/etc/passwd",
        "shard 0, 'file', must be a name inside the.*, but is '/etc/passwd'",
    ),
    ((*S, "file"), "..", "shard 0, 'file', must be a name inside the folder.*, but is '..'"),
    ((*S, "file"), "a/b", "shard 0, 'file', must be a name inside the folder.*, but is 'a/b'"),
    ((*S, "file"), "a\0", "shard 0, 'file', must be a name inside the folder.*, but is .*"),
    ((*S, "file"), "\ud800", "shard 0, 'file', must be a name inside the folder.*, but is .*"),
    (
        (*S, "footer_bytes"),
        65 << 20,
        "shard 0 must have a footer of at most .* bytes, but has one of 68157440",
    ),
    ((*S, "bytes"), 5, "shard 0 must have a footer of at most 5 bytes, but has one of .*"),
    ((*S, "bytes"), 1e3, "shard 0, 'bytes', must be an integer.*, but is a float"),
    ((*S, "timesteps"), {}, r"shard 0, 'timesteps', must have \['time'\], but has axes \[\]"),
    (
        (*S, "timesteps", "time"),
        99,
        r"shard 0, buffers of 'x', must lie in \d+ bytes and.*, but are .*",
    ),
    ((*S, "sequences"), 99, "shard 0, buffers of 'id', must lie in.*, but are .*"),
    ((*B, "x"), KeyError, r"shard 0 must have \['id', 'x', 'y'\].*, but has fields \['id', 'y'\]"),
    ((*B, "x"), 7, "shard 0, 'x', must be pairs of position and bytes.*, but are 7"),
    ((*B, "x"), [[1, 2, 3]], "shard 0, 'x', must be pairs of position and bytes.*, but are .*"),
    ((*B, "x"), [[1, "2"]], "shard 0, 'x', must be pairs of position and bytes.*, but are .*"),
    ((*B, "x"), [], "shard 0, buffers of 'x', must lie in.*, but are .*"),
    ((*B, "id"), [], "shard 0, buffers of 'id', must lie in.*, but are .*"),
    ((*B, "x", 0, 0), -8, "shard 0, buffers of 'x', must lie in.*, but are .*"),
    ((*B, "x", 1, 0), 1 << 60, "shard 0, buffers of 'x', must lie in.*, but are .*"),
    ((*B, "id", 0, 1), 1 << 60, "shard 0, buffers of 'id', must lie in.*, but are .*"),
    ((*B, "y", 0, 1), 1, "shard 0, buffers of 'y', must lie in.*, but are .*"),
    (("checksums",), 3, "manifest, 'checksums', must be an object.*, but is a int"),
    (("fingerprint",), 3, PLACE),
]


@pytest.mark.parametrize(("path", "value", "text"), WRONG[:-1])
def test_what_cannot_be_true_is_an_error_that_names_the_place(whole, path, value, text):
    with pytest.raises(DataError, match=rf"^store manifest \(.seqdata.json.\): {text}") as caught:
        parse(changed(whole, path, value))
    assert caught.value.details == {"dataset": "store", "file": "seqdata.json"}


C = ("checksums", "shards", 0)
WRONG_CHECKSUMS = [
    (("checksums", "algorithm"), 3, "'checksums', 'algorithm', must be text.*, but is a int"),
    (
        ("checksums", "block"),
        -1,
        r"'checksums', 'block', must be in \[0, 1073741824\].*, but is -1",
    ),
    (
        ("checksums", "block"),
        0,
        "'checksums' must have 1 shards in blocks.*, but has 1 in blocks of 0",
    ),
    (("checksums", "shards"), [], "'checksums' must have 1 shards in.*, but has 0 in blocks of 4"),
    (
        ("checksums", "lengths"),
        {},
        r"'checksums', 'lengths', must have \['time'\], but has axes \[\]",
    ),
    (
        ("checksums", "lengths", "time"),
        1 << 32,
        r"'checksums', 'lengths', 'time', must be in \[0, 4294967295\].*, but is 4294967296",
    ),
    (
        (*C, "file"),
        "../x",
        "checksums of shard 0, 'file', must be a name inside.*, but is '../x'",
    ),
    ((*C, "sha256"), None, "checksums of shard 0, 'sha256', must be text.*, but is a NoneType"),
    (
        (*C, "places"),
        {},
        r"checksums of shard 0 must have \['id', 'x', 'y'\].*, but has fields \[\]",
    ),
    ((*C, "places", "x"), [[0, "4"]], "checksums of shard 0, 'x', must be pairs of.*, but are .*"),
    (
        (*C, "bytes"),
        75,
        r"checksums of shard 'part-00000.arrow', 'y', must lie in 75 bytes and be one "
        r"for each of 3 sequences, or one for each 4 bytes of them, but are \(\(64, 12\),\)",
    ),
    (
        (*C, "places", "id", 0, 1),
        8,
        r"checksums of .* 'id', must lie in 80 bytes and be.*, but are .*",
    ),
    (
        (*C, "places", "id", 0, 0),
        -8,
        r"checksums of .* 'id', must lie in 80 bytes and be.*, but are .*",
    ),
    (
        (*C, "places", "id", 0, 0),
        4,
        r"checksums of .* 'id', must lie in 80 bytes and be.*, but are .*",
    ),
    (
        (*C, "places", "id"),
        [],
        r"checksums of .* 'id', must lie in 80 bytes and be one.*, but are .*",
    ),
    (
        (*C, "places", "x", 0, 1),
        28,
        r"checksums of .* 'x', must lie in 80 bytes and be.*, but are .*",
    ),
    (
        (*C, "places", "x", 0, 1),
        14,
        r"checksums of .* 'x', must lie in 80 bytes and be.*, but are .*",
    ),
    (
        (*C, "places", "x", 1, 1),
        24,
        r"checksums of .* 'x', must lie in 80 bytes and be.*, but are .*",
    ),
]


@pytest.mark.parametrize(("path", "value", "text"), WRONG_CHECKSUMS)
def test_checksums_that_cannot_be_are_an_error_that_names_the_place(root, path, value, text):
    whole = json.loads(dump_manifest(with_checksums(load_manifest(root))))
    with pytest.raises(DataError, match=rf"^store manifest \(.seqdata.json.\): {text}"):
        parse(changed(whole, path, value))


@pytest.mark.parametrize("said", ["", "0" * 64, "\ud800", "\u00e9"])
def test_a_manifest_with_another_digest_is_an_error(root, said):
    whole = json.loads(dump_manifest(load_manifest(root))) | {"digest": said}
    with pytest.raises(
        FingerprintMismatch, match=r"digest must be '\w{64}' by its cont.*, but is '.*'"
    ):
        parse_manifest(json.dumps(whole).encode(), PLACE)


def test_a_manifest_with_checksums_must_have_a_digest(root):
    whole = json.loads(dump_manifest(with_checksums(load_manifest(root))))
    del whole["digest"]
    with pytest.raises(DataError, match="manifest must have 'digest', but does not"):
        parse_manifest(json.dumps(whole).encode(), PLACE)


def test_a_manifest_of_an_older_release_has_neither(root):
    manifest = load_manifest(root)
    whole = json.loads(dump_manifest(manifest))
    del whole["digest"]
    whole.pop("checksums", None)
    found = parse_manifest(json.dumps(whole).encode(), PLACE)
    assert found.checksums is None
    assert found.fingerprint == manifest.fingerprint


def test_every_flipped_bit_of_a_manifest_is_an_error(root):
    good = dump_manifest(with_checksums(load_manifest(root)))
    for at in range(8 * len(good)):
        bad = bytearray(good)
        bad[at // 8] ^= 1 << at % 8
        with pytest.raises(DataError):
            parse_manifest(bytes(bad), PLACE)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 10_000])
def test_what_is_no_json_is_an_error(text):
    with pytest.raises(DataError, match=r"text must be a manifest, but is not JSON .*"):
        parse_manifest(text, PLACE)


@pytest.mark.parametrize("text", [b"[]", b"3", b"{}", b"null"])
def test_json_that_is_no_manifest_is_an_error(text):
    with pytest.raises(DataError, match=r"format must be 'seqdata', but is missing"):
        parse_manifest(text, PLACE)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*S, "sha256"), "0" * 64),
        (("lengths", "time", "sha256"), "0" * 64),
        (("fingerprint",), "f"),
    ],
)
def test_a_manifest_that_was_changed_is_an_error(whole, path, value):
    with pytest.raises(
        FingerprintMismatch, match=r"fingerprint must be '\w+' by its cont.*, but is '\w+'"
    ):
        parse_manifest(json.dumps(changed(whole, path, value)).encode(), PLACE)


def test_a_manifest_without_a_fingerprint_is_an_error(whole):
    del whole["fingerprint"]
    with pytest.raises(DataError, match="manifest must have 'fingerprint', but does not"):
        parse_manifest(json.dumps(whole).encode(), PLACE)


def test_a_manifest_that_is_too_large_is_an_error_before_it_is_read(tmp_path):
    with open(tmp_path / MANIFEST, "wb") as file:
        os.truncate(file.fileno(), manifest.MAX_MANIFEST + 1)
    with pytest.raises(LimitError, match="must have at most 268435456 bytes, but has 268435457"):
        open_arrow(tmp_path)


def test_random_damage_of_a_manifest_is_an_error(root):
    good = (root / MANIFEST).read_bytes()
    random = np.random.default_rng(0)
    for _ in range(300):
        bad = bytearray(good)
        bad[random.integers(len(bad))] = random.integers(256)
        if bad != good:
            with pytest.raises(DataError):
                parse_manifest(bytes(bad), PLACE)
