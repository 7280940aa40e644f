"""Audio files for seqdata: WAV is read in place; with spectra, log-mel and MFCC transforms."""

from seqdata_audio.features import MFCC as MFCC
from seqdata_audio.features import STFT as STFT
from seqdata_audio.features import LogMel as LogMel
from seqdata_audio.format import Audio as Audio
from seqdata_audio.kaldi import KaldiArchive as KaldiArchive
