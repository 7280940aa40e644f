"""The same training run from here and from S3: bitwise equal losses."""

import pytest
import torch

from seqdata import Bucketed, Loader, open_store
from tests.storage.remote.samples import write


def losses(store, **options):
    torch.manual_seed(0)
    rnn, head = torch.nn.LSTM(8, 8, batch_first=True), torch.nn.Linear(8, 7)
    steps = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)
    loader, found = Loader(store, Bucketed(24), seed=5, **options), []
    for _ in range(2):
        for batch in loader:
            out, _ = rnn(batch["x"])
            last = out[torch.arange(len(batch)), (batch.lengths - 1).clamp(min=0)]
            loss = torch.nn.functional.cross_entropy(head(last), batch["label"])
            steps.zero_grad()
            loss.backward()
            steps.step()
            found.append(loss.item())
    loader.shutdown()
    return found


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("how", "workers"),
    [
        ("cache", 2),
        ("ranges", 0),
        pytest.param("cache", 0, marks=pytest.mark.nightly),
        pytest.param("ranges", 2, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.slow
def test_losses_from_s3_are_those_from_here(s3, bucket, remote, tmp_path, how, workers):
    local = write(tmp_path / "store")
    s3.put(f"{local.location}/", f"{bucket}/store/", recursive=True)
    must = losses(local)
    store = open_store(f"s3://{bucket}/store", remote=remote(how=how))
    assert losses(store, num_workers=workers) == must
    assert len(must) == 10
