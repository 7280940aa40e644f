"""The program that stands for Python: asks ``preloaded.py`` to fork one, and ends as that does."""

import array
import json
import os
import signal
import socket
import sys

SERVER = json.loads("""{}""")  # written by preloaded.py


def main():
    """Ask, pass signals on, and end with the same status."""
    name = os.path.basename(sys.argv[0])
    words = sys.argv[1:]
    if name != "python":
        words = [os.path.join(os.path.dirname(SERVER["python"]), name), *words]
    told = {
        one: text
        for one, text in os.environ.items()
        if one.startswith(tuple(SERVER["read_at_start"]))
    }
    told.pop("PYTHONPATH", None)
    kind = words[1:2] if words[:1] == ["-u"] else words[:1]
    is_other = told != SERVER["known"] or not kind
    if is_other or (kind[0][0] == "-" and kind[0] not in ("-m", "-c")):
        os.execv(
            SERVER["python"], [SERVER["python"], *words]
        )  # another Python than the one that is there
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(SERVER["socket"])
    request = {
        "words": words,
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "program": os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "python"),
        "leads": os.getsid(0) == os.getpid(),  # a session of its own
    }
    body = json.dumps(request).encode()
    streams = array.array("i", [0, 1, 2])
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)
    passed_on = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    connection.sendmsg([str(len(body)).zfill(SERVER["length"]).encode()], [rights])
    connection.sendall(body)
    answers = connection.makefile()
    pid = int(answers.readline())

    def pass_on(number, frame):
        try:
            (os.killpg if request["leads"] else os.kill)(pid, number)
        except ProcessLookupError:  # it has no group of its own yet
            os.kill(pid, number)

    for number in passed_on:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
    status = int(answers.readline() or 1)
    if status < 0:
        if -status in passed_on:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
