"""CONTRIBUTING names files that exist, and its ways are those that calls take."""

import re
import sys

import lightning as L
import numpy as np
import pytest

from seqdata import Fixed, Loader, SequenceDataModule, open_store, write_store
from tests.flow import Flow, Model, follow, later_batch
from tests.library_files import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
FOLDERS = (ROOT, ROOT / "seqdata", ROOT / "plugins/seqdata-webdataset/seqdata_webdataset")
FILE = re.compile(r"`([\w.*-]+(?:/[\w.*-]*)+|[\w.-]+\.(?:py|md|toml))`|\]\(([^)#:]+)")


def list_files(text):
    """Return the paths and links of a page, but those of a file that a reader is to add."""
    paths = ["".join(found) for found in FILE.findall(text)]
    return [path for path in paths if "yours" not in path]


def exists(path, *folders):
    return any(found for folder in folders or FOLDERS for found in folder.glob(path.rstrip("/")))


@pytest.mark.parametrize("path", sorted({path for path in list_files(PAGE) if path[0] != "/"}))
def test_a_file_that_contributing_names_exists(path):
    assert exists(path)


def test_paths_and_links_are_found():
    text = "`seqdata/plan.py`, [page](docs/index.md#here), `planning/`, `builtin.py`, `t/*.toml`"
    assert list_files(text) == [
        "seqdata/plan.py", "docs/index.md", "planning/", "builtin.py", "t/*.toml",
    ]  # fmt: skip
    assert exists("planning/")
    assert not any(map(exists, ("seqdata/no_plan.py", "tests/*.toml")))
    assert not list_files("`policies/yours.py`, `make lint`, `Loader.plan`")


QUIET = {
    "accelerator": "cpu", "logger": False, "enable_checkpointing": False,
    "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip
MOST_OPENED = {"arrow": 16, "webdataset": 35}
"""Files that opening a store enters."""


def list_way(*titles):
    """Return the files of the numbered lists below headings, as ``Flow`` names them."""
    starts = [re.split(rf"^#+ {title}\n", PAGE, flags=re.M)[1] for title in titles]
    lists = "\n".join(start.split("\n#")[0] for start in starts)
    listed = re.findall(r"^\d+\. `([\w/]+\.py)`", lists, re.M)
    found = [next(folder / path for folder in FOLDERS if exists(path, folder)) for path in listed]
    return [str(path.relative_to(ROOT)) for path in found]


def select(way, flow):
    """Return the files of a way that a flow enters, in the order of their first entry."""
    return [file for file in flow.files if file in way]


@pytest.fixture(params=["arrow", "webdataset"])
def location(request, tmp_path):
    rows = ({"x": np.zeros((length, 4), "f4")} for length in range(5, 105))
    write_store(tmp_path / "store", rows, format=request.param)
    is_arrow = request.param == "arrow"
    return tmp_path / "store" if is_arrow else next((tmp_path / "store").glob("*.tar"))


def test_the_way_of_a_batch_is_as_told(location):
    batches = iter(Loader(open_store(location), Fixed(8), prefetch=0))
    assert later_batch(batches).files == list_way("A batch")


def test_the_way_of_open_store_is_as_told(location):
    format = "webdataset" if location.suffix else "arrow"
    own = "Files of a format, such as tar shards" if location.suffix else "An Arrow store"
    open_store(location)  # the first one imports what it needs, and makes an index
    flow, way = follow(lambda: open_store(location)), list_way(r"open_store\(location\)", own)
    assert select(way, flow) == way
    assert len(flow.files) <= MOST_OPENED[format], "\n".join(flow.files)


class Saving(Model):
    """Saves a checkpoint after its third step."""

    def on_train_batch_end(self, *_):
        if self.trainer.global_step == 3:
            self.flow = follow(lambda: self.trainer.save_checkpoint(self.path))


class Watched(Model):
    """Ends the watching with its first step."""

    def training_step(self, batch):
        sys.setprofile(None)
        return super().training_step(batch)


def test_the_way_of_a_checkpoint_is_as_told(tmp_path):
    write_store(tmp_path / "store", ({"x": np.zeros((9, 4), "f4")} for _ in range(50)))
    saving, flow = Saving(), Flow()
    saving.path = tmp_path / "saved.ckpt"
    options = {"train": tmp_path / "store", "batching": Fixed(8), "prefetch": 0}
    L.Trainer(max_steps=3, **QUIET).fit(saving, SequenceDataModule(**options))
    assert select(list_way("Save"), saving.flow) == list_way("Save")
    trainer, data = L.Trainer(max_steps=4, **QUIET), SequenceDataModule(**options)
    sys.setprofile(flow.see)
    try:
        trainer.fit(Watched(), data, ckpt_path=saving.path)
    finally:
        sys.setprofile(None)
    assert select(list_way("Load"), flow) == list_way("Load")
