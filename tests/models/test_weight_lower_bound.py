"""The weights that a config describes are counted without PyTorch, and never more than there are."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModel

from thunder_core.foundation.errors import OutOfMemory
from thunder_core.workflow.models.memory import weight_lower_bound
from thunder_core.workflow.models.memory.weight_lower_bound import COUNTS, least_weight_bytes, memory_shortage
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.request.request_checks import check_request

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}


def config_of(family: str, **changes: object) -> object:
    """A config of a family with sizes, as transformers writes it."""
    return AutoConfig.for_model(family, **{**SIZES, **changes})


@pytest.mark.parametrize("family", COUNTS)
@pytest.mark.parametrize("changes", [{}, {"head_dim": 32}, {"num_key_value_heads": 8}, {"tie_word_embeddings": True}])
def test_count_is_nearly_that_of_the_model_and_never_more(family, changes):
    config = config_of(family, **changes)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    actual = 4 * sum(parameter.numel() for parameter in model.parameters())
    counted = least_weight_bytes(config.to_dict(), "float32")
    assert 0.98 * actual <= counted <= actual
    assert least_weight_bytes(config.to_dict(), None) == counted // 2


@pytest.mark.parametrize("config", [{}, {"model_type": "bert"}, {"model_type": "llama"}, {"model_type": ["llama"]}])
def test_config_without_the_facts_is_left_to_the_plan(config):
    assert least_weight_bytes(config, None) is None


def written(tmp_path, **changes):
    """The folder of a config of a Llama of 70 billion parameters."""
    large = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
    config_of("llama", **{**large, "num_key_value_heads": 8, "vocab_size": 128_256, **changes}).save_pretrained(
        tmp_path
    )
    return tmp_path


@pytest.mark.parametrize(("dtype", "gibibytes"), [("float32", "259 GiB"), ("bfloat16", "129 GiB"), (None, "129 GiB")])
def test_random_weights_that_do_not_fit_are_refused_by_number(tmp_path, monkeypatch, dtype, gibibytes):
    monkeypatch.setattr(weight_lower_bound, "machines_memory", lambda: 16 << 30)
    request = ModelRequest(str(tmp_path), dtype=dtype, device="cpu", random_weights=True)
    written(tmp_path)
    with pytest.raises(OutOfMemory, match=gibibytes):
        check_request(Request(model=request))
    check_request(Request(model=request), dry_run=True)


@pytest.mark.parametrize("request_of", [{"random_weights": False}, {"device": "cuda"}])
def test_weights_that_are_mapped_or_on_a_gpu_are_not_refused_this_early(tmp_path, monkeypatch, request_of):
    monkeypatch.setattr(weight_lower_bound, "machines_memory", lambda: 1 << 30)
    request = SimpleNamespace(**{"random_weights": True, "device": "cpu", "dtype": None, **request_of})
    assert memory_shortage(request, written(tmp_path)) is None


def test_command_refuses_without_importing_pytorch(tmp_path):
    program = (
        "import sys\n"
        "from thunder_core.errors import OutOfMemory\n"
        "from thunder_core.models.memory import weight_lower_bound\n"
        "weight_lower_bound.machines_memory = lambda: 1 << 30\n"
        "from thunder_core.models.request.request import ModelRequest\n"
        "from thunder_core.pipeline.request.request import Request\n"
        "from thunder_core.workflow.pipeline.request.request_checks import check_request\n"
        "try: check_request(Request(model=ModelRequest(sys.argv[1], device='cpu', random_weights=True)))\n"
        "except OutOfMemory: sys.exit(7 if not {'torch', 'transformers'} & {*sys.modules} else 1)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(written(tmp_path))], check=False).returncode == 7
