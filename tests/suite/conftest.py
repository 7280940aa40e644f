"""Fixtures of the tests of DataModules by kind of work."""

import pytest

from seqdata.suite import config_keys


@pytest.fixture
def without_other_classes(monkeypatch):
    """Hide the classes that other tests of the process imported from the lists of messages."""
    find = config_keys._iter_classes

    def find_installed(*bases):
        for each in find(*bases):
            if not each.__module__.startswith(("tests", "mine", "lightning.pytorch.demos")):
                yield each

    monkeypatch.setattr(config_keys, "_iter_classes", find_installed)
