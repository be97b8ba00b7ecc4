"""The combination of the parts of attention by the last thread block that finishes, and its counters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.executors.triton.closeness import draw
from thunder_executors.cudagraphs.arrivals import COUNTERS, arrival_counters, counters_of_graph
from thunder_executors.triton.attention import combination
from thunder_executors.triton.attention import decode_attention as module
from thunder_executors.triton.attention.decode_attention import THREAD_BLOCKS, decode_attention, parts_of_keys
from thunder_executors.triton.launch import INTERPRETED, Launch

ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")
only_interpreted = pytest.mark.skipif(not INTERPRETED, reason="a GPU chooses the order of thread blocks")


@pytest.fixture(autouse=True)
def three_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups of queries, and three thread blocks for each."""
    monkeypatch.setattr(module, "MAX_KEYS", 16)
    monkeypatch.setattr(module, "THREAD_BLOCKS", 6)
    monkeypatch.setattr(combination, "ELEMENTS", 64)


def inputs(keys: int = 60) -> tuple[torch.Tensor, ...]:
    return draw(1, 8, 1, 16), draw(1, 2, keys, 16, seed=1), draw(1, 2, keys, 16, seed=2)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    launches: list[Launch] = []
    run = Launch.run
    monkeypatch.setattr(Launch, "run", lambda launch: (launches.append(launch), run(launch))[1])
    return launches


@only_interpreted
def test_the_result_does_not_depend_on_the_order_of_the_thread_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import interpreter_builder

    set_index = interpreter_builder.set_grid_idx
    results = []
    for order in permutations(range(3)):
        monkeypatch.setattr(
            interpreter_builder, "set_grid_idx", lambda x, y, z, order=order: set_index(1 - x, order[y], z)
        )
        results.append(decode_attention(*inputs(), None, torch.tensor(50)))
    assert all(torch.equal(result, results[0]) for result in results)


@only_interpreted
def test_only_the_last_thread_block_of_a_group_writes_the_result(
    monkeypatch: pytest.MonkeyPatch, launched: list[Launch]
) -> None:
    from triton.runtime.interpreter import interpreter_builder

    set_index = interpreter_builder.set_grid_idx
    written: dict[tuple[int, int], list[bool]] = {}

    def note(x: int, y: int, z: int) -> None:
        out: Any = launched[-1].arguments["out"]
        written[x, y] = [not half.isnan().any() for half in out.view(2, -1)]
        set_index(x, y, z)

    monkeypatch.setattr(interpreter_builder, "set_grid_idx", note)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: empty(*size, **options).fill_(float("nan")))
    result = decode_attention(*inputs())
    assert not result.isnan().any()
    # Before each thread block: which groups are written.
    assert list(written.values()) == [[False, False]] * 3 + [[True, False]] * 3


def test_each_launch_leaves_its_counters_at_zero(launched: list[Launch]) -> None:
    for _ in range(2):
        decode_attention(*inputs())
    counters: list[Any] = [launch.arguments["arrivals"] for launch in launched]
    assert [each.tolist() for each in counters] == [[0, 0], [0, 0]]
    assert counters[0] is not counters[1]


def test_the_launches_of_a_graph_share_its_counters(monkeypatch: pytest.MonkeyPatch, launched: list[Launch]) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "capture stream")
    counters = torch.zeros(COUNTERS, dtype=torch.int32)
    expected = decode_attention(*inputs())
    with counters_of_graph(counters, "capture stream"):
        assert all(torch.equal(decode_attention(*inputs()), expected) for _ in range(3))
    assert [launch.arguments["arrivals"] is counters for launch in launched] == [False, True, True, True]
    assert not counters.any()


def test_other_streams_devices_and_larger_launches_get_counters_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "another stream")
    counters = torch.zeros(COUNTERS, dtype=torch.int32)
    with counters_of_graph(counters, "another stream"):
        assert arrival_counters(3, CPU) is counters
        assert arrival_counters(COUNTERS + 1, CPU).tolist() == [0] * (COUNTERS + 1)
        assert arrival_counters(1, torch.device("meta")).device.type == "meta"
    with counters_of_graph(counters, "capture stream"):
        assert arrival_counters(3, CPU) is not counters
    assert arrival_counters(3, CPU) is not counters


