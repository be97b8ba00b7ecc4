"""Attention: cuDNN computes what it supports by PyTorch's own rules; otherwise PyTorch chooses the backend."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import thunder_core as thunder
from thunder_core.compilation.compiler import trace_for
from thunder_core.tracing.ir.symbol import Symbol
from thunder_executors import sdpa
from thunder_executors.sdpa import mask_terms

Q = torch.randn(2, 4, 8, 16, generator=torch.Generator().manual_seed(0))
KEY = torch.randn(2, 2, 8, 16, generator=torch.Generator().manual_seed(1))
VALUE = torch.randn(2, 2, 8, 16, generator=torch.Generator().manual_seed(2))
MASK = torch.ones(8, 8, dtype=torch.bool).tril()[None, None]
Q_CAUSAL = scaled_dot_product_attention(Q, Q, Q, is_causal=True, scale=0.3)


def causal(q, k, v):
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def masked(q, k, v, mask):
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.0, scale=0.5, enable_gqa=True)


def claimed_lines(function, *args):
    compiled = thunder.jit(function, executors=(sdpa.EXECUTOR, "torch"))
    with torch.no_grad():
        program, _ = trace_for(compiled, torch.device("cuda"), args, {})
    return [bsym for bsym in program.last("computation").bound_symbols if bsym.executor == "sdpa"]


def line_of(function, *args):
    (line,) = claimed_lines(function, *args)
    return line


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU: the backends that accept any inputs, and the checks of each."""
    taking, asked = {SDPBackend.MATH}, []

    def rule(backend):
        def takes(params):
            asked.append((backend, params))
            return backend in taking

        return takes

    monkeypatch.setattr(sdpa, "RULES", {backend: rule(backend) for backend in sdpa.PRIORITY})
    monkeypatch.setattr(sdpa, "Cuda", lambda: SimpleNamespace(missing=lambda: None))
    return taking, asked


def test_the_line_names_cudnn_if_cudnn_takes_the_inputs(gpu):
    taking, asked = gpu
    taking.add(SDPBackend.CUDNN_ATTENTION)
    assert line_of(causal, Q, Q, Q).symbol.name == "thunder_executors.sdpa.cudnn_attention"
    assert [backend for backend, _ in asked] == [SDPBackend.CUDNN_ATTENTION]


def test_attention_that_autocast_casts_is_left_to_pytorch(gpu):
    taking, _ = gpu
    taking.add(SDPBackend.CUDNN_ATTENTION)
    line = line_of(causal, Q.half(), Q.half(), Q.half())
    attention = replace(line, symbol=Symbol(sdpa.ATTENTION, scaled_dot_product_attention), executor="")
    assert sdpa.EXECUTOR.claim(attention) is not None
    cast = replace(attention, output=replace(attention.output, dtype=torch.bfloat16))
    assert sdpa.EXECUTOR.claim(cast) is None


@pytest.mark.parametrize("backend", sdpa.PRIORITY[1:], ids=["flash", "efficient", "math"])
def test_attention_without_cudnn_is_left_to_pytorch(gpu, backend):
    taking, asked = gpu
    taking.add(backend)
    assert claimed_lines(causal, Q, Q, Q) == []
    assert [asked_backend for asked_backend, _ in asked] == list(sdpa.PRIORITY[: sdpa.PRIORITY.index(backend) + 1])


def test_pytorchs_rules_are_checked_for_the_given_inputs(gpu):
    taking, asked = gpu
    taking.add(SDPBackend.CUDNN_ATTENTION)
    key = torch.randn(2, 2, 8, 16)
    line_of(masked, Q.bfloat16(), key.bfloat16(), key.bfloat16(), torch.ones(8, 8, dtype=torch.bool))
    params = asked[0][1]
    assert (params.query.shape, params.query.dtype, params.query.device.type) == (Q.shape, torch.bfloat16, "cuda")
    assert params.key.shape == key.shape
    assert params.attn_mask.shape == (8, 8)
    assert (params.dropout, params.is_causal, params.enable_gqa) == (0.0, False, True)
    line_of(causal, Q, Q, Q)
    params = asked[-1][1]
    assert (params.attn_mask, params.is_causal, params.enable_gqa) == (None, True, False)


