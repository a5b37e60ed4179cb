"""Writes weather reports and the stations they come from, for the example beside it.

python examples/weather/make_data.py [reports] [folder]
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

FILES = 2


def make(folder: Path, reports: int = 4000, seed: int = 3) -> None:
    """Cloud reports as the SSIJ paper joins them: by latitude and longitude, here of a grid."""
    random = np.random.default_rng(seed)
    (folder / "reports").mkdir(parents=True, exist_ok=True)
    with (folder / "stations.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["latitude", "longitude", "station", "height_m"])
        for latitude in range(-30, 30):
            for longitude in range(0, 40):
                # Some places have two stations, some none.
                for number in range((latitude + longitude) % 3):
                    station = f"{latitude}/{longitude}/{number}"
                    writer.writerow([latitude, longitude, station, (latitude * longitude) % 900])
    places = np.stack([random.integers(-30, 30, reports), random.integers(0, 40, reports)], axis=1)
    for part in range(FILES):
        with (folder / "reports" / f"{part}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["report", "latitude", "longitude", "cloud_cover"])
            for number in range(part, reports, FILES):
                cover = "" if number % 30 == 0 else number % 9
                writer.writerow([number, *places[number].tolist(), cover])


if __name__ == "__main__":
    make(
        Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent,
        int(sys.argv[1]) if len(sys.argv) > 1 else 4000,
    )
