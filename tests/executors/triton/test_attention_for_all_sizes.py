"""Attention of a token to its cache, in programs for all batches and lengths, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import thunder_core as thunder
from tests.executors.triton.closeness import draw
from tests.executors.triton.launches import launches_of
from tests.executors.triton.small_parts import COMBINED_BY, use_small_parts
from thunder_core.compilation.compiler.last_call import last_program
from thunder_core.foundation.errors import ThunderError
from thunder_executors.triton import launch as launching
from thunder_executors.triton.ahead import specializations_of
from thunder_executors.triton.attention import decode_attention as module
from thunder_executors.triton.attention.decode_attention import VARIANTS, decode_attention
from thunder_executors.triton.launch import INTERPRETED, Launch, recorded_launches

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="for the interpreter")
GROUPS, QUERIES, WIDTH = 2, 2, 8
NAMES = ("q", "k", "v", "mask")
LENGTHS = {f"{name}.size({dim})": (2, 4096) for name, dim in (("k", 2), ("v", 2), ("mask", 3))}
BATCHES = {f"{name}.size(0)": (2, 64) for name in NAMES}
SIZES = ((2, 70), (3, 7), (4, 33), (13, 20))  # one part for 7 keys, and for 13 x 2 groups


@pytest.fixture(autouse=True, params=COMBINED_BY)
def few_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_parts(monkeypatch, 24, request.param)


def repeated(x: Tensor) -> Tensor:
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, QUERIES, length, width).reshape(batch, heads * QUERIES, length, width)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def attend_to_repeated(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=mask, scale=0.3)


def attend_and_join(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return attend(q, k, v, mask).transpose(1, 2).reshape(q.shape[0], 1, -1)


def attend_by_group(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return scaled_dot_product_attention(q[:, ::QUERIES], k, v, attn_mask=mask)


def bools(batch: int, keys: int) -> Tensor:
    return (draw(batch, 1, 1, keys, seed=3) > 0).index_fill(3, torch.tensor([1]), True)


MASKS: dict[str, Callable[[int, int], Tensor]] = {
    "each": bools,
    "float": lambda batch, keys: draw(batch, 1, 1, keys, seed=4),
    "hidden": lambda batch, keys: torch.arange(keys).expand(batch, 1, 1, keys) < 3,
}


def inputs(batch: int, keys: int, mask: Callable[[int, int], Tensor] = bools) -> tuple[Tensor, ...]:
    cache = (draw(batch, GROUPS, keys, WIDTH, seed=1), draw(batch, GROUPS, keys, WIDTH, seed=2))
    return draw(batch, GROUPS * QUERIES, 1, WIDTH), *cache, mask(batch, keys).contiguous()


def names_of(compiled: Any) -> list[str]:
    bsyms = thunder.last_traces(compiled)[-1].bound_symbols
    return [bsym.symbol.short_name for bsym in bsyms if bsym.symbol.short_name != "del"]


def program_for(function: Callable[..., Any], symbolic: dict[str, tuple[int, int]], calls: list[Any]) -> Any:
    """Return the compiled function after calls with one program, whose results are those of eager PyTorch."""
    compiled = thunder.jit(function, executors=("triton", "torch"), symbolic=symbolic)
    with torch.no_grad():
        for arguments in calls:
            torch.testing.assert_close(compiled(*arguments), function(*arguments), rtol=2e-5, atol=2e-6)
    assert thunder.cache_misses(compiled) == 1
    return compiled


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_one_program_attends_for_all_batches_and_lengths(mask: Callable[[int, int], Tensor]) -> None:
    calls = [inputs(*sizes, mask) for sizes in SIZES]
    assert names_of(program_for(attend, {**BATCHES, **LENGTHS}, calls)) == ["attend_by_mask"]


@pytest.mark.parametrize("function", [attend_to_repeated, attend_and_join, attend_by_group])
def test_keys_may_be_repeated_and_results_joined(function: Callable[..., Tensor]) -> None:
    names = names_of(program_for(function, {**BATCHES, **LENGTHS}, [inputs(*sizes) for sizes in SIZES[:2]]))
    assert "attend_by_mask" in names
    assert not {"scaled_dot_product_attention", "expand"} & set(names)


def test_keys_and_values_of_different_lengths_are_refused() -> None:
    compiled = program_for(attend, {**BATCHES, **LENGTHS}, [inputs(2, 20)])
    q, k, v, mask = inputs(2, 20)
    with torch.no_grad(), pytest.raises((ThunderError, RuntimeError)):
        compiled(q, k, v[:, :, :10].contiguous(), mask)


def test_the_batch_or_the_length_may_be_constant() -> None:
    names = names_of(program_for(attend, LENGTHS, [inputs(2, keys) for keys in (70, 7)]))
    assert names == ["attend_by_mask"]
    names = names_of(program_for(attend, BATCHES, [inputs(batch, 40) for batch in (2, 13)]))
    assert names == ["attend_by_mask"]


def test_all_sequences_may_share_a_mask() -> None:
    batches = {name: sizes for name, sizes in BATCHES.items() if "mask" not in name}
    calls = [(*inputs(*sizes)[:3], bools(1, sizes[1])) for sizes in SIZES[:2]]
    assert names_of(program_for(attend, {**batches, **LENGTHS}, calls)) == ["attend_by_mask"]


# ---- masks with a length ----------------------------------------------------------------------------------------


def up_to(q: Tensor, k: Tensor, v: Tensor, last: Tensor) -> Tensor:
    mask = (torch.arange(k.shape[2]) <= last)[:, None, None]
    return attend(q, k, v, mask)


def as_transformers(q: Tensor, k: Tensor, v: Tensor, last: Tensor) -> Tensor:
    keys, queries = torch.arange(k.shape[2]) + 0, torch.arange(1) + last.view(-1)[0]
    mask = keys[None, None, None, :] <= queries[None, None, :, None]
    return attend(q, k, v, mask.expand(q.shape[0], -1, 1, k.shape[2]))


def slice_of_mask(q: Tensor, k: Tensor, v: Tensor, last: Tensor) -> Tensor:
    length = k.shape[2]
    return attend(q, k, v, (torch.arange(2 * length) <= last)[:, None, None, 1 : length + 1])


def slice_of_keys(q: Tensor, k: Tensor, v: Tensor, last: Tensor) -> Tensor:
    length = k.shape[2]
    return attend(q, k, v, (torch.arange(length + 1)[1:] <= last)[:, None, None])


LAST = {name: sizes for name, sizes in {**BATCHES, **LENGTHS}.items() if "mask" not in name}
EACH = {**LAST, "last.size(0)": (2, 64)}


@pytest.mark.parametrize("function", [up_to, as_transformers, slice_of_mask, slice_of_keys])
@pytest.mark.parametrize("symbolic", [LAST, EACH], ids=["one", "each"])
def test_a_mask_up_to_a_last_key_is_not_computed(
    function: Callable[..., Tensor], symbolic: dict[str, tuple[int, int]]
) -> None:
    def lasts(batch: int, keys: int) -> Tensor:
        return torch.arange(batch).view(-1, 1) % keys if symbolic is EACH else torch.tensor([[keys // 2]])

    calls = [(*inputs(*sizes)[:3], lasts(*sizes)) for sizes in SIZES[:2]]
    names = names_of(program_for(function, symbolic, calls))
    is_proved = function in (up_to, as_transformers)
    assert names[-1] == ("attend_by_length" if is_proved else "attend_by_mask")
    assert ("le" in names) != is_proved


# ---- sizes that the kernel does not support ---------------------------------------------------------------------


def test_symbolic_heads_and_widths_are_left_to_other_executors() -> None:
    for dim in (1, 3):
        symbolic = {f"{name}.size({dim})": (2, 64) for name in NAMES[:3]}
        q, *others = inputs(2, 20)
        arguments = (q[:, :GROUPS].contiguous(), *others)
        compiled = thunder.jit(attend_whole, executors=("triton", "torch"), symbolic=symbolic)
        torch.testing.assert_close(compiled(*arguments), attend_whole(*arguments), rtol=2e-5, atol=2e-6)
        assert "attend_by_mask" not in names_of(compiled)


def attend_whole(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, attn_mask=mask)


# ---- launches ---------------------------------------------------------------------------------------------------


def kernels_of(launches: Any) -> list[str]:
    return [launch.specialization.kernel.partition(":")[2] for launch in launches]


@pytest.mark.parametrize("first", [(2, 128), (3, 7), (16, 32)], ids=str)
def test_stored_kernels_serve_all_sizes(first: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is traced with several parts or with one part, and with sizes that are multiples of 16 or not."""
    compiled = program_for(attend, {**BATCHES, **LENGTHS}, [inputs(*first)])
    trace = last_program(compiled).last("computation")
    stored = specializations_of(trace, "triton")
    launched: list[Launch] = []
    monkeypatch.setattr(launching, "STORED_KERNELS", dict.fromkeys(stored, launched.append))
    monkeypatch.setattr(launching, "compile_now", pytest.fail)
    with torch.no_grad():
        for sizes in (first, (2, 128), *SIZES):
            compiled(*inputs(*sizes))
    assert {launch.grid[1] > 1 for launch in launched if len(launch.grid) > 1} == {True, False}
    assert thunder.cache_misses(compiled) == 1


