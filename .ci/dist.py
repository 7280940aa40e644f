"""Build sdists and wheels of all packages, and try the wheels in an environment of their own.

An sdist is unpacked elsewhere and its wheel is built there, without the registry: so it holds all
that it needs. Usage: dist.py FOLDER PACKAGE...
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

WAV = (
    "import wave; f = wave.open('a.wav', 'wb'); f.setparams((1, 2, 8000, 0, 'NONE', '')); "
    "f.writeframes(bytes(200)); f.close(); "
)
CHECKS = {
    "lightning_seqdata": (
        "import seqdata.kernel._fill as kernel; print(kernel.__file__)",
        "import seqdata; print(len([getattr(seqdata, name) for name in seqdata.__all__]), 'names')",
        "open('x.bin', 'wb').write(bytes(64)); import seqdata; print(seqdata.open_store('x.bin'))",
        "from seqdata.datasets import load_japanese_vowels as load; print('data', load('test'))",
    ),
    "seqdata_models": (
        "import torch; from seqdata import Bucketed, Loader; from seqdata_models import ByteLM; "
        "(batch,) = Loader([[1, 2, 3], [4, 5]], Bucketed(2), shift=1, dtype=None); "
        "print(ByteLM(4, 5, x='x').nll(batch).shape)",
    ),
    "seqdata_testing": (
        "import seqdata_testing.plans as plans; print(plans.check_policy.__name__)",
    ),
    "seqdata_webdataset": (
        "import io, tarfile; f = tarfile.open('a.tar', 'w'); i = tarfile.TarInfo('a.bin'); "
        "i.size = 3; f.addfile(i, io.BytesIO(b'abc')); f.close(); from seqdata import open_store; "
        "print(len(open_store('a.tar', index='build', schema={'bin': 'uint8'})))",
    ),
    "seqdata_audio": (
        WAV + "import sys; from seqdata import open_store; store = open_store('a.wav'); "
        "print(store.lengths, 'soundfile' in sys.modules)",
    ),
    "seqdata_text": (
        "open('t.txt', 'w').write('hi'); import seqdata; from seqdata_text import Text; "
        "print(seqdata.open_store('t.txt', backend=Text('bytes', eos=True))[0]['tokens'])",
    ),
    "seqdata_tokens": (
        "import numpy as np; header = np.zeros(256, np.int32); header[:3] = 20240520, 1, 4; "
        "open('t.bin', 'wb').write(header.tobytes() + np.arange(4, dtype=np.uint16).tobytes()); "
        "import seqdata; print(seqdata.open_store('t.bin', backend='tokens')[0])",
    ),
    "seqdata_biosignals": (
        "open('r.hea', 'w').write('r 1 250 4\\nr.dat 16\\n'); "
        "open('r.dat', 'wb').write(bytes(8)); "
        "import seqdata; print(seqdata.open_store('r.hea').lengths)",
    ),
    "seqdata_arrays": (
        "import h5py, numpy as np; f = h5py.File('a.h5', 'w'); f['x'] = np.zeros((5, 2)); "
        "f.close(); import seqdata; print(seqdata.open_store('a.h5').lengths)",
    ),
    "seqdata_frames": (
        "import pyarrow as pa; from pyarrow import parquet; import seqdata; "
        "parquet.write_table(pa.table({'g': ['a', 'b', 'a'], 'n': [2, 1, 1]}), 't.parquet'); "
        "print(seqdata.open_store('t.parquet', group='g', order='n'))",
    ),
}
"""Distribution -> programs that must run with its wheel."""
PLACES = (
    "import importlib, sys; from pathlib import Path; "
    "found = [Path(importlib.import_module(name).__file__) for name in sys.argv[1:]]; "
    "sys.exit([str(p) for p in found if Path(sys.prefix) not in p.parents] or 0)"
)
"""Program that fails if a package is imported from elsewhere than its wheel."""


def main(folder: str, *packages: str) -> None:
    dist = Path(folder).resolve()
    for package in packages:
        build("--sdist", dist, Path(package))
    sdists = sorted(dist.glob("*.tar.gz"))
    if len(sdists) != len(packages):
        raise SystemExit(f"dist: {len(packages)} packages, but {len(sdists)} sdists in {folder!r}")
    with tempfile.TemporaryDirectory() as spot:
        for sdist in sdists:
            with tarfile.open(sdist) as archive:
                archive.extractall(spot, filter="data")
            build("--wheel", dist, Path(spot, sdist.name.removesuffix(".tar.gz")))
    wheels = sorted(dist.glob("*.whl"))
    check_content(wheels)
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, [*sdists, *wheels]))
    try_wheels(wheels)
    print("dist: ", *(path.name for path in [*sdists, *wheels]), sep="\n  ")


def build(kind: str, dist: Path, package: Path) -> None:
    """Build a package, with what is installed here and nothing from the registry."""
    command = [sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", str(dist)]
    done = subprocess.run(
        [*command, str(package)], timeout=600, capture_output=True, text=True,
        env={**os.environ, "PIP_NO_INDEX": "1"},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"dist: {' '.join(command)} {package}\n{done.stdout}{done.stderr}")


def check_content(wheels: list[Path]) -> None:
    """Raise if a wheel has no types, tests, or no check here."""
    for wheel in wheels:
        names = zipfile.ZipFile(wheel).namelist()
        name = wheel.name.partition("-")[0]
        if name not in CHECKS:
            raise SystemExit(f"dist: {wheel.name} has no check in CHECKS; write one")
        if not any(each.endswith("/py.typed") for each in names):
            raise SystemExit(f"dist: {wheel.name} has no py.typed")
        strays = [each for each in names if each.startswith(("tests/", "docs/", "benchmarks/"))]
        if strays:
            raise SystemExit(f"dist: {wheel.name} has {strays[0]}, which is no part of the package")


def try_wheels(wheels: list[Path]) -> None:
    """Install wheels in a new environment, and run the program of each."""
    quiet = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as spot:
        run(sys.executable, "-m", "venv", spot)
        python, room = str(Path(spot, "bin", "python")), Path(spot, "room")
        room.mkdir()
        run(python, "-m", "pip", "install", "-q", "--no-compile", *map(str, wheels))
        run(python, "-m", "pip", "check", stdout=subprocess.DEVNULL)
        names = [wheel.name.partition("-")[0] for wheel in wheels]
        imports = [name.removeprefix("lightning_") for name in names]
        run(python, "-c", PLACES, *imports, cwd=room, env=quiet)
        for name in names:
            for check in CHECKS[name]:
                print(f"dist: {name}: ", end="", flush=True)
                run(python, "-c", check, cwd=room, env=quiet)
        faults = (python, "-m", "seqdata_testing.faults", "--help")
        for command in ((str(Path(spot, "bin", "seqdata")), "plugins"), faults):
            run(*command, cwd=room, env=quiet, stdout=subprocess.DEVNULL)


def run(*command: str, **options: object) -> None:
    """Run a program, which must succeed."""
    subprocess.run(command, check=True, timeout=1800, **options)


if __name__ == "__main__":
    main(*sys.argv[1:])
