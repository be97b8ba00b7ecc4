"""The plugins for PyTorch's own tests run them with Thunder, and find wrong results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import torch
import torch._dynamo.testing
from torch.testing._internal.common_utils import TestCase, no_helper_of_this_name

import thunder_core


class Tests(TestCase):
    @no_helper_of_this_name(1)
    def test_right(self):
        counter = torch._dynamo.testing.CompileCounter()
        compiled = torch.compile(lambda x: x + 1, backend=counter, fullgraph=True)
        self.assertEqual(compiled(torch.ones(2)), torch.full((2,), 2.0))
        self.assertEqual(counter.frame_count, 7)
        self.assertEqual(thunder_core.cache_misses(compiled), 1)

    def test_wrong(self):
        @torch._dynamo.optimize("eager")
        def compiled(x):
            return x * 3

        self.assertEqual(compiled(torch.ones(2)), torch.full((2,), 2.0))
"""


SUITE = """
import torch
from torch.testing._internal.common_utils import TestCase, gradcheck

CALLS = []


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


class Tests(TestCase):
    def test_right(self):
        x = torch.ones(2)
        doubled = x * 2
        self.assertEqual(doubled, torch.full((2,), 2.0))
        doubled += 1
        self.assertEqual(doubled, torch.full((2,), 3.0))
        self.assertTrue(torch.allclose(doubled, x * 3))

    def test_in_eager(self):
        x = torch.ones(2)
        self.assertEqual(x.data_ptr(), x.view(2).data_ptr())

    def test_wrong_values(self):
        self.assertEqual(torch.ones(2) * 3, torch.full((2,), 2.0))

    def test_wrong_second_run(self):
        CALLS.append(1)
        self.assertEqual(torch.ones(2) * len(CALLS), torch.ones(2))

    def test_wrong_derivative(self):
        self.assertTrue(gradcheck(Cubed.apply, torch.ones(2, dtype=torch.float64, requires_grad=True)))
"""


def run_tests(folder: Path, plugin: str, tests: str) -> str:
    """Run tests with one of the plugins, and return the output of pytest."""
    (folder / "test_few.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", f"tests.{plugin}", "--noconftest", str(folder)]
    root = Path(__file__).resolve().parent.parent
    return subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=120).stdout


def test_tests_of_dynamo_run_with_thunder(tmp_path: Path) -> None:
    output = run_tests(tmp_path, "pytorch_tests", TESTS)
    assert "1 failed, 1 passed" in output
    assert "test_wrong" in output.partition("FAILED")[2]


def test_bodies_of_test_methods_are_compiled_and_run_twice(tmp_path: Path) -> None:
    output = run_tests(tmp_path, "pytorch_suites", SUITE)
    assert "3 failed, 2 passed" in output
    for name in ("test_wrong_values", "test_wrong_second_run", "test_wrong_derivative"):
        assert f"Tests::{name}" in output.partition("short test summary")[2]
    assert "in the second run of the test" in output
    assert "1 compiled" in output
    assert "1 in eager, since `torch.Tensor.data_ptr` reads the value of a tensor" in output
