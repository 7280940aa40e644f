"""One process of a mesh: ``on_mesh.py RANK WORLD FOLDER SPEC`` (JSON, see ``iter_runs``)."""

import json
import math
import os
import signal
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
import parallel_cases
from parallel_cases import iter_runs, train
from seqdata_models.parallel import LinkTimeouts, Mesh

from seqdata import PeerFailedError
from seqdata_testing.waiting import until


def break_it(model: torch.nn.Module, kind: str, folder: Path) -> None:
    """Make the last part fail where it is run the fifth time."""
    calls = []

    def fail(*_: Any) -> None:
        calls.append(1)
        if len(calls) < 5:
            return
        (folder / "broken").touch()
        if kind == "raise":
            raise ValueError("broken on purpose")
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        while kind != "spin":
            time.sleep(60)
        while True:  # computes for ever, a fifth of the time
            began = time.thread_time()
            while time.thread_time() < began + 0.02:
                pass
            time.sleep(0.08)

    model.embedding.register_forward_pre_hook(fail)
    model.head.register_forward_pre_hook(fail)


def end_in_turn(rank: int, mesh: Mesh, folder: Path, *, first: str) -> None:
    """End rank 0 while the other one still uses the mesh."""
    if rank == 0:
        (folder / "ends").touch()
        if first == "closes":
            mesh.close()
        return
    assert until((folder / "ends").exists)
    time.sleep(1 if first == "closes" else 5)  # in which a store that ended at once would be gone
    mesh.at("the last lines")
    mesh.close()


def play_scenes(rank: int, world: int, folder: Path) -> None:
    """Let processes miss each other in several ways; write what each is told."""
    timeouts = LinkTimeouts(stall=60, exit_grace=60)
    told = {}
    mesh = Mesh(world, timeouts=timeouts)
    warnings.showwarning = lambda message, *_: (folder / "warned").write_text(str(message))
    assert rank < 2 or until((folder / "warned").exists)
    mesh.barrier("the last one is late", patience=0 if rank == 0 else math.inf)
    try:
        with mesh.guard():  # each waits for the next one
            mesh.receive(torch.zeros(1), (rank + 1) % world, "nothing")
    except PeerFailedError as error:
        told["circle"] = str(error)
    mesh.close()
    mesh = Mesh(world, timeouts=timeouts)
    if rank == 2:
        mesh.close()  # before the others
    else:
        try:
            with mesh.guard():
                mesh.barrier("all")
        except PeerFailedError as error:
            told["closed"] = str(error)
    dist.barrier()
    mesh = Mesh(world, timeouts=timeouts)
    (folder / f"{rank}.json").write_text(json.dumps(told))
    if rank == 1:
        raise ValueError("broken between updates")
    mesh.barrier("the end")


def main() -> None:
    torch.set_num_threads(1)
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    spec = json.loads(sys.argv[4])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/ranks",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    if spec.get("scenes"):
        play_scenes(rank, world, folder)
        return
    results: dict[str, Any] = {}
    timeouts = LinkTimeouts(stall=spec.get("stall", 60), exit_grace=spec.get("grace", 2))
    mesh = Mesh(spec["size"], spec.get("data"), timeouts=timeouts)
    fault = spec.get("fault")
    if fault is not None and fault["rank"] == rank:
        make = parallel_cases.make_model

        def make_broken(case: str, dtype: torch.dtype) -> torch.nn.Module:
            model = make(case, dtype)
            break_it(model, fault["kind"], folder)
            return model

        parallel_cases.make_model = make_broken
    for run in iter_runs(spec):
        kind, case, dtype, lane_groups = run
        name = "/".join(map(str, run))
        results[name] = train(kind, case, getattr(torch, dtype), mesh, lane_groups=lane_groups)
    torch.save(results, folder / f"{rank}.pt")
    mesh.barrier("the end")
    (folder / f"{rank}.keys").write_text(str(mesh._link._store.num_keys()))
    if "first" in spec:
        end_in_turn(rank, mesh, folder, first=spec["first"])
        return
    mesh.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
