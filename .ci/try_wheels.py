"""Install the wheels of a folder in an environment of their own, and import what they hold."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKS = (
    "import seqdata.kernel._fill as kernel; print('kernel', kernel.__file__)",
    "import seqdata; print(len([getattr(seqdata, name) for name in seqdata.__all__]), 'names')",
    "import seqdata_models; print('models', seqdata_models.__name__)",
    "import seqdata_testing.plans as plans; print('kit', plans.check_policy.__name__)",
    "from seqdata import PluginHost; print(PluginHost.discover().backend('webdataset'))",
    "open('x.bin', 'wb').write(bytes(64)); import seqdata; print(seqdata.open_store('x.bin'))",
    "import sys, wave; f = wave.open('a.wav', 'wb'); f.setparams((1, 2, 8000, 0, 'NONE', '')); "
    "f.writeframes(bytes(200)); f.close(); from seqdata import open_store; "
    "store = open_store('a.wav'); print('audio', store.lengths, 'soundfile' in sys.modules)",
    "open('r.hea', 'w').write('r 1 250 4\\nr.dat 16\\n'); open('r.dat', 'wb').write(bytes(8)); "
    "import seqdata; print('biosignals', seqdata.open_store('r.hea').lengths)",
)


def main(folder: str) -> None:
    wheels = [str(path.resolve()) for path in sorted(Path(folder).glob("*.whl"))]
    if not wheels:
        raise SystemExit(f"dist: no wheel in {folder!r}; build them first")
    quiet = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as spot:
        subprocess.run([sys.executable, "-m", "venv", spot], check=True, timeout=120)
        python = str(Path(spot, "bin", "python"))
        install = [python, "-m", "pip", "install", "-q", *wheels]
        subprocess.run(install, check=True, timeout=1800)
        for check in CHECKS:
            subprocess.run([python, "-c", check], check=True, timeout=120, cwd=spot, env=quiet)
        faults = [python, "-m", "seqdata_testing.faults", "--help"]
        for command in ([str(Path(spot, "bin", "seqdata")), "--help"], faults):
            subprocess.run(command, check=True, timeout=120, cwd=spot, stdout=subprocess.DEVNULL)
    print("dist: ", *(Path(wheel).name for wheel in wheels), sep="\n  ")


if __name__ == "__main__":
    main(*sys.argv[1:])
