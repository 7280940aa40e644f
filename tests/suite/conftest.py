"""Fixtures of the tests of DataModules by kind of work."""

import pytest

from seqdata.suite import config_keys


@pytest.fixture
def without_other_classes(monkeypatch):
    """Messages list the classes of seqdata alone, whatever other tests of the process imported."""
    find = config_keys._iter_classes

    def find_own(*bases):
        return (each for each in find(*bases) if each.__module__.startswith("seqdata"))

    monkeypatch.setattr(config_keys, "_iter_classes", find_own)
