"""Zarr folders whose metadata files were lost: named when they are opened, at paths and URLs."""

import json
import shutil
import warnings

import fsspec
import numpy as np
import pytest
import zarr
from arrays_samples import recordings, write_zarr
from seqdata_arrays import Zarr

from seqdata import Remote, open_store
from seqdata.errors import ConfigError, DataError, MissingShardError
from seqdata_testing.stores import check_reads

FORMS = {
    "v3": {},
    "v3 sharded": {"shards": (64, 3)},
    "v2": {"zarr_format": 2},
}
ARRAY = {"v3": "zarr.json", "v3 sharded": "zarr.json", "v2": ".zarray"}
GROUP = {"v3": "zarr.json", "v3 sharded": "zarr.json", "v2": ".zgroup"}
ROWS = [{"id": row["id"], "frames": row["frames"]} for row in recordings(4)]


@pytest.fixture(params=["path", "URL"])
def reopen(request, tmp_path):
    """Function that opens a local folder by its path, or a copy of it by a URL."""

    def open_path(path, **options):
        return open_store(path, backend=Zarr(**options))

    def open_url(path, **options):
        system, folder = fsspec.filesystem("memory"), f"lost-{tmp_path.name}"
        if system.exists(f"/{folder}"):
            system.rm(f"/{folder}", recursive=True)
        for file in path.rglob("*"):
            if file.is_file():
                system.pipe_file(f"/{folder}/{file.relative_to(path)}", file.read_bytes())
        remote = Remote(cache_dir=tmp_path / "far")
        return open_store(f"memory://{folder}", backend=Zarr(**options), remote=remote)

    return open_path if request.param == "path" else open_url


def write_two(path, form):
    """Write a group of two arrays, one of them in a group of its own."""
    root = zarr.open_group(str(path), mode="w", zarr_format=2 if form == "v2" else 3)
    for name in ("x", "more/y"):
        root.create_array(f"a/{name}", data=np.arange(30), chunks=(10,))
    return path


@pytest.mark.parametrize("form", ["v3", "v2"])
def test_an_array_without_its_metadata_file_is_an_error(tmp_path, reopen, form):
    path = write_two(tmp_path / "x.zarr", form)
    assert set(reopen(path).fields) == {"x", "more/y"}
    (path / "a/more/y" / ARRAY[form]).unlink()
    chunk = "c/0" if form == "v3" else "0"
    message = (
        rf"array 'a/more/y' must have the metadata file 'a/more/y/{ARRAY[form]}', but it is not "
        rf"there, although 'a/more/y/{chunk}' is\. Restore it, choose other arrays with `fields`, "
        r"or move the folder elsewhere"
    )
    with pytest.raises(MissingShardError, match=message):
        reopen(path)
    with pytest.raises(MissingShardError, match=message):
        reopen(path, fields={"z": "more/y"})
    assert reopen(path, fields=["x"])[0]["x"].tolist() == list(range(30))


@pytest.mark.parametrize("form", FORMS)
def test_a_group_without_its_metadata_file_is_an_error(tmp_path, reopen, form):
    path = write_zarr(tmp_path / "x.zarr", ROWS, **FORMS[form])
    check_reads(reopen(path), ROWS, rounds=1)
    (path / "rec2" / GROUP[form]).unlink()
    message = (
        rf"group 'rec2' must have the metadata file 'rec2/{GROUP[form]}', but it is not there, "
        rf"although 'rec2/frames/{ARRAY[form]}' is\. Restore it, create it with "
        r"zarr\.open_group\(\.\.\., path='rec2'\)"
    )
    with pytest.raises(MissingShardError, match=message):
        reopen(path, fields=["frames"])
    (path / "rec2/frames" / ARRAY[form]).unlink()
    with pytest.raises(MissingShardError, match=r"array 'rec2/frames' must have the metadata"):
        reopen(path)


