"""Locations and names become stores, policies and collators."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
from click.testing import CliRunner

from seqdata.api import open_store, split, write_store
from seqdata.cli.app import app
from seqdata.detect import detect_backend
from seqdata.errors import ConfigError, IncompleteDatasetError, PluginError
from seqdata.hookspecs import hookimpl
from seqdata.host import PluginHost, default_host
from seqdata.policies.fixed import Bucketed
from seqdata.policies.token_budget import TokenBudget
from seqdata.resolve import resolve_collator, resolve_policy, resolve_store
from seqdata.storage.memory import MemoryStore
from seqdata_testing.waiting import patient

ROWS = [{"x": np.arange(3)}, {"x": np.arange(5)}]


class Plugin:
    """Offers whatever a test wants under the name 'mine'."""

    def __init__(self, thing):
        self.thing = thing

    @hookimpl
    def seqdata_register_backends(self):
        return {"mine": self.thing}

    @hookimpl
    def seqdata_register_policies(self):
        return {"mine": self.thing}

    @hookimpl
    def seqdata_register_collators(self):
        return {"mine": self.thing}


def host_of(thing):
    return PluginHost(plugins=[Plugin(thing)])


def test_what_was_written_is_opened_again(tmp_path):
    written = write_store(tmp_path / "store", ROWS)
    opened = open_store(str(tmp_path / "store"))
    assert opened.lengths.tolist() == [3, 5]
    assert opened.fingerprint == written.fingerprint
    assert len(open_store(tmp_path / "store", backend="arrow")) == 2


def test_writing_hands_its_options_on(tmp_path):
    rows = [{"name": f"n{i}", "x": np.arange(9), "v": np.zeros(2)} for i in range(4)]
    store = write_store(
        tmp_path / "s", rows, axes={"x": "text", "v": None}, shard_bytes=64, key="name"
    )
    assert store.fields["x"].axis == "text"
    assert store.fields["v"].axis is None
    assert len(store.shards) == 4
    assert store.keys([2]) == ["n2"]
    with pytest.raises(ConfigError, match="holds a store"):
        write_store(tmp_path / "s", ROWS)
    assert len(write_store(tmp_path / "s", ROWS, overwrite=True, progress=False)) == 2


@pytest.mark.parametrize("name", ["overwrite", "resume"])
def test_a_text_is_no_flag(tmp_path, name):
    with pytest.raises(ConfigError, match=f"write_store: `{name}` must be True or False, but is"):
        write_store(tmp_path / "s", [[1]], **{name: "false"})
    with pytest.raises(ConfigError, match="split: `exact` must be True or False, but is 'no'"):
        split([[1], [2]], {"a": 0.5, "b": 0.5}, exact="no")


def test_writing_in_a_random_order_is_a_seed(tmp_path):
    rows = [{"x": np.arange(number)} for number in range(12)]
    stores = [write_store(tmp_path / str(number), rows, shuffle=seed) for number, seed in
              enumerate((7, np.uint64(7), 8, None))]  # fmt: skip
    ids = [store.keys(range(12)) for store in stores]
    assert ids[0] == ["7", "3", "6", "9", "5", "10", "2", "1", "11", "8", "4", "0"]
    assert ids[1] == ids[0] != ids[2]
    assert ids[3] == [*map(str, range(12))]
    assert stores[0].lengths.tolist() == [*map(int, ids[0])]


class Recordings:
    """Stands for a torch Dataset: a length, and items by number, which cannot be iterated."""

    def __len__(self):
        return 12

    def __getitem__(self, number):
        return np.arange(number), number


@pytest.mark.parametrize("passes", [1, 2])
def test_datasets_and_groups_of_a_table_are_written_in_a_random_order(tmp_path, passes):
    import pandas as pd

    told = []
    table = pd.DataFrame({"site": [*range(12)] * 2, "x": range(24)}).sort_values(
        "site", kind="stable"
    )
    data = {"sequences": Recordings()} if passes == 1 else {"sequences": table, "group": "site"}
    store = write_store(
        tmp_path / "s", **data, shuffle=7, progress=lambda count, _: told.append(count)
    )
    assert store.keys([0, 1, 11]) == ["7", "3", "0"]
    assert told == [12] * passes
    field = {"y": 7} if passes == 1 else {"x": [7, 19]}
    np.testing.assert_equal(store[0][next(iter(field))], *field.values())


@pytest.mark.parametrize("wrong", [True, False, -1, 1 << 64, 1.0, "7", [7]])
def test_what_is_no_seed_is_refused(tmp_path, wrong):
    needed = r"an integer in \[0, 2\*\*64\), the seed of a random order, or None, but is "
    with pytest.raises(ConfigError, match=f"write_store: `shuffle` must be {needed}"):
        write_store(tmp_path / "s", ROWS, shuffle=wrong)


def test_a_backend_that_writes_in_order_only_is_refused_a_seed(tmp_path, monkeypatch):
    class Writer:
        def __call__(self, location): ...

        def write(self, location, sequences, **options):
            return MemoryStore.from_sequences(sequences)

    def write(location, sequences, *, axes, shard_bytes, key, executor, resume, progress,
              overwrite):  # fmt: skip
        return MemoryStore.from_sequences(sequences)

    writer = Writer()
    writer.write = write
    monkeypatch.setattr("seqdata.api.default_host", lambda: host_of(writer))
    assert len(write_store(tmp_path / "s", ROWS, format="mine")) == len(ROWS)
    with pytest.raises(ConfigError, match="backend 'mine' does not take `shuffle`, but it is 3"):
        write_store(tmp_path / "s", ROWS, format="mine", shuffle=3)


@pytest.mark.parametrize("format", ["hdf5", None, ["arrow"]])
def test_another_format_is_refused(tmp_path, format):
    with pytest.raises(ConfigError, match="must be 'arrow' or an installed backend that writes"):
        write_store(tmp_path / "s", ROWS, format=format)


def test_what_a_backend_is_not_told_is_refused(tmp_path):
    write_store(tmp_path / "s", ROWS)
    with pytest.raises(ConfigError, match="backend 'arrow' does not take `index`"):
        open_store(tmp_path / "s", index="build")


def test_an_opener_need_not_take_verify(tmp_path):
    store = write_store(tmp_path / "s", ROWS)
    found = open_store("anything", backend=lambda location: open_store(tmp_path / "s"))
    assert found.fingerprint == store.fingerprint
    with pytest.raises(ConfigError, match="does not take `verify`, but it is 'always'"):
        open_store("anything", backend=lambda location: store, verify="always")
    given = {}

    def opener(location, **options):
        given.update(options)
        return store

    open_store("anything", backend=opener, verify="off")
    assert given == {"verify": "off"}


def test_a_folder_of_tar_files_is_read_by_the_plugin(tmp_path):
    (tmp_path / "a.tar").touch()
    assert detect_backend(tmp_path) == "webdataset"
    (tmp_path / "seqdata.json").touch()
    assert detect_backend(tmp_path) == "arrow"


def test_a_store_may_be_written_on_an_executor(tmp_path):
    with ThreadPoolExecutor(1) as pool:
        assert len(write_store(tmp_path / "s", ROWS, executor=pool, resume=False)) == len(ROWS)


def test_data_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"data: must be a path, .* but is None\. Pass the data"):
        open_store(None)
    with pytest.raises(ConfigError, match=r"but holds numbers, the first is 1\. One sequence of"):
        open_store([1, 2])


def test_a_location_without_a_store_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not there"):
        open_store(tmp_path / "nowhere")
    (tmp_path / "part-00000.arrow").write_bytes(b"half")
    with pytest.raises(IncompleteDatasetError, match="writing was not finished"):
        open_store(tmp_path)


@pytest.mark.parametrize(
    ("location", "backend"),
    [
        ("data.tar", "webdataset"),
        ("data/train-{000000..000017}.tar", "webdataset"),
        ("data/{train,val}.tar", "webdataset"),
        ("data.tar.gz", "webdataset"),
        ("data.tgz", "webdataset"),
        ("data.tar/", "arrow"),
        ("data", "arrow"),
        ("data/part-00000.arrow", "foreign"),
        ("a/b.feather", "foreign"),
        ("file:///a/b.parquet", "foreign"),
        ("s3://a/b.parquet", "foreign"),
        ("s3://a/b", "arrow"),
        ("{data}", "arrow"),
    ],
)
def test_the_form_of_a_location_names_its_backend(location, backend):
    assert detect_backend(location) == backend


def test_a_location_whose_backend_is_not_installed_names_the_package():
    with pytest.raises(
        PluginError,
        match=r"'train\.tar' needs the backend 'webdataset', which is not installed; pip install "
        "seqdata-webdataset",
    ) as caught:
        open_store("train.tar", host=PluginHost())
    assert caught.value.details == {"package": "seqdata-webdataset"}


def test_a_location_of_that_form_is_opened_by_the_plugin_that_offers_it():
    class WebDataset:
        @hookimpl
        def seqdata_register_backends(self):
            return {
                "webdataset": lambda location, *, verify: MemoryStore.from_sequences([[1], [2, 3]])
            }

    store = open_store("train.tar", host=PluginHost(plugins=[WebDataset()]))
    assert store.lengths.tolist() == [1, 2]


def test_a_backend_may_be_given_by_name_or_as_its_opener():
    seen = []

    def opener(location, *, verify):
        seen.append((location, verify))
        return MemoryStore.from_sequences([[1]])

    open_store("there", backend="mine", host=host_of(opener))
    open_store("there", backend=opener)
    assert seen == [("there", None)] * 2


def test_an_unknown_backend_is_refused():
    with pytest.raises(PluginError, match="unknown backend 'arow'; did you mean 'arrow'"):
        open_store("there", backend="arow", host=PluginHost())


def test_a_backend_that_gives_no_store_is_refused():
    with pytest.raises(
        PluginError,
        match="backend 'mine': must return a Store, but returned a dict without base_numbers",
    ):
        open_store("there", backend="mine", host=host_of(lambda location, *, verify: {}))


def test_data_may_be_a_location_a_store_or_sequences(tmp_path):
    written = write_store(tmp_path / "store", ROWS)
    assert resolve_store(tmp_path / "store").lengths.tolist() == [3, 5]
    assert resolve_store(written) is written
    assert resolve_store([np.arange(4)]).lengths.tolist() == [4]
    assert resolve_store(ROWS).lengths.tolist() == [3, 5]


def test_a_store_is_recognised_without_computing_its_fingerprint():
    store = MemoryStore.from_sequences([[1]])
    assert resolve_store(store) is store
    assert store._fingerprint is None


def test_what_is_no_data_is_refused():
    with pytest.raises(ConfigError, match="`sequences` must be an iterable"):
        resolve_store(3)


def test_a_policy_may_be_named_with_its_options():
    assert resolve_policy("token-budget", {"max_tokens": 9}) == TokenBudget(9)
    policy = Bucketed(4)
    assert resolve_policy(policy) is policy


def test_a_policy_of_a_plugin_may_be_named():
    @dataclass(frozen=True)
    class Mine:
        axis: str = "time"

        def plan(self, index, *, seed, epoch): ...

        def num_batches(self, index): ...

    assert resolve_policy("mine", host=host_of(Mine)) == Mine()


def test_options_that_a_policy_does_not_take_are_refused():
    with pytest.raises(
        ConfigError,
        match=r"policy 'token-budget': missing a required argument: `max_tokens`\. It takes "
        "max_tokens, max_rows, ",
    ):
        resolve_policy("token-budget")
    with pytest.raises(ConfigError, match="got an unexpected keyword argument 'rows'"):
        resolve_policy("token-budget", {"max_tokens": 9, "rows": 2})
    with pytest.raises(ConfigError, match=r"worst_first.*; did you mean 'max_tokens'\?"):
        resolve_policy("token-budget", {"max_token": 9})
    with pytest.raises(ConfigError, match=r"options {'max_tokens': 9} are for a named policy only"):
        resolve_policy(Bucketed(4), {"max_tokens": 9})


@pytest.mark.parametrize("wrong", [3, None, Bucketed, {"name": "bucketed"}])
def test_what_is_no_policy_is_refused(wrong):
    with pytest.raises(
        ConfigError, match=r"`batching` must be a policy or the name of one, but is"
    ):
        resolve_policy(wrong)


def test_a_factory_that_makes_no_policy_is_refused():
    with pytest.raises(
        PluginError,
        match=(
            "'mine': its factory must return a Policy, but returned a dict without axis, num_batch"
        ),
    ):
        resolve_policy("mine", host=host_of(lambda: {}))


def test_a_collator_may_be_named_or_given():
    from seqdata.collators.padded import Padded

    assert resolve_collator("padded") == Padded()
    collator = Padded(padding=1)
    assert resolve_collator(collator) is collator


@pytest.mark.parametrize("wrong", [3, None, dict])
def test_what_is_no_collator_is_refused(wrong):
    with pytest.raises(
        ConfigError, match=r"`collator` must be a collator or the name of one, but is"
    ):
        resolve_collator(wrong)


def test_a_factory_that_makes_no_collator_is_refused():
    with pytest.raises(
        PluginError, match="'mine': its factory must return a callable, but returned a dict"
    ):
        resolve_collator("mine", host=host_of(lambda: {}))


def test_a_collator_that_needs_arguments_cannot_be_named():
    with pytest.raises(ConfigError, match="collator 'mine': missing a required argument: `size`"):
        resolve_collator("mine", host=host_of(lambda size: size))


def test_a_process_has_one_host():
    assert default_host() is default_host()


def test_opening_and_reading_an_own_store_needs_neither_torch_nor_pyarrow(tmp_path):
    write_store(tmp_path / "store", ROWS)
    code = f"""
import sys, numpy
from seqdata.api import open_store
store = open_store({str(tmp_path / "store")!r})
(column,) = store.read(numpy.array([[1, 1, 4]]), ["x"]).values()
assert column[0].tolist() == [1, 2, 3]
print(*[name for name in ("torch", "lightning", "pyarrow", "rich") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patient(), check=True
    )
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    "name", ["x.parquet", "x.csv", "x.arrow", "x.feather", "x.jsonl", "x.PQ", "x.ndjson/", "x.ipc"]
)
def test_a_store_is_not_named_as_a_file_of_a_table(tmp_path, name):
    with pytest.raises(
        ConfigError, match=r"must name a folder, .*suffix of a table .*Leave \.\w+ out"
    ):
        write_store(f"{tmp_path}/{name}", ROWS)
    source = tmp_path / "rows.jsonl"
    source.write_text('{"x": [1, 2]}\n')
    done = CliRunner().invoke(app, ["write", str(source), f"{tmp_path}/{name}"])
    assert done.exit_code == 2
    assert "suffix of a table file" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
