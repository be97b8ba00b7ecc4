"""Triton's interpreter with PyTorch's rounding, so that comparisons need no extra tolerance for the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from thunder_core.foundation import plugins

collect_ignore_glob = [] if plugins.is_installed("triton") else ["test_*.py"]


def rounding(original: Callable[..., Any]) -> Callable[..., Any]:
    """Round like hardware: the interpreter truncates float32 to bfloat16, and loses carries into FP8's exponent."""
    import numpy as np
    import torch
    import triton.language as tl

    narrow = {tl.bfloat16: (torch.bfloat16, torch.uint16), tl.float8e4nv: (torch.float8_e4m3fn, torch.uint8)}

    def convert(data: Any, source: Any, target: Any, mode: Any) -> Any:
        if source != tl.float32 or target not in narrow:
            return original(data, source, target, mode)
        dtype, bits = narrow[target]
        wide = torch.from_numpy(np.ascontiguousarray(data).reshape(-1))
        return wide.to(dtype).view(bits).numpy().reshape(np.shape(data))

    return convert


@pytest.fixture(autouse=True)
def faithful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Patch the interpreter. Imported here because `tests/conftest.py` must enable the interpreter first."""
    import numpy as np
    from triton.runtime import interpreter

    monkeypatch.setattr(interpreter, "_convert_float", rounding(interpreter._convert_float))
    with np.errstate(all="ignore"):  # infinities are silent on a GPU
        yield


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, float]]:
    """A machine with a GPU: the milliseconds of kernels and of PyTorch, by the names of the called functions.

    `kernel` stands for every other function.
    """
    import torch

    from thunder_core.backend.claiming.tuning import tuning
    from thunder_executors.triton import measurement

    times = {"kernel": 1.0, "library": 2.0, "calls": 0}

    def milliseconds(call: Any) -> float:
        call()
        times["calls"] += 1
        name = call.func.__name__.replace("baseline", "library")
        return times.get(name, times["kernel"])

    monkeypatch.setattr(measurement, "Cuda", lambda: SimpleNamespace(missing=lambda: None))
    monkeypatch.setattr(measurement, "milliseconds", milliseconds)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(tmp_path))
    with tuning(60.0):
        yield times
