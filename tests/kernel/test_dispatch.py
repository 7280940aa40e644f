"""Which kernel is used, and how that is said."""

import sys

import pytest

from seqdata.errors import ConfigError
from seqdata.kernel import numpy_kernel
from seqdata.kernel.dispatch import get_kernel, get_kernel_name


def test_the_compiled_kernel_is_used_where_it_is_there(monkeypatch):
    compiled = pytest.importorskip("seqdata.kernel._fill")
    monkeypatch.delenv("SEQDATA_KERNEL", raising=False)
    assert get_kernel() is compiled
    assert get_kernel_name() == "c"


def test_the_environment_chooses_the_twin(monkeypatch):
    monkeypatch.setenv("SEQDATA_KERNEL", "numpy")
    assert get_kernel() is numpy_kernel
    assert get_kernel_name() == "numpy"


def test_without_the_compiled_file_the_twin_is_used(monkeypatch):
    monkeypatch.delenv("SEQDATA_KERNEL", raising=False)
    monkeypatch.setitem(sys.modules, "seqdata.kernel._fill", None)
    assert get_kernel() is numpy_kernel


def test_a_compiled_kernel_that_is_asked_for_and_missing_is_an_error(monkeypatch):
    monkeypatch.setenv("SEQDATA_KERNEL", "c")
    monkeypatch.setitem(sys.modules, "seqdata.kernel._fill", None)
    with pytest.raises(ConfigError, match="is 'c' but the compiled kernel cannot be imported"):
        get_kernel()


def test_an_unknown_kernel_is_an_error(monkeypatch):
    monkeypatch.setenv("SEQDATA_KERNEL", "cuda")
    with pytest.raises(ConfigError, match="`SEQDATA_KERNEL` must be 'c' or 'numpy', but is 'cuda'"):
        get_kernel()
