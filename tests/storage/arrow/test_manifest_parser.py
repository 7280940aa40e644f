"""A manifest is input: whatever it says is checked, and what is wrong is named."""

import copy
import json
import os
from dataclasses import replace

import numpy as np
import pytest

from seqdata.errors import DataError, FingerprintMismatch, LimitError
from seqdata.storage.arrow import manifest_parser
from seqdata.storage.arrow.manifest import (
    DIGEST_PLACEHOLDER,
    MANIFEST,
    compute_digest,
    compute_fingerprint,
    dump_manifest,
)
from seqdata.storage.arrow.manifest_parser import load_manifest, parse_manifest
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


def test_a_manifest_has_checksums_and_statistics_outside_of_the_fingerprint(root):
    manifest = load_manifest(root)
    more = replace(with_checksums(manifest), statistics={"block": 4})
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
    (("format",), "zarr", "format is missing or another, must be 'seqdata'; restore the manifest"),
    (
        ("version",),
        2,
        "version is 2, must be 1; install the release of lightning-seqdata that wrote",
    ),
    (("fields",), KeyError, "manifest lacks 'fields', must have it"),
    (("fields",), [], "manifest, 'fields', is a list, must be an object"),
    (("fields", "x"), 3, "field 'x' is a int, must be an object"),
    (("fields", "x", "dtype"), "object", "field 'x' has dtype 'object', must have one of"),
    (("fields", "x", "shape"), [0], r"field 'x' has shape \[0\], must have sizes of at least 1"),
    (
        ("fields", "x", "shape"),
        [2.0],
        r"field 'x' has shape \[2.0\], must have sizes of at least 1",
    ),
    (("fields", "x", "shape"), [1] * 33, "field 'x' has shape .*, must have sizes of at least 1"),
    (("fields", "x", "shape"), [1 << 40], "field 'x' has shape .*, must take less than 2147483648"),
    (("fields", "id", "shape"), [2], r"field 'id' has shape \[2\], must take less than"),
    (("fields", "x", "axis"), 3, "field 'x' has axis 3, must have a name, or null for text"),
    (
        ("fields", "id", "axis"),
        "time",
        "field 'id' has axis 'time', must have a name, or null for t",
    ),
    (("fields", "x", "axis"), None, r"'lengths' has axes \['time'\], must have \[\]"),
    (("key",), "x", "'key' is 'x', must be a 'str' field or null"),
    (("key",), ["x"], r"'key' is \['x'\], must be a 'str' field or null"),
    (("lengths",), {}, r"'lengths' has axes \[\], must have \['time'\]"),
    (("lengths", "time", "dtype"), "int8", "lengths of 'time' has dtype 'int8', must have one of"),
    (
        ("lengths", "time", "file"),
        "../x",
        "lengths of 'time', 'file', is '../x', must be a name ins",
    ),
    (("lengths", "time", "sha256"), 3, "lengths of 'time', 'sha256', is a int, must be text"),
    (("sequences",), 7, "'sequences' is 7, must be 3 > 0 as in shards"),
    (("sequences",), True, "manifest, 'sequences', is a bool, must be a whole number"),
    (("sequences",), -1, r"manifest, 'sequences', is -1, must be in \[0, 281474976710656\]"),
    (("shards",), [], "'sequences' is 3, must be 0 > 0 as in shards"),
    (("shards",), {}, "manifest, 'shards', is a dict, must be a list"),
    (
        (*S, "file"),
        "/etc/passwd",
        "shard 0, 'file', is '/etc/passwd', must be a name inside of the",
    ),
    ((*S, "file"), "..", "shard 0, 'file', is '..', must be a name inside of the folder"),
    ((*S, "file"), "a/b", "shard 0, 'file', is 'a/b', must be a name inside of the folder"),
    ((*S, "file"), "a\0", "shard 0, 'file', is .*, must be a name inside of the folder"),
    ((*S, "file"), "\ud800", "shard 0, 'file', is .*, must be a name inside of the folder"),
    ((*S, "footer_bytes"), 65 << 20, "shard 0 has a footer of .* bytes, must have a shorter one"),
    ((*S, "bytes"), 5, "shard 0 has a footer of .* bytes, must have a shorter one"),
    ((*S, "bytes"), 1e3, "shard 0, 'bytes', is a float, must be a whole number"),
    ((*S, "timesteps"), {}, r"shard 0 has fields .*, must have \['id', 'x', 'y'\]"),
    ((*S, "timesteps", "time"), 99, r"shard 0, buffers of 'x', are .*, must lie in \d+ bytes and"),
    ((*S, "sequences"), 99, "shard 0, buffers of 'id', are .*, must lie in"),
    ((*B, "x"), KeyError, r"shard 0 has fields \['id', 'y'\], must have \['id', 'x', 'y'\]"),
    ((*B, "x"), 7, "shard 0, 'x', are 7, must be pairs of position and bytes"),
    ((*B, "x"), [[1, 2, 3]], "shard 0, 'x', are .*, must be pairs of position and bytes"),
    ((*B, "x"), [[1, "2"]], "shard 0, 'x', are .*, must be pairs of position and bytes"),
    ((*B, "x"), [], "shard 0, buffers of 'x', are .*, must lie in"),
    ((*B, "id"), [], "shard 0, buffers of 'id', are .*, must lie in"),
    ((*B, "x", 0, 0), -8, "shard 0, buffers of 'x', are .*, must lie in"),
    ((*B, "x", 1, 0), 1 << 60, "shard 0, buffers of 'x', are .*, must lie in"),
    ((*B, "id", 0, 1), 1 << 60, "shard 0, buffers of 'id', are .*, must lie in"),
    ((*B, "y", 0, 1), 1, "shard 0, buffers of 'y', are .*, must lie in"),
    (("checksums",), 3, "manifest, 'checksums', is a int, must be an object"),
    (("fingerprint",), 3, PLACE),
]


