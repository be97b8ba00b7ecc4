"""Scripts that reproduce a fault run with the inputs of the fault."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch

from tests.fault_localization.examined import program_of, silu
from thunder_core.workflow.fault_localization.evidence import Evidence
from thunder_core.workflow.fault_localization.reproduction import write_reproduction
from thunder_core.workflow.validation.internal_check import Fault

FAULT = Fault(kind="executor", by="mine", trace="computation", line="t0 = silu(x)", difference="is wrong")


def test_script_runs_with_inputs_in_their_layouts(tmp_path):
    inputs = {"x": torch.randn(1, 4).expand(3, 4), "y": torch.randn(4, 3).t()}
    trace = program_of(lambda x, y: silu(x) + y, **inputs).traces("computation")[0]
    done = assert_script_runs(tmp_path / "fault", trace, list(inputs.values()))
    assert done.returncode == 0
    assert "the largest difference is 0" in done.stdout


@pytest.mark.parametrize("number", [2.0, math.inf, math.nan])
def test_script_runs_with_numbers(tmp_path, number):
    options = {"cache": "symbolic values"}
    trace = program_of(lambda x, scale: x * scale, options=options, x=torch.ones(2), scale=3.0).traces("computation")[0]
    assert_script_runs(tmp_path / "fault", trace, [torch.zeros(2), number])


def assert_script_runs(folder, trace, inputs):
    """Assert that the script for a trace runs with these inputs in another process; return the process."""
    values = {proxy.name: value for proxy, value in zip(trace.inputs, inputs, strict=True)}
    written = write_reproduction(folder, FAULT, Evidence(tuple(trace.bound_symbols), values), ())
    assert written is not None
    script = [sys.executable, "-W", "ignore", str(folder / "reproduce.py")]
    done = subprocess.run(script, capture_output=True, text=True, check=False, env=os.environ.copy())
    assert done.stderr == ""
    assert "the largest difference is" in done.stdout
    return done