def test_backend_for_an_absent_gpu_is_found_on_that_gpu():
    assert line_of(causal, Q, Q, Q).symbol.name == "thunder_executors.sdpa.attention"


@pytest.mark.parametrize("function", list(sdpa.FUNCTIONS.values()), ids=lambda function: function.__name__)
def test_each_backend_function_computes_pytorchs_attention(function):
    torch.testing.assert_close(function(Q, Q, Q, is_causal=True), causal(Q, Q, Q))


@pytest.fixture
def cudnn(monkeypatch):
    """Implement cuDNN's operation on the CPU, and return the list of its calls."""
    calls = []

    def operation(query, key, value, bias, *rest, scale):
        calls.append((bias, *rest))
        _, dropout, is_causal, _ = rest
        groups = {"enable_gqa": True} if key.shape[1] != query.shape[1] else {}
        output = scaled_dot_product_attention(query, key, value, bias, dropout, is_causal, scale=scale, **groups)
        return (output,)

    monkeypatch.setattr(sdpa, "CUDNN", operation)
    monkeypatch.setattr(sdpa, "RULES", dict.fromkeys(sdpa.PRIORITY, lambda params: True))
    return calls


@pytest.mark.parametrize("function", list(sdpa.FUNCTIONS.values()), ids=lambda function: function.__name__)
def test_cudnn_is_called_with_pytorchs_arguments(function, cudnn):
    torch.testing.assert_close(function(Q, Q, Q, is_causal=True, scale=0.3), Q_CAUSAL)
    assert cudnn == [(None, False, 0.0, True, False)]
    torch.testing.assert_close(function(Q, Q, Q, MASK), scaled_dot_product_attention(Q, Q, Q, MASK))
    assert cudnn[1][0].unique().tolist() == [-65504.0, 0.0]
    bias = torch.randn(8, 8)
    torch.testing.assert_close(function(Q, Q, Q, bias), scaled_dot_product_attention(Q, Q, Q, bias))
    assert cudnn[2][0] is bias
    grouped = scaled_dot_product_attention(Q, KEY, VALUE, enable_gqa=True)
    torch.testing.assert_close(function(Q, KEY, VALUE, enable_gqa=True), grouped)
    function(Q.clone().requires_grad_(), Q, Q, None, 0.5)
    assert cudnn[-1] == (None, True, 0.5, False, False)


@pytest.mark.parametrize("dtype", mask_terms.OPPOSITES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 1, 9), (2, 1, 4, 5), (1, 1, 0, 2)], ids=str)
def test_a_mask_becomes_pytorchs_term_of_the_scores(dtype, shape):
    for mask in (
        torch.rand(shape) > 0.5,
        (torch.rand(shape) > 0.5).mT,
        (torch.rand(shape) > 0.5).expand(-1, 3, -1, -1),
    ):
        found, wanted = (
            mask_terms.bias_of(mask, dtype),
            torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -65504.0),
        )
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, check_stride=mask.numel() > 0)


def test_arguments_fit_the_operation_of_cudnn():
    schema = torch.ops.aten._scaled_dot_product_cudnn_attention.default._schema
    names = [argument.name for argument in schema.arguments if not argument.kwarg_only]
    assert names[3:] == ["attn_bias", "compute_log_sumexp", "dropout_p", "is_causal", "return_debug_mask"]
    assert schema.returns[0].name == "output"


@pytest.mark.parametrize("function", [*sdpa.FUNCTIONS.values(), sdpa.grouped_attention])
def test_the_settings_of_the_process_are_those_of_the_user(function, monkeypatch):
    """Attention changes no setting of the process, because other threads call eager attention meanwhile."""

    def settings():
        cuda = torch.backends.cuda
        enabled = (cuda.cudnn_sdp_enabled(), cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled())
        return enabled, torch._C._get_sdp_priority_order()

    seen = []

    def observed(**arguments):
        seen.append(settings())
        return scaled_dot_product_attention(**arguments)

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", observed)
    with sdpa_kernel(SDPBackend.MATH):
        expected = settings()
        function(Q, Q, Q)
    function(Q, Q, Q)
    assert seen == [expected, settings()]


# ---- groups -----------------------------------------------------------------------------------------------------


def repeated(x, times=2):
    batch, heads, length, width = x.shape
    return x[:, :, None, :, :].expand(batch, heads, times, length, width).reshape(batch, heads * times, length, width)


