"""Regions on CUDA: Inductor writes Triton kernels, which are compiled to cubins. This machine may lack the GPU."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.utils._triton
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config
from torch._inductor.runtime.hints import DeviceProperties
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule

from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.backend.fusion.conditions import named_sizes
from thunder_core.backend.fusion.fuse import Refusal
from thunder_core.backend.fusion.machine_code import MachineCode
from thunder_core.backend.fusion.region import Region
from thunder_core.backend.fusion.watch import advance
from thunder_executors.inductor.building.machine import architecture, architecture_here, tuning_facts
from thunder_executors.inductor.configurations import Configuration, choose_configurations
from thunder_executors.inductor.cubins import compile_configurations, grid_name, numbers_of
from thunder_executors.inductor.generate import (
    GeneratedCode,
    Unsupported,
    refusal_for,
    settings_for,
    size_oblivious_codegen,
    strides_of,
    temporary_cache_without_warnings,
)
from thunder_executors.inductor.graph import graph_of
from thunder_executors.inductor.imported import AsyncCompile, compiled_graph
from thunder_executors.inductor.launch import library_of
from thunder_executors.inductor.outputs import check_outputs
from thunder_executors.inductor.sizes import conditions_of, in_own_environment
from thunder_executors.inductor.wrapper import print_module, statements
from thunder_executors.triton.cubin import capability_of

HEAD = "from thunder_executors.inductor.launch import kernels_of, on_gpu"

DROPPED = ("torch.cuda.set_device",)  # `on_gpu` sets the device before the region runs
ALIGNED = "copy_if_misaligned"  # all inputs are aligned already
STREAM = "get_raw_stream"  # a launch finds the stream itself
# Inductor fuses reductions over different dimensions only for small tensors, so this would add conditions on the sizes.
ANY_SIZE = {"triton.mix_order_reduction": False} if hasattr(config.triton, "mix_order_reduction") else {}


class Hardware(NamedTuple):
    """A GPU's multiprocessors, threads per multiprocessor, KiB of shared memory per block, and MiB of L2 cache."""

    multiprocessors: int
    threads: int
    shared: int
    cache: int


# Threads and shared memory are NVIDIA's limits of the compute capability (CUDA C++ Programming Guide); multiprocessors
# and caches are those of the largest GPU of the capability: A100, A40, L40, H100, B200, B300, RTX PRO 6000, GB10.
HARDWARE = {
    "sm_80": Hardware(108, 2048, 163, 40),
    "sm_86": Hardware(84, 1536, 99, 6),
    "sm_89": Hardware(142, 1536, 99, 96),
    "sm_90": Hardware(132, 2048, 227, 50),
    "sm_100": Hardware(148, 2048, 227, 126),
    "sm_103": Hardware(148, 2048, 227, 126),
    "sm_120": Hardware(188, 1536, 99, 128),
    "sm_121": Hardware(48, 1536, 99, 24),
}
UNKNOWN = Hardware(48, 1536, 99, 24)


def build(regions: Sequence[Region]) -> list[MachineCode | Refusal]:
    """Return, for each region, its machine code or the refusal. With a GPU, the configurations of kernels are timed."""
    results = []
    budget = TuningBudget()
    for number, region in enumerate(regions, start=1):
        measurement = budget if tuning_facts(region.device) else None
        results.append(build_region(region, architecture(region.device), measurement))
        advance(number, len(regions))
    return results


def build_region(region: Region, target: str, budget: TuningBudget | None = None) -> MachineCode | Refusal:
    """Return a region's code from Inductor and Triton, or the refusal of the region if they raise an error.

    With a budget, the configurations of the region's kernels are timed.
    """
    try:
        region = in_own_environment(region)
        generated, sources = generate(region, target)
        check_outputs(region, generated)
        text = print_module(generated.wrapper, sources, region)
        calls = {ast.unparse(call.func): call for call in _calls(generated.wrapper, set(sources))}
        kernels = {
            name: compile_configurations(name, sources[name], numbers_of(call), target, first_only=budget is None)
            for name, call in calls.items()
        }
        chosen, choice = {name: kernel.configurations[0] for name, kernel in kernels.items()}, ""
        if budget is not None:
            chosen, choice = choose_configurations(region, module_text(region, text, chosen), kernels, budget)
    except Unsupported as error:
        return Refusal(str(error), lasting=True)
    except Exception as error:  # Inductor's passes may raise any exception
        return refusal_for(error)
    library = library_of({name: each.kernel for name, each in chosen.items()})
    module = module_text(region, text, chosen, imports=f"{HEAD}\n")
    return MachineCode(module, library, (), generated.conditions, choice)


def module_text(region: Region, text: str, kernels: Mapping[str, Configuration], imports: str = "") -> str:
    """Return the source of a region with its kernels, and the imports of `kernels_of` and `on_gpu`, if any."""
    grids = {name: kernel.grid for name, kernel in kernels.items()}
    index = region.device.index or 0
    written_inputs = tuple(number for number, proxy in enumerate(region.inputs) if proxy in region.writes)
    written = f", {written_inputs}" if written_inputs else ""
    head, _, rest = text.partition("\n")
    functions = [grid for grid in grids.values() if grid]
    before = "".join(f"\n\n{function}\n" for function in functions) + ("\n" if functions else "")
    names = "".join(kernel_line(name, has_grid=bool(grid)) for name, grid in grids.items())
    body = f"KERNELS = kernels_of(LIBRARY)\n{names}{rest}"
    return f"{head}\n{imports}{before}\n{body}\n\nregion = on_gpu(region, {index}{written})\n"