def test_a_trace_shows_the_launches_of_its_sizes_alone() -> None:
    compiled = program_for(attend, {**BATCHES, **LENGTHS}, [inputs(2, 100)])
    second = [] if module.MAX_BYTES_OF_LAST_BLOCK else ["combine_attention_kernel"]
    assert kernels_of(launches_of(thunder.last_traces(compiled)[-1])) == ["decode_attention_kernel", *second]


def test_constants_do_not_depend_on_the_batch_and_the_length() -> None:
    def constants(for_all_sizes: bool) -> list[set[Any]]:
        found: dict[str, set[Any]] = {}
        for sizes in SIZES:
            with recorded_launches() as launches:
                decode_attention(*inputs(*sizes), None, 0, 1.0, False, for_all_sizes)
            for launch in launches:
                key = f"{launch.kernel.fn.__name__} {launch.arguments.get('tops') is None}"
                found.setdefault(key, set()).add(tuple(launch.constants.items()))
        return list(found.values())

    assert all(len(each) == 1 for each in constants(True))
    assert any(len(each) > 1 for each in constants(False))


def test_constant_sizes_have_no_variants() -> None:
    for sizes in ((2, 100), (3, 7)):
        with recorded_launches(variants=True) as launches:
            decode_attention(*inputs(*sizes))
        with recorded_launches() as expected:
            decode_attention(*inputs(*sizes))
        assert [launch.specialization for launch in launches] == [launch.specialization for launch in expected]
    with recorded_launches(variants=True) as launches:
        decode_attention(*inputs(3, 7), None, 0, 1.0, False, True)
    assert [launch.grid[1] for launch in launches if len(launch.grid) > 1] == list(VARIANTS)
