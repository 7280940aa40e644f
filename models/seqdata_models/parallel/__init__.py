"""Training of one recurrent stack on several processes, split by layers, by time and by data."""

from seqdata_models.parallel.engine import Engine
from seqdata_models.parallel.link import LinkTimeouts
from seqdata_models.parallel.mesh import Mesh
from seqdata_models.parallel.ring import Ring
from seqdata_models.parallel.stack import SupportsStages
from seqdata_models.parallel.strategies import RingStrategy, WavefrontStrategy
from seqdata_models.parallel.torch_engine import TorchWavefront
from seqdata_models.parallel.wavefront import Wavefront

__all__ = [
    "Engine",
    "LinkTimeouts",
    "Mesh",
    "Ring",
    "RingStrategy",
    "SupportsStages",
    "TorchWavefront",
    "Wavefront",
    "WavefrontStrategy",
]
