"""Attention of few queries to a cache, divided over the keys, against PyTorch's attention in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tests.executors.triton.closeness import DTYPES, assert_close, assert_forward, draw
from tests.executors.triton.small_parts import COMBINED_BY, use_small_parts
from thunder_core.foundation.errors import KernelRefuses
from thunder_executors import sdpa
from thunder_executors.cudagraphs.recording import Cuda
from thunder_executors.triton.attention import decode_attention as module
from thunder_executors.triton.attention.decode_attention import decode_attention, keys_of_step, parts_of_keys, reference
from thunder_executors.triton.launch import Launch
from thunder_executors.triton.measurement import milliseconds

SCALE = 0.3
INFINITY = float("inf")


@pytest.fixture(autouse=True, params=COMBINED_BY)
def few_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_parts(monkeypatch, 12, request.param)


def last_block_combines() -> bool:
    return module.MAX_BYTES_OF_LAST_BLOCK > 0


def inputs(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float32, keys: int = 100
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A query, keys and values; the shape is batch, heads of keys, queries for each head, width, width of values."""
    batch, heads, group, width, value_width = shape
    q = draw(batch, heads * group, 1, width, dtype=dtype)
    return (
        q,
        draw(batch, heads, keys, width, dtype=dtype, seed=1),
        draw(batch, heads, keys, value_width, dtype=dtype, seed=2),
    )


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """PyTorch's own attention in float64, to the keys that a mask shows."""
    repeats = q.shape[1] // k.shape[1]
    k, v = (tensor.double().repeat_interleave(repeats, 1) for tensor in (k, v))
    return scaled_dot_product_attention(q.double(), k, v, visible, scale=SCALE)


def up_to(last: torch.Tensor, keys: int) -> torch.Tensor:
    return torch.arange(keys, device=last.device) <= last.view(-1, 1, 1, 1)


def tensor(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 16, 16), (2, 2, 4, 24, 24), (1, 3, 7, 5, 40), (3, 1, 16, 128, 80)], ids=str
)
def test_the_keys_up_to_a_length_or_those_of_a_mask_are_attended_to(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    q, k, v = inputs(shape, dtype)
    q = q / 16 if shape[3] > 64 else q  # scores of large numbers have large errors in float32
    last = torch.tensor(61)
    visible = up_to(last, 100)
    assert_close(decode_attention(q, k, v, None, last, 0, SCALE), expected(q, k, v, visible))
    assert_close(decode_attention(q, k, v, visible, None, 0, SCALE), expected(q, k, v, visible))
    assert_close(decode_attention(q, k, v, None, None, 0, SCALE), expected(q, k, v, visible | True))


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 95, 96, 97, 191, 192, 193, 199, 200])
def test_each_length_reads_the_filled_keys(length: int) -> None:
    """Blocks end at multiples of 16 keys, and the first round of the six parts ends at 96 keys."""
    q, k, v = inputs((1, 2, 4, 16, 16), keys=200)
    assert parts_of_keys(2, 200, keys_of_step(16, 4)) == 6
    visible = up_to(tensor(length - 1), 200)
    for poisoned in (k, v):
        poisoned[:, :, length:] = float("nan")
    for actual in (
        decode_attention(q, k, v, None, tensor(length - 1), 0, SCALE),
        decode_attention(q, k, v, None, tensor(length), -1, SCALE),
        decode_attention(q, k, v, visible, None, 0, SCALE),
    ):
        assert_close(actual, expected(q, k.nan_to_num(), v.nan_to_num(), visible))


@pytest.mark.parametrize("keys", [1, 5, 16, 17, 33, 97])
def test_a_cache_of_any_size_may_be_full(keys: int) -> None:
    q, k, v = inputs((2, 1, 2, 8, 8), keys=keys)
    visible = torch.ones(1, 1, 1, keys, dtype=torch.bool)
    for arguments in ((None, tensor(keys - 1)), (visible, None), (visible, tensor(keys))):
        assert_close(decode_attention(q, k, v, *arguments, 0, SCALE), expected(q, k, v, visible))


