"""Memory without a name: seen by the processes that it is handed to, and gone with the last."""

import multiprocessing
import os

import pytest

from seqdata.storage.shared_memory import AnonymousMemory
from seqdata_testing.waiting import patient


def fill(memory):
    memory.mapping[:4] = b"here"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_that_it_is_handed_to_sees_the_same_bytes(method):
    memory = AnonymousMemory(4096)
    process = multiprocessing.get_context(method).Process(target=fill, args=(memory,))
    process.start()
    process.join(patient())
    assert process.exitcode == 0
    assert memory.mapping[:4] == b"here"
    memory.close()


def test_it_is_empty_and_of_its_size():
    memory = AnonymousMemory(10_000)
    assert memory.size == len(memory.mapping) == os.fstat(memory.fileno()).st_size == 10_000
    assert memory.mapping[:] == bytes(10_000)
    memory.close()


def test_the_mapping_stays_when_the_descriptor_is_closed():
    memory = AnonymousMemory(100)
    memory.mapping[:2] = b"ok"
    memory.close()
    memory.close()  # again, which changes nothing
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(memory.fileno())
    assert memory.mapping[:2] == b"ok"


def test_nothing_else_is_made_of_it():
    descriptor = AnonymousMemory(100).fileno()  # collected at once
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_memory_that_is_there_already_is_taken_over():
    first = AnonymousMemory(100)
    first.mapping[0] = 7
    second = AnonymousMemory(100, os.dup(first.fileno()))
    first.close()
    assert second.mapping[0] == 7
    second.close()
