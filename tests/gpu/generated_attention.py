"""The attention of the programs of `--task generate --target sm_90`, which serve all batches and lengths of the cache.

Run as a program, this module prints the calls of attention and the stored kernels of attention as JSON. It runs in a
process of its own, because Triton's interpreter, which the tests enable, compiles nothing. Inductor is left out.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.test_generation import request_of
from tests.uncompiled import leave_inductor_out
from thunder_core.workflow.artifact.format.read import Artifact, open_artifact
from thunder_core.workflow.pipeline import optimize

SIZES = {"prompt_length": 6, "new_tokens": 4, "batch": 2}
CALLS = ("attend_by_mask", "grouped_attention", "attention")


def calls_of_programs(artifact: Artifact) -> list[dict[str, Any]]:
    """Return, for each program, whether the cache is filled before the call, and the claimed calls of attention."""
    found = []
    for program in artifact.manifest.programs:
        last = [stage for stage in program.stages if stage.trace == "computation"][-1]
        lines = [line for line in artifact.text(last.file).splitlines() if line.endswith(("[triton]", "[sdpa]"))]
        calls = Counter(name for line in lines for name in CALLS if f".{name}(" in line)
        states = [words for path, words in program.paths_and_words if path.endswith("layers[0].is_initialized")]
        found.append({"is filled": states == ["was True"], "calls": calls})
    return found


def variants_of_attention(artifact: Artifact) -> list[dict[str, Any]]:
    """Return the constants and aligned arguments of the stored kernels of attention."""
    kernels = [cubin.facts["specialization"] for cubin in artifact.manifest.cubins]
    return [
        {"constants": dict(kernel["constants"]), "divisible": kernel["divisible"]}
        for kernel in kernels
        if kernel["kernel"].endswith(":decode_attention_kernel")
    ]


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        leave_inductor_out(patch)
        out = Path(folder) / "generates"
        optimize(request_of(out, "llama3", "hf-llama3-hopper", target="sm_90", **SIZES))
        made = open_artifact(out)
        print(json.dumps({"programs": calls_of_programs(made), "variants": variants_of_attention(made)}))
