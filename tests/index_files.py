"""Index files next to data, as tests look at them and damage them."""

from pathlib import Path

from seqdata.storage.data_location import DataLocation
from seqdata.storage.indexed.index_file import dump_index_files, load_index_file
from seqdata.storage.indexed.index_folder import name_index_file
from seqdata.storage.indexed.shards import INDEX_FOLDER


def list_index_files(root):
    """Return the paths of the index files of a folder, the newest last."""
    paths = [Path(root) / INDEX_FOLDER / name_index_file(number) for number in range(20)]
    return [path for path in paths if path.is_file()]


def index_path(root):
    """Return the path of the only index file of a folder."""
    (path,) = list_index_files(root)
    return path


def load_indexes(root):
    """Return name -> index of each file of a folder."""
    found = {}
    for path in list_index_files(root):
        location = DataLocation(dataset=str(root), file=path.name)
        for group in load_index_file(path.read_bytes(), location):
            found |= {name: group.take(row) for row, name in enumerate(group.names)}
    return found


def replace_indexes(root, indexes):
    """Write the only index file of a folder again."""
    (content,) = dump_index_files(indexes)
    index_path(root).write_bytes(content)


def index_of(path, root=None):
    """Return the index of a file; None: there is none."""
    root = path.parent if root is None else root
    return load_indexes(root).get(path.relative_to(root).as_posix())


def forget_index(path, root=None):
    """Remove the index of a file from the index of its folder."""
    root = path.parent if root is None else root
    name = path.relative_to(root).as_posix()
    replace_indexes(root, [index for index in load_indexes(root).values() if index.shard != name])


def dump_one(index):
    """Return the bytes of an index file of one file."""
    (content,) = dump_index_files([index])
    return content


def load_one(content, file_format=None):
    """Return the index in such bytes; raises if they are damaged."""
    location = DataLocation(dataset="/d", file="index.idx")
    (group,) = load_index_file(content, location, file_format)
    return group.take(0)
