"""An artifact with weights runs before its model is built: the cases of `lazy_model_cases.py` in separate processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

import thunder_core as thunder
from tests.artifact.lazy_model_cases import CASES, IDS

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 64,
    "max_position_embeddings": 16,
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbuilt")
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig(**SMALL)).eval()
    plain, whole = thunder.jit(model), thunder.jit(model)
    plain(input_ids=IDS, return_dict=False)[0].sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        expected = {
            "logits": plain(input_ids=IDS, return_dict=False)[0],
            "state": dict(model.state_dict()),
            "parameters": [name for name, _ in model.named_parameters()],
            "gradients": gradients,
        }
        whole(input_ids=IDS)
    thunder.save(plain, folder / "plain.thunder", example={"input_ids": IDS}, include_weights=True)
    thunder.save(whole, folder / "class.thunder", include_weights=True)
    torch.save(expected, folder / "expected.pt")
    command = [sys.executable, "-m", "tests.artifact.lazy_model_cases", str(folder)]
    path = os.pathsep.join(filter(None, map(os.path.abspath, sys.path)))
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_case(case, outcomes):
    assert not outcomes[case], outcomes[case]
