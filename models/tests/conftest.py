"""What tests of models share; torch is imported by the processes that run tests only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import lightning as L

    from seqdata import SequenceBatch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Small models on several threads are slow wherever something else wants the cores."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def batch_of() -> Callable[..., SequenceBatch]:
    from tests.handmade_batches import make_batch

    return make_batch


@pytest.fixture
def loader_of() -> Callable[[list[SequenceBatch]], Any]:
    from tests.handmade_batches import Batches

    return Batches


@pytest.fixture
def trainer_of() -> Callable[..., L.Trainer]:
    """A Trainer that writes and shows nothing."""
    import lightning as L

    def make(**options: Any) -> L.Trainer:
        quiet = {
            "accelerator": "cpu",
            "devices": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        return L.Trainer(**{**quiet, **options})

    return make


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path, monkeypatch):
    """What a test writes without saying where (a Trainer's run file) lands in no one's way."""
    monkeypatch.chdir(tmp_path)
