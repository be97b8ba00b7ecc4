"""Compiled programs in forked children, and with another number of threads than they were compiled for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# A single process computes with two threads, compiles, saves and loads, and then forks.
PARENT = """
import multiprocessing
import os
import signal
import sys
import traceback

import torch
import thunder_core as thunder

folder = sys.argv[1]
torch.manual_seed(0)
# As many as there are cores, for which Inductor writes parallel regions that say no number.
torch.set_num_threads(max(2, os.cpu_count()))
model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.LayerNorm(1024), torch.nn.Tanh())
x = torch.randn(256, 1024)
executors = ["inductor", "torch"]
total = thunder.jit(lambda x: (x * 2 + 1).sum(), executors=executors)
fast = thunder.jit(model, executors=executors)
fast(x).sum().backward()
with torch.no_grad():
    expected, expected_total = fast(x), total(x)
thunder.save(fast, folder, include_weights=True)
loaded = thunder.load(folder, model)

torch.set_num_threads(8)  # more than the kernels were compiled for
for _ in range(20):
    with torch.no_grad():
        assert torch.allclose(total(x), expected_total, rtol=1e-4)
        assert torch.allclose(fast(x), expected, atol=1e-5)
print("more threads")


def run_compiled():
    with torch.no_grad():
        assert torch.allclose(fast(x), expected, atol=1e-5)
        assert torch.allclose(loaded(x), expected, atol=1e-5)
        assert torch.allclose(total(x), expected_total, rtol=1e-4)


def run_backward():
    fast(x).sum().backward()


def load_again():
    with torch.no_grad():
        assert torch.allclose(thunder.load(folder, model, weights=True)(x), expected, atol=1e-5)


def trace_anew():
    assert torch.equal(thunder.jit(lambda x: torch.tanh(x) * 3, executors=["torch"])(x), torch.tanh(x) * 3)


def pool_of_processes():
    with multiprocessing.get_context("fork").Pool(1, torch.set_num_threads, (1,)) as pool:
        assert pool.apply(work) == 256


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        with torch.no_grad():
            return fast(x)[index]


def data_loader():
    for rows in torch.utils.data.DataLoader(Rows(), num_workers=1, multiprocessing_context="fork"):
        assert rows.shape == (1, 1024)


def work():
    with torch.no_grad():
        return len(fast(x))


def forked(task):
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    signal.alarm(60)
    torch.set_num_threads(1)  # as PyTorch asks of forked children, whose parent has computed with several
    try:
        task()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


for task in (run_compiled, run_backward, load_again, trace_anew):
    print(task.__name__, forked(task))
for task in (pool_of_processes, data_loader):
    task()
    print(task.__name__, 0)
"""
TASKS = ("run_compiled", "run_backward", "load_again", "trace_anew", "pool_of_processes", "data_loader")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The output of the process."""
    folder: Path = tmp_path_factory.mktemp("fork") / "model.thunder"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PARENT, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    return [*done.stdout.splitlines(), *([] if done.returncode == 0 else [f"died of {done.returncode}", done.stderr])]


def test_a_kernel_uses_no_more_threads_than_it_was_compiled_for(output: list[str]) -> None:
    assert "more threads" in output, output


@pytest.mark.parametrize("task", TASKS)
def test_a_forked_child_completes_its_task(output: list[str], task: str) -> None:
    assert f"{task} 0" in output, output
