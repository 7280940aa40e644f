import subprocess
import sys
import threading

import pytest

from seqdata.loading.prefetch import start_thread
from seqdata_testing.waiting import patient

LIMITED = """
import sys, threading
from seqdata.errors import ConfigError
from seqdata.loading.prefetch import start_thread
from seqdata_testing.faults import limits

held = limits.few_mappings(int(sys.argv[1]))
try:
    thread = threading.Thread(target=print, args=("ran",))
    start_thread(thread)
    thread.join(timeout=patient())
except ConfigError as error:
    sys.stdout.write(str(error))
"""


@pytest.mark.parametrize("more", [1, 4, 64])
def test_without_memory_a_thread_is_an_error_and_no_wait(more):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(more)],
        capture_output=True, text=True, timeout=patient(), check=False,
    )  # fmt: skip
    if more == 64:
        assert done.stdout == "ran\n", done.stderr
    else:
        text = (
            "loader: cannot start the prefetch thread: out of memory (Cannot allocate "
            "memory). Raise "
        )
        assert done.stdout.startswith(f"{text}`sysctl vm.max_map_count`"), done.stderr
        assert done.stdout.endswith("or pass prefetch=0.")


def test_more_threads_than_may_be_are_an_error():
    class Refused(threading.Thread):
        def start(self):
            raise RuntimeError("can't start new thread")

    with pytest.raises(
        Exception, match=r"cannot start the prefetch thread \(can't .*\). Raise `ul"
    ):
        start_thread(Refused())


def test_a_thread_that_runs_cannot_be_started_again():
    thread = threading.Thread(target=int)
    start_thread(thread)
    thread.join(timeout=patient())
    with pytest.raises(RuntimeError, match="only be started once"):
        start_thread(thread)
