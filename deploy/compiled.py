"""Kernels that numba compiles, kept on disk where there is a place for them.

numba keeps compiled code beside the source, below the user's cache folder, or where ``NUMBA_CACHE_DIR`` says, and
refuses to decorate where none of these can be written (a read-only install with a home that is read-only too). There,
and where the disk is full, a kernel is compiled anew in each process; nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["compiled"]


def compiled(*signatures: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit(signatures, cache=True, nogil=True, error_model="numpy")``, without a cache where none can be.

    Parameters
    ----------
    signatures : compiled at once; where none is given, at the first call.
    options : further ones of ``numba.njit``.
    """
    import numba

    settings = {"nogil": True, "error_model": "numpy", **options}
    given = (list(signatures),) if signatures else ()

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(*given, cache=True, **settings)(function)
        except (RuntimeError, OSError) as error:
            if isinstance(error, RuntimeError) and "cannot cache function" not in str(error):
                raise
            return numba.njit(*given, **settings)(function)

    return decorate
