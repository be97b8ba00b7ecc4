"""Inductor, imported in silence and without its pool of processes: what it compiles is compiled here."""

from __future__ import annotations

import warnings

from torch._inductor import config

# What PyTorch finds deprecated in itself is not the user's.
with config.patch(compile_threads=1), warnings.catch_warnings(action="ignore"):
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.compile_fx import compile_fx_inner

__all__ = ["AsyncCompile", "compile_fx_inner"]