def attention_to_repeated(q, k, v, mask):
    return scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=mask, scale=0.5)


def attention_to_written(q, k, v, mask):
    keys = repeated(k)
    k.mul_(2)
    return scaled_dot_product_attention(q, keys, repeated(v), attn_mask=mask)


def attention_whose_keys_are_returned(q, k, v, mask):
    keys = repeated(k)
    return scaled_dot_product_attention(q, keys, repeated(v), attn_mask=mask), keys


def attention_to_interleaved(q, k, v, mask):
    keys = k[:, None].expand(2, 2, 2, 8, 16).reshape(2, 4, 8, 16)
    return scaled_dot_product_attention(q, keys, repeated(v), attn_mask=mask)


def attention_of_one_row(q, k, v, mask):
    return scaled_dot_product_attention(q[:1], repeated(k), repeated(v), attn_mask=mask)


def names_for_a_gpu(function, *args, **options):
    """The names of the calls of a program for a GPU elsewhere, whose claimed trace is also run here."""
    compiled = thunder.jit(function, executors=(sdpa.EXECUTOR, "torch"), **options)
    with torch.no_grad():
        program, _ = trace_for(compiled, torch.device("cuda"), args, {})
    return [bsym.symbol.short_name for bsym in program.last("computation").bound_symbols]


def test_keys_and_values_are_not_repeated_for_groups():
    assert names_for_a_gpu(attention_to_repeated, Q, KEY, VALUE, MASK) == ["grouped_attention"]


def test_a_program_for_all_lengths_repeats_nothing():
    sizes = {f"{name}.size(2)": (2, 64) for name in ("q", "k", "v")}
    mask = MASK[..., :1, :1]
    names = names_for_a_gpu(attention_to_repeated, Q, KEY, VALUE, mask, symbolic=sizes)
    assert names[-1] == "grouped_attention"
    assert not {"expand", "reshape", "__getitem__"} & set(names)


def test_copies_that_are_read_elsewhere_stay():
    names = names_for_a_gpu(attention_whose_keys_are_returned, Q, KEY, VALUE, MASK)
    assert [name for name in names if name != "del"] == ["__getitem__", "expand", "reshape", "grouped_attention"]


@pytest.mark.parametrize("function", [attention_to_written, attention_to_interleaved, attention_of_one_row])
def test_other_copies_stay(function):
    assert "attention" in names_for_a_gpu(function, Q, KEY.clone(), VALUE, MASK)


def test_attention_that_autograd_records_stays_unchanged():
    compiled = thunder.jit(attention_to_repeated, executors=(sdpa.EXECUTOR, "torch"))
    q = Q.clone().requires_grad_()
    compiled(q, KEY, VALUE, MASK).sum().backward()
    expected = Q.clone().requires_grad_()
    attention_to_repeated(expected, KEY, VALUE, MASK).sum().backward()
    torch.testing.assert_close(q.grad, expected.grad)


@pytest.mark.parametrize("fused", [False, True])
def test_groups_are_repeated_only_where_no_backend_takes_them(fused, monkeypatch):
    asked = []

    def takes(params):
        asked.append((params.key.shape, params.enable_gqa, params.attn_mask is not None))
        return fused

    rules = {**dict.fromkeys(sdpa.PRIORITY, takes), SDPBackend.CUDNN_ATTENTION: lambda params: False}
    monkeypatch.setattr(sdpa, "RULES", rules)
    calls = []

    def noted(**named):
        calls.append(named)
        return scaled_dot_product_attention(**named)

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", noted)
    found = sdpa.grouped_attention(Q, KEY, VALUE, attn_mask=MASK, scale=0.5, enable_gqa=True)
    torch.testing.assert_close(found, attention_to_repeated(Q, KEY, VALUE, MASK))
    assert asked[0] == (KEY.shape, True, True)
    assert (calls[0]["key"].shape[1], calls[0]["enable_gqa"]) == ((2, True) if fused else (4, False))


# ---- masks ------------------------------------------------------------------------------------------------------


def two_layers(q, k, v, mask):
    return scaled_dot_product_attention(scaled_dot_product_attention(q, k, v, mask), k, v, attn_mask=mask)


