"""A stand-in for a GPU and its driver: programs run on tensors without data, and launches, graphs and copies are noted.

Tensors are fake tensors on `cuda:0`, whose addresses are those of their storages. The prologue of a program checks the
call as always. The computation runs as on a GPU: Thunder's and Inductor's kernels are launched on a driver that
notes their names, PyTorch's operations compute sizes only, and CUDA graphs are captured and replayed by the executor's
own code, with a stand-in for the capture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten

from thunder_core.backend.runtime.generate import executable_trace
from thunder_core.backend.runtime.program import Program
from thunder_core.compilation.compiler.for_device import EagerProgram, devices_read_as
from thunder_core.tracing.capture.fakes.absent_gpu import stand_in_for
from thunder_core.tracing.capture.fakes.device_guards import hidden_device_of
from thunder_core.tracing.capture.torch_facts.modes import without_functions
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.trace import Trace
from thunder_executors import sdpa
from thunder_executors.cudagraphs import graph
from thunder_executors.cudagraphs.loans import Loan
from thunder_executors.inductor.launch import CubinLaunch
from thunder_executors.triton.operations import OPERATORS

GPU = torch.device("cuda", 0)
MEMORY = 80 << 30  # the bytes of its memory
COPY_IN, COPY_OUT = "aten::_foreach_copy_", "aten::clone"  # of a graph
COPIES = (COPY_IN, COPY_OUT, "aten::copy_", "aten::_to_copy")
GUARDED = () if torch.cuda._is_compiled() else (torch.Tensor.copy_, torch.Tensor.set_)
# Operations that launch nothing, and are no views for PyTorch.
NO_KERNEL = frozenset(f"aten::{name}" for name in ("_unsafe_view", "empty", "empty_strided", "empty_like", "set_"))


@dataclass
class Graph:
    """A captured graph: its launches by name, and the number of its replays."""

    launches: Counter[str]
    replays: int = 0


@dataclass
class Call:
    """What one call of a program did: launches outside of graphs by name, bytes by the kind of copy, and replays."""

    program: Program
    launches: Counter[str] = field(default_factory=Counter)
    copied: Counter[str] = field(default_factory=Counter)
    replayed: list[Graph] = field(default_factory=list)
    captured: list[Graph] = field(default_factory=list)


class DeviceGuards(TorchFunctionMode):
    """A mode in which no tensor names its device to a function whose device guard a build without CUDA lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.is_needed = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of PyTorch."""
        before, self.is_needed = self.is_needed, func in GUARDED or hidden_device_of(func, args) is not None
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.is_needed = before

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Let tensors name their devices within the context."""
        before, self.is_needed = self.is_needed, False
        try:
            yield
        finally:
            self.is_needed = before


