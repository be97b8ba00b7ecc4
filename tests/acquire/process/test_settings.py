"""Settings of the process that a program changes: as in eager PyTorch, at the first call and at each later call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import thunder_core as thunder
from thunder_core.backend.claiming.claim import claims_by_executor
from thunder_core.backend.claiming.executor import OperatorExecutor
from thunder_core.foundation.errors import RecompileWarning, ThunderError
from thunder_core.frontend.acquire.acquire import acquire
from thunder_core.tracing.capture.torch_facts.settings import SETTINGS, flushes_denormals

C: Any = torch._C


def state() -> dict[str, Any]:
    """Return the settings of the process."""
    getters = {
        getter for setting in SETTINGS for getter in setting.getters if getter is not C._get_fp32_precision_getter
    }
    found = {getter.__name__: getter() for getter in getters}
    precisions = {place: C._get_fp32_precision_getter(*place) for place in (("cuda", "matmul"), ("mkldnn", "matmul"))}
    options = vars(torch._tensor_str.PRINT_OPTS)
    modes = C._len_torch_function_stack()
    return found | {"precisions": precisions, "print": dict(options), "denormals": flushes_denormals(), "modes": modes}


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore every setting that a test changes.

    `torch.testing._internal`, which other tests import, forbids to set flags of `torch.backends` outside a context.
    """
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    options = dict(vars(torch._tensor_str.PRINT_OPTS))
    restores = [setting.keep() for setting in SETTINGS]
    yield
    for restore in restores:
        restore()
    vars(torch._tensor_str.PRINT_OPTS).update(options)


def default_dtype(x: Tensor) -> Any:
    torch.set_default_dtype(torch.float64)
    return torch.ones(2), x.int() * 1.5, torch.tensor([1.0]), torch.get_default_dtype()


def default_dtype_for_a_while(x: Tensor) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    made = torch.ones(2)
    torch.set_default_dtype(before)
    return made, torch.ones(2) + x


def default_tensor_type(x: Tensor) -> Any:
    torch.set_default_tensor_type(torch.DoubleTensor)
    return torch.ones(2), x.int() / 2


def default_device(x: Tensor) -> Any:
    torch.set_default_device("meta")
    return torch.ones(2), x + 1, torch.get_default_device()


def default_device_for_a_while(x: Tensor) -> Any:
    torch.set_default_device("meta")
    made = torch.ones(2)
    torch.set_default_device(None)
    return made, torch.ones(2), x + 1


def device_as_context(x: Tensor) -> Any:
    before = torch.get_default_device()
    with torch.device("meta"):
        made, inside = torch.ones(2), torch.get_default_device()
        with torch.device("cpu"):
            inner = torch.ones(2)
    return made, inner, torch.ones(2), x + 1, before, inside


def deterministic(x: Tensor) -> Any:
    torch.use_deterministic_algorithms(True, warn_only=True)
    return torch.empty(3), x + 1, torch.are_deterministic_algorithms_enabled()


def deterministic_debug_mode(x: Tensor) -> Any:
    torch.set_deterministic_debug_mode("error")
    return x + 1, torch.get_deterministic_debug_mode()


def threads(x: Tensor) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    return x + before, torch.get_num_threads()


def matmul_precision(x: Tensor) -> Any:
    torch.set_float32_matmul_precision("high")
    return x @ x, torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.fp32_precision


def matmul_flag(x: Tensor) -> Any:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = not before
    return x @ x, before, torch.backends.cuda.matmul.allow_tf32


def benchmark_flag(x: Tensor) -> Any:
    torch.backends.cudnn.benchmark = True
    return x + 1, torch.backends.cudnn.benchmark


def flags_as_context(x: Tensor) -> Any:
    with torch.backends.cudnn.flags(enabled=False), torch.backends.mkldnn.flags(enabled=False):
        inside = torch.backends.cudnn.enabled, torch.backends.mkldnn.enabled
        return x @ x, inside


def print_options(x: Tensor) -> Any:
    torch.set_printoptions(precision=2)
    print(x / 3)
    torch.set_printoptions(precision=5)
    print(x / 3)
    return x + 1


