"""The plugin for PyTorch's own tests runs them with Thunder, and finds wrong results."""

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


def test_tests_of_dynamo_run_with_thunder(tmp_path: Path) -> None:
    (tmp_path / "test_few.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.pytorch_tests", "--noconftest", str(tmp_path)]
    root = Path(__file__).resolve().parent.parent
    result = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=120)
    assert "1 failed, 1 passed" in result.stdout, result.stdout + result.stderr
    assert "FAILED" in result.stdout
    assert "test_wrong" in result.stdout
