"""Real data that needs no download: airline passengers, and the tokens of Python's own library."""

import io
import sysconfig
import tokenize
from pathlib import Path

import numpy as np
import pandas as pd

PASSENGERS = """
112 118 132 129 121 135 148 148 136 119 104 118 115 126 141 135 125 149 170 170 158 133 114 140
145 150 178 163 172 178 199 199 184 162 146 166 171 180 193 181 183 218 230 242 209 191 172 194
196 196 236 235 229 243 264 272 237 211 180 201 204 188 235 227 234 264 302 293 259 229 203 229
242 233 267 269 270 315 364 347 312 274 237 278 284 277 317 313 318 374 413 405 355 306 271 306
315 301 356 348 355 422 465 467 404 347 305 336 340 318 362 348 363 435 491 505 404 359 310 337
360 342 406 396 420 472 548 559 463 407 362 405 417 391 419 461 472 535 622 606 508 461 390 432
"""
"""Monthly totals of international airline passengers, in thousands, 1949 to 1960 (Box, Jenkins)."""


def passengers() -> pd.DataFrame:
    """Return the series, and one of each month's share of its year, with a row per month."""
    values = np.array(PASSENGERS.split(), dtype=np.float64)
    months = pd.date_range("1949-01-01", periods=len(values), freq="MS")
    year = values.reshape(-1, 12).sum(axis=1).repeat(12)
    total = pd.DataFrame({"series": "total", "month": months, "value": values, "unit": "k"})
    share = pd.DataFrame({"series": "share", "month": months, "value": values / year, "unit": "1"})
    table = pd.concat([total, share], ignore_index=True)
    table["year"] = table["month"].dt.year.astype(float)
    return table


def hours(sites: int = 3, count: int = 240, seed: int = 0) -> pd.DataFrame:
    """Return hourly load of some sites, in a random order of rows."""
    random = np.random.default_rng(seed)
    times = pd.date_range("2024-01-01", periods=count, freq="h")
    frames = [
        pd.DataFrame(
            {
                "site": f"site-{number}",
                "time": times,
                "load": random.normal(size=count).cumsum() + 50 * number,
                "price": random.normal(size=count),
                "region": ("north", "south")[number % 2],
            }
        )
        for number in range(sites)
    ]
    return pd.concat(frames).sample(frac=1, random_state=seed).reset_index(drop=True)


def library_tokens(count: int = 40) -> pd.DataFrame:
    """Return the tokens of modules of Python's library, a row per token: an event log."""
    rows = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:count]:
        source = path.read_bytes()
        is_private = path.name.startswith("_")
        for order, token in enumerate(tokenize.tokenize(io.BytesIO(source).readline)):
            if order >= 200:
                break
            kind = tokenize.tok_name[token.exact_type]
            rows.append((path.name, order, kind, len(token.string), int(is_private)))
    return pd.DataFrame(rows, columns=["module", "order", "kind", "length", "is_private"])
