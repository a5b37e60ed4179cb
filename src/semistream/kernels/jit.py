"""How every kernel is compiled: without the interpreter, without its lock, kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

_F = TypeVar("_F", bound=Callable[..., object])


def kernel(function: _F) -> _F:
    """Compile on first use and keep the machine code beside the package (or in NUMBA_CACHE_DIR)."""
    compiled = numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy")
    return cast(_F, compiled(function))  # Python calls it like the function it was made from


def inlined(function: _F) -> _F:
    """A part of kernels: compiled into its callers, never called from Python on data."""
    compiled = numba.njit(nogil=True, boundscheck=False, error_model="numpy", forceinline=True)
    return cast(_F, compiled(function))
