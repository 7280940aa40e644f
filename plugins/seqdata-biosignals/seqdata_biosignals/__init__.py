"""Recordings of EEG, ECG and other biosignals for seqdata: EDF, BDF, WFDB and BrainVision."""

from seqdata_biosignals.backend import Biosignals as Biosignals
