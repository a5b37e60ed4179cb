"""Loads, stores and copies at raw addresses, and the few system calls that kernels make.

Rows lie packed, unaligned, in buffers that Arrow, NumPy or the disk own. Kernels address them by
plain 64-bit addresses; these intrinsics are the only place that turns an address into memory.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from semistream.kernels.jit import inlined


def _loader(numba_type: Any, bits: int) -> Any:
    @intrinsic
    def load(typingctx: Any, address: Any) -> tuple[Any, Callable[..., Any]]:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer)
            value.align = 1
            return value

        return numba_type(types.int64), codegen

    return load


def _storer(numba_type: Any, bits: int) -> Any:
    @intrinsic
    def store(typingctx: Any, address: Any, value: Any) -> tuple[Any, Callable[..., Any]]:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
            stored = builder.store(args[1], pointer)
            stored.align = 1
            return context.get_dummy_value()

        return types.void(types.int64, numba_type), codegen

    return store


# As Python sees them: the typing context that an intrinsic takes first is numba's affair.
_Load: TypeAlias = Callable[[int], int]
_Store: TypeAlias = Callable[[int, Any], None]

load_i64: _Load = _loader(types.int64, 64)
load_i32: _Load = _loader(types.int32, 32)
load_u32: _Load = _loader(types.uint32, 32)
load_u16: _Load = _loader(types.uint16, 16)
load_u8: _Load = _loader(types.uint8, 8)
store_i64: _Store = _storer(types.int64, 64)
store_i32: _Store = _storer(types.int32, 32)
store_u32: _Store = _storer(types.uint32, 32)
store_u16: _Store = _storer(types.uint16, 16)
store_u8: _Store = _storer(types.uint8, 8)


@intrinsic
def _copy_bytes(typingctx: Any, target: Any, origin: Any, size: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(
            builder,
            builder.inttoptr(args[0], byte),
            builder.inttoptr(args[1], byte),
            args[2],
            1,
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


copy_bytes = cast("Callable[[int, int, int], None]", _copy_bytes)
"""memcpy(target, origin, size); the ranges do not overlap."""


@intrinsic
def _prefetch(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


prefetch = cast("Callable[[int], None]", _prefetch)
"""Ask for the cache line at an address ahead of its use."""


@intrinsic
def _load_shared(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def _store_shared(typingctx: Any, address: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.store_atomic(args[1], pointer, "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _swap_if(typingctx: Any, address: Any, expected: Any, value: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        pair = builder.cmpxchg(pointer, args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


@intrinsic
def _pause(typingctx: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        name, operands = _PAUSES.get(platform.machine(), (None, ()))
        if name is not None:
            values = [ir.IntType(32)(operand) for operand in operands]
            kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            builder.call(function, values)
        return context.get_dummy_value()

    return types.void(), codegen


_PAUSES = {"x86_64": ("llvm.x86.sse2.pause", ()), "aarch64": ("llvm.aarch64.hint", (1,))}

load_shared: _Load = _load_shared
"""A word that another thread may write at the same time, with all that it wrote before."""
store_shared: _Store = _store_shared
"""Write a word that another thread may read at the same time, after all that was written before."""
swap_if = cast("Callable[[int, int, int], bool]", _swap_if)
"""swap_if(address, expected, value): write a word if it is as expected; whether it was. Of several
threads that try, one succeeds."""
pause = cast("Callable[[], None]", _pause)
"""Tell the processor that this thread waits for another's word."""


@inlined
def at(array: int, position: int) -> int:
    """An element of an array of 64-bit integers, given its address."""
    return load_i64(array + 8 * position)


_i64, _i32 = types.int64, types.int32
# Resolved by name when a kernel is loaded, so that kernels which call them can be kept on disk.
sys_read: Any = types.ExternalFunction("read", _i64(_i32, _i64, _i64))
sys_write: Any = types.ExternalFunction("write", _i64(_i32, _i64, _i64))
sys_pread: Any = types.ExternalFunction("pread", _i64(_i32, _i64, _i64, _i64))
sys_preadv2: Any = types.ExternalFunction("preadv2", _i64(_i32, _i64, _i32, _i64, _i32))
sys_fadvise: Any = types.ExternalFunction("posix_fadvise", _i32(_i32, _i64, _i64, _i32))
sys_mmap: Any = types.ExternalFunction("mmap", _i64(_i64, _i64, _i32, _i32, _i32, _i64))
sys_madvise: Any = types.ExternalFunction("madvise", _i32(_i64, _i64, _i32))
sys_getrusage: Any = types.ExternalFunction("getrusage", _i32(_i32, _i64))
sys_call: Any = types.ExternalFunction("syscall", _i64(_i64, _i64, _i64, _i64, _i64, _i64))
sys_clock_gettime: Any = types.ExternalFunction("clock_gettime", _i32(_i32, _i64))
sys_yield: Any = types.ExternalFunction("sched_yield", _i32())
sys_errno: Any = types.ExternalFunction("__errno_location", _i64())
