"""Members are grouped into samples exactly as the webdataset library does."""

import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqdata_webdataset.grouping import MAX_FIELDS, group_samples
from seqdata_webdataset.tar_headers import split_name
from seqdata_webdataset.unsafe import is_unsafe
from webdataset.tariterators import base_plus_ext, group_by_keys

from seqdata.errors import DecodeError, LimitError
from seqdata.storage.data_location import DataLocation

PLACE = DataLocation(dataset="d", shard=0, file="one.tar")
PARTS = st.sampled_from(["a", "b", "a.b", ".", "..", "/", "npy", ".CLS", "__x__", "é", "d/", ".h"])


@settings(deadline=None, max_examples=300)
@given(st.lists(PARTS, max_size=6).map("".join))
def test_names_are_split_as_the_library_does(name):
    key, extension = base_plus_ext(name)
    found = split_name(name)
    if found is None:
        assert key is None or name.startswith("__")
    else:
        assert found == (key, extension.lower())


def grouped(members):
    content = b"".join(
        member(name, bytes([number])) for number, name in enumerate(members)
    ) + bytes(1024)
    made = group_samples(np.frombuffer(content, dtype=np.uint8), PLACE)
    keys = [
        made.keys[begin:end].decode()
        for begin, end in zip(made.key_offsets[:-1], made.key_offsets[1:], strict=True)
    ]
    return [
        (key, {name: content[one.begins[at]] for name, one in made.members.items()
               if one.begins[at] >= 0})
        for at, key in enumerate(keys)
    ]  # fmt: skip


def member(name, content):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    return info.tobuf() + content + bytes(-len(content) % 512)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from(["npy", "CLS", "x.txt", "", "7.bin"])),
        max_size=12,
    )
)
def test_samples_are_those_of_the_library(pairs):
    names = [f"d/{key}.{extension}" if extension else f"d/{key}" for key, extension in pairs]
    files = [{"fname": name, "data": number, "__url__": "u"} for number, name in enumerate(names)]
    try:
        due = [
            (one.pop("__key__"), {name: value for name, value in one.items() if name != "__url__"})
            for one in group_by_keys(iter(files))
        ]
    except ValueError:
        due = None
    if due is None or len({key for key, _ in due}) < len(due):
        with pytest.raises(DecodeError):
            grouped(names)
    else:
        assert grouped(names) == due


def test_an_extension_twice_in_a_sample_is_refused():
    with pytest.raises(
        DecodeError,
        match=r'member "a.NPY" must have an extension that occurs once in its sample, but it',
    ):
        grouped(["a.npy", "a.NPY"])


def test_a_key_that_comes_again_is_refused():
    with pytest.raises(
        DecodeError, match=r'key "a" must occur once, .*, but occurs again after other samples'
    ):
        grouped(["a.npy", "b.npy", "a.cls"])


def test_a_member_without_an_extension_is_refused():
    with pytest.raises(
        DecodeError, match=r'member "a\." must have an extension that .* but it has no'
    ):
        grouped(["a."])


def test_a_name_that_is_no_text_is_refused():
    content = bytearray(member("a.npy", b"1") + bytes(1024))
    content[0] = 0xFF
    content[148:156] = b" " * 8
    content[148:156] = f"{sum(content[:512]):06o}\0 ".encode()
    with pytest.raises(
        DecodeError, match=r"names of members must be UTF-8, but one is b'\\xff.npy'"
    ):
        group_samples(np.frombuffer(bytes(content), dtype=np.uint8), PLACE)


def test_a_long_key_is_refused():
    with pytest.raises(
        LimitError,
        match=r"must have keys of at most 1024 bytes without NUL, but has a key of 1100 bytes",
    ):
        grouped(["k" * 1100 + ".npy"])


def test_a_sample_of_too_many_members_is_refused():
    with pytest.raises(
        LimitError, match=f"at most {MAX_FIELDS} extensions.* a key ends at its first dot"
    ):
        grouped([f"sample.{number}.npy" for number in range(MAX_FIELDS + 1)])


@pytest.mark.parametrize("extension", ["pyd", "pkl", "pickle", "pth", "pt", "x.pkl", "pkl.gz"])
def test_any_part_of_an_extension_may_be_unsafe(extension):
    assert is_unsafe(extension)
    assert not is_unsafe("npy")
