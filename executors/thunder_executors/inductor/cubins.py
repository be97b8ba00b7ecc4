"""Compile Inductor's Triton kernels to cubins, for a GPU that this machine may lack.

For an absent GPU, the first configuration of a kernel is compiled, because Inductor puts the one first that it expects
to be the fastest. For a GPU of this machine, all configurations may be compiled, to time them (`configurations.py`).
"""

from __future__ import annotations

import ast
import importlib.util
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import triton
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_heuristics import GridExpr
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from thunder_executors.inductor.configurations import Configuration, ConfiguredKernel
from thunder_executors.inductor.generate import Unsupported
from thunder_executors.inductor.launch import CubinLaunch
from thunder_executors.triton.cubin import VERSION, WARP, Cubin, capability_of, launch_problems
from thunder_executors.triton.driver import SCALARS
from thunder_executors.triton.launch import Specialization


def compile_configurations(
    name: str, source: str, numbers: Mapping[str, int], target: str, *, first_only: bool
) -> ConfiguredKernel:
    """Compile all configurations of a kernel, or the first one.

    `numbers` are the constant integers among its arguments, by index as a string. Raises `Unsupported` if the launcher
    cannot launch the first configuration; others that it cannot launch are left out.
    """
    configurations: list[Configuration] = []
    with loaded_kernel(name, source) as kernel:
        for setting in kernel.configs[:1] if first_only else kernel.configs:
            try:
                launcher, grid = _compile(name, kernel, setting, numbers, target)
            except Unsupported:
                if not configurations:
                    raise
                continue
            configurations.append(Configuration(title_of(setting), launcher, grid, grid_name(name)))
        written = frozenset(kernel.mutated_arg_names)
    return ConfiguredKernel(name, f"{source}{sorted(numbers.items())}", tuple(configurations), written)


def title_of(setting: Any) -> str:
    """Return a configuration in words: `XBLOCK 512, 4 warps, 1 stages`."""
    blocks = [f"{name} {size}" for name, size in setting.kwargs.items()]
    return ", ".join([*blocks, f"{setting.num_warps} warps, {setting.num_stages} stages"])


@contextmanager
def loaded_kernel(name: str, source: str) -> Iterator[Any]:
    """Load a kernel, and let Triton compile it without caches of this machine within the context."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="thunder-inductor-")))
        stack.enter_context(mock.patch.object(triton_helpers, "set_driver_to_gpu", lambda: None))
        knobs = triton.knobs
        stack.enter_context(knobs.cache.scope())
        stack.enter_context(knobs.compilation.scope())
        knobs.cache.dir = str(folder / "cache")
        knobs.compilation.disable_line_info = True
        yield load_kernel(name, source, folder)


def load_kernel(name: str, source: str, folder: Path) -> Any:
    """Return the object that Inductor's decorator makes of a kernel's source: the function and its configurations."""
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def _compile(name: str, kernel: Any, setting: Any, numbers: Mapping[str, int], target: str) -> tuple[CubinLaunch, str]:
    function, meta = kernel.fn, kernel.triton_meta
    if not isinstance(function, JITFunction):
        raise Unsupported("Triton's interpreter is on, so nothing can be compiled")
    constants = {**meta["constants"], **setting.kwargs}
    types = {key: kind for key, kind in meta["signature"].items() if kind != "constexpr" and key not in constants}
    odd = [kind for kind in types.values() if not (kind.startswith("*") or kind in SCALARS)]
    if odd:
        raise Unsupported(f"a kernel takes an argument of type {odd[0]}")
    result = triton.compile(
        ASTSource(function, meta["signature"], constants, meta["configs"][0]),
        target=GPUTarget("cuda", capability_of(target), WARP),
        options={"num_warps": setting.num_warps, "num_stages": setting.num_stages},
    )
    cubin = _cubin(name, result, types, target)
    arguments = tuple(key for key in function.arg_names if key not in setting.kwargs)
    sizes = {**setting.kwargs, **dict(zip(arguments, _in_order(arguments, numbers), strict=True))}
    grid = GridExpr.from_meta(kernel.inductor_meta, setting)
    if any(sizes.get(size) is None for size in names_in(grid) if size in arguments):
        return CubinLaunch(cubin, arguments, ()), grid_text(name, grid, arguments)
    return CubinLaunch(cubin, arguments, grid.eval_slow(sizes)), ""


def grid_text(name: str, grid: GridExpr, arguments: Sequence[str]) -> str:
    """Return the source of a function that computes the grid of a kernel from the arguments of a launch, by name."""
    read = [argument for argument in arguments if argument in names_in(grid)]
    parameters = ", ".join([*read, "**others"])
    lines = [*grid.prefix, f"return ({grid.x_grid}, {grid.y_grid}, {grid.z_grid})"]
    return "\n".join([f"def {grid_name(name)}({parameters}):", *(f"    {line}" for line in lines)])


def grid_name(kernel: str) -> str:
    """Return the name of the function that computes the grid of a kernel."""
    return f"grid_of_{kernel}"


def names_in(grid: GridExpr) -> frozenset[str]:
    """Return the names that the expressions of a grid read."""
    texts = [*grid.prefix, *map(str, (grid.x_grid, grid.y_grid, grid.z_grid))]
    return frozenset(node.id for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name))


def _in_order(arguments: tuple[str, ...], numbers: Mapping[str, int]) -> list[int | None]:
    return [numbers.get(str(index)) for index, _ in enumerate(arguments)]


def _cubin(name: str, result: Any, types: Mapping[str, str], target: str) -> Cubin:
    metadata = result.metadata
    specialization = Specialization(name, tuple(types.items()), (), (), metadata.num_warps)
    cubin = Cubin(specialization, result.asm["cubin"], metadata.name, metadata.shared, target, VERSION)
    if problems := launch_problems(cubin, metadata):
        raise Unsupported(f"{name} cannot be launched correctly: {', '.join(problems)}")
    return cubin


def numbers_of(call: ast.Call) -> dict[str, int]:
    """Return the constant integers among the arguments of a call, by index as a string."""
    values = {
        str(index): argument.value for index, argument in enumerate(call.args) if isinstance(argument, ast.Constant)
    }
    return {index: value for index, value in values.items() if type(value) is int}
