"""Compile every example for an absent GPU, in a separate process because Triton's interpreter compiles nothing.

Usage: python -m tests.executors.triton.compiling TARGET FOLDER DTYPE...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import create_function_from_signature

from tests.executors.triton.examples import EXAMPLES, empty_tensors
from thunder_core.backend.claiming.device_code import targeting
from thunder_core.foundation import plugins
from thunder_executors.triton.cubin import Cubin, capability_of, compile_for
from thunder_executors.triton.launch import Launch, Specialization
from thunder_executors.triton.operations import OPERATORS


def launches(dtype: torch.dtype, device: str) -> Iterator[tuple[str, Launch]]:
    for name, examples in EXAMPLES.items():
        for arguments in examples(empty_tensors(dtype, device)):
            yield from ((name, launch) for launch in OPERATORS[name].launches(*arguments))


def as_triton_sees(launch: Launch, target: str) -> dict[str, Any]:
    """The types, divisibility by 16, and constants for which Triton itself would compile a launch."""
    backend = make_backend(GPUTarget("cuda", capability_of(target), 32))
    bind = create_function_from_signature(launch.kernel.signature, launch.kernel.params, backend)
    _, found, _ = bind(**launch.arguments, **launch.constants)
    named = dict(zip(launch.kernel.arg_names, found, strict=True))
    return {
        "types": [[name, kind] for name, (kind, _) in named.items() if kind != "constexpr"],
        "divisible": [name for name, (kind, trait) in named.items() if kind != "constexpr" and trait == "D"],
        "constants": {name: value for name, (kind, value) in named.items() if kind == "constexpr"},
    }


def as_we_see(specialization: Specialization) -> dict[str, Any]:
    return {
        "types": [list(pair) for pair in specialization.types],
        "divisible": list(specialization.divisible),
        "constants": dict(specialization.constants),
    }


def main(target: str, folder: Path, dtypes: list[str]) -> None:
    plugins.load("executors", "triton")
    rows: list[dict[str, Any]] = []
    cubins: dict[Specialization, Cubin] = {}
    for dtype in (getattr(torch, name) for name in dtypes):
        with FakeTensorMode(), targeting(target):
            on_gpu = list(launches(dtype, "cuda"))
        specializations = [launch.specialization for _, launch in on_gpu]
        reals = [pair for pair in launches(dtype, "cpu") if pair[1].specialization in specializations]
        for (name, launch), (_, real) in zip(on_gpu, reals, strict=True):
            specialization = launch.specialization
            if specialization not in cubins:
                cubins[specialization] = compile_for(specialization, target)
            rows.append(
                {
                    "operation": name,
                    "dtype": str(dtype),
                    "cubin": list(cubins).index(specialization),
                    "ours": as_we_see(specialization),
                    "triton": as_triton_sees(real, target),
                }
            )
    for number, cubin in enumerate(cubins.values()):
        (folder / f"{number}.cubin").write_bytes(cubin.image)
        (folder / f"{number}.json").write_text(json.dumps(cubin.metadata()), encoding="utf-8")
    (folder / "all.json").write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
