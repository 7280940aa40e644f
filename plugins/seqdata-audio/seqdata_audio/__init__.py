"""Audio files for seqdata: read in place where they are WAV, with log-mel and MFCC transforms."""

from seqdata_audio.features import MFCC as MFCC
from seqdata_audio.features import LogMel as LogMel
from seqdata_audio.format import Audio as Audio
