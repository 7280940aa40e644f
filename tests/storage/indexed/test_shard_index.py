"""The index of a file: digests of its ends and extents."""

from dataclasses import replace

import numpy as np

from seqdata.storage.indexed.shard_index import digest_ends, digest_extents
from tests.storage.indexed.samples import make_index


def test_both_ends_of_a_file_identify_it():
    content = bytearray(b"x" * 2000)
    before = digest_ends(content, 1488)
    content[1000] = 0  # neither end
    assert digest_ends(content, 1488) == before
    content[1999] = 0
    assert digest_ends(content, 1488) != before


def test_the_digest_of_extents_has_fields_places_and_ids():
    index = make_index()
    field = index.members["x"]
    others = [
        replace(index, keys=np.frombuffer(b"k0k1k9", np.uint8)),
        replace(index, members={"y": field}),
        replace(index, members={"x": replace(field, begins=field.begins + 1)}),
        replace(index, members={"x": replace(field, sizes=field.sizes + 1)}),
    ]
    assert len({digest_extents(each) for each in (index, *others)}) == 5
