"""Programs of a Llama in which measurements have chosen kernels for all linear layers, on a stand-in for the GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from thunder_core.foundation import plugins

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not plugins.is_installed("triton"), reason="needs Triton")]
ROOT = Path(__file__).resolve().parents[2]
LAYERS = 2
PRODUCTS = {"aten::mm", "aten::bmm", "aten::addmm", "aten::matmul"}


@pytest.fixture(scope="module")
def printed() -> dict[str, Any]:
    """The printed launches; Triton's interpreter, which the tests enable, compiles nothing."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "executors", ROOT / "recipes")))
    command = [sys.executable, "-m", "tests.gpu.measured_layers"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_output_and_down_projections_and_the_logits_of_a_token_are_kernels(printed: dict[str, Any]) -> None:
    """The kernels add the residuals: the products of the next norm add nothing, and no norm is computed alone."""
    launches, names = printed["launches"]["token"], printed["names"]["token"]
    assert launches["vector_product_kernel"] == 2 * LAYERS + 1
    assert not PRODUCTS & launches.keys()
    assert (names["norm_linear"], names["norm_swiglu"]) == (LAYERS, LAYERS)
    assert launches["rms_norm_forward_kernel"] == 1  # before the logits
    titles = [title.partition(":")[0] for title in printed["chosen"]["token"]]
    assert "1 x 2048 to 2048 in bfloat16, with addition, norm" in titles
    assert "1 x 2048 to 8192, 8192 in bfloat16, with norm, SwiGLU" in titles  # without a residual


def test_all_products_of_a_prompt_are_kernels(printed: dict[str, Any]) -> None:
    launches = printed["launches"]["prompt"]
    assert launches["matrix_product_kernel"] == 7 * LAYERS
    assert launches["vector_product_kernel"] == 1  # the logits of the last token
    assert not PRODUCTS & launches.keys()


def test_the_kernels_are_compiled_for_the_gpu(printed: dict[str, Any]) -> None:
    assert {"vector_product_kernel", "normalized_linear_kernel"} <= set(printed["compiled"]["token"])
    assert {"matrix_product_kernel", "sum_of_parts_kernel"} <= set(printed["compiled"]["prompt"])
