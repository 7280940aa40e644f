"""Several machines: the scripts of `examples/many_machines`, and the weights of one process.

Two machines are two network namespaces, joined by a cable of their own; root may make them.
"""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from seqdata import write_store
from seqdata_testing.waiting import patient

pytestmark = [pytest.mark.nightly, pytest.mark.distributed]

SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "many_machines"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
COUNT = itertools.count()


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("machines") / "store"
    write_store(
        folder,
        [
            {"x": rng.normal(size=(int(rng.integers(2, 60)), 4)), "y": float(number % 2)}
            for number in range(150)
        ],
    )
    return str(folder)


def run(*commands: list[str], folder: Path, **environment: str) -> None:
    """Run programs side by side until all end."""
    given = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    started = []
    for number, command in enumerate(commands):
        with open(folder / f"{number}.log", "w") as log:
            started.append(
                subprocess.Popen(
                    command, cwd=folder, env=given, stdout=log, stderr=subprocess.STDOUT
                )
            )
    try:
        for number, process in enumerate(started):
            status = process.wait(patient(180))
            assert status == 0, (folder / f"{number}.log").read_text()[-4000:]
    finally:
        for process in started:
            process.kill()


def weights_of(path: Path) -> dict[str, torch.Tensor]:
    loaded = torch.load(path, weights_only=True)
    return loaded.get("state_dict", loaded)


def check_same(first: Path, second: Path) -> None:
    """The sums of floats may be in another order on other processors, and nothing else."""
    one, two = weights_of(first), weights_of(second)
    assert one.keys() == two.keys()
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0, atol=1e-12)


@pytest.fixture
def machines() -> Iterator[list[tuple[str, str, str]]]:
    """Two network namespaces: name, network device, address."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need `ip`, and root")
    mark = f"{os.getpid() % 10_000}{next(COUNT)}"
    made = [(f"seq{mark}{side}", f"v{mark}{side}", f"10.97.0.{side + 1}") for side in (0, 1)]

    def call(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=60)

    try:
        call("netns", "add", made[0][0])
        call("netns", "add", made[1][0])
        call("link", "add", made[0][1], "type", "veth", "peer", "name", made[1][1])
        for name, device, address in made:
            call("link", "set", device, "netns", name)
            call("-n", name, "addr", "add", f"{address}/24", "dev", device)
            call("-n", name, "link", "set", device, "up")
            call("-n", name, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr!r}")
    yield made
    for name, _, _ in made:
        subprocess.run(["ip", "netns", "del", name], check=False, timeout=60)


def test_two_machines_under_torchrun_train_as_one_process(tmp_path, store, machines):
    script = str(SCRIPTS / "train.py")
    run([sys.executable, script, store, str(tmp_path / "one.ckpt")], folder=tmp_path)
    commands = [
        [
            "ip", "netns", "exec", name, "env", f"GLOO_SOCKET_IFNAME={device}", *TORCHRUN,
            "--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(rank),
            "--master-addr", machines[0][2], "--master-port", "29501",
            script, store, str(tmp_path / "two.ckpt"),
        ]
        for rank, (name, device, _) in enumerate(machines)
    ]  # fmt: skip
    run(*commands, folder=tmp_path)
    check_same(tmp_path / "one.ckpt", tmp_path / "two.ckpt")


def test_shards_of_fsdp2_train_as_one_process(tmp_path, store):
    script = str(SCRIPTS / "fsdp2.py")
    run([sys.executable, script, store, str(tmp_path / "one.pt")], folder=tmp_path)
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", script, store]
    run([*command, str(tmp_path / "two.pt")], folder=tmp_path)
    check_same(tmp_path / "one.pt", tmp_path / "two.pt")


def test_two_workers_of_ray_train_as_one_process(tmp_path, store):
    pytest.importorskip("ray.train")
    run([sys.executable, str(SCRIPTS / "train.py"), store, "one.ckpt"], folder=tmp_path)
    command = [sys.executable, str(SCRIPTS / "ray_train.py"), store, "two.ckpt", "2"]
    run(command, folder=tmp_path, RAY_OVERRIDE_RESOURCES='{"CPU": 4}')
    check_same(tmp_path / "one.ckpt", tmp_path / "two.ckpt")
