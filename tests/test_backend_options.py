"""A backend with options by its name, as on the command line: ``tokens:dtype=uint32``."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from seqdata import PluginHost, hookimpl
from seqdata.api import open_store
from seqdata.backends import Extents, FileFormat, FileIndex
from seqdata.detect import find_backend
from seqdata.errors import ConfigError


@dataclass(frozen=True)
class Numbers(FileFormat):
    dtype: str = "uint8"
    names: list[str] = field(default_factory=lambda: ["x"])
    skip: bool = False
    suffixes = (".numbers",)

    def index(self, file):
        begins, ends = np.array([int(self.skip)]), np.array([file.size])
        return FileIndex({name: Extents(begins, ends, self.dtype) for name in self.names})


class Plugin:
    @hookimpl
    def seqdata_register_backends(self):
        return {"numbers": Numbers(), "plain": lambda location: location}


@pytest.fixture
def host():
    return PluginHost([Plugin()])


def test_options_are_those_of_the_backend(tmp_path, host):
    path = tmp_path / "a.numbers"
    path.write_bytes(bytes(range(9)))
    options = "numbers:names=[a, b],skip=true"
    store = open_store(path, backend=options, host=host)
    assert list(store.fields) == ["a", "b"]
    assert store[0]["b"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert open_store(path, backend=f"{options},dtype=<u2", host=host).lengths.tolist() == [4]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("numbers:", r"`backend` must be NAME:option=value,option=\[value,value\], but is"),
        ("numbers:dtype", r"`backend` must be NAME:option=value"),
        ("numbers:skip=true,,", r"`backend` must be NAME:option=value"),
        ("numbers:width=2", r"backend 'numbers': has no option 'width'; it has dtype, names, skip"),
        ("plain:width=2", r"backend 'plain': has no option 'width'; it has none\. Leave it out"),
        (
            "numbers:dtype={",
            r"values of options must be YAML, but is 'dtype=\{'",
        ),
    ],
)
def test_invalid_options(host, name, message):
    with pytest.raises(ConfigError, match=message):
        find_backend(name, "x.numbers", host)
