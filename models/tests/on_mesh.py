"""One process of a mesh: ``on_mesh.py RANK WORLD FOLDER SPEC``; SPEC is JSON, what to train."""

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
from parallel_cases import CASES, train
from seqdata_models.parallel import LinkTimeouts, Mesh


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
    results: dict[str, Any] = {}
    mesh = Mesh(spec["size"], spec.get("data"), timeouts=LinkTimeouts(stall=spec.get("stall", 60)))
    for kind in spec["kinds"]:
        for case in spec.get("cases", CASES):
            for dtype in spec.get("dtypes", ["float64", "float32"]):
                results[f"{kind}/{case}/{dtype}"] = train(kind, case, getattr(torch, dtype), mesh)
    torch.save(results, folder / f"{rank}.pt")
    mesh.barrier("the end")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