class SimulatedGpu(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A GPU that computes nothing; `calls` are the calls of programs, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self._fakes: dict[int, tuple[Any, Any]] = {}
        self._mode = FakeTensorMode()
        self._log: Counter[str] = Counter()
        self.guards = DeviceGuards()

    # The driver.

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation on sizes, and note its launches, or its bytes if it is a copy."""
        if func is torch.ops.prim.device.default:
            return stand_in_for(args[0].fake_device) if self.guards.is_needed else args[0].fake_device
        kwargs = kwargs or {}
        with self.guards.passed():
            result = func(*args, **kwargs)
        namespace, _, name = func.name().partition("::")
        packet = f"{namespace}::{name.partition('.')[0]}"
        if namespace == "thunder":
            self._log.update(launch.kernel.fn.__name__ for launch in OPERATORS[name].launches(*args, **kwargs))
        elif packet in COPIES:
            written = args[0] if packet.endswith("copy_") else result
            self._note_copy(packet, sum(tensor.nbytes for tensor in tree_flatten(written)[0]))
        elif packet not in NO_KERNEL and not func.is_view and any(map(is_on_gpu, tree_flatten((args, result))[0])):
            self._log[packet] += 1
        return result

    def _note_copy(self, packet: str, size: int) -> None:
        self._log[packet] += 1
        self.calls[-1].copied[packet] += size

    def launch(self, kernel: CubinLaunch, *values: Any) -> None:
        """Launch a kernel of Inductor."""
        assert len(values) == len(kernel.arguments)
        self._log[kernel.cubin.entry] += 1

    # The capture of graphs, in place of `thunder_executors.cudagraphs.recording.Cuda`.

    def device_stream(self, tensors: Sequence[torch.Tensor]) -> tuple[int, int]:
        """Return the only device and its only stream."""
        return 0, 0

    def memory_of(self, device: int) -> int:
        """Return the bytes of its memory."""
        return MEMORY

    def pool_nbytes(self, replay: object) -> int:
        """Return 0: memory without data takes no space in a pool."""
        return 0

    def record(
        self, function: Callable[[], Any], device_stream: tuple[int, int], *, has_own_pool: bool = False
    ) -> tuple[Callable[[], None], Any]:
        """Capture a graph."""
        outer, self._log = self._log, Counter()
        results = function()
        captured, self._log = Graph(self._log), outer
        self.calls[-1].captured.append(captured)

        def replay() -> None:
            captured.replays += 1
            self.calls[-1].replayed.append(captured)

        return replay, results

    # The calls of programs.

    def compute(self, program: EagerProgram, inputs: tuple[Any, ...]) -> None:
        """Run a computation for inputs on the meta device, which stand for tensors on the GPU."""
        proxies = program.last("computation").inputs
        with self._mode:
            fakes = [self._fake(value, proxy) for value, proxy in zip(inputs, proxies, strict=True)]
        self.calls.append(Call(program))
        self._log = self.calls[-1].launches
        with self._mode, self, self.guards, torch._C.DisableTorchFunctionSubclass():
            program._computation(*fakes)

    def run(self, program: Program, trace: Trace, values: dict[str, Any]) -> Call:
        """Run a trace of a program on values by name, or on new tensors where one is missing; add its results."""
        with self._mode:
            for proxy in trace.inputs:
                if isinstance(proxy, TensorProxy) and proxy.name not in values:
                    values[proxy.name] = fake_of(proxy)
        self.calls.append(Call(program))
        self._log = self.calls[-1].launches
        with torch.no_grad(), self._mode, self, self.guards, torch._C.DisableTorchFunctionSubclass():
            results = executable_trace(trace)(*(values[proxy.name] for proxy in trace.inputs))
        values |= {proxy.name: result for proxy, result in zip(trace.output, results, strict=True) if proxy is not None}
        return self.calls[-1]

    def _fake(self, value: Any, proxy: Any) -> Any:
        """Return the tensor that stands for an input, the same one for the same tensor."""
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._fakes:
            fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=proxy.device)
            self._fakes[id(value)] = value, fake
        return self._fakes[id(value)][1]


def fake_of(proxy: TensorProxy) -> torch.Tensor:
    """Return a new tensor with the metadata of a proxy."""
    return torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device=proxy.device)


def is_on_gpu(value: object) -> bool:
    """Whether a value is a tensor on the GPU."""
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


@contextmanager
def simulated_gpu() -> Iterator[SimulatedGpu]:
    """Let the programs for an absent GPU also run on a stand-in for it, within the context."""
    gpu = SimulatedGpu()
    prepared: dict[int, Any] = {}

    def prepare(self: EagerProgram, accepts: Any, subject: object, args: Any, kwargs: Any) -> tuple[Any, Any]:
        with without_functions(), _disable_current_modes(), devices_read_as(self.device, (args, kwargs)):
            prepared[id(self)] = accepts(subject, args, kwargs)[0]
        return (), (subject, args, kwargs)

    def run(self: EagerProgram, inputs: Any, outside: tuple[Any, Any, Any]) -> Any:
        subject, args, kwargs = outside
        with without_functions(), _disable_current_modes():
            gpu.compute(self, prepared.pop(id(self)))
        return subject(*args, **kwargs)

    with ExitStack() as stack:
        for patch in patches(gpu, prepare, run):
            stack.enter_context(patch)
        yield gpu


def patches(gpu: SimulatedGpu, prepare: Callable[..., Any], run: Callable[..., Any]) -> Iterator[Any]:
    """Yield the replacements of what needs a GPU."""
    yield mock.patch.object(EagerProgram, "_prepare", prepare)
    yield mock.patch.object(EagerProgram, "run", run)
    yield mock.patch.object(CubinLaunch, "__call__", lambda kernel, *values: gpu.launch(kernel, *values))
    yield mock.patch.object(graph, "CUDA", gpu)
    yield mock.patch.object(Loan, "lend", lend)
    yield mock.patch.object(torch.cuda, "device", lambda index: nullcontext())
    yield mock.patch.object(torch._C._dynamo.guards, "_empty_strided_cuda", allocate)
    yield mock.patch.object(torch._C._dynamo.guards, "_reinterpret_tensor", reinterpret)
    yield mock.patch.object(torch.Tensor, "data_ptr", address_of)
    yield mock.patch.object(torch.UntypedStorage, "data_ptr", lambda storage: storage._cdata)
    yield mock.patch.object(sdpa, "params_of", lambda arguments: None)
    yield mock.patch.dict(sdpa.RULES, {sdpa.SDPBackend.CUDNN_ATTENTION: lambda params: True})


def allocate(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return memory of the GPU."""
    return torch.empty_strided(size, stride, dtype=dtype, device=GPU)


def lend(loan: Loan) -> torch.UntypedStorage:
    """Lend the storage of a graph's memory itself, because memory without data has no other storage."""
    storage = loan.memory.untyped_storage()
    references = torch._C._storage_Use_Count(storage._cdata)
    loan._reference = SimpleNamespace(expired=lambda: torch._C._storage_Use_Count(storage._cdata) <= references)
    return storage


def reinterpret(tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
    """Return a view of a tensor's memory, as Inductor's regions make it."""
    return tensor.as_strided(size, stride, tensor.storage_offset() + offset)


DATA_POINTER = torch.Tensor.data_ptr


def address_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor: of its storage, if it has no data."""
    if tensor.device.type == "cuda":
        return tensor.untyped_storage()._cdata + tensor.storage_offset() * tensor.itemsize
    return DATA_POINTER(tensor)