def print_options_as_context(x: Tensor) -> Any:
    with torch._tensor_str.printoptions(precision=2):
        print(x / 3)
    print(x / 3)
    return x + 1


def flush_denormal(x: Tensor) -> Any:
    torch.set_flush_denormal(True)
    return x * 1e-40


def anomaly(x: Tensor) -> Any:
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    return x + 1, torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def anomaly_as_context(x: Tensor) -> Any:
    leaf = x.detach().requires_grad_()
    with torch.autograd.detect_anomaly():
        (leaf * 2).sum().backward()
    return leaf.grad


def attention_kernel(x: Tensor) -> Any:
    query = x.expand(1, 1, 2, 2)
    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(query, query, query)


def warn_always(x: Tensor) -> Any:
    torch.set_warn_always(True)
    return x + 1, torch.is_warn_always_enabled()


def fill_uninitialized(x: Tensor) -> Any:
    torch.utils.deterministic.fill_uninitialized_memory = False
    return x + 1


PROGRAMS = [
    default_dtype,
    default_dtype_for_a_while,
    default_tensor_type,
    default_device,
    default_device_for_a_while,
    device_as_context,
    deterministic,
    deterministic_debug_mode,
    threads,
    matmul_precision,
    matmul_flag,
    benchmark_flag,
    flags_as_context,
    print_options,
    print_options_as_context,
    flush_denormal,
    anomaly,
    anomaly_as_context,
    attention_kernel,
    warn_always,
    fill_uninitialized,
]


def outcomes_of(program: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """Return the results, output and settings of three calls; the second call starts with the settings of the first."""
    found = []
    for call in range(3):
        before = [setting.keep() for setting in SETTINGS]
        options = dict(vars(torch._tensor_str.PRINT_OPTS))
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device="cpu", dtype=torch.float32)
        result = program(x)
        found.append((described(result), capsys.readouterr().out, state()))
        if call == 0:
            for restore in before:
                restore()
            vars(torch._tensor_str.PRINT_OPTS).update(options)
    return found


def described(result: Any) -> Any:
    """Return a result with its tensors by metadata and values."""
    if isinstance(result, tuple):
        return tuple(map(described, result))
    if isinstance(result, Tensor):
        return result.dtype, str(result.device), None if result.is_meta else str(result.tolist())
    return result