def two_layers_of_groups(q, k, v, mask):
    first = scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=mask)
    return scaled_dot_product_attention(first, repeated(k), repeated(v), attn_mask=mask)


def layers_of_two_masks(q, k, v, mask):
    return two_layers(two_layers(q, k, v, mask), k, v, mask.flip(-1))


def layers_with_a_written_mask(q, k, v, mask):
    first = scaled_dot_product_attention(q, k, v, mask)
    mask.fill_(True)
    return scaled_dot_product_attention(first, k, v, mask)


def layers_with_a_term(q, k, v, mask):
    return two_layers(q, k, v, mask.to(q.dtype))


def operation_name(bsym):
    name = bsym.symbol.name
    return name.removeprefix(sdpa.ATEN).partition(".")[0] if name.startswith(sdpa.ATEN) else bsym.symbol.short_name


CONVERSION = ["_to_copy", "sub", "mul"]
PAIR = ["attention", "attention"]


@pytest.mark.parametrize(
    ("function", "key", "calls"),
    [
        (two_layers, Q, [*CONVERSION, *PAIR]),
        (two_layers_of_groups, KEY, [*CONVERSION, "grouped_attention", "grouped_attention"]),
        (layers_of_two_masks, Q, [*CONVERSION, *PAIR, "flip", *CONVERSION, *PAIR]),
        (layers_with_a_written_mask, Q, ["attention", "fill_", "attention"]),
        (layers_with_a_term, Q, ["to", *PAIR]),
        (masked, KEY, ["attention"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_layers_share_the_term_of_a_boolean_mask(function, key, calls, cudnn):
    compiled = thunder.jit(function, executors=(sdpa.EXECUTOR, "torch"))
    tensors = {"q": Q, "k": key, "v": key + 1, "mask": MASK.clone()}
    with torch.no_grad():
        program, _ = trace_for(compiled, torch.device("cuda"), tuple(tensors.values()), {})
        claimed = [stage.trace for stage in program.stages if stage.trace.made_by.startswith("claim by")][-1]
        assert [operation_name(bsym) for bsym in claimed.bound_symbols] == calls
        (found,) = claimed(*(tensors[proxy.name].clone() for proxy in claimed.inputs))  # on the CPU
        torch.testing.assert_close(found, function(**tensors))
    assert len({id(term) for term, *_ in cudnn}) == calls.count("_to_copy") or CONVERSION[0] not in calls


@pytest.mark.parametrize("dtype", mask_terms.OPPOSITES, ids=str)
def test_the_shared_term_is_pytorchs(dtype):
    term = MASK
    for operator, arguments, options in mask_terms.term_steps(dtype):
        term = operator(term, *arguments, **options)
    torch.testing.assert_close(term, mask_terms.bias_of(MASK, dtype), rtol=0, atol=0)


@pytest.mark.gpu
def test_on_a_gpu_attention_by_groups_is_attention_to_repeated_keys():
    q, k, v = (x.to("cuda", torch.bfloat16) for x in (Q, KEY, VALUE))
    compiled = thunder.jit(attention_to_repeated, executors=(sdpa.EXECUTOR, "torch"))
    with torch.no_grad():
        expected = attention_to_repeated(q, k, v, MASK.cuda())
        torch.testing.assert_close(compiled(q, k, v, MASK.cuda()), expected, rtol=2**-6, atol=2**-6)
    (line,) = [bsym for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.executor == "sdpa"]
    assert line.symbol.short_name == "grouped_attention"


@pytest.mark.gpu
def test_on_a_gpu_the_named_the_named_backend_runs():
    q = Q.to("cuda", torch.bfloat16)
    compiled = thunder.jit(causal, executors=(sdpa.EXECUTOR, "torch"))
    with torch.no_grad():
        torch.testing.assert_close(compiled(q, q, q), causal(q, q, q), rtol=2**-6, atol=2**-6)
        (line,) = [bsym for bsym in thunder.last_traces(compiled)[-1].bound_symbols if "attention" in bsym.symbol.name]
        backend = sdpa.backend_for(line)
        assert backend is not None
        assert (line.executor == "sdpa") == (sdpa.choice_of_pytorch(line) is not backend)
        with sdpa_kernel(backend):
            torch.testing.assert_close(compiled(q, q, q), causal(q, q, q), rtol=0, atol=0)
