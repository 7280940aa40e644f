"""Files of a third party's backend are opened by their path: suffixes come from metadata alone."""

import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from seqdata.api import open_store, write_store
from seqdata.cli.app import app
from seqdata.detect import detect_backend
from seqdata.errors import ConfigError, MissingShardError, PluginError
from seqdata.host import default_host
from seqdata.lightning.datamodule import SequenceDataModule
from seqdata.loading.loader import Loader
from seqdata.policies.fixed import Fixed

MODULE = """
from pathlib import Path
import numpy as np
from seqdata import hookimpl

def open_lines(location, *, verify=None):
    from seqdata.storage.memory import MemoryStore

    lines = Path(location).read_text("utf-8").splitlines()
    return MemoryStore.from_sequences([np.array(line.split(), dtype=np.float32) for line in lines])

@hookimpl
def seqdata_register_backends():
    return {"BACKEND": open_lines}
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a distribution with a backend and suffixes into a folder that is on the path."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def make(name, backend, *suffixes, broken=False):
        module = f"a_plugin_{backend}"
        text = "raise OSError('imported')\n" if broken else MODULE.replace("BACKEND", backend)
        (site / f"{module}.py").write_text(text)
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        claims = "".join(f"{suffix} = {backend}\n" for suffix in suffixes)
        (info / "entry_points.txt").write_text(
            f"[seqdata]\n{backend} = {module}\n[seqdata.suffixes]\n{claims}"
        )

    default_host.cache_clear()
    yield make
    default_host.cache_clear()
    for module in [name for name in sys.modules if name.startswith("a_plugin_")]:
        del sys.modules[module]


@pytest.fixture
def numbers(tmp_path):
    path = tmp_path / "a.nums"
    path.write_text("1 2 3\n4\n")
    return path


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output if code == 0 else done.stderr


def test_a_file_is_opened_by_its_path_everywhere(install, numbers):
    install("seqdata-nums", "nums", ".nums")
    assert open_store(numbers).lengths.tolist() == [3, 1]
    assert [batch["x"].tolist() for batch in Loader(str(numbers), Fixed(2, shuffle=False))] == [
        [[1, 2, 3], [4, 0, 0]]
    ]
    data = SequenceDataModule(train=str(numbers), batching=Fixed(2, shuffle=False))
    assert [batch.lengths.tolist() for batch in data.train_dataloader()] == [[3, 1]]


def test_every_command_opens_it_by_its_path(install, numbers):
    install("seqdata-nums", "nums", ".nums")
    assert json.loads(run("stats", numbers, "--json"))["sequences"] == 2
    assert json.loads(run("plan", numbers, "--max-tokens", 8, "--json"))["timesteps"] == 4
    assert "all could be read" in run("verify", numbers)
    assert json.loads(run("doctor", numbers, "--json"))["bad"] == 0
    assert "fields: x float32 [T]" in run("write", numbers, "store")
    assert open_store("store").lengths.tolist() == [3, 1]
    assert "Other data needs no index" in run("index", numbers, code=2)
    assert "suffix .nums: backend nums of seqdata-nums 1.0" in run("plugins")


def test_every_command_takes_the_backends_name(install, numbers):
    install("seqdata-nums", "nums")
    other = numbers.rename(numbers.with_name("data"))
    assert json.loads(run("stats", other, "--backend", "nums", "--json"))["sequences"] == 2
    assert "2 batches" in run("plan", other, "--backend", "nums", "--batching", "fixed",
                              "--batch-size", 1)  # fmt: skip
    assert "all could be read" in run("verify", other, "--backend", "nums")
    assert "2 sequences" in run("doctor", other, "--backend", "nums", "-v")
    assert "fields: x float32 [T]" in run("write", other, "store", "--backend", "nums")
    assert "Other data needs no index" in run("index", other, "--backend", "nums", code=2)
    said = run("write", other, "again", "--backend", "nums", "--field", "x", code=2)
    assert "`--backend` opens a store" in said
    assert "unknown backend 'numb'; did you mean 'nums'" in run(
        "stats", other, "--backend", "numb", code=1
    )


def test_looking_for_a_suffix_imports_nothing(install, numbers):
    install("seqdata-nums", "nums", ".nums")
    install("seqdata-other", "other", ".other", broken=True)
    assert detect_backend(numbers) == "nums"
    assert detect_backend("nowhere/x.other") == "other"
    assert not {"a_plugin_nums", "a_plugin_other"} & set(sys.modules)
    assert len(open_store(numbers)) == 2
    assert "a_plugin_other" not in sys.modules


def test_two_that_claim_one_suffix_are_both_named(install, numbers):
    install("seqdata-nums", "nums", ".nums")
    install("seqdata-digits", "digits", ".nums", ".s.nums")
    with pytest.raises(PluginError) as caught:
        open_store(numbers)
    for part in ("seqdata-nums 1.0 (backend 'nums')", "seqdata-digits 1.0 (backend 'digits')",
                 "'.nums' is claimed by", "Pass backend=", "backend='digits'"):  # fmt: skip
        assert part in str(caught.value)
    assert len(open_store(numbers, backend="digits")) == 2
    assert detect_backend("x.s.nums") == "digits"  # the longer one


def test_a_kept_out_plugin_claims_nothing(install, numbers, monkeypatch):
    install("seqdata-nums", "nums", ".nums")
    install("seqdata-digits", "digits", ".nums")
    monkeypatch.setenv("SEQDATA_PLUGINS", "digits")
    default_host.cache_clear()
    assert detect_backend(numbers) == "digits"


def test_the_cores_own_forms_cannot_be_taken(install, tmp_path):
    install("seqdata-nums", "nums", ".arrow", ".parquet", ".tar", ".tgz", ".feather", ".nums")
    for name in ("x.arrow", "x.parquet", "x.feather"):
        assert detect_backend(name) == "foreign"
    for name in ("x.tar", "x.tgz", "x.tar.gz", "{a,b}.tar", "{a,b}"):
        assert detect_backend(name) == "webdataset"
    listed = CliRunner().invoke(app, ["plugins"]).output
    (line,) = [
        line for line in listed.splitlines() if line.endswith("backend nums of seqdata-nums 1.0")
    ]
    assert ".tar (ignored: the core opens such files)" in line
    assert ".nums (ignored" not in line
    assert ".nums" in line
    write_store(tmp_path / "store.nums", [np.arange(3)])
    assert detect_backend(tmp_path / "store.nums") == "arrow"
    assert open_store(tmp_path / "store.nums").lengths.tolist() == [3]


def test_a_suffix_is_known_in_any_case_and_of_folders_and_urls(install):
    install("seqdata-nums", "nums", ".Nums")
    assert [detect_backend(name) for name in ("A.NUMS", "a.nums/", "s3://bucket/a.nums")] == [
        "nums"
    ] * 3
    assert [detect_backend(name) for name in ("nums", ".nums", "a.nums/b")] == ["arrow"] * 3


@pytest.mark.parametrize("pattern", ["d/*", "d/{x,y}.*", "{d,e}/", "d/[x]*", "*/", "**"])
def test_patterns_are_opened_by_what_they_match(install, tmp_path, monkeypatch, pattern):
    install("a-one", "numbers", ".nums")
    for name in ("d/x.nums", "d/y.nums", "e/z.nums"):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(tmp_path / "data")
    assert detect_backend(pattern) == "numbers"
    (tmp_path / "data/d/x.tar").touch()
    assert detect_backend(pattern) == "webdataset"


@pytest.mark.parametrize("pattern", ["no/*", "{no,none}/", "d/{x", "d/*.txt"])
def test_patterns_that_match_nothing_known_go_to_the_core(install, tmp_path, monkeypatch, pattern):
    install("a-one", "numbers", ".nums")
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, PluginError, MissingShardError)):
        open_store(pattern)


def test_a_known_file_that_nothing_opens_says_what_reads_it(tmp_path, monkeypatch):
    monkeypatch.setattr("seqdata.host.PluginHost.backend_of_suffix", lambda self, name: None)
    for name, reads in (("a.h5", "h5py.File"), ("a.wav", "soundfile"), ("a.json", "jsonl")):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(ConfigError, match=rf"no installed backend opens .*{reads}"):
            open_store(tmp_path / name)


@pytest.mark.parametrize("name", ["x.tar", "{a,b}", "y.flac", "a::b", "c[d]", "z{1..2}.tar.gz"])
def test_a_store_is_found_in_a_folder_of_any_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write_store(name, [{"x": [1, 2]}])
    for location in (name, f"{name}/", tmp_path / name):
        assert detect_backend(location) == "arrow"
        assert open_store(location).lengths.tolist() == [2]


@pytest.mark.parametrize(
    ("names", "backend"),
    [
        (["a/x.parquet"], "foreign"),
        (["a/b/x.tar"], "webdataset"),
        (["a.parquet", "b/x.tar", "c.txt"], "foreign"),
        (["a/x.parquet", "b.tar"], "webdataset"),
        (["a/x.txt", "_tmp/x.parquet", ".h/x.parquet"], "arrow"),
        (["a.parquet/part-0.parquet"], "foreign"),
        (["a.tar/x.parquet"], "foreign"),
    ],
)
def test_a_folder_is_of_the_kind_of_files_in_it_or_below(tmp_path, names, backend):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert detect_backend(tmp_path) == backend
    for location in (f"{tmp_path}/*", f"{tmp_path}/{{*,nothing}}"):
        if backend != "arrow":
            assert detect_backend(location) in ("foreign", "webdataset")
