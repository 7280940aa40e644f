"""Programs of Python for tests, forked from one process that has imported torch and lightning.

Importing them takes four seconds of a processor, forking milliseconds. ``python()`` returns the
path of a program that takes ``-m MODULE``, ``-c CODE`` or a script as Python does; ``FOLDER`` next
to it holds the environment's commands in the same way. What is forked has also imported
``seqdata``, unless its paths name another one. Where a process must be fresh (which modules it
imports, how much memory it takes, another start method), a test starts ``sys.executable``.

Run as a program it serves, until the pipe is closed: ``python preloaded.py SOCKET PIPE``, which
are descriptors.
"""

import array
import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import multiprocessing.process
import multiprocessing.spawn
import os
import re
import selectors
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn

FOLDER = "SEQDATA_TESTS_PROGRAMS"
"""The environment variable that names the folder of programs."""

COMMANDS = ("seqdata", "torchrun")
_THIRD_PARTIES = (
    "lightning.pytorch",
    "pyarrow.parquet",
    "click",
    "rich.progress",
    "fsspec",
    "yaml",
    "jsonargparse",
    "pluggy",
    "torch.distributed.run",
)
_OURS = "seqdata"
_READ_AT_START = ("PYTHON", "OMP_", "MKL_", "OPENBLAS_")
_LENGTH = 8  # bytes of a request's length
_STREAMS = 3
_HUGE_PAGE = 2 << 20
_MADV_COLLAPSE = 25  # of Linux 6.1
_MAPPING = re.compile(
    r"^(\w+)-(\w+) rw-p \w+ 00:00 0 .*?^Size: +(\d+) kB$.*?^Anonymous: +(\d+) kB$", re.M | re.S
)
_PATHS = [one for one in sys.path[1:] if one not in os.environ.get("PYTHONPATH", "").split(":")]
_CLIENT = Path(__file__).with_name("preloaded_client.py")


def python() -> str:
    """Return the path of the program that is used in place of ``sys.executable``.

    It is ``sys.executable`` itself where nobody serves, as in tests that are run without ours.
    """
    return str(Path(os.environ[FOLDER], "python")) if FOLDER in os.environ else sys.executable


