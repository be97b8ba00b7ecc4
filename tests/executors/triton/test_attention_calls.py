"""Attention of a token to its cache is claimed, by a length if the mask is proved to have one; a GPU is replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import thunder_core as thunder
from tests.executors.cudagraphs.stand_in import OnCpu, StandIn
from tests.executors.triton.closeness import assert_close, draw
from tests.executors.triton.launches import launches_of
from thunder_core.backend.claiming.tuning import tuning
from thunder_core.compilation.compiler import last_program, trace_for
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.workflow.fault_localization.examination import examine
from thunder_executors.cudagraphs import graph
from thunder_executors.triton import measurement
from thunder_executors.triton.attention.decode_attention import decode_attention
from thunder_executors.triton.launch import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="for the interpreter")
BATCH, GROUPS, QUERIES, KEYS, WIDTH = 2, 1, 2, 40, 8
LAST, LASTS = torch.tensor([[7]]), torch.tensor([[7], [30]])
CACHE = (draw(BATCH, GROUPS, KEYS, WIDTH, seed=1), draw(BATCH, GROUPS, KEYS, WIDTH, seed=2))
QUERY = draw(BATCH, GROUPS, QUERIES, WIDTH)
HEADS = QUERY.view(BATCH, GROUPS * QUERIES, 1, WIDTH)


def names_of(compiled: Any) -> list[str]:
    """The names of the calls of the last program, without deletions."""
    bsyms = thunder.last_traces(compiled)[-1].bound_symbols
    return [bsym.symbol.short_name for bsym in bsyms if bsym.symbol.short_name != "del"]


def run(function: Callable[..., Any], *inputs: Any, executors: Any = ("triton", "torch"), **options: Any) -> list[str]:
    """The names of the calls of a program, whose results are compared with eager PyTorch."""
    compiled = thunder.jit(function, executors=executors, **options)
    with torch.no_grad():
        expected = function(*(value.clone() if isinstance(value, Tensor) else value for value in inputs))
        torch.testing.assert_close(compiled(*inputs), expected, rtol=2e-5, atol=2e-6)
    return names_of(compiled)


def attend(query: Tensor, mask: Tensor, **options: Any) -> Tensor:
    """Attention to the cache."""
    return scaled_dot_product_attention(query, *CACHE, attn_mask=mask, **options)


def keys_until(last: Tensor) -> Tensor:
    return torch.arange(KEYS) <= last


# ---- masks that the kernel reads --------------------------------------------------------------------------------


MASK = draw(BATCH, 1, 1, KEYS, seed=3) > 0


@pytest.mark.parametrize("mask", [MASK, MASK[:1], draw(1, 1, 1, KEYS, seed=4)], ids=["each", "all", "float"])
def test_a_mask_among_the_inputs_is_read_by_the_kernel(mask: Tensor) -> None:
    assert run(lambda q, m: attend(q, m, scale=0.5), QUERY, mask) == ["attend_by_mask"]
    assert run(lambda q, m: attend(q, m, enable_gqa=True), HEADS, mask) == ["attend_by_mask"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_attention_in_16_bits(dtype: torch.dtype) -> None:
    compiled = thunder.jit(scaled_dot_product_attention, executors=["triton", "torch"])
    arguments = [tensor.to(dtype) for tensor in (QUERY, *CACHE)]
    expected = scaled_dot_product_attention(*(tensor.double() for tensor in arguments), MASK)
    assert_close(compiled(*arguments, MASK), expected)
    assert names_of(compiled) == ["attend_by_mask"]


def repeated(x: Tensor) -> Tensor:
    batch, heads, length, width = x.shape
    return x[:, :, None, :, :].expand(batch, heads, 2, length, width).reshape(batch, heads * 2, length, width)


def test_repeated_keys_and_values_are_read_in_place() -> None:
    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=mask)

    def returned(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Any:
        keys = repeated(k)
        return scaled_dot_product_attention(q, keys, repeated(v), attn_mask=mask), keys

    def written(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        keys = repeated(k)
        k.mul_(2)
        return scaled_dot_product_attention(q, keys, repeated(v), attn_mask=mask)

    repeats = ["__getitem__", "expand", "reshape"]
    q, k, v = draw(1, 4, 1, WIDTH), draw(1, 2, 16, WIDTH, seed=1), draw(1, 2, 16, WIDTH, seed=2)
    mask = MASK[:1, ..., :16]
    assert run(attention, q, k, v, mask) == ["attend_by_mask"]
    assert run(returned, q, k, v, mask) == [*repeats, "attend_by_mask"]
    assert run(written, q, k.clone(), v, mask) == [*repeats, "mul_", *repeats, "attend_by_mask"]
    assert run(lambda q, k, v, m: scaled_dot_product_attention(q, k, v, m, enable_gqa=True), q, k, v, mask) == [
        "attend_by_mask"
    ]


# ---- masks with a length ----------------------------------------------------------------------------------------


def as_transformers(last: Tensor) -> Tensor:
    keys, queries = torch.arange(KEYS) + 0, torch.arange(1) + last.view(-1)[0]
    mask = keys[None, None, None, :] <= queries[None, None, :, None]
    return mask.expand(BATCH, -1, 1, KEYS)


PROVED: dict[str, Callable[[Tensor], Tensor]] = {
    "transformers": as_transformers,
    "rows": lambda last: keys_until(last)[:, None, None],
    "columns": lambda last: torch.arange(KEYS)[None, None, None] <= last[:, :, None, None],
    "less": lambda last: (torch.arange(0, KEYS) < last).view(-1, 1, 1, KEYS),
    "greater": lambda last: (last > torch.arange(0, KEYS, 1).unsqueeze(0)).unsqueeze(1).unsqueeze(1),
    "greater or equal": lambda last: torch.ge(last, torch.arange(KEYS)).reshape(-1, 1, 1, KEYS)[..., :KEYS],
    "computed": lambda last: (torch.arange(KEYS) <= last * 2 - 3)[:, None, None],
}


@pytest.mark.parametrize("last", [LAST, LASTS], ids=["one", "each"])
@pytest.mark.parametrize("mask", PROVED.values(), ids=PROVED)
def test_a_mask_up_to_a_last_key_is_not_computed(mask: Callable[[Tensor], Tensor], last: Tensor) -> None:
    names = run(lambda q, n: attend(q, mask(n)), QUERY, last)
    assert names[-1] == "attend_by_length"
    assert not {"le", "lt", "gt", "ge", "expand"} & set(names)
    assert names.count("arange") == (1 if mask is as_transformers else 0)  # the index of the query is in its number


def test_the_kernel_reads_the_length_of_the_call() -> None:
    compiled = thunder.jit(lambda q, n: attend(q, keys_until(n)[:, None, None]), executors=["triton", "torch"])
    for number in (0, 1, 39, 40, -1, 2**40, -(2**40)):
        last = torch.tensor([[number]])
        wide = (tensor.double() for tensor in (QUERY, *CACHE))
        assert_close(compiled(QUERY, last), scaled_dot_product_attention(*wide, keys_until(last)[:, None, None]))
    assert names_of(compiled)[-1] == "attend_by_length"


def test_a_mask_that_is_read_elsewhere_is_computed() -> None:
    def function(q: Tensor, last: Tensor) -> Any:
        mask = keys_until(last)[:, None, None]
        return attend(q, mask), attend(q + 1, mask), mask

    names = run(function, QUERY, LAST)
    assert (names.count("attend_by_length"), names.count("arange"), names.count("le")) == (2, 1, 1)


def test_several_calls_share_a_mask_that_is_not_computed() -> None:
    def function(q: Tensor, last: Tensor) -> Tensor:
        mask = keys_until(last)[:, None, None]
        return attend(q, mask) + attend(q * 2, mask)

    names = run(function, QUERY, LASTS)
    assert names.count("attend_by_length") == 2
    assert "arange" not in names


def padded(last: Tensor) -> Tensor:
    return keys_until(last)[:, None, None] & (torch.arange(KEYS) >= 3)


def written_later(last: Tensor) -> Tensor:
    mask = keys_until(last)[:, None, None]
    last.add_(1)
    return mask


def written_mask(last: Tensor) -> Tensor:
    mask = keys_until(last)[:, None, None]
    mask[..., 5] = False
    return mask


def written_keys(last: Tensor) -> Tensor:
    keys = torch.arange(KEYS)
    keys[3] = 100
    return (keys <= last)[:, None, None]


NOT_PROVED: dict[str, Callable[[Tensor], Tensor]] = {
    "padding": padded,
    "written number": written_later,
    "written mask": written_mask,
    "written keys": written_keys,
    "from a first key": lambda last: (torch.arange(KEYS) >= last)[:, None, None],
    "reversed comparison": lambda last: (last <= torch.arange(KEYS))[:, None, None],
    "from 1": lambda last: (torch.arange(1, KEYS + 1) <= last)[:, None, None],
    "shifted": lambda last: (torch.arange(KEYS) + 1 <= last)[:, None, None],
    "steps": lambda last: (torch.arange(0, 2 * KEYS, 2) <= last)[:, None, None],
    "flipped": lambda last: (torch.arange(KEYS).flip(0) <= last)[:, None, None],
    "slice": lambda last: (torch.arange(2 * KEYS)[KEYS // 4 : KEYS // 4 + KEYS] <= last)[:, None, None],
    "slice of the mask": lambda last: (torch.arange(2 * KEYS) <= last)[:, None, None, 5 : KEYS + 5],
    "inverted": lambda last: ~(torch.arange(KEYS) <= last)[:, None, None],
    "float": lambda last: (torch.arange(KEYS) <= last.float())[:, None, None],
    "float keys": lambda last: (torch.arange(KEYS).float() <= last)[:, None, None],
    "int32": lambda last: (torch.arange(KEYS) <= last.int())[:, None, None],
    "many numbers": lambda last: (torch.arange(KEYS) <= torch.arange(KEYS) * 0 + last)[:, None, None],
    "constant": lambda last: (torch.arange(KEYS) <= 7).expand(len(last), KEYS)[:, None, None],
    "equal": lambda last: (torch.arange(KEYS) == last)[:, None, None],
    "term": lambda last: torch.zeros(1, 1, 1, KEYS).masked_fill(~keys_until(last)[:1, None, None], -float("inf")),
}


@pytest.mark.parametrize("mask", NOT_PROVED.values(), ids=NOT_PROVED)
def test_other_masks_are_computed(mask: Callable[[Tensor], Tensor]) -> None:
    names = run(lambda q, n: attend(q, mask(n)), QUERY, LASTS.clone())
    assert names[-1] == "attend_by_mask"


def test_a_length_on_another_device_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch compares tensors on a GPU with a tensor without dimensions on the CPU."""

    def function(q: Tensor, k: Tensor, v: Tensor, on_cpu: bool) -> Tensor:
        last = torch.full((), 7, device="cpu" if on_cpu else q.device)
        mask = torch.arange(KEYS, device=q.device) <= last
        return scaled_dot_product_attention(q, k, v, mask[None, None, None])

    monkeypatch.setattr("thunder_executors.triton.device_code", lambda *arguments: ())
    found: list[str] = []
    for on_cpu in (False, True):
        compiled = thunder.jit(function, executors=["triton", "torch"])
        with torch.no_grad():
            program, _ = trace_for(compiled, torch.device("cuda"), (QUERY, *CACHE, on_cpu), {})
        found += [bsym.symbol.short_name for bsym in program.last("computation").bound_symbols]
    assert [name for name in found if name.startswith("attend")] == ["attend_by_length", "attend_by_mask"]


