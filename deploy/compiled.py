"""Kernels that numba compiles, kept on disk where there is a place for them.

numba keeps compiled code beside the source, below the user's cache folder, or where ``NUMBA_CACHE_DIR`` says. It refuses
to decorate where none of these can be written (a read-only install with a home that is read-only too), and fails where
the disk is full. There a kernel is compiled anew in each process; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["compiled"]


def compiled(*signatures: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit(signatures, cache=True, nogil=True, error_model="numpy")``, without a cache where none can be.

    Parameters
    ----------
    signatures : compiled at once, and then no others; where none is given, each at its first call.
    options : further ones of ``numba.njit``.
    """
    import numba

    jit = numba.njit(nogil=True, error_model="numpy", **options)

    def decorate(function: Callable[..., Any]) -> Any:
        kernel = jit(function)
        with suppress(RuntimeError):  # "no locator available"
            kernel.enable_caching()
            keep = kernel._cache.save_overload

            def keep_where_possible(*overload: Any) -> None:
                with suppress(OSError):
                    keep(*overload)

            kernel._cache.save_overload = keep_where_possible
        for signature in signatures:
            kernel.compile(signature)
        if signatures:
            kernel.disable_compile()
        return kernel

    return decorate
