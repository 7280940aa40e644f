"""Two ranks that resume with other parts of a mixture train what one process does."""

import pytest

from tests.distributed.dealing import list_dealt
from tests.lightning.feeding import feed, saved

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.filterwarnings("ignore:.*inside an update.*:seqdata.errors.SeqDataWarning"),
    pytest.mark.filterwarnings("ignore:.*mixture has changed.*:seqdata.errors.SeqDataWarning"),
    pytest.mark.filterwarnings("ignore:.*the weights of the saved.*:seqdata.errors.SeqDataWarning"),
]


@pytest.mark.shows("I5", by="processes")
def test_ranks_continue_with_other_parts_as_one_process_does(ranks, tmp_path):
    feed("mix", folder=tmp_path / "before", max_epochs=1)
    changed = {"on_changed": "next_segment"}
    first = saved(tmp_path / "before")[2]  # after 12 of the 16 batches up to a segment
    alone = feed("other parts", ckpt=first, data=changed, folder=tmp_path / "alone")
    spec = {"policy": "other parts", "folder": str(tmp_path / "two"), "data": changed}
    told = ranks.play("feedback", 2, {**spec, "ckpt": str(first)})
    assert [rank["error"] for rank in told] == [None] * 2
    assert list_dealt(told) == alone.log_of.train
    assert {epoch for epoch, *_ in alone.log_of.train} == {0, 1}
    for rank in told:
        assert rank["parameters"] == pytest.approx(alone.parameters_of(), rel=0, abs=1e-12)
    again = feed("other parts", ckpt=saved(tmp_path / "two")[1])
    assert again.log_of.train == alone.log_of.train[-len(again.log_of.train) :]