@pytest.mark.parametrize(("path", "value", "text"), WRONG[:-1])
def test_what_cannot_be_true_is_an_error_that_names_the_place(whole, path, value, text):
    with pytest.raises(DataError, match=rf"^store manifest \(.seqdata.json.\): {text}") as caught:
        parse(changed(whole, path, value))
    assert caught.value.facts == {"dataset": "store", "file": "seqdata.json"}


C = ("checksums", "shards", 0)
WRONG_CHECKSUMS = [
    (("checksums", "algorithm"), 3, "'checksums', 'algorithm', is a int, must be text"),
    (("checksums", "block"), -1, r"'checksums', 'block', is -1, must be in \[0, 1073741824\]"),
    (("checksums", "block"), 0, "'checksums' has 1 shards in blocks of 0, must have 1 in blocks"),
    (("checksums", "shards"), [], "'checksums' has 0 shards in blocks of 4, must have 1 in"),
    (
        ("checksums", "lengths"),
        {},
        r"'checksums', 'lengths', has axes \[\], must have \['time'\]; restore",
    ),
    (
        ("checksums", "lengths", "time"),
        1 << 32,
        r"'checksums', 'lengths', 'time', is 4294967296, must be in \[0, 4294967295\]",
    ),
    ((*C, "file"), "../x", "checksums of shard 0, 'file', is '../x', must be a name inside of"),
    ((*C, "sha256"), None, "checksums of shard 0, 'sha256', is a NoneType, must be text"),
    ((*C, "places"), {}, r"checksums of shard 0 has fields \[\], must have \['id', 'x', 'y'\]"),
    ((*C, "places", "x"), [[0, "4"]], "checksums of shard 0, 'x', are .*, must be pairs of"),
    (
        (*C, "bytes"),
        75,
        r"checksums of shard 'part-00000.arrow', 'y', are \(\(64, 12\),\), must lie in 75 bytes "
        "and be one for each of 3 sequences, or one for each 4 bytes of them; restore",
    ),
    ((*C, "places", "id", 0, 1), 8, r"checksums of .* 'id', are .*, must lie in 80 bytes and be"),
    ((*C, "places", "id", 0, 0), -8, r"checksums of .* 'id', are .*, must lie in 80 bytes and be"),
    ((*C, "places", "id", 0, 0), 4, r"checksums of .* 'id', are .*, must lie in 80 bytes and be"),
    ((*C, "places", "id"), [], r"checksums of .* 'id', are .*, must lie in 80 bytes and be one"),
    ((*C, "places", "x", 0, 1), 28, r"checksums of .* 'x', are .*, must lie in 80 bytes and be"),
    ((*C, "places", "x", 0, 1), 14, r"checksums of .* 'x', are .*, must lie in 80 bytes and be"),
    ((*C, "places", "x", 1, 1), 24, r"checksums of .* 'x', are .*, must lie in 80 bytes and be"),
]


@pytest.mark.parametrize(("path", "value", "text"), WRONG_CHECKSUMS)
def test_checksums_that_cannot_be_are_an_error_that_names_the_place(root, path, value, text):
    whole = json.loads(dump_manifest(with_checksums(load_manifest(root))))
    with pytest.raises(DataError, match=rf"^store manifest \(.seqdata.json.\): {text}"):
        parse(changed(whole, path, value))


@pytest.mark.parametrize("said", ["", "0" * 64, "\ud800", "\u00e9"])
def test_a_manifest_with_another_digest_is_an_error(root, said):
    whole = json.loads(dump_manifest(load_manifest(root))) | {"digest": said}
    with pytest.raises(FingerprintMismatch, match=r"digest is '.*', must be '\w{64}' by its cont"):
        parse_manifest(json.dumps(whole).encode(), PLACE)


def test_a_manifest_with_checksums_must_have_a_digest(root):
    whole = json.loads(dump_manifest(with_checksums(load_manifest(root))))
    del whole["digest"]
    with pytest.raises(DataError, match="manifest lacks 'digest', must have it"):
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
    with pytest.raises(
        DataError, match=r"text is no JSON .*, must be a manifest; restore the manif"
    ):
        parse_manifest(text, PLACE)


@pytest.mark.parametrize("text", [b"[]", b"3", b"{}", b"null"])
def test_json_that_is_no_manifest_is_an_error(text):
    with pytest.raises(DataError, match="format is missing or another, must be 'seqdata'"):
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
        FingerprintMismatch, match=r"fingerprint is '\w+', must be '\w+' by its cont"
    ):
        parse_manifest(json.dumps(changed(whole, path, value)).encode(), PLACE)


def test_a_manifest_without_a_fingerprint_is_an_error(whole):
    del whole["fingerprint"]
    with pytest.raises(DataError, match="manifest lacks 'fingerprint', must have it"):
        parse_manifest(json.dumps(whole).encode(), PLACE)


def test_a_manifest_that_is_too_large_is_an_error_before_it_is_read(tmp_path):
    with open(tmp_path / MANIFEST, "wb") as file:
        os.truncate(file.fileno(), manifest_parser.MAX_MANIFEST + 1)
    with pytest.raises(LimitError, match="has 268435457 bytes, must have at most 268435456; write"):
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