@pytest.mark.filterwarnings("ignore:Anomaly", "ignore:torch.set_default_tensor", "ignore:Please use", "ignore:TF32")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_results_output_and_settings_of_each_call_match_eager(
    program: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    before = [setting.keep() for setting in SETTINGS]
    options = dict(vars(torch._tensor_str.PRINT_OPTS))
    expected = outcomes_of(program, capsys)
    for restore in before:
        restore()
    vars(torch._tensor_str.PRINT_OPTS).update(options)
    compiled = thunder.jit(program)
    assert outcomes_of(compiled, capsys) == expected
    assert thunder.cache_misses(compiled) <= 2  # the third call may start with other settings than the first


def test_setting_that_the_program_reads_is_guarded() -> None:
    compiled = thunder.jit(lambda x: x + torch.get_num_threads() if torch.backends.cudnn.enabled else x)
    x, threads = torch.ones(2), torch.get_num_threads()
    assert torch.equal(compiled(x), x + threads)
    torch.set_num_threads(threads + 2)
    assert torch.equal(compiled(x), x + threads + 2)
    torch.backends.cudnn.enabled = False
    assert torch.equal(compiled(x), x)
    assert f"torch.get_num_threads(): was {threads}, is {threads + 2}" in thunder.recompile_reasons(compiled)


def test_another_default_device_is_another_program() -> None:
    compiled = thunder.jit(lambda x: (torch.ones(2), x + 1))
    x = torch.ones(2)
    for device in ("meta", "cpu", "meta"):
        with torch.device(device):
            assert compiled(x)[0].device.type == device
    assert thunder.cache_misses(compiled) == 2


def refused(x: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(3)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.set_printoptions(precision=1)
    return x.data_ptr() + x


def test_a_trace_that_is_refused_leaves_the_process_unchanged() -> None:
    before = state()
    with pytest.raises(ThunderError):
        thunder.jit(refused, data_dependent="error")(torch.ones(2, 2))
    assert state() == before


def failing(x: Tensor, index: Tensor) -> Tensor:
    with torch.backends.cudnn.flags(enabled=False):
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(3)
        torch.set_printoptions(precision=1)
        return x[index] + torch.ones(2)


@pytest.mark.parametrize("calls_before", [0, 1])
def test_failing_call_leaves_the_settings_of_eager(calls_before: int) -> None:
    x, place = torch.ones(2), torch.tensor([0, 1])
    restores = [setting.keep() for setting in SETTINGS]
    options = dict(vars(torch._tensor_str.PRINT_OPTS))
    found = []
    for function in (failing, thunder.jit(failing)):
        for wanted in (*([place] * calls_before), place + 5):
            for restore in restores:
                restore()
            vars(torch._tensor_str.PRINT_OPTS).update(options)
            if wanted is place:
                assert function(x, wanted).dtype == torch.float64
                continue
            with pytest.raises(IndexError):
                function(x, wanted)
            found.append(state())
    assert found[0] == found[1]


def test_gradients_follow_the_settings() -> None:
    def program(x: Tensor) -> Tensor:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        scale = torch.arange(3) / 2
        torch.set_default_dtype(before)
        return (x * scale).sin().sum()

    compiled = thunder.jit(program)
    for _ in range(2):
        grads = []
        for function in (program, compiled):
            x = torch.ones(3, requires_grad=True)
            function(x).backward()
            grads.append(x.grad)
        assert grads[0] is not None and torch.equal(*grads)
    assert "set_default_dtype" in thunder.last_backward_reason(compiled)


def test_attention_has_a_backward_of_the_kernel_that_was_chosen() -> None:
    compiled = thunder.jit(attention_kernel)
    grads = []
    for function in (attention_kernel, compiled):
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        function(x).square().sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)
    assert thunder.last_backward_reason(compiled) == ""
    assert "aten._safe_softmax" in str(thunder.last_traces(compiled)[-1])


def test_lines_under_other_settings_are_not_claimed() -> None:
    executor = OperatorExecutor("ones")
    executor.implements(torch.ones)(lambda *sizes: torch.full(sizes, 1.0))
    compiled = thunder.jit(
        lambda x: (torch.ones(2) + x, torch.set_default_dtype(torch.float64), torch.ones(2)), executors=[executor]
    )
    first, _, second = compiled(torch.ones(2))
    assert (first.dtype, second.dtype) == (torch.float32, torch.float64)
    assert claims_by_executor(thunder.last_traces(compiled)[-1])["ones"] == 1


def test_value_after_a_changed_default_dtype_is_left_to_eager() -> None:
    def program(x: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        return torch.ones(int((x.int() * 1.5).sum()))

    try:
        with pytest.warns(RecompileWarning, match="set_default_dtype"):
            assert torch.equal(thunder.jit(program)(torch.ones(2)), torch.ones(3, dtype=torch.float64))
    finally:
        torch.set_default_dtype(torch.float32)


def test_value_after_a_changed_number_of_threads_is_known() -> None:
    def program(x: Tensor) -> Tensor:
        torch.set_num_threads(2)
        return torch.ones(int(x.sum()))

    assert thunder.jit(program)(torch.ones(2)).shape == (2,)


def test_setting_that_can_be_set_once_is_set_by_the_call_and_not_by_tracing() -> None:
    before = torch.get_num_interop_threads()

    def program(x: Tensor) -> Tensor:
        torch.set_num_interop_threads(before + 1)
        return x + torch.get_num_interop_threads()

    computation = str(acquire(program, (torch.ones(1),), {}).computation)
    assert torch.get_num_interop_threads() == before
    assert f"torch.set_num_interop_threads({before + 1})" in computation and f"x + {before + 1}" in computation


def test_saving_and_restoring_settings_changes_nothing() -> None:
    torch.set_float32_matmul_precision("high")
    before = state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for setting in SETTINGS:
            setting.keep()()
    assert state() == before
