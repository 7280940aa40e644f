"""What Arrow says of its messages is read without belief: every number, at every damaged byte."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from seqdata.errors import CorruptShardError, LimitError
from seqdata.storage.data_location import DataLocation
from seqdata.storage.foreign.untrusted_ipc import check_message, check_stream, find_batches
from tests.fuzz import bombs

HERE = DataLocation(dataset="/d", shard=0, file="f")


def write(path, columns, compression=None, *, stream=False):
    bombs.write_ipc(path, columns, compression, stream=stream)
    return path


def column(rows=5):
    return {"x": bombs.lists(rows)}


def check_file(place, data):
    for unit, block in enumerate(find_batches(place, data)):
        check_message(replace(place, unit=unit), data, *block)


def damaged(path, good, bad):
    raw = path.read_bytes()
    assert raw.count(good) == 1
    path.write_bytes(raw.replace(good, bad))


def arrow_bytes(tmp_path, *, stream=False, compression="lz4"):
    return write(tmp_path / "a.arrow", column(), compression, stream=stream).read_bytes()


def test_a_footer_that_leads_out_of_the_file_is_an_error(tmp_path):
    raw = arrow_bytes(tmp_path)
    for size in (-1, len(raw)):
        bad = raw[:-10] + size.to_bytes(4, "little", signed=True) + raw[-6:]
        with pytest.raises(
            CorruptShardError,
            match="must be unchanged since it was written, but has a footer that extends",
        ):
            check_file(HERE, memoryview(bad))
    for bad in (raw[:-1], raw[:5]):
        with pytest.raises(CorruptShardError, match="must end with a footer, but does not: it"):
            check_file(HERE, memoryview(bad))


@pytest.mark.parametrize("place", [(-8, 5), (1 << 40, 5), (24, 1 << 40), (24, -1), (24, 1 << 62)])
def test_a_buffer_that_leads_out_of_its_message_is_an_error(tmp_path, place):
    path = write(tmp_path / "a.arrow", column())
    damaged(path, np.array([24, 5]).tobytes(), np.array(place).tobytes())
    with pytest.raises(
        CorruptShardError, match=r"unit 0.: .* but has a message that extends beyond the file"
    ):
        check_file(HERE, memoryview(path.read_bytes()))


def test_every_damaged_byte_of_a_file_is_an_error_of_ours_or_none(tmp_path):
    raw = arrow_bytes(tmp_path)
    check_file(HERE, memoryview(raw))
    seen = set()
    for place in range(len(raw)):
        for value in (0x7F, 0x80, 0xFF):
            bad = bytearray(raw)
            bad[place] = value
            try:
                check_file(HERE, memoryview(bad))
            except (CorruptShardError, LimitError) as error:
                seen.add(str(error).split(", but ", 1)[1].split(".")[0].strip("0123456789"))
    assert "has a message that extends beyond the file" in seen
    assert "has a footer that extends beyond the file" in seen


def test_every_damaged_byte_of_a_stream_is_an_error_of_ours_or_none(tmp_path):
    raw = arrow_bytes(tmp_path, stream=True)
    check_stream(HERE, memoryview(raw))
    found = 0
    for place in range(len(raw)):
        for value in (0x7F, 0x80, 0xFF):
            bad = bytearray(raw)
            bad[place] = value
            try:
                check_stream(HERE, memoryview(bad))
            except (CorruptShardError, LimitError):
                found += 1
    assert found > 100
    for cut in (4, 6, 200, len(raw) - 100):
        with pytest.raises(CorruptShardError, match="has a message that extends beyond the file"):
            check_stream(HERE, memoryview(raw[:cut] if cut > 4 else b"\xff\xff\xff\xff"))


def test_messages_that_lie_on_one_another_are_an_error(tmp_path):
    path = tmp_path / "a.arrow"
    batch = pa.record_batch(column(500))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        for _ in range(3):
            writer.write_batch(batch)
    raw = path.read_bytes()
    first, _, last = find_batches(HERE, memoryview(raw))
    whole = (first[0], first[1], sum(last) - first[0] - first[1])  # all three in one
    raw = raw.replace(block_bytes(first), block_bytes(whole))
    with pytest.raises(CorruptShardError, match="but has overlapping messages, or one that"):
        find_batches(HERE, memoryview(raw))


def block_bytes(block):
    at, metadata, body = block
    return np.array([at, metadata, body], dtype=np.int64).tobytes()
