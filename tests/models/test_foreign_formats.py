"""Folders and files of models in other formats: each is recognized by its names, and the error says what to do."""

from __future__ import annotations

import json

import pytest

from tests.models.test_load_errors import edit_config, refusal
from thunder_core.foundation.errors import BadModelFolder, ModelNotFound
from thunder_core.workflow.models.folder.foreign_formats import PACKED_FORMATS, refuse_other_kinds, require_config

LORA = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "acme/llama-7b"}


def make_folder(folder, files):
    """A folder with these files; contents other than text are written as JSON."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("files", "holds", "fix"),
    [
        ({"llama-Q4_K_M.gguf": ""}, "weights in GGUF", 'gguf_file="llama-Q4_K_M.gguf"'),
        ({"model.onnx": ""}, "weights in ONNX (model.onnx)", "the original PyTorch weights"),
        (
            {"onnx/model.onnx": "", "onnx/model_q4.onnx": ""},
            "(onnx/model.onnx, onnx/model_q4.onnx)",
            "the original PyTorch weights",
        ),
        ({"tf_model.h5": ""}, "TensorFlow's format", "safetensors"),
        ({"flax_model.msgpack": ""}, "Flax's format", "safetensors"),
        ({"consolidated.00.pth": "", "params.json": {}}, "in the layout of its makers", "convert_llama_weights_to_hf"),
        ({"checkpoint-90/config.json": {}, "checkpoint-500/config.json": {}}, "of a training", "checkpoint-500"),
        ({"manifest.json": {}, "traces/0/computation.py": ""}, "an artifact of Thunder", "thunder bench"),
        (
            {"config.json": {"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4}}},
            "quantized weights (gptq, 4 bits)",
            "dequantize()",
        ),
        (
            {"config.json": {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}},
            "(bitsandbytes, 8 bits), whose layers multiply columns with values above 6.0 separately",
            "llm_int8_threshold",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_a_folder_of_another_kind_is_recognized(tmp_path, files, holds, fix):
    recognized = recognized_as(make_folder(tmp_path, files), holds, fix)
    assert str(tmp_path) in recognized.what
    error = refusal(tmp_path, BadModelFolder)
    assert error.what == recognized.what or "config.json" in files


@pytest.mark.parametrize(
    ("files", "holds", "fix"),
    [
        ({"adapter_config.json": LORA}, "an adapter (LORA by PEFT) for acme/llama-7b", "merge_and_unload()"),
        (
            {"adapter_config.json": LORA, "adapter_model.safetensors": ""},
            "not a complete model",
            'PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("acme/llama-7b")',
        ),
        ({"adapter_config.json": {}}, "an unnamed base model", 'AutoModel.from_pretrained("BASE")'),
        (
            {
                "model_index.json": {"_class_name": "StableDiffusionPipeline"},
                "unet/config.json": {"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.30"},
                "text_encoder/config.json": {"model_type": "clip_text_model"},
            },
            "a diffusers pipeline (StableDiffusionPipeline)",
            "text_encoder",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_an_adapter_or_a_pipeline_of_the_hub_is_recognized(tmp_path, files, holds, fix):
    recognized_as(make_folder(tmp_path, files), holds, fix)


def recognized_as(folder, holds, fix):
    """The error for a folder, which describes the folder's content and the fix."""
    with pytest.raises(BadModelFolder) as caught:
        refuse_other_kinds(folder)
    assert holds in caught.value.what
    assert fix in caught.value.fix
    return caught.value


def test_the_cache_of_the_hub_names_its_model(tmp_path):
    folder = make_folder(tmp_path, {"models--acme--llama-7b/snapshots/0/config.json": {}}) / "models--acme--llama-7b"
    assert "acme/llama-7b" in refusal(folder, BadModelFolder).fix


def test_a_folder_of_models_names_them(tmp_path):
    make_folder(tmp_path, {"one/config.json": {}, "two/config.json": {}, "three/readme": ""})
    with pytest.raises(BadModelFolder, match="folders in it have one") as caught:
        require_config(tmp_path)
    assert caught.value.fix == f"name one of these folders: {tmp_path / 'one'}, {tmp_path / 'two'}"


@pytest.mark.parametrize("extra", ["model.gguf", "onnx/model.onnx", "tf_model.h5", "flax_model.msgpack", "params.json"])
def test_other_formats_next_to_safetensors_do_not_matter(folder, extra):
    make_folder(folder, {extra: ""})
    refuse_other_kinds(folder)


TAKEN = ["bitnet", "bitsandbytes", "compressed-tensors", "fp8", "torchao", "mxfp4", "of-another-world"]


@pytest.mark.parametrize("method", TAKEN)
def test_quantizations_that_pytorch_runs_are_not_refused(folder, method):
    assert method not in PACKED_FORMATS
    edit_config(folder, quantization_config={"quant_method": method})
    refuse_other_kinds(folder)


def test_8_bits_without_columns_apart_are_not_refused(folder):
    settings = {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 0.0}
    edit_config(folder, quantization_config=settings)
    refuse_other_kinds(folder)


def test_a_quantized_checkpoint_is_refused_before_it_is_loaded(folder):
    edit_config(folder, quantization_config={"quant_method": "awq", "bits": 4})
    assert "quantized weights (awq, 4 bits)" in refusal(folder, BadModelFolder).what


@pytest.mark.parametrize(("name", "held"), [("model.gguf", "GGUF"), ("model.onnx", "ONNX"), ("model.pt", "pickled")])
def test_a_file_of_another_kind(tmp_path, name, held):
    make_folder(tmp_path, {name: ""})
    error = refusal(tmp_path / name, ModelNotFound)
    assert held in error.what
    assert "save_pretrained" in error.fix
