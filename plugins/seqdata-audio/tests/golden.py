"""Write golden.npz: what librosa makes of some sounds. Needs librosa 0.11: ``python golden.py``."""

from pathlib import Path

import numpy as np

RATE = 16000
CASES = {  # name -> (mel options, top_db, coefficients)
    "as_librosa": ({}, 80.0, 20),
    "speech": ({"n_fft": 400, "hop_length": 160, "n_mels": 40}, 80.0, 13),
    "htk": (
        {"n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 23, "fmin": 20.0,
         "fmax": 7600.0, "htk": True, "norm": None}, 80.0, 13,
    ),
    "all_decibels": ({"n_fft": 401, "hop_length": 100, "n_mels": 20}, None, 20),
    "no_center": ({"n_fft": 256, "hop_length": 100, "n_mels": 20, "center": False}, 80.0, 20),
}  # fmt: skip


def sounds():
    """Name -> samples, float64, by formulas: the same on every machine."""
    at = np.arange(3000) / RATE
    return {
        "chirp": 0.4 * np.sin(2 * np.pi * (150 + 9000 * at) * at),
        "decay": np.sin(2 * np.pi * 440 * at) * np.exp(-30 * at),
        "rough": 0.3 * np.sin(12345.678 * np.arange(1700) ** 2),
        "short": 0.5 * np.cos(0.3 * np.arange(300)),
        "silence": np.zeros(1000),
    }


def main():
    import librosa

    made = {}
    for case, (options, top_db, n_mfcc) in CASES.items():
        for name, sound in sounds().items():
            mel = librosa.feature.melspectrogram(y=sound, sr=RATE, **options)
            decibels = librosa.power_to_db(mel, top_db=top_db)
            coefficients = librosa.feature.mfcc(S=decibels, n_mfcc=n_mfcc)
            made[f"mel {case} {name}"] = decibels.T.astype(np.float32)
            made[f"mfcc {case} {name}"] = coefficients.T.astype(np.float32)
        two = np.stack([sounds()["chirp"], sounds()["decay"]])
        mel = librosa.power_to_db(
            librosa.feature.melspectrogram(y=two, sr=RATE, **options), top_db=top_db
        )
        made[f"mel {case} two"] = mel.transpose(2, 0, 1).astype(np.float32)
    np.savez_compressed(Path(__file__).with_name("golden.npz"), **made)


if __name__ == "__main__":
    main()