def test_a_graph_has_counters_for_all_groups_with_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert max(groups for groups in range(1, 1000) if parts_of_keys(groups, 2**17, 16) > 1) < COUNTERS
    assert THREAD_BLOCKS <= COUNTERS


def test_one_part_needs_no_partial_results_and_no_counters(launched: list[Launch]) -> None:
    decode_attention(*inputs(keys=10))
    (launch,) = launched
    assert launch.grid == (2, 1)
    assert {name for name, value in launch.arguments.items() if value is None} == {
        *("tops", "sums", "partials", "arrivals", "mask", "last")
    }


def test_many_partial_results_are_combined_by_a_thread_block_for_each_query(
    monkeypatch: pytest.MonkeyPatch, launched: list[Launch]
) -> None:
    """The limit is in bytes of the weighted values: three parts of 4 queries of width 16 have 768 bytes."""
    expected = decode_attention(*inputs())
    for limit, names in (
        (768, ["decode_attention_kernel"]),
        (767, ["decode_attention_kernel", "combine_attention_kernel"]),
    ):
        launched.clear()
        monkeypatch.setattr(module, "MAX_BYTES_OF_LAST_BLOCK", limit)
        torch.testing.assert_close(decode_attention(*inputs()), expected)
        assert [launch.kernel.fn.__name__ for launch in launched] == names


COMPILE = """
import json, subprocess, sys, tempfile
import torch, triton
from pathlib import Path
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from thunder_core.foundation import plugins
from thunder_executors.triton.cubin import _compile
from thunder_executors.triton.attention.decode_attention import decode_attention

found = []
tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
for target in (90, 80):
    for heads, groups, width, keys in ((32, 8, 64, 79), (32, 8, 64, 4096), (32, 8, 128, 4096), (8, 1, 256, 8192)):
        with FakeTensorMode():
            make = lambda *shape: torch.empty(shape, dtype=torch.bfloat16, device="cuda")
            mask = torch.ones(1, 1, 1, keys, dtype=torch.bool, device="cuda")
            cache = make(1, groups, keys, width), make(1, groups, keys, width)
            launches = decode_attention.launches(make(1, heads, 1, width), *cache, mask, None, 0, 0.125)
            specializations = [launch.specialization for launch in launches]
        for specialization in specializations:
            kernel = plugins.import_object(specialization.kernel)
            compiled = _compile(kernel, specialization, GPUTarget("cuda", target, 32))
            with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                file.write(compiled.asm["cubin"])
                file.flush()
                usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True).stdout
            found.append([target, keys, compiled.metadata.name, compiled.asm["ptx"], usage, compiled.metadata.shared])
print(json.dumps(found))
"""


@pytest.mark.slow
@only_interpreted
def test_machine_code_releases_and_acquires_partial_results_and_uses_no_local_memory() -> None:
    """All stores of a thread block come before a barrier and the counter; all loads of the others after a barrier."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "executors", ROOT / "recipes")))
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    names = {(keys, name) for _, keys, name, *_ in found}
    assert [keys for keys, name in names if name == "combine_attention_kernel"] == [8192]
    for _, keys, name, ptx, usage, shared in found:
        assert "STACK:0" in usage, usage
        assert "LOCAL:0" in usage, usage
        assert shared <= 64 * 1024
        if name == "combine_attention_kernel" or keys == 8192:
            assert "atom." not in ptx
            continue
        lines = ptx.splitlines()
        (atomic,) = numbers_of(lines, "atom.")
        assert "atom.global.gpu.acq_rel.add" in lines[atomic], lines[atomic]
        before, after = lines[:atomic], lines[atomic + 1 :]
        assert numbers_of(before, "st.global")[-1] < numbers_of(before, "bar.sync")[-1]
        assert numbers_of(after, "bar.sync")[0] < numbers_of(after, "ld.global")[0]
        assert all("ld.global.cg" in after[number] for number in numbers_of(after, "ld.global"))


def numbers_of(lines: list[str], instruction: str) -> list[int]:
    return [number for number, line in enumerate(lines) if instruction in line]