def test_each_sequence_has_its_own_length_and_its_own_padding() -> None:
    q, k, v = inputs((3, 2, 2, 8, 8), keys=120)
    last, padding = tensor(2, 119, 64), tensor(0, 50, 33)
    visible = up_to(last, 120)
    assert_close(decode_attention(q, k, v, None, last, 0, SCALE), expected(q, k, v, visible))
    padded = visible & (torch.arange(120) >= padding.view(-1, 1, 1, 1))
    assert_close(decode_attention(q, k, v, padded, None, 0, SCALE), expected(q, k, v, padded))
    spread = torch.stack([last, last - 1], dim=1)[:, :1]
    assert_close(decode_attention(q, k, v, padded, spread, 0, SCALE), expected(q, k, v, padded))


@pytest.mark.parametrize("seed", range(4))
def test_any_mask_hides_its_keys_alone(seed: int) -> None:
    q, k, v = inputs((2, 2, 3, 8, 8), keys=150)
    visible = draw(2, 1, 1, 150, seed=seed) > seed
    visible[0, ..., 40:90] = False
    assert_close(decode_attention(q, k, v, visible, None, 0, SCALE), expected(q, k, v, visible))
    bias = draw(2, 1, 1, 150, seed=9).masked_fill(~visible, -INFINITY)
    assert_close(decode_attention(q, k, v, bias, None, 0, SCALE), expected(q, k, v, bias.double()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_mask_in_each_dtype_is_added_to_the_scores(dtype: torch.dtype) -> None:
    q, k, v = inputs((1, 2, 2, 8, 8), dtype)
    for bias in (draw(1, 1, 1, 100, dtype=dtype, seed=4), draw(1, 1, 1, 100, seed=4)):
        assert_close(decode_attention(q, k, v, bias, None, 0, SCALE), expected(q, k, v, bias.double()))


def test_queries_that_see_no_key_return_zeros_like_pytorch() -> None:
    q, k, v = inputs((2, 2, 2, 8, 8))
    visible = torch.zeros(2, 1, 1, 100, dtype=torch.bool)
    visible[1, ..., 70] = True
    bias = torch.zeros(2, 1, 1, 100).masked_fill(~visible, -INFINITY)
    wanted = expected(q, k, v, visible)
    assert not wanted[0].any()
    for mask in (visible, bias):
        assert_close(decode_attention(q, k, v, mask, None, 0, SCALE), wanted)
    assert not decode_attention(q, k, v, None, tensor(-1), 0, SCALE).any()
    assert not decode_attention(q, k, v, None, tensor(0), -1, SCALE).any()


@pytest.mark.parametrize("number", [-(2**63), -(2**32), 2**31, 2**32 + 5, 2**63 - 1])
def test_numbers_far_outside_of_the_cache_do_not_overflow(number: int) -> None:
    q, k, v = inputs((1, 1, 1, 8, 8), keys=20)
    visible = torch.full((1, 1, 1, 20), number > 0)
    for offset in (0, -1):
        actual = decode_attention(q, k, v, None, tensor(number), offset, SCALE)
        assert_close(actual, expected(q, k, v, visible))


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")
def test_nan_and_infinity_give_the_results_of_pytorch() -> None:
    for value in (float("nan"), INFINITY, -INFINITY):
        for place in (0, 50, 99):
            q, k, v = inputs((1, 1, 2, 8, 8))
            k[..., place, :] = value
            everything = torch.ones(1, 1, 1, 100, dtype=torch.bool)
            for query, keys in ((q.abs(), k), (k[:, :, place].unsqueeze(2).expand_as(q), k.nan_to_num(1, 1, 1).abs())):
                actual = decode_attention(query, keys, v, None, None, 0, SCALE)
                wanted = expected(query, keys, v, everything).float()
                torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_large_scores_do_not_overflow() -> None:
    q, k, v = inputs((1, 1, 2, 8, 8))
    everything = torch.ones(1, 1, 1, 100, dtype=torch.bool)
    assert_close(decode_attention(q * 500, k, v, None, None, 0, SCALE), expected(q * 500, k, v, everything))


def test_several_positions_share_the_keys() -> None:
    """Models pass the queries of a group as positions."""
    q, k, v = inputs((2, 2, 6, 8, 12), keys=70)
    grouped = q.view(2, 2, 6, 8)
    visible = up_to(tensor(40, 69), 70)
    actual = decode_attention(grouped, k, v, visible, None, 0, SCALE)
    assert_close(actual, expected(grouped, k, v, visible))
    several = q.view(2, 4, 3, 8)  # two heads of three positions for each head of keys
    assert_close(decode_attention(several, k, v, visible, None, 0, SCALE), expected(several, k, v, visible))


def test_inputs_may_have_gaps_and_results_may_be_transposed() -> None:
    _, k, v = inputs((2, 2, 2, 8, 8), keys=40)
    q = draw(2, 3, 4, 8).transpose(1, 2)
    k, v = (draw(2, 40, 2, 16, seed=seed)[..., :8].transpose(1, 2) for seed in (1, 2))
    mask = draw(2, 40, 1, 1, seed=3).transpose(1, 3) > 0
    for transposed in (False, True):
        found = decode_attention(q, k, v, mask, None, 0, SCALE, transposed)
        assert_close(found, expected(q, k, v, mask))
        assert (found.transpose(1, 2) if transposed else found).is_contiguous()
    sparse = draw(2, 2, 8, 40).transpose(2, 3)
    assert_close(decode_attention(q, sparse, v, mask, None, 0, SCALE), expected(q, sparse, v, mask))


def test_the_reference_is_pytorchs_attention() -> None:
    q, k, v = (each.double() for each in inputs((2, 2, 3, 8, 8)))
    visible = up_to(tensor(40, 70), 100)
    wanted = expected(q, k, v, visible)
    assert_close(reference(q, k, v, visible, None, 0, SCALE), wanted)
    assert_close(reference(q, k, v, None, tensor(41, 71), -1, SCALE, transposed=True), wanted)
    assert_forward(decode_attention, q.float(), k.float(), v.float(), None, tensor(9), 0, SCALE)


def test_hidden_blocks_are_not_read_and_the_launches_do_not_depend_on_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph replays the same launches for all lengths, with the thread blocks of a full cache."""
    q, k, v = inputs((1, 2, 4, 16, 16), keys=200)
    launched: list[Launch] = []
    run = Launch.run
    monkeypatch.setattr(Launch, "run", lambda launch: (launched.append(launch), run(launch))[1])
    for last in (0, 199):
        decode_attention(q, k, v, None, tensor(last), 0, SCALE)
    grids = [(2, 6)] if last_block_combines() else [(2, 6), (8,)]
    assert [launch.grid for launch in launched] == grids * 2
    assert launched[0].specialization == launched[len(grids)].specialization
    tops = [torch.as_tensor(launch.arguments["tops"]) == -INFINITY for launch in launched[:: len(grids)]]
    assert [top.view(2, 6, 4).all(-1).sum(-1).tolist() for top in tops] == [[5, 5], [0, 0]]


def test_parts_keep_a_gpu_busy_and_tiles_have_equal_bytes() -> None:
    assert [keys_of_step(width, 2) for width in (64, 100, 128, 256)] == [16, 16, 16, 16]
    assert [parts_of_keys(groups, 4096, 64) for groups in (1, 8, 64)] == [12, 2, 1]
    assert parts_of_keys(1, 40, 16) == 3


def test_blocks_of_keys_take_eight_kilobytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    widths = (16, 64, 100, 128, 256)
    assert [keys_of_step(width, 2) for width in widths] == [128, 64, 32, 32, 16]
    assert [keys_of_step(width, 4) for width in widths] == [128, 32, 16, 16, 16]
    assert [parts_of_keys(groups, 4096, 64) for groups in (1, 8, 64, 1000)] == [64, 33, 5, 1]
    assert all(more >= less for more, less in pairwise(parts_of_keys(n, 2**17, 64) for n in range(1, 300)))


def test_unsupported_inputs_are_refused() -> None:
    q, k, v = inputs((2, 2, 2, 8, 8), keys=20)
    mask, last = torch.ones(2, 1, 1, 20, dtype=torch.bool), tensor(3)
    for arguments in (
        (q[0], k, v, mask, last),
        (q, k.half(), v, mask, last),
        (q, k[:, :1], v, mask, last),
        (q, k[:, :, :0], v[:, :, :0], None, None),
        (q[:, :3], k, v, mask, last),
        (q, k[..., :4], v, mask, last),
        (q, k, v, mask[..., :5], last),
        (q, k, v, mask[:, 0], last),
        (q, k, v, mask.expand(2, 4, 1, 20), last),
        (q, k, v, mask, last.int()),
        (q, k, v, mask, tensor(1, 2, 3)),
        (draw(2, 4, 200, 8), k, v, mask, last),
        (draw(2, 2, 1, 300), draw(2, 2, 20, 300), v, mask, last),
    ):
        with pytest.raises(KernelRefuses, match="attention to a cache got"):
            decode_attention(*arguments)
    with pytest.raises(KernelRefuses, match=r"mask is torch\.int64"):
        decode_attention(q, k, v, mask.long(), None)
    assert decode_attention(q[:0], k[:0], v[:0]).shape == (0, 4, 1, 8)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_replays_one_graph_for_all_lengths_and_takes_less_time_for_short_texts(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    """A cache of 134 MB, which the kernels of PyTorch read as a whole; the L2 cache is cleared before each call."""
    monkeypatch.undo()
    shapes = ((4, 8, 4, 128), (4, 8, 16384, 128), (4, 8, 16384, 128))
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes)
    last = torch.zeros(1, dtype=torch.int64, device="cuda")
    mask = up_to(last, 16384)
    attend = partial(decode_attention, q, k, v)
    attend(None, last, 0, SCALE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [attend(None, last, 0, SCALE), attend(mask, None, 0, SCALE)]
    milliseconds_of = {}
    for length in (1, 500, 16384):
        last.fill_(length - 1)
        mask.copy_(up_to(last, 16384))
        graph.replay()
        for result in results:
            assert_close(result, expected(q, k[:, :, :length], v[:, :, :length], mask[..., :length]))
        milliseconds_of[f"length {length}"] = milliseconds(lambda: attend(None, last, 0, SCALE))
        milliseconds_of[f"mask {length}"] = milliseconds(lambda: attend(mask, None, 0, SCALE))
    pytorch = milliseconds(lambda: sdpa.attention(q, k, v, attn_mask=mask, scale=SCALE))
    record_property("milliseconds", {**milliseconds_of, "PyTorch": pytorch})
    assert max(milliseconds_of["length 500"], milliseconds_of["mask 500"]) < pytorch / 2
    assert max(milliseconds_of.values()) < pytorch


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_graphs_on_two_streams_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each graph has its own counters, so that the thread blocks of two graphs are not counted together."""
    monkeypatch.undo()
    recorder = Cuda()
    streams = [torch.cuda.Stream() for _ in range(2)]
    pairs = []
    for seed, stream in enumerate(streams):
        torch.manual_seed(seed)
        shapes = ((1, 32, 1, 64), (1, 8, 4096, 64), (1, 8, 4096, 64))
        q, k, v = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes)
        wanted = decode_attention(q, k, v, None, None, 0, SCALE)
        assert_close(wanted, expected(q, k, v, torch.ones(1, 1, 1, 4096, dtype=torch.bool, device="cuda")))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            attend = partial(decode_attention, q, k, v, None, None, 0, SCALE)
            replay, result = recorder.record(
                lambda attend=attend: [attend() for _ in range(20)], (0, stream.cuda_stream)
            )
        pairs.append((stream, replay, result, wanted))
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, replay, _, _ in pairs:
            with torch.cuda.stream(stream):
                replay()
    torch.cuda.synchronize()
    for _, _, result, wanted in pairs:
        assert all(torch.equal(each, wanted) for each in result)


def repeated(function: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    return [function() for _ in range(20)]