# ---- other attention --------------------------------------------------------------------------------------------


UNSUPPORTED: dict[str, Callable[[Tensor], Tensor]] = {
    "no mask": lambda q: scaled_dot_product_attention(q, *CACHE),
    "causal": lambda q: scaled_dot_product_attention(q, *CACHE, is_causal=True),
    "mask of queries": lambda q: attend(q, MASK.expand(BATCH, 1, QUERIES, KEYS).clone()),
    "mask of heads": lambda q: attend(HEADS, MASK.expand(BATCH, 2, 1, KEYS).clone(), enable_gqa=True),
    "mask of a matrix": lambda q: attend(q, MASK[:1, 0, 0]),
    "many queries": lambda q: attend(q.repeat(1, 1, 50, 1), MASK),
    "three dimensions": lambda q: scaled_dot_product_attention(q[0], CACHE[0][0], CACHE[1][0], MASK[0, 0]),
    "float64": lambda q: scaled_dot_product_attention(q.double(), *(each.double() for each in CACHE), MASK),
    "one cache for all": lambda q: scaled_dot_product_attention(q, CACHE[0][:1], CACHE[1][:1], MASK),
}


@pytest.mark.parametrize("function", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_other_attention_is_left_to_other_executors(function: Callable[[Tensor], Tensor]) -> None:
    assert not {"attend_by_mask", "attend_by_length"} & set(run(function, QUERY))


def test_random_attention_is_left_to_other_executors() -> None:
    compiled = thunder.jit(lambda q: attend(q, MASK, dropout_p=0.5), executors=["triton", "torch"])
    compiled(QUERY)
    assert "attend_by_mask" not in names_of(compiled)


def test_attention_that_autocast_casts_is_left_to_pytorch() -> None:
    compiled = thunder.jit(attend, executors=["triton", "torch"])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        result, expected = compiled(QUERY, MASK), attend(QUERY, MASK)
    assert result.dtype == expected.dtype == torch.bfloat16
    assert "attend_by_mask" not in names_of(compiled)


def test_recorded_attention_is_not_claimed() -> None:
    results = []
    for function in (attend, compiled := thunder.jit(attend, executors=["triton", "torch"])):
        query = QUERY.clone().requires_grad_()
        function(query, MASK).sum().backward()
        results.append(query.grad)
    torch.testing.assert_close(results[1], results[0])
    assert "attend_by_mask" not in names_of(compiled)


def test_symbolic_sizes_are_left_to_other_executors() -> None:
    options: dict[str, Any] = {"symbolic": {"q.size(2)": (2, 16)}}
    assert "attend_by_mask" not in run(lambda q, m: attend(q, m), QUERY, MASK, **options)


# ---- choice -----------------------------------------------------------------------------------------------------


def test_the_faster_of_both_is_called_and_the_times_are_kept(gpu: dict[str, float]) -> None:
    for _ in range(2):
        assert run(lambda q, m: attend(q, m), QUERY, MASK) == ["attend_by_mask"]
        assert run(lambda q, n: attend(q, keys_until(n)[:, None, None]), QUERY, LASTS) == ["attend_by_length"]
    assert gpu["calls"] == 2  # both masks have the same size


def test_a_kernel_that_is_slower_leaves_attention_to_pytorch(gpu: dict[str, float]) -> None:
    gpu["library"] = 1.01
    compiled = thunder.jit(lambda q, m: attend(q, m, enable_gqa=True), executors=["triton", "torch"])
    compiled(HEADS, MASK)
    assert names_of(compiled) == ["scaled_dot_product_attention"]
    (refusal,) = thunder.last_traces(compiled)[-1].refused
    title = "attention of 2 x 2 x 1 queries of width 8 to 1 x 40 keys, in float32, bool"
    assert refusal.reason == f"PyTorch computes {title}: triton 1 ms, PyTorch 1.01 ms"


def test_no_time_to_measure_leaves_attention_to_pytorch(gpu: dict[str, float]) -> None:
    with tuning(0.0):
        compiled = thunder.jit(attend, executors=["triton", "torch"])
        compiled(QUERY, MASK)
    assert names_of(compiled) == ["scaled_dot_product_attention"]
    assert [refusal.reason for refusal in thunder.last_traces(compiled)[-1].refused] == [measurement.NOT_MEASURED]
    assert gpu["calls"] == 0


def test_the_mask_of_a_measurement_shows_all_keys_and_large_operands_repeat_a_pattern(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The times are those of a full cache, for which the kernel saves nothing."""
    monkeypatch.setattr(measurement, "PATTERN", 100)
    mask = TensorProxy("mask", (2, 1, 1, 300), (300, 300, 300, 1), torch.bool, torch.device("cpu"))
    keys = TensorProxy("keys", (2, 1, 37, 5), (185, 185, 5, 1), torch.float32, torch.device("cpu"))
    assert measurement.operand_of(mask).all()
    operand = measurement.operand_of(keys)
    assert (operand.shape, operand.flatten()[100:200].equal(operand.flatten()[:100])) == (keys.shape, True)
    assert len(operand.unique()) == 100


# ---- models and graphs ------------------------------------------------------------------------------------------


def test_one_graph_serves_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = StandIn()
    monkeypatch.setattr(graph, "CUDA", stand_in)

    def function(q: Tensor, last: Tensor) -> Tensor:
        for _ in range(20):
            q = q.neg()
        return attend(q, keys_until(last)[:, None, None])

    compiled = thunder.jit(function, executors=["triton", OnCpu(), "torch"])
    with torch.no_grad():
        for number in (0, 5, 16, 39):
            last = torch.tensor([[number]])
            torch.testing.assert_close(compiled(QUERY, last), function(QUERY, last), rtol=2e-5, atol=2e-6)
    assert (stand_in.records, stand_in.replays) == (1, 3)


def test_the_kernel_is_compiled_for_an_absent_gpu() -> None:
    compiled = thunder.jit(lambda q, n: attend(q, keys_until(n)[:, None, None]), executors=["triton", "torch"])
    compiled(QUERY, LAST)
    launches = launches_of(thunder.last_traces(compiled)[-1])
    names = [launch.specialization.kernel.partition(":")[2] for launch in launches]
    assert names == ["decode_attention_kernel"]


def test_the_reference_of_a_call_is_eager_and_a_wrong_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(q: Tensor, last: Tensor) -> Tensor:
        return attend(q, keys_until(last)[:, None, None]) + 0

    compiled = thunder.jit(function, executors=["triton", "torch"])
    compiled(QUERY, LASTS)
    program = last_program(compiled)
    report = examine(program, function, (QUERY, LASTS), {}, probe_guards=False)
    assert (report.faults, report.compared) == ((), 1)
    path = "thunder_executors.triton.attention.calls.decode_attention"
    monkeypatch.setattr(path, lambda *arguments: decode_attention(*arguments) * 1.001)
    (fault,) = examine(program, function, (QUERY, LASTS), {}, probe_guards=False).faults
    assert (fault.kind, fault.by) == ("executor", "triton")
    assert "attend_by_length(" in fault.line


@pytest.fixture(scope="module")
def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 50, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads, initializer_range=0.3)).eval()


@pytest.mark.parametrize("padding", [0, 2])
def test_a_token_of_a_llama_attends_to_the_filled_part_of_its_cache(padding: int, llama: Any) -> None:
    """Without padding, the program computes the mask from the cache's count; padding is part of a mask."""
    transformers = pytest.importorskip("transformers")
    compiled = thunder.jit(llama, executors=["triton", "torch"])
    logits = []
    for model in (llama, compiled):
        cache = transformers.StaticCache(config=llama.config, max_cache_len=20)
        prompt, mask = torch.arange(10).view(2, 5), torch.ones(2, 5, dtype=torch.int64)
        mask[1, :padding] = 0
        with torch.no_grad():
            llama(input_ids=prompt, attention_mask=mask, past_key_values=cache)
            for number in range(3):
                mask = torch.cat([mask, mask.new_ones(2, 1)], dim=1)
                options = {"attention_mask": mask} if padding else {}
                token = torch.tensor([[number], [number + 7]])
                result = model(input_ids=token, past_key_values=cache, **options).logits
        logits.append(result)
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-5)
    names = names_of(compiled)
    assert names.count("attend_by_mask" if padding else "attend_by_length") == 2
    assert not {"le", "scaled_dot_product_attention"} & set(names) or padding
