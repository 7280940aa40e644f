"""What is forked in place of Python ends, speaks and is stopped as Python is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seqdata_testing.waiting import patient, until
from tests.loading.workers.parts import lives
from tests.preloaded import FOLDER, python


def run(*words: str, program: str = "", **more) -> subprocess.CompletedProcess:
    return subprocess.run(
        [program or python(), *words], capture_output=True, text=True, timeout=patient(), **more
    )


@pytest.mark.parametrize(
    "code",
    [
        "pass",
        "print(input()); import sys; print(sys.argv, __name__, file=sys.stderr)",
        "raise SystemExit(3)",
        "raise SystemExit('why')",
        "import atexit; atexit.register(print, 'end'); print('begin')",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import click, sys; click.open_file('-', 'w').write('told')",
    ],
)
def test_it_does_what_python_does(code):
    found, expected = (
        run("-c", code, "a", "b", program=program, input="told\n")
        for program in (python(), sys.executable)
    )
    for part in ("returncode", "stdout", "stderr"):
        assert getattr(found, part) == getattr(expected, part)


def test_what_it_runs_knows_its_script_its_folder_and_its_surroundings(tmp_path):
    (tmp_path / "helping.py").write_text("told = 'helped'\n")
    script = tmp_path / "script.py"
    script.write_text("import helping, os, sys; print(helping.told, __file__, os.getcwd())")
    known = {**os.environ, "PYTHONPATH": "somewhere"}
    found, expected = (
        run(str(script), program=program, cwd="/", env=known)
        for program in (python(), sys.executable)
    )
    assert found.stdout == expected.stdout == f"helped {script} /\n"


def test_ours_is_imported_before_unless_the_paths_name_another_one(tmp_path):
    code = "import sys; print('seqdata.loading.loader' in sys.modules, 'lightning' in sys.modules)"
    assert run("-c", code).stdout == "True True\n"
    (tmp_path / "seqdata").mkdir()
    (tmp_path / "seqdata" / "__init__.py").write_text("")
    assert run("-c", code, cwd=tmp_path).stdout == "False True\n"
    (tmp_path / "script.py").write_text(code)
    assert run(str(tmp_path / "script.py")).stdout == "False True\n"
    known = {**os.environ, "PYTHONPATH": str(tmp_path)}
    code = "import seqdata; print(seqdata.__file__)"
    other = f"{tmp_path / 'seqdata' / '__init__.py'}\n"
    assert run("-c", code, env=known, cwd=tmp_path.parent).stdout == other


def test_an_error_is_told():
    done = run("-c", "raise ValueError('why')")
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: why\n")


def test_another_interpreter_is_started_where_another_is_asked_for():
    code = "import sys; print('lightning' in sys.modules, sys.flags.optimize)"
    assert run("-O", "-c", code).stdout == "False 1\n"
    assert run("-c", code, env={**os.environ, "PYTHONOPTIMIZE": "2"}).stdout == "False 2\n"
    assert run("-", input=code).stdout == "False 0\n"


def test_who_has_a_session_of_its_own_has_one_when_forked_too():
    """As under torchrun, which signals the group of each process."""
    code = "import os, sys; print(os.getsid(0) == os.getpid(), 'lightning' in sys.modules)"
    assert run("-c", code, start_new_session=True).stdout == "True True\n"
    assert run("-c", code).stdout == "False True\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_a_group_reaches_all_that_were_forked_for_it(number):
    code = "import os, time; print(os.getpid(), os.fork(), flush=True); time.sleep(600)"
    command = [python(), "-c", code]
    with subprocess.Popen(command, stdout=-1, text=True, start_new_session=True) as started:
        try:
            pids = {int(word) for _ in range(2) for word in started.stdout.readline().split()}
            os.killpg(started.pid, number)
            assert started.wait(timeout=patient()) == -number
        finally:
            started.kill()
    assert until(lambda: not any(map(lives, pids - {0})))


def test_commands_of_the_environment_are_forked(tmp_path):
    program = Path(os.environ[FOLDER], "seqdata")
    assert run("--version", program=str(program)).stdout.startswith("seqdata, version ")


@pytest.fixture
def heard():
    """Let what is started hear SIGINT, also where a shell runs the tests behind it (``&``)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.usefixtures("heard")
def test_a_signal_ends_it_and_what_was_forked(number):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with subprocess.Popen([python(), "-c", code], stdout=-1, stderr=-1, text=True) as started:
        try:
            pid = int(started.stdout.readline())
            assert pid != started.pid
            started.send_signal(number)
            assert started.wait(timeout=patient()) == -number
        finally:
            started.kill()
    assert until(lambda: not Path(f"/proc/{pid}").exists())
