"""Sequences become shards, and those of shards that are written already are only compared."""

from dataclasses import dataclass, replace

import pytest

from seqdata.errors import ConfigError, DecodeError
from seqdata.storage.writing.shards import (
    FinishedShard,
    PackedShard,
    ResumeKey,
    check_resume_key,
    check_same,
    pack_shards,
    read_finished_shards,
    write_packed_shard,
)


@dataclass(frozen=True)
class Files:
    sequences: int


class Numbers:
    """Shards of numbers; a number counts as its own size."""

    suffix = ".txt"

    def make_packer(self):
        def pack(rows, first, on_progress):
            taken, size = [], 0
            for number in rows:
                taken.append(number)
                size += number
                if size >= 10:
                    break
            if not taken:
                return None
            on_progress(first + len(taken), size)
            return len(taken), size, taken

        return pack

    def digest(self, sequence, number):
        return str(sequence)

    def write(self, folder, packed):
        (folder / f"{packed.stem}.txt").write_text(str(packed.content))
        return Files(packed.sequences), str(packed.content[0]), str(packed.content[-1])

    def parse(self, facts):
        return Files(**facts)

    def is_intact(self, folder, files):
        return True


ROWS = [4, 6, 10, 1, 2, 7, 5]
SHARDS = [[4, 6], [10], [1, 2, 7], [5]]


def finished(number):
    content = SHARDS[number]
    return FinishedShard(part=0, number=number, size=sum(content), first=str(content[0]),
                         last=str(content[-1]), shard=Files(len(content)))  # fmt: skip


def pack(rows=ROWS, known=()):
    calls = []
    shards = {number: finished(number) for number in known}
    packed = list(
        pack_shards(iter(rows), Numbers(), 10, shards, 0, lambda *both: calls.append(both))
    )
    return packed, calls


@pytest.mark.parametrize("known", [(), (0,), (0, 1), (2,), (1, 3), (0, 1, 2, 3)])
def test_those_that_are_left_are_packed_as_before(known):
    packed, calls = pack(known=known)
    assert [shard.number for shard in packed] == [n for n in range(4) if n not in known]
    assert [shard.content for shard in packed] == [SHARDS[shard.number] for shard in packed]
    assert calls[-1] == (7, 35)
    assert calls == sorted(calls)


@pytest.mark.parametrize(
    ("rows", "known", "text"),
    [
        ([5, *ROWS[1:]], (0,), "sequence 0: must be the one that was written before the interrup"),
        ([4, 7, *ROWS[2:]], (0,), "sequence 1: must be the one that was written"),
        (ROWS[:1], (0,), "sequence 1: must be there, as it was written before .* is missing"),
        ([], (0,), "sequence 0: must be there"),
        (ROWS[:4], (2,), "sequence 4: must be there"),
        (ROWS[:3], (2,), "sequence 3: must be there"),
        (ROWS[:2], (2,), "sequence 2: must be there"),
        ([*ROWS, 9], (0, 1, 2, 3), "sequence 7: must not exist, since the interrupted write ended"),
    ],
)
def test_other_sequences_than_those_that_were_written_are_named(rows, known, text):
    with pytest.raises(DecodeError, match=text) as caught:
        pack(rows, known)
    assert "`resume=False`" in str(caught.value)
    assert caught.value.details["sequence"] == int(str(caught.value).split()[1].strip(":"))


def test_a_sequence_is_compared_by_its_digest():
    check_same(3, Numbers(), 8, "3")
    with pytest.raises(DecodeError, match="sequence 8: must be the one"):
        check_same(4, Numbers(), 8, "3")


def test_a_shard_is_finished_once_its_facts_are_written(tmp_path):
    packed = PackedShard(sequences=2, size=10, content=[4, 6], part=1, number=3)
    assert packed.stem == "00001-00003"
    written = write_packed_shard(tmp_path, Numbers(), packed)
    assert (tmp_path / "00001-00003.txt").read_text() == "[4, 6]"
    assert read_finished_shards(tmp_path, Numbers().parse) == [written]
    assert (written.first, written.last, written.size) == ("4", "6", 10)


def test_an_algorithm_that_nobody_passes_has_a_remedy_of_its_own(tmp_path):
    """It follows from the installed packages."""
    key = ResumeKey(axes=None, shard_bytes=8, key="id", algorithm="crc32c", parts=None)
    check_resume_key(tmp_path, tmp_path, key)
    text = r"`algorithm` must be 'crc32c', .* is 'crc32'\. Write with the packages used before, or"
    with pytest.raises(ConfigError, match=text):
        check_resume_key(tmp_path, tmp_path, replace(key, algorithm="crc32"))
