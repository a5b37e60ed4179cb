"""A seeded shuffle of [0, n) that is computed, not stored, and the random words behind it.

Every generator of this package draws its randomness from `random_word`: a pure function of a key,
a position and a draw number. Any slice of any stream can therefore be made again on its own, in
any order and on any machine, and nothing depends on what was drawn before.

The shuffle is a Feistel network over the smallest power of two that holds n, repeated until the
value falls into [0, n) again (cycle walking; Black and Rogaway, "Ciphers with Arbitrary Finite
Domains", CT-RSA 2002).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.core.errors import OptionError
from semistream.kernels.jit import inlined, kernel

# Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014 (splitmix64).
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_DRAW = np.uint64(0xD1342543DE82EF95)  # odd: different draws at one position never coincide
_ONE = np.uint64(1)
_S27 = np.uint64(27)
_S30 = np.uint64(30)
_S31 = np.uint64(31)
_S11 = np.uint64(11)

_HALF_ROUNDS = 8

MAX_DOMAIN = 1 << 62
"""Largest n of `permute`: the power of two above it must still fit an int64."""


@inlined
def mix64(word: np.uint64) -> np.uint64:
    """The finaliser of splitmix64: a bijection of 64-bit words that spreads every input bit."""
    word = (word ^ (word >> _S30)) * _MIX_1
    word = (word ^ (word >> _S27)) * _MIX_2
    return word ^ (word >> _S31)


@inlined
def random_word(key: np.uint64, position: np.uint64, draw: np.uint64) -> np.uint64:
    """64 random bits that depend only on the three arguments; `key` comes from `stream_key`."""
    return mix64(mix64(key + (position + _ONE) * _GOLDEN) + draw * _DRAW)


@inlined
def unit_float(word: np.uint64) -> float:
    """A float strictly between 0 and 1 from the top 53 bits of a word."""
    return (np.float64(word >> _S11) + 0.5) * 1.1102230246251565e-16


def stream_key(seed: int, purpose: str) -> np.uint64:
    """The key of one stream of random words; `purpose` keeps streams of one seed independent."""
    word = int(_GOLDEN)
    for part in (seed & 0xFFFFFFFFFFFFFFFF, *purpose.encode()):
        word = _mix64_int((word + part + 1) * int(_GOLDEN))
    return np.uint64(word)


def permute(values: npt.ArrayLike, n: int, seed: int) -> npt.NDArray[np.int64]:
    """The images of `values` under the shuffle of [0, n) that belongs to `seed`.

    A bijection of [0, n): distinct values have distinct images, and `unpermute` takes them back.
    Values outside [0, n) are an error.
    """
    source = _checked(values, n)
    target = np.empty_like(source)
    _walk(source, target, np.int64(n), np.int64(_bits(n)), stream_key(seed, "permutation"), True)
    return target


def unpermute(values: npt.ArrayLike, n: int, seed: int) -> npt.NDArray[np.int64]:
    """The inverse of `permute` for the same n and seed."""
    source = _checked(values, n)
    target = np.empty_like(source)
    _walk(source, target, np.int64(n), np.int64(_bits(n)), stream_key(seed, "permutation"), False)
    return target


def _bits(n: int) -> int:
    return (n - 1).bit_length()


def _checked(values: npt.ArrayLike, n: int) -> npt.NDArray[np.int64]:
    if not 1 <= n <= MAX_DOMAIN:
        raise OptionError(f"a permutation of {n} values is not possible", hint="1 <= n <= 2**62")
    source: npt.NDArray[np.int64] = np.ascontiguousarray(values, dtype=np.int64).reshape(-1)
    if len(source) and (int(source.min()) < 0 or int(source.max()) >= n):
        raise OptionError(
            f"values from {source.min()} to {source.max()} are not all in [0, {n})",
            hint="a permutation maps [0, n) onto itself",
        )
    return source


def _mix64_int(word: int) -> int:
    """`mix64` in plain Python, for the few words that are made outside kernels."""
    mask = 0xFFFFFFFFFFFFFFFF
    word &= mask
    word = ((word ^ (word >> 30)) * int(_MIX_1)) & mask
    word = ((word ^ (word >> 27)) * int(_MIX_2)) & mask
    return word ^ (word >> 31)


@kernel
def _walk(source: Any, target: Any, n: Any, bits: Any, key: Any, forward: bool) -> None:
    # The value is split into a low and a high part. Each half round changes one part by a hash
    # of the other, which is undone by repeating it: the inverse runs the half rounds backwards.
    # Parts of unequal width keep the domain below 2 n, so that a value walks twice on average.
    low_bits = np.uint64(bits // 2)
    low_mask = (_ONE << low_bits) - _ONE
    high_mask = (_ONE << np.uint64(bits - bits // 2)) - _ONE
    limit = np.uint64(n)
    round_keys = np.empty(_HALF_ROUNDS, dtype=np.uint64)
    for half in range(_HALF_ROUNDS):
        round_keys[half] = random_word(key, np.uint64(half), np.uint64(0))
    for i in range(len(source)):
        word = np.uint64(source[i])
        while True:
            low = word & low_mask
            high = word >> low_bits
            for step in range(0, _HALF_ROUNDS, 2):
                if forward:
                    low ^= mix64(round_keys[step] + high * _GOLDEN) & low_mask
                    high ^= mix64(round_keys[step + 1] + low * _GOLDEN) & high_mask
                else:
                    high ^= mix64(round_keys[_HALF_ROUNDS - 1 - step] + low * _GOLDEN) & high_mask
                    low ^= mix64(round_keys[_HALF_ROUNDS - 2 - step] + high * _GOLDEN) & low_mask
            word = (high << low_bits) | low
            if word < limit:
                break
        target[i] = np.int64(word)
