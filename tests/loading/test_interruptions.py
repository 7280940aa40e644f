"""What interrupts ``next()`` from outside takes no batch: the next call returns it."""

import functools
import os
import signal
import threading

import pytest

from seqdata import TBPTT, Fixed, Loader, Mix, SequenceDataModule, Zip
from seqdata.errors import find_interruption
from tests.loading.workers.parts import ITEMS, STORE

BATCHES = ITEMS // 4
AT = 5  # the batch
WAYS = {
    "plain": {"prefetch": 0},
    "ahead": {"prefetch": 2},
    "workers": {"prefetch": 0, "num_workers": 1, "start_method": "fork"},
    "workers, ahead": {"prefetch": 2, "num_workers": 1, "start_method": "fork"},
}


class Alarm(Exception):
    """Raised by a handler."""


def raises(error):
    def handler(*_):
        raise error

    return handler


class Interrupting:
    """A transform that sends this process a signal once: at a sequence, or at the first that comes.

    With a thread or workers this process must be waiting for it: for the first batch.
    """

    def __init__(self, folder, number=None, wrap=None):
        self.sent, self.number, self.wrap = folder / "sent", number, wrap
        self.pid = os.getpid()

    def __call__(self, sequence, rng):
        number = int(sequence["x"][0]) // 100
        if self.number in (None, number) and not self.sent.exists():
            self.sent.touch()
            try:
                self._send()
            except Alarm as error:
                raise (self.wrap or Alarm)("of the transform") from error
        return sequence

    def _send(self):
        if os.getpid() == self.pid:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
        else:
            os.kill(self.pid, signal.SIGALRM)


@pytest.fixture
def alarm():
    """Return a function that sets the handler of the signal, which is taken back."""
    before = signal.getsignal(signal.SIGALRM)
    yield functools.partial(signal.signal, signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


def play(items, describe=lambda batch: batch.number, error=Alarm, on_interruption=list):
    """Return what a loop receives that asks again, and how often it was interrupted."""
    came, interrupted = [], 0
    while True:
        try:
            batch = next(items)
        except error:
            interrupted += 1
            on_interruption()
            continue
        except StopIteration:
            return came, interrupted
        came.append(describe(batch))


def make(transform, **options):
    return Loader(STORE, Fixed(4, shuffle=False), transform=transform, **options)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [Alarm, TimeoutError, KeyboardInterrupt])
def test_an_interrupted_batch_is_returned_by_the_next_call(way, error, alarm, tmp_path):
    alarm(raises(error))
    loader, states = make(Interrupting(tmp_path), **WAYS[way]), []
    loader.load_state_dict({**loader.state_dict(), "position": AT})
    came, interrupted = play(
        iter(loader), error=error, on_interruption=lambda: states.append(loader.state_dict())
    )
    loader.shutdown()
    assert interrupted == 1
    assert came == list(range(AT, BATCHES))
    assert [state["position"] for state in states] == [AT]


class Handlers:
    """Handlers of each form."""

    def method(self, number, frame):
        raise Alarm

    def __call__(self, number, frame):
        raise Alarm


def deletes_its_arguments(number, frame):
    del number, frame
    raise Alarm


def uninstalls_itself(number, frame):
    signal.signal(number, signal.SIG_DFL)
    raise Alarm


def wrapped(number, frame):
    try:
        raise OSError("of the handler")
    except OSError as error:
        raise Alarm from error


HANDLERS = {
    "method": Handlers().method,
    "object": Handlers(),
    "partial": functools.partial(lambda extra, *_: raises(Alarm)(), "extra"),
    "deletes": deletes_its_arguments,
    "uninstalls": uninstalls_itself,
    "with a cause": wrapped,
}


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("wrap", [None, ValueError, OSError])
def test_a_handler_of_any_form_interrupts_and_its_own_exception_is_raised(
    handler, wrap, alarm, tmp_path
):
    alarm(HANDLERS[handler])
    loader = make(Interrupting(tmp_path, 4 * AT + 1, wrap), prefetch=0)
    assert play(iter(loader)) == (list(range(BATCHES)), 1)