def kernel_line(name: str, *, has_grid: bool) -> str:
    """Return the statement that binds a kernel to its name, with the function of its grid if it has one."""
    grid = f".with_grid({grid_name(name)})" if has_grid else ""
    return f'{name} = KERNELS["{name}"]{grid}\n'


def generate(region: Region, target: str) -> tuple[GeneratedCode, dict[str, str]]:
    """Return Inductor's wrapper in the form that it has on the CPU, and the sources of its kernels by name."""
    with size_oblivious_codegen() if region.symbols else nullcontext():
        return _generate(region, target, *graph_of(region))


def _generate(
    region: Region, target: str, graph: GraphModule, fakes: list[FakeTensor | torch.SymInt]
) -> tuple[GeneratedCode, dict[str, str]]:
    sources: dict[str, str] = {}

    def record_source(self: object, kernel_name: str, source_code: str, *rest: object, **more: object) -> None:
        sources[kernel_name] = source_code

    with ExitStack() as stack:
        stack.enter_context(temporary_cache_without_warnings())
        stack.enter_context(config.patch({**settings_for(region), **(ANY_SIZE if region.symbols else {})}))
        stack.enter_context(mock.patch.object(AsyncCompile, "triton", record_source))
        for patch in (
            () if target == architecture_here(region.device) else (clear_device_caches(), *device_patches(target))
        ):
            stack.enter_context(patch)
        written: Any = compiled_graph(graph, fakes)
    if getattr(written, "constants", None):
        raise Unsupported("the generated code contains constant tensors")
    strides = strides_of(written, named_sizes(region.symbols))
    return GeneratedCode(
        simplify_wrapper(written.source_code, set(sources)), {}, strides, conditions_of(region)
    ), sources


@contextmanager
def clear_device_caches() -> Iterator[None]:
    """Clear PyTorch's cached facts about the machine's GPU and Triton before and after the context."""
    remembered = [
        function for function in (*vars(torch.utils._triton).values(), DeviceProperties.create) if _is_cached(function)
    ]
    for function in remembered:
        function.cache_clear()
    try:
        yield
    finally:
        for function in remembered:
            function.cache_clear()


def _is_cached(value: object) -> bool:
    return hasattr(value, "cache_clear")


def properties_of(target: str) -> SimpleNamespace:
    """Return the properties of an absent GPU, as `torch.cuda.get_device_properties` has them."""
    major, minor = divmod(capability_of(target), 10)
    hardware = HARDWARE.get(target, UNKNOWN)
    return SimpleNamespace(
        name=target,
        major=major,
        minor=minor,
        multi_processor_count=hardware.multiprocessors,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=hardware.threads,
        max_threads_per_block=1024,
        warp_size=32,
        total_memory=64 << 30,
        shared_memory_per_block_optin=hardware.shared << 10,
        L2_cache_size=hardware.cache << 20,
        gcnArchName="",
    )


def device_patches(target: str) -> Iterator[Any]:
    """Yield patches that simulate a GPU and Triton's driver, so that Inductor writes code for an absent GPU."""
    major, minor = divmod(capability_of(target), 10)
    device = properties_of(target)
    answers: dict[str, Callable[..., Any]] = {
        "get_device_properties": lambda device_=None: device,
        "current_device": lambda: 0,
        "get_compute_capability": lambda device_=None: capability_of(target),
        "is_available": lambda: True,
        "is_bf16_supported": lambda including_emulation=False: major >= 8,
    }
    for name, answer in answers.items():
        yield mock.patch.object(CudaInterface, name, answer)
    for name in ("get_device_properties", "current_device"):
        yield mock.patch.object(CudaInterface.Worker, name, answers[name])
    for name in ("get_device_properties", "current_device"):
        yield mock.patch.object(torch.cuda, name, answers[name])
    yield mock.patch.object(torch.cuda, "get_device_capability", lambda device_=None: (major, minor))
    yield mock.patch.object(torch.utils._triton, "triton_hash_with_backend", lambda *args: target)
    yield mock.patch.object(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, create=True)


def simplify_wrapper(wrapper: str, kernels: set[str]) -> str:
    """Return the wrapper without its device and streams, with launches as calls of the kernels."""
    lines = [ast.unparse(line) for statement in statements(wrapper) for line in _simplify(statement, kernels)]
    return "\n".join(["def call(args):", *(f"    {line}" for line in lines)]) + "\n"


def _simplify(statement: ast.stmt, kernels: set[str]) -> Iterator[ast.stmt]:
    if isinstance(statement, ast.With):
        if [ast.unparse(item.context_expr).partition("(")[0] for item in statement.items] != [
            "torch.cuda._DeviceGuard"
        ]:
            raise Unsupported(f"Inductor's wrapper contains `{ast.unparse(statement.items[0])}`")
        for inner in statement.body:
            yield from _simplify(inner, kernels)
        return
    called = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
    name = ast.unparse(called.func) if isinstance(called, ast.Call) else ""
    if name in (*DROPPED, ALIGNED, STREAM):
        return
    if isinstance(called, ast.Call) and name.endswith(".run") and name.removesuffix(".run") in kernels:
        called.func = ast.Name(name.removesuffix(".run"), ast.Load())
        called.keywords = [word for word in called.keywords if word.arg != "stream"]
    yield statement


def _calls(wrapper: str, names: set[str]) -> Iterator[ast.Call]:
    """Yield each call of a kernel; raise `Unsupported` if a kernel is called for different sizes."""
    seen: dict[str, dict[str, int]] = {}
    for node in ast.walk(ast.parse(wrapper)):
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in names:
            if seen.setdefault(name, numbers_of(node)) != numbers_of(node):
                raise Unsupported(f"{name} is called for several sizes")
            yield node
