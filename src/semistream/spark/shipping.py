"""Bringing this package to the executors of a cluster."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

import semistream

FOLDER = "semistream-package"
"""The archive's folder in the working directory of an executor."""

_KERNELS = (".nbi", ".nbc")


def package(path: str | Path | None = None) -> Path:
    """Write this package, with the kernels that are compiled, to an archive; where it is.

    Not a zip file that Python imports from: kernels are kept beside the source, and a task would
    compile them anew. The times of the files are part of the archive, since numba compares them.
    """
    if path is None:
        path = Path(tempfile.mkdtemp(prefix="semistream-")) / "semistream.tar.gz"
    path = Path(path)
    root = Path(semistream.__file__).parent
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT, compresslevel=1) as archive:
        for file in sorted(root.rglob("*")):
            if file.is_file() and ("__pycache__" not in file.parts or file.suffix in _KERNELS):
                archive.add(file, Path(root.name) / file.relative_to(root))
    return path


def shipped(archive: str | Path) -> dict[str, str]:
    """The settings with which Spark brings the archive to every executor, and Python finds it."""
    return {
        "spark.archives": f"{Path(archive).absolute()}#{FOLDER}",
        "spark.executorEnv.PYTHONPATH": FOLDER,
    }
