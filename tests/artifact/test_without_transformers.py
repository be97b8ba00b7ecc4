"""An artifact with its weights and plain outputs loads and runs where the transformers library is not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel

from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline import Request, optimize

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 64}
PROBE = """
import sys
for name in ("transformers", "tokenizers", "huggingface_hub"):
    sys.modules[name] = None
import torch
import thunder_core as thunder
from thunder_core.foundation.errors import PackageMissing
plain, rich = sys.argv[1:]
inputs = {"input_ids": torch.arange(8)[None], "attention_mask": torch.ones(1, 8, dtype=torch.int64)}
loaded = thunder.load(plain, strict=True)
with torch.no_grad():
    result = loaded(**inputs)
assert type(result) is tuple
for act in (lambda: thunder.load(rich), lambda: loaded.config, lambda: loaded(**inputs, position_ids=None)):
    try:
        act()
    except PackageMissing as error:
        assert "--outputs tuple" in error.fix and "transformers" in error.what
    else:
        raise AssertionError("it was built")
torch.save([one.clone() for one in result], plain + ".pt")
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A small BERT."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("bert")
    BertModel(BertConfig(**SIZES, num_hidden_layers=1)).save_pretrained(folder)
    return folder


def test_tuples_need_pytorch_alone_and_what_builds_the_model_says_what_is_missing(model, tmp_path):
    made = []
    for outputs in ("tuple", "model"):
        request = ModelRequest(model=str(model), outputs=outputs)
        options = {"seq": 8, "inputs": 1, "benchmark": False, "include_weights": True, "without": ("inductor",)}
        made.append(optimize(Request(model=request, out=tmp_path / outputs, **options)).artifact)
    done = subprocess.run([sys.executable, "-c", PROBE, *map(str, made)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    eager = BertModel.from_pretrained(model).eval()
    inputs = {"input_ids": torch.arange(8)[None], "attention_mask": torch.ones(1, 8, dtype=torch.int64)}
    with torch.no_grad():
        expected = eager(**inputs).to_tuple()
    for actual, wanted in zip(torch.load(f"{made[0]}.pt"), expected, strict=True):
        torch.testing.assert_close(actual, wanted)