@pytest.mark.parametrize("form", ["v3", "v2"])
def test_what_consolidated_metadata_names_must_be_there(tmp_path, reopen, form):
    path = write_zarr(tmp_path / "x.zarr", ROWS, **FORMS[form])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(str(path))
    check_reads(reopen(path), ROWS, rounds=1)
    shutil.rmtree(path / "rec2")
    message = (
        rf"group 'rec2' must have the metadata file 'rec2/{GROUP[form]}', but it is not there, "
        r"although the consolidated metadata names it\. Restore it, or run "
        r"zarr\.consolidate_metadata if it was removed on purpose"
    )
    with pytest.raises(MissingShardError, match=message):
        reopen(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(str(path))
    assert len(reopen(path)) == 3


@pytest.mark.parametrize("form", ["v3", "v2"])
@pytest.mark.parametrize(
    "content", [4, {"metadata": [1]}, {"metadata": {"rec1/.zgroup": 4, "a": 3}}]
)
def test_damaged_consolidated_metadata_is_an_error(tmp_path, form, content):
    path = write_zarr(tmp_path / "x.zarr", ROWS, **FORMS[form])
    if form == "v2":
        content = {"metadata": 4} if isinstance(content, dict) else content
        (path / ".zmetadata").write_text(json.dumps(content))
    else:
        root = json.loads((path / "zarr.json").read_text())
        (path / "zarr.json").write_text(json.dumps({**root, "consolidated_metadata": content}))
    message = r"must have valid consolidated metadata, but.*Run zarr\.consolidate_metadata again"
    with pytest.raises(DataError, match=message):
        open_store(path, backend=Zarr())


def test_an_array_without_chunks_that_consolidated_metadata_names_must_be_there(tmp_path, reopen):
    path = tmp_path / "x.zarr"
    root = zarr.open_group(str(path), mode="w")
    for name in ("x", "y"):
        root.create_array(name, shape=(9,), chunks=(3,), dtype="f4")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(str(path))
    (path / "y/zarr.json").unlink()
    with pytest.raises(MissingShardError, match=r"array 'y' must.*the consolidated metadata names"):
        reopen(path)
    assert list(reopen(path, fields=["x"]).fields) == ["x"]


@pytest.mark.parametrize("form", ["v3", "v2"])
def test_a_folder_among_others_without_its_metadata_file_is_an_error(tmp_path, reopen, form):
    for number in range(3):
        write_zarr(tmp_path / f"data/r{number}.zarr", ROWS[number : number + 1], **FORMS[form])
    assert len(reopen(tmp_path / "data")) == 3
    (tmp_path / "data/r1.zarr" / GROUP[form]).unlink()
    message = r"\"r1\.zarr\"\): must have a metadata file \(zarr\.json, \.zarray or \.zgroup\), but"
    with pytest.raises(MissingShardError, match=message):
        reopen(tmp_path / "data")


def test_other_files_in_a_folder_do_no_harm(tmp_path, reopen):
    path = write_zarr(tmp_path / "data/x.zarr", ROWS)
    for name in ("notes/plan.txt", "rec1/pictures/a/b.png", ".git/objects/12/34", "notes/.zattrs",
                 "__MACOSX/rec1/c/0"):  # fmt: skip
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("{}")
    (tmp_path / "data/empty.zarr").mkdir()
    (tmp_path / "data/other.zarr").mkdir()
    (tmp_path / "data/other.zarr/readme").write_text("")
    check_reads(reopen(tmp_path / "data"), ROWS, rounds=1)


def test_a_store_is_not_opened_again_without_a_metadata_file(tmp_path):
    path = write_zarr(tmp_path / "x.zarr", ROWS)
    function, arguments = open_store(path, backend=Zarr()).base.__reduce__()
    (path / "rec1/frames/zarr.json").unlink()
    with pytest.raises(MissingShardError, match=r"array 'rec1/frames' must have the metadata file"):
        function(*arguments)


def test_a_folder_without_metadata_of_its_own_is_named(tmp_path, reopen):
    path = write_zarr(tmp_path / "x.zarr", ROWS)
    (path / "zarr.json").unlink()
    with pytest.raises((ConfigError, DataError), match=r"no zarr\.json or \.zarray or \.zgroup"):
        reopen(path)
