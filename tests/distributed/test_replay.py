"""The run file of several ranks, and the batch of any of them made again by one process."""

import re
from pathlib import Path

import pytest

from seqdata.api import write_store
from seqdata.errors import CorruptSampleError
from seqdata.runs.locate_batch import ReplayRequest, remake_batch, remake_metadata
from seqdata.runs.replay import open_replay
from seqdata.runs.run_file import NAME
from tests.lightning.crashing import told
from tests.lightning.harness import sequences
from tests.runs.run_files import read_run_file

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("world", [2, 3])
def test_the_batch_of_every_rank_is_made_again_by_one_process(ranks, tmp_path, world):
    write_store(tmp_path / "store", sequences(40))
    spec = {"store": str(tmp_path / "store"), "logs": str(tmp_path / "logs"), "step": 2}
    made = ranks.play("crash", world, spec)
    path = tmp_path / "logs" / NAME
    assert [one.name for one in (tmp_path / "logs").iterdir()] == [NAME]
    wrote = read_run_file(path)
    assert (wrote["run"]["world_size"], wrote["trainer"]["processes"]) == (world, world)
    assert wrote["trainer"]["strategy"] == "DDPStrategy"
    for rank, of_rank in enumerate(made):
        (note,) = of_rank["notes"]
        batch = 2 * world + rank
        assert f"in epoch 0, batch {batch} (step 2, rank {rank} of {world}). See it: " in note
        command = re.search(r"seqdata replay (\S+) --epoch 0 --batch (\d+)$", note)
        assert (Path(command[1]), int(command[2])) == (path, batch)
        assert of_rank["here"]
        for wanted in (
            ReplayRequest(epoch=0, batch=batch),
            ReplayRequest(epoch=0, step=2, rank=rank),
        ):
            again = open_replay(path, wanted, "train")
            assert told(remake_batch(again.engine, again.located)) == of_rank["kept"]


def test_damage_that_one_rank_meets_is_told_with_the_command_on_all(ranks, tmp_path):
    write_store(tmp_path / "store", sequences(40))
    shard = tmp_path / "store" / "part-00000.arrow"
    content = bytearray(shard.read_bytes())
    content[content.find(sequences(40)[7].tobytes())] ^= 1
    shard.write_bytes(content)
    spec = {"store": str(tmp_path / "store"), "logs": str(tmp_path / "logs")}
    one, two = ranks.play("read_damage", 2, spec)
    place = r"epoch 0, batch (\d+) \(step \d+, rank [01] of 2\)\. Verify: .* --shard 0\. "
    found = re.search(place + r"See it: seqdata replay (\S+) --epoch 0 --batch (\d+)$", one)
    assert found[1] == found[3]
    assert found[0] in two
    batch = open_replay(Path(found[2]), ReplayRequest(epoch=0, batch=int(found[1])), "train")
    assert 7 in remake_metadata(batch.engine, batch.located).ids.tolist()
    with pytest.raises(CorruptSampleError, match="sequence 7,"):
        remake_batch(batch.engine, batch.located)
