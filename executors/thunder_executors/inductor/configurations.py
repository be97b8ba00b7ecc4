"""Choose among the configurations of Inductor's Triton kernels, by their times on the GPU.

A configuration has the sizes of a kernel's blocks, its warps and its stages. The region runs once with made-up inputs.
At the first launch of each kernel with several configurations, all of them are timed on the arguments of the launch;
tensors that the kernel writes to in place are copied for that. The first configuration remains unless another one is
faster. It also remains if the remaining time is too short, or if the region does not run with the made-up inputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from typing import Any

import torch

from thunder_core.backend.cache import Key
from thunder_core.backend.claiming.kernel_times import cached_times
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.backend.fusion.machine_code import ENTRY
from thunder_core.backend.fusion.region import Region
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.source_lines import execute_source
from thunder_core.tracing.library.extent import extent
from thunder_executors.inductor import launch
from thunder_executors.inductor.launch import CubinLaunch, copy_with_strides
from thunder_executors.triton import measurement
from thunder_executors.triton.measurement import CANDIDATE_SECONDS, Times, key_on_gpu, operand_of


@dataclass(frozen=True)
class Configuration:
    """A compiled configuration of a kernel: its title, its launcher, and the source of the function of its grid.

    The source is empty if the grid is constant; the function has the name `grid_name`.
    """

    title: str
    kernel: CubinLaunch
    grid: str
    grid_name: str

    @property
    def launcher(self) -> Callable[..., None]:
        """The function that launches the kernel with this configuration."""
        if not self.grid:
            return self.kernel
        return self.kernel.with_grid(execute_source(self.grid_name, self.grid, {}, self.grid_name))


@dataclass(frozen=True)
class ConfiguredKernel:
    """A kernel of Inductor: its source, its configurations, and the names of the tensors that it writes to in place."""

    name: str
    source: str
    configurations: tuple[Configuration, ...]
    written: frozenset[str]


@dataclass
class TimedKernel:
    """A kernel in a region that runs for measurements: the first launch chooses the configuration."""

    kernel: ConfiguredKernel
    budget: TuningBudget
    chosen: Configuration = field(init=False)
    times: Times | None = None
    has_launched: bool = False

    def __post_init__(self) -> None:
        self.chosen = self.kernel.configurations[0]

    @cached_property
    def launchers(self) -> Mapping[str, Callable[..., None]]:
        """The launchers of the configurations, by title."""
        return {each.title: each.launcher for each in self.kernel.configurations}

    @property
    def choice(self) -> str:
        """The measured times in words; empty for a kernel with one configuration."""
        if len(self.kernel.configurations) == 1:
            return ""
        return f"{self.kernel.name}: {self.times or f'{self.chosen.title}, not measured'}"

    def with_grid(self, _function: Callable[..., Any]) -> TimedKernel:
        """Return this kernel: each configuration has a grid of its own."""
        return self

    def __call__(self, *values: Any) -> None:
        """Choose the configuration at the first launch, and launch the kernel."""
        is_first, self.has_launched = not self.has_launched, True
        if is_first and len(self.kernel.configurations) > 1:
            self.times = self.measured_times(values)
            if self.times is not None and self.times.is_kernel_better:
                self.chosen = next(each for each in self.kernel.configurations if each.title == self.times.name)
        self.launchers[self.chosen.title](*values)

    def measured_times(self, values: Sequence[Any]) -> Times | None:
        """Return the times of all configurations for the arguments of a launch; None if there is no time left."""
        seconds = CANDIDATE_SECONDS * len(self.kernel.configurations)
        prepare = partial(self.prepare, values)
        return cached_times(Times, self.key_for(values), self.kernel.name, self.budget, seconds, prepare)

    def prepare(self, values: Sequence[Any]) -> Callable[[], Times]:
        """Return a function that times the configurations on the arguments of a launch."""
        own = [
            copy_with_strides(value) if name in self.kernel.written else value
            for name, value in zip(self.kernel.configurations[0].kernel.arguments, values, strict=True)
        ]
        (first, library), *others = ((title, partial(run, *own)) for title, run in self.launchers.items())
        candidates = dict(others)
        return partial(measurement.measure, candidates, library, [*candidates], first)

    def key_for(self, values: Sequence[Any]) -> Key:
        """Return the key of a measurement: the kernel, its configurations and the arguments of a launch."""
        described = [
            f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else value for value in values
        ]
        device = next(value.device for value in values if isinstance(value, torch.Tensor))
        region = sha256(json.dumps([self.kernel.source, described]).encode()).hexdigest()
        return key_on_gpu("inductor times", region, device, candidates="; ".join(self.launchers))


def choose_configurations(
    region: Region, text: str, kernels: Mapping[str, ConfiguredKernel], budget: TuningBudget
) -> tuple[dict[str, Configuration], str]:
    """Return the fastest configuration of each kernel of a region, and the measured times in words.

    `text` is the source of the region, in which `kernels_of` and `on_gpu` are not defined.
    """
    timed = {name: TimedKernel(kernel, budget) for name, kernel in kernels.items()}
    if not budget.is_off and any(len(kernel.configurations) > 1 for kernel in kernels.values()):
        namespace = {"LIBRARY": b"", "kernels_of": lambda library: timed, "on_gpu": launch.on_gpu}
        run: Callable[..., Any] = execute_source("region for measurements", text, namespace, ENTRY)
        try:
            with torch.no_grad():
                run(made_up_inputs(region))
        except Exception:  # noqa: S110 - the region may refuse made-up values, or the GPU's memory is too small
            pass
    choices = filter(None, (kernel.choice for kernel in timed.values()))
    return {name: kernel.chosen for name, kernel in timed.items()}, "; ".join(choices)


def made_up_inputs(region: Region) -> list[Any]:
    """Return inputs for a region: its tensors, numbers, and the symbols' values seen while tracing."""
    tensors = [made_up(proxy) for proxy in region.inputs]
    return [*tensors, *(1.0 for _ in region.numbers), *(hint_of(proxy.value) for proxy in region.symbols)]


def made_up(proxy: TensorProxy) -> torch.Tensor:
    """Return a tensor with the metadata of a proxy. Integers are zero, because they may be indices."""
    shape, stride = (tuple(int(hint_of(size)) for size in sizes) for sizes in (proxy.shape, proxy.stride))
    length = extent(shape, stride)
    if proxy.dtype.is_floating_point:
        memory = operand_of(replace(proxy, shape=(length,), stride=(1,)))
    else:
        memory = torch.zeros(length, dtype=proxy.dtype, device=proxy.device)
    return memory.as_strided(shape, stride)
