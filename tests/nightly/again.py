"""A plugin of pytest that leaves out the tests whose names stand in a file, one a line.

``--deselect`` goes by how a name begins, and so would leave out more. Usage::

    LEFT_OUT=FILE python -m pytest -p tests.nightly.again …
"""

import os
from pathlib import Path


def pytest_collection_modifyitems(config, items):
    """Leave out."""
    names = set(Path(os.environ["LEFT_OUT"]).read_text("utf-8").splitlines())
    left_out = [item for item in items if item.nodeid in names]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid not in names]
