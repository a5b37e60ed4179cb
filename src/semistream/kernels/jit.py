"""How every kernel is compiled: without the interpreter, without its lock, kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

_F = TypeVar("_F", bound=Callable[..., object])
_T = TypeVar("_T", bound=np.generic)


def kernel(function: _F) -> _F:
    """Compile on first use and keep the machine code beside the package (or in NUMBA_CACHE_DIR)."""
    compiled = numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")
    return cast(_F, compiled(function))  # Python calls it like the function it was made from


def inlined(function: _F) -> _F:
    """A part of kernels: compiled into its callers, never called from Python on data."""
    compiled = numba.njit(nogil=True, boundscheck=False, error_model="numpy", forceinline=True)
    return cast(_F, compiled(function))


def read_only(array: npt.NDArray[_T]) -> npt.NDArray[_T]:
    """A view that cannot be written to, for arguments that come now from Arrow and now from NumPy.

    Only some of Arrow's buffers can be written to, and numba compiles a kernel once more, which
    takes seconds, for arrays that differ in nothing but that.
    """
    view: npt.NDArray[Any] = array.view()
    view.flags.writeable = False
    return view