@contextlib.contextmanager
def serving() -> Iterator[None]:
    """Serve programs to this process and those that it starts, unless another process does."""
    if FOLDER in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="programs-") as folder:
        _make_programs(Path(folder))
        read, write = os.pipe()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(Path(folder, "socket")))
            listener.listen(64)
            handed = (listener.fileno(), read)
            server = subprocess.Popen(
                [sys.executable, __file__, *map(str, handed)],
                pass_fds=handed,
                stdin=subprocess.PIPE,  # cannot seek: what is forked has pipes mostly
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        os.close(read)
        os.environ[FOLDER] = folder
        try:
            yield
        finally:
            os.environ.pop(FOLDER, None)
            os.close(write)
            _, told = server.communicate(timeout=60)
            if server.returncode:
                raise RuntimeError(told.decode())


def _make_programs(folder: Path) -> None:
    """Write the programs, which start faster than any that imports ``site``."""
    known = {
        "socket": str(folder / "socket"),
        "python": sys.executable,
        "read_at_start": _READ_AT_START,
        "known": _read_at_start(os.environ),
        "length": _LENGTH,
    }
    told = json.dumps(known).replace("\\", "\\\\")
    text = _CLIENT.read_text("utf-8").replace('"""{}"""', f'"""{told}"""')
    for name in ("python", *COMMANDS):
        path = folder / name
        path.write_text(f"#!{sys.executable} -IS\n{text}", "utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    known = {name: text for name, text in environment.items() if name.startswith(_READ_AT_START)}
    known.pop("PYTHONPATH", None)
    return known


class _Server:
    """Forks a process per connection, and tells the other end how it ended.

    Args:
        listener: The descriptor of a socket that listens.
        pipe: A descriptor; the other end is closed when nobody needs the server any more.
    """

    def __init__(self, listener: int, pipe: int) -> None:
        self._listener = socket.socket(fileno=listener)
        self._pipe = pipe
        self._connections: dict[int, socket.socket] = {}
        self._leaders: set[int] = set()  # of a session each
        self._ended, self._ends = socket.socketpair()
        for one in (self._ended, self._ends):
            one.setblocking(False)

    def run(self) -> Callable[[], None] | None:
        """Serve; return in each process that is forked, with what it must run."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._ends.fileno(), warn_on_full_buffer=False)
        with selectors.DefaultSelector() as waiting:
            for one in (self._listener, self._ended, self._pipe):
                waiting.register(one, selectors.EVENT_READ)
            while True:
                for key, _ in waiting.select():  # ends: with the pipe
                    if key.fileobj is self._pipe or key.fd == self._pipe:
                        self._kill(*self._connections)
                        return None
                    if key.fileobj is self._listener:
                        started = self._start(waiting)
                        if started is not None:
                            return started
                    elif key.fileobj is self._ended:
                        self._ended.recv(4096)
                        self._tell(waiting)
                    else:  # the other end was killed
                        waiting.unregister(key.fileobj)
                        self._kill(key.data)

    def _start(self, waiting: selectors.BaseSelector) -> Callable[[], None] | None:
        """Fork what is asked for; return in the new process what it must run."""
        connection, _ = self._listener.accept()
        try:
            request, streams = _receive(connection)
        except (OSError, ValueError):  # killed before it had asked
            connection.close()
            return None
        _import_third_parties()
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            for one in (connection, self._listener, self._ended, self._ends):
                one.close()
            for one in self._connections.values():
                one.close()
            os.close(self._pipe)
            if request["leads"]:
                os.setsid()
            return _become(request, streams)
        for one in streams:
            os.close(one)
        self._connections[pid] = connection
        if request["leads"]:
            self._leaders.add(pid)
        with contextlib.suppress(OSError):
            connection.sendall(f"{pid}\n".encode())
        waiting.register(connection, selectors.EVENT_READ, pid)
        return None

    def _tell(self, waiting: selectors.BaseSelector) -> None:
        """Tell who asked for them how processes ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                connection = self._connections.pop(pid)
                self._leaders.discard(pid)
                with contextlib.suppress(KeyError):
                    waiting.unregister(connection)
                with contextlib.suppress(OSError):
                    connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
                connection.close()

    def _kill(self, *pids: int) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            if pid in self._leaders:  # who kills it may mean all of its group
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a request and the three streams that came with it."""
    size = array.array("i").itemsize * _STREAMS
    head, control, _, _ = connection.recvmsg(_LENGTH, socket.CMSG_SPACE(size))
    streams = array.array("i")
    for _, _, data in control:
        streams.frombytes(data[: len(data) - len(data) % streams.itemsize])
    body, most = b"", int(head)
    while len(body) < most:
        more = connection.recv(most - len(body))
        if not more:
            raise ValueError("the request ends early")
        body += more
    return json.loads(body), list(streams)


@functools.cache
def _import_third_parties() -> None:
    """Import what takes long, and ours, once something is asked for."""
    gc.disable()  # half of the time
    for name in _THIRD_PARTIES:
        with contextlib.suppress(ImportError):  # some are optional
            importlib.import_module(name)
    ours = importlib.import_module(_OURS)
    for name in set(ours.__all__) - {"__version__"}:
        getattr(ours, name)  # imports the module that defines it
    gc.enable()
    gc.freeze()
    use_huge_pages()


def use_huge_pages() -> None:
    """Move the memory of this process to pages of 2 MiB: forking it takes a fifth of the time so.

    Where the system does not do that when it is asked, nothing changes.
    """
    path = Path("/proc/self/smaps")
    if not path.exists():
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for begin, end, size, used in _MAPPING.findall(path.read_text()):
        if 2 * int(used) < int(size):
            continue  # what is mapped but not used would become memory
        first = -(-int(begin, 16) // _HUGE_PAGE) * _HUGE_PAGE
        for page in range(first, int(end, 16) - _HUGE_PAGE + 1, _HUGE_PAGE):
            advise(page, _HUGE_PAGE, _MADV_COLLAPSE)


def _become(request: dict[str, Any], streams: list[int]) -> Callable[[], None]:
    """Make this process what was asked for; return what it must run."""
    import numpy as np

    np.random.seed()  # else all that is forked draws alike
    for number, one in enumerate(streams):
        os.dup2(one, number)
        os.close(one)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    multiprocessing.process.ORIGINAL_DIR = request["folder"]
    multiprocessing.process.current_process().authkey = os.urandom(32)
    sys.executable = request["program"]  # what this process starts is forked, too
    words = request["words"]
    if words[0] == "-u":
        words = words[1:]
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)
    paths = request["environment"].get("PYTHONPATH", "")
    sys.path[1:] = [*filter(None, paths.split(os.pathsep)), *_PATHS]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    in_script = words[0] not in ("-m", "-c")
    _forget_ours_if_others(os.path.dirname(os.path.realpath(words[0])) if in_script else ".")
    if words[0] == "-m":
        sys.path[0] = request["folder"]
        sys.argv = ["-m", *words[2:]]
        return functools.partial(_run_module, words[1])
    if words[0] == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *words[2:]]
        return functools.partial(_run, words[1], "<string>", main)
    sys.path[0] = os.path.dirname(os.path.realpath(words[0]))
    sys.argv = words
    main.__file__ = words[0]
    main.__loader__ = SourceFileLoader("__main__", words[0])
    main.__dict__["__cached__"] = None
    return functools.partial(_run, Path(words[0]).read_bytes(), words[0], main)


def _forget_ours_if_others(first: str) -> None:
    """Let a process import ours from its own paths, of which the first is given.

    What is installed editable is found by no path; that is what this process has imported.
    """
    for folder in (first, *sys.path[1:]):
        file = os.path.join(folder, _OURS, "__init__.py")
        if os.path.exists(file):
            if os.path.samefile(file, sys.modules[_OURS].__file__):
                return
            break
    else:
        return
    for name in [one for one in sys.modules if one.split(".")[0] == _OURS]:
        del sys.modules[name]


def _run_to_end(run: Callable[[], None]) -> NoReturn:
    """Run, and end as Python does, but for taking down modules one by one."""
    status = 0
    try:
        run()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        status = 1
        sys.last_type, sys.last_value = type(error), error  # as Python does
        sys.last_traceback = error.__traceback__.tb_next.tb_next
        sys.excepthook(type(error), error, sys.last_traceback)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            _flush()
            os.kill(os.getpid(), signal.SIGINT)
    threading._shutdown()
    atexit._run_exitfuncs()
    _flush()
    os._exit(status & 0xFF)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _run(code: str | bytes, name: str, main: types.ModuleType) -> None:
    exec(compile(code, name, "exec", dont_inherit=True), vars(main))


def _run_module(name: str) -> None:
    import runpy

    runpy._run_module_as_main(name)  # as Python's -m does


if __name__ == "__main__":
    _to_run = _Server(*map(int, sys.argv[1:])).run()
    if _to_run is not None:
        _run_to_end(_to_run)
