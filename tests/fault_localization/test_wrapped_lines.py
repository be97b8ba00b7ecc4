"""Lines within a CUDA graph, and lines that an executor has joined, are compared with eager PyTorch one by one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.executors.cudagraphs.stand_in import OnCpu, StandIn
from tests.fault_localization.examined import activating, examine_call, numbers, program_of, silu
from tests.fault_localization.test_claims import WRONG
from thunder_core.backend.claiming.claim_checks import UnclaimedProgram, reference_of
from thunder_core.compilation.compiler.last_call import last_program
from thunder_core.foundation import plugins
from thunder_core.workflow.fault_localization.evidence import evidence_of
from thunder_core.workflow.fault_localization.examination import examine
from thunder_executors.cudagraphs import graph

LAYERS = 6


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "CUDA", StandIn())


def layers(x: torch.Tensor) -> torch.Tensor:
    """Layers of three operations each."""
    for _ in range(LAYERS):
        x = silu(x * 2) + 1
    return x


def wrong_in_the_third_layer() -> Callable[[torch.Tensor], torch.Tensor]:
    """A kernel that is wrong at every third of six calls."""
    calls = [0]

    def kernel(x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return silu(x) * (1.0001 if calls[0] % LAYERS == 3 else 1)

    return kernel


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_kernel_within_a_graph_is_named(kind: str) -> None:
    """The graph calls the kernel, so the graph is no reference for it."""
    (fault, *_) = examine_call(layers, (activating(WRONG[kind]), OnCpu(), "torch"), x=numbers()).faults
    assert (fault.kind, fault.by, fault.trace) == ("executor", "mine", "computation")
    assert fault.line.startswith("t1 = my_silu(t0")
    assert "test_wrapped_lines.py" in fault.source


def test_the_wrong_layer_within_a_graph_is_the_only_fault_and_has_evidence() -> None:
    x = numbers()
    program = program_of(layers, (activating(wrong_in_the_third_layer()), OnCpu(), "torch"), x=x)
    (graph_line,) = [bsym for bsym in program.last("computation").bound_symbols if bsym.executor == "cudagraphs"]
    report = examine(program, layers, (), {"x": x})
    (fault,) = report.faults
    assert fault.line == "t7 = my_silu(t6, inplace=False)"
    assert report.compared == LAYERS - 1
    evidence = evidence_of(program, fault, layers, (), {"x": x})
    assert evidence is not None
    assert [operation.symbol.short_name for operation in evidence.operations] == ["silu"]
    assert "t6" in evidence.values
    assert len(graph_line.subsymbols) == 3 * LAYERS


def test_the_check_of_a_graph_holds_few_values_at_a_time() -> None:
    """A whole model is one graph. Its intermediate values must not be alive at once."""
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = [0]

    def kernel(x: torch.Tensor) -> torch.Tensor:
        result = x * torch.sigmoid(x)
        alive.add(result)
        most[0] = max(most[0], len(alive))
        return result

    program = program_of(layers, (activating(kernel), OnCpu(), "torch"), x=numbers())
    alive.clear()
    most[0] = 0
    report = examine(program, layers, (), {"x": numbers()}, probe_guards=False)
    assert not report.faults
    assert report.compared == LAYERS
    assert 0 < most[0] < LAYERS


# ---- lines that the Triton executor joins ---------------------------------------------------------------------------


@pytest.fixture
def joined() -> Iterator[tuple[Any, Any, torch.Tensor]]:
    """A program with a norm in its products, the module, and its input."""
    if not plugins.is_installed("triton"):
        pytest.skip("needs Triton")
    import thunder_core as thunder
    from tests.executors.triton.test_norm_products import WIDTH, Layer
    from thunder_executors.triton.launch import INTERPRETED

    if not INTERPRETED:
        pytest.skip("for the interpreter")
    module, x = Layer(), numbers(1, 1, WIDTH)
    compiled = thunder.jit(module, executors=("triton", "torch"))
    with torch.no_grad():
        compiled(x)
        yield last_program(compiled), module, x


def test_the_reference_of_a_joined_line_is_eager_and_the_line_is_compared(
    joined: tuple[Any, Any, torch.Tensor],
) -> None:
    program, module, x = joined
    *_, unclaimed, claimed, _ = program.traces("computation")
    lines = [bsym for bsym in claimed.bound_symbols if bsym.executor == "triton"]
    assert [line.symbol.short_name for line in lines] == ["norm_linear", "norm_swiglu"]
    for line in lines:
        assert {inner.executor for inner in line.subsymbols} == {"", "triton"}
        assert {operation.executor for operation in reference_of(line, UnclaimedProgram.of(unclaimed))} == {""}
    report = examine(program, module, (x,), {}, probe_guards=False)
    assert (report.faults, report.compared, report.not_compared) == ((), 2, ())


def test_a_wrong_joined_kernel_is_named(joined: tuple[Any, Any, torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    norm_products = plugins.import_object("thunder_executors.triton.norm_products:normalized_gated")
    program, module, x = joined
    monkeypatch.setattr(
        "thunder_executors.triton.norm_products.normalized_gated",
        lambda *arguments: [norm_products(*arguments)[0] * 1.001, *norm_products(*arguments)[1:]],
    )
    (fault,) = examine(program, module, (x,), {}, probe_guards=False).faults
    assert (fault.kind, fault.by) == ("executor", "triton")
    assert "norm_swiglu(" in fault.line
