"""What all tests share: how hypothesis searches, whose cores are whose, and where a test stands.

A test that shows a promise of reliability.md says so: ``@pytest.mark.shows("I4")``. How many
cases it has tried goes into the report (``--report-log``): what hypothesis drew and the test
passed, or what the test itself tells, ``record_property("cases", 12)``, or else one.
"""

import contextlib
import functools
import gc
import itertools
import os
import re
import shutil
import sys
import tempfile
import time
import types
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings

from seqdata_testing.waiting import patient
from tests.preloaded import python, serving, use_huge_pages

gc.disable()  # until all is imported and collected, which takes half of the time so
os.environ.setdefault("OMP_NUM_THREADS", "1")  # more processes than cores: one thread each

_FOLDERS = itertools.count()
_MEMORY = Path("/dev/shm")  # files in memory, where the system has them
_ROOM = 8 << 30  # bytes; the tests write one of them

# The same cases on every machine in CI; new ones every night (`make test-nightly`).
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "nightly", deadline=None, max_examples=2_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(  # a planted bug is found, not told by its smallest case
    "mutants", settings.get_profile("ci"), phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True, scope="session")
def _no_search_for_callbacks():
    """Spare every Trainer the reading of all packages' metadata, a tenth of a short run."""
    connector = sys.modules.get("lightning.pytorch.trainer.connectors.callback_connector")
    with pytest.MonkeyPatch.context() as patch:
        if connector is not None:
            patch.setattr(connector, "_load_external_callbacks", lambda group: [], raising=False)
        yield


@pytest.fixture(autouse=True, scope="module")
def _environment_of_its_own():
    """What a file leaves in the environment (a Dask cluster: numbers of threads) is put back."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def tmp_path(tmp_path_factory, request):
    """A folder of the test's own; pytest's takes 2 ms, for it looks at all that were made."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{name}-{next(_FOLDERS)}"
    path.mkdir(mode=0o700)
    yield path
    with contextlib.suppress(OSError):  # something is in it: the last three runs are kept
        path.rmdir()  # else a later run removes ten thousand of them


@pytest.fixture(autouse=True)
def _folder_of_its_own(tmp_path, monkeypatch):
    """What a test writes without saying where (a Trainer's checkpoints) lands in no one's way."""
    monkeypatch.chdir(tmp_path)


def pytest_configure(config):
    """Start what forks programs, once for all processes of tests, which are forked by it, too."""
    if hasattr(config, "workerinput"):
        sys.executable = config.workerinput["python"]  # what tests start is what they say
        _collect_in_another_order(config)
        return
    if "not nightly" in config.option.markexpr:
        _write_into_memory()
    served = contextlib.ExitStack()
    served.enter_context(serving())
    config.add_cleanup(served.close)
    tx = getattr(config.option, "tx", None) or []
    config.option.tx = [f"popen//python={python()}" if one == "popen" else one for one in tx]


def _write_into_memory():
    """Let tests write into memory where there is room for it; a disk takes a tenth longer."""
    with contextlib.suppress(OSError):  # no such folder
        known = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
        system = os.statvfs(_MEMORY)  # of a container, it often runs no programs
        room = min(int(known[1]) << 10 if known else 0, system.f_bavail * system.f_frsize)
        if room >= _ROOM and not system.f_flag & os.ST_NOEXEC and "TMPDIR" not in os.environ:
            folder = _MEMORY / f"seqdata-tests-{os.getuid()}"
            folder.mkdir(mode=0o700, exist_ok=True)
            os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """Remove what was written, unless a test failed: it may be in memory."""
    if not exitstatus and not hasattr(session.config, "workerinput"):
        shutil.rmtree(session.config._tmp_path_factory.getbasetemp(), ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure(config):
    """Collect garbage once at the end: pytest looks through what is left another two times."""
    if hasattr(config, "workerinput"):
        gc.collect()
        gc.freeze()


def _collect_in_another_order(config):
    """Let processes begin with other files each, so that in a new clone one compiles each file.

    Else all come to the same file at the same time, and each rewrites its assertions.
    """
    if config.args_source is not config.ArgsSource.TESTPATHS or config.option.ignore:
        return  # files that are named are not ignored
    files = sorted(str(path) for one in config.args for path in Path(one).rglob("test_*.py"))
    worker, workers = config.workerinput["workerid"], config.workerinput["workercount"]
    first = len(files) * int(worker.removeprefix("gw")) // workers
    config.args = [*files[first:], *files[:first]]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Name to a process of tests the Python that it is."""
    node.workerinput["python"] = sys.executable


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Collect garbage from here on, but seldom; what is there is not looked through again."""
    try:
        return (yield)
    finally:
        gc.set_threshold(100_000, 20, 20)
        gc.enable()
        gc.freeze()
        if hasattr(session.config, "workerinput"):
            use_huge_pages()  # tests fork workers


def pytest_collection_modifyitems(items):
    """Begin with the files that take longest, so that no process is left alone with one of them."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (-slow[item.path], str(item.path)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Let a test take longer where the machine is busy."""
    mark = item.get_closest_marker("timeout")
    seconds = mark.args[0] if mark else float(item.config.getoption("timeout") or 0)
    item.add_marker(pytest.mark.timeout(patient(seconds)), append=False)
    return (yield)


class Clock:
    """Seconds that pass only where a test lets them.

    Attributes:
        seconds: That have passed.
    """

    def __init__(self, monkeypatch):
        self.seconds = 0.0
        self._monkeypatch = monkeypatch

    def now(self):
        return self.seconds

    def rule(self, *modules, now=None):
        """Let modules that ask ``time`` be told of this clock."""
        now = now or self.now
        told = {**vars(time), "monotonic": now, "perf_counter": now}
        for module in modules:
            self._monkeypatch.setattr(f"{module}.time", types.SimpleNamespace(**told))


@pytest.fixture
def clock(monkeypatch):
    """A clock for what is measured: whoever is kept from running is not taken to be slow."""
    return Clock(monkeypatch)


@pytest.fixture(autouse=True)
def _shows(request, record_property):
    """Write into the report which promises a test shows, and with how many cases."""
    marks = list(request.node.iter_markers("shows"))
    if not marks:
        yield
        return
    passed, undo = counting(request.function)
    yield
    undo()
    for mark in marks:
        record_property("shows", " ".join([mark.kwargs.get("by", "plans"), *mark.args]))
    if "cases" not in dict(request.node.user_properties):
        record_property("cases", len(passed) if hasattr(request.function, "hypothesis") else 1)


def counting(test):
    """Make a test of hypothesis count the cases that it passes; gives them, and what undoes it."""
    passed = []
    handle = getattr(test, "hypothesis", None)
    if handle is None:
        return passed, lambda: None
    inner = handle.inner_test

    @functools.wraps(inner)
    def counted(*args, **kwargs):
        inner(*args, **kwargs)
        passed.append(None)

    handle.inner_test = counted
    return passed, functools.partial(setattr, handle, "inner_test", inner)