@pytest.mark.parametrize("on_error", ["mask", "replace"])
@pytest.mark.parametrize("way", WAYS)
def test_an_interruption_is_no_error_of_a_sequence(on_error, way, alarm, tmp_path):
    alarm(raises(Alarm))
    loader = make(Interrupting(tmp_path), on_error=on_error, **WAYS[way])
    weights = play(iter(loader), lambda batch: float(batch.weight.sum()))
    loader.shutdown()
    assert weights == ([4.0] * BATCHES, 1)
    assert loader.errors == []


def test_an_error_of_the_data_is_one_also_where_an_interruption_is_handled(alarm, tmp_path):
    interrupting = Interrupting(tmp_path, 4 * AT)

    def transform(sequence, rng):
        if int(sequence["x"][0]) // 100 == 4 * AT + 4:
            raise ValueError("of the data")
        return interrupting(sequence, rng)

    alarm(raises(Alarm))
    items = iter(make(transform, prefetch=0))
    assert [next(items).number for _ in range(AT)] == list(range(AT))
    try:
        next(items)
    except Alarm:
        assert next(items).number == AT
        with pytest.raises(ValueError, match="of the data"):
            next(items)
        assert next(items).number == AT + 2


def make_zip(**options):
    policy = Zip({"a": Fixed(4, shuffle=False), "b": Fixed(4, shuffle=False)})
    return Loader({"a": STORE, "b": STORE}, policy, **options)


def make_mix(**options):
    return Loader({"a": STORE, "b": STORE}, Mix({"a": 1, "b": 1}, Fixed(4)), seed=3, **options)


def make_lanes(**options):
    return Loader(STORE, TBPTT(4, chunk=2), **options)


@pytest.mark.parametrize("make", [make_zip, make_mix, make_lanes])
@pytest.mark.parametrize(("way", "number"), [*((way, None) for way in WAYS), ("plain", 4 * AT)])
def test_every_engine_goes_on_with_the_interrupted_batch(make, way, number, alarm, tmp_path):
    def describe(batch):
        batch = batch["b"] if isinstance(batch, dict) else batch
        return batch.number, batch.ids.tolist(), batch["x"].tolist()

    def check():
        assert loader.state_dict()["position"] == len(came)

    alarm(raises(Alarm))
    expected = [describe(batch) for batch in make(prefetch=0)]
    loader = make(transform=Interrupting(tmp_path, number), **WAYS[way])
    came = []
    _, interrupted = play(iter(loader), lambda batch: came.append(describe(batch)), Alarm, check)
    loader.shutdown()
    assert interrupted == 1
    assert came == expected


@pytest.mark.parametrize("kind", ["train", "val"])
@pytest.mark.parametrize("way", WAYS)
def test_loaders_of_a_datamodule_go_on_with_it(kind, way, alarm, tmp_path):
    alarm(raises(Alarm))
    data = SequenceDataModule(
        **{kind: STORE}, batching=Fixed(4, shuffle=False), transform=Interrupting(tmp_path),
        **WAYS[way],
    )  # fmt: skip
    loader = data.train_dataloader() if kind == "train" else data.val_dataloader()
    came = play(iter(loader), lambda batch: (batch.epoch, len(batch)))
    loader.shutdown()
    assert came == ([(0, 4)] * BATCHES, 1)


def test_workers_whose_answers_a_handler_has_cut_off_are_not_used_again(alarm, tmp_path):
    alarm(raises(TimeoutError))
    loader, pids = make(Interrupting(tmp_path), **WAYS["workers"]), []
    on_interruption = lambda: pids.append(loader.worker_pids)  # noqa: E731
    came, _ = play(iter(loader), error=TimeoutError, on_interruption=on_interruption)
    loader.shutdown()
    assert came == list(range(BATCHES))
    assert pids == [[]]


def test_an_error_of_a_function_like_a_handler_is_none_without_its_callers_frame():
    def work(number, frame):
        raise ValueError(f"{number} {frame}")

    with pytest.raises(ValueError, match="1 None") as caught:
        work(1, None)
    assert find_interruption(caught.value) is None
