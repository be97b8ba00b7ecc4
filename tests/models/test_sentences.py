"""Folders of sentence-transformers: embeddings equal `SentenceTransformer.encode`, and bad folders are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModel

from tests.models.sentence_folders import TANH, WIDTH, write_sentence_folder
from thunder_core.foundation.errors import BadModelFolder, BadOption, ThunderError
from thunder_core.workflow.models.inputs.inputs import example_inputs
from thunder_core.workflow.models.loading.load import load_model, rebuild_model
from thunder_core.workflow.models.request.request import ModelRequest

MEAN = ("Pooling", {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True})
DENSE = {"in_features": WIDTH, "out_features": 8, "bias": True, "activation_function": TANH}
FOLDERS = {
    "mean": ([MEAN, ("Normalize", {})], {}),
    "mean-dense": ([MEAN, ("Dense", DENSE), ("Normalize", {})], {}),
    "modes": (
        [
            ("Pooling", {"embedding_dimension": WIDTH, "pooling_mode": ["cls", "max", "mean_sqrt_len_tokens"]}),
            ("LayerNorm", {"dimension": 3 * WIDTH}),
            ("Dropout", {"dropout": 0.3}),
        ],
        {"prefix": "sentence_transformers.sentence_transformer.modules"},
    ),
    "weighted-last": (
        [("Pooling", {"word_embedding_dimension": WIDTH, "pooling_mode": ["weightedmean", "lasttoken"]})],
        {"inside": "0_Transformer"},
    ),
    "residual": (
        [
            ("Pooling", {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": True}),
            ("Dense", {**DENSE, "use_residual": True, "activation_function": "torch.nn.modules.activation.GELU"}),
            ("Dense", {"in_features": 8, "out_features": 8, "bias": False, "use_residual": True}),
        ],
        {},
    ),
    "tokens": (
        [
            ("Dense", {**DENSE, "module_input_name": "token_embeddings"}),
            ("Pooling", {"word_embedding_dimension": 8, "pooling_mode": "mean"}),
            ("Normalize", {"module_input_name": "token_embeddings"}),
        ],
        {},
    ),
    "llama": (
        [("Pooling", {"word_embedding_dimension": WIDTH, "pooling_mode_lasttoken": True}), ("Normalize", {})],
        {
            "family": "llama",
            "config": {
                "vocab_size": 64,
                "hidden_size": WIDTH,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "pad_token_id": 0,
                "bos_token_id": 1,
                "eos_token_id": 2,
            },
        },
    ),
    "t5": (
        [MEAN],
        {
            "family": "t5",
            "config": {
                "vocab_size": 64,
                "d_model": WIDTH,
                "d_kv": 8,
                "d_ff": 32,
                "num_layers": 1,
                "num_heads": 2,
                "decoder_start_token_id": 0,
            },
        },
    ),
}
TEXTS = ["the cat saw a dog", "a red dog", "red", "the dog saw the red cat the dog saw"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sentence_folder(tmp_path / "model", [MEAN, ("Dense", DENSE), ("Normalize", {})])


@pytest.mark.parametrize("name", FOLDERS)
def test_embeddings_match_sentence_transformers(name, tmp_path):
    library = pytest.importorskip("sentence_transformers", reason="needs the package sentence-transformers")
    stages, options = FOLDERS[name]
    root = write_sentence_folder(tmp_path / "model", stages, **options)
    theirs = library.SentenceTransformer(str(root), device="cpu")
    loaded = load_model(ModelRequest(model=str(root)))
    features = theirs.tokenizer(TEXTS, padding=True, return_tensors="pt")
    taken = {name: features[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        embedding = loaded.model(**taken)["sentence_embedding"]
    expected = theirs.encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(embedding, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FOLDERS)
def test_stages_are_in_the_model(name, tmp_path):
    stages, options = FOLDERS[name]
    root = write_sentence_folder(tmp_path / "model", stages, **options)
    loaded = load_model(ModelRequest(model=str(root)))
    inputs = example_inputs(loaded, batch=3, seq=12, seed=0)
    with torch.no_grad():
        output = loaded.model(**inputs)
    assert loaded.task == "sentence-similarity"
    assert list(output) == ["sentence_embedding", "token_embeddings"]
    assert output.sentence_embedding.ndim == 2
    if stages[-1] == ("Normalize", {}):
        torch.testing.assert_close(output.sentence_embedding.norm(dim=-1), torch.ones(3))


def test_mean_over_unpadded_tokens_and_dense_layer_are_as_in_the_formula(folder):
    loaded = load_model(ModelRequest(model=str(folder)))
    inputs = example_inputs(loaded, batch=3, seq=12, seed=0)
    base = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        tokens, mask = base(**inputs)[0], inputs["attention_mask"].unsqueeze(-1)
        dense = loaded.model.stages[1].linear
        projected = torch.tanh(dense((tokens * mask).sum(1) / mask.sum(1)))
        expected = projected / projected.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(loaded.model(**inputs).sentence_embedding, expected)


def test_prompt_is_left_out_of_the_pooling(tmp_path):
    settings = {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True, "include_prompt": False}
    root = write_sentence_folder(tmp_path / "model", [("Pooling", settings)])
    model = load_model(ModelRequest(model=str(root))).model
    ids = torch.arange(3, 11).view(1, -1)
    with torch.no_grad():
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids), prompt_length=3)
    torch.testing.assert_close(output.sentence_embedding, output.token_embeddings[:, 3:].mean(1))


def test_model_is_rebuilt_from_its_source(folder):
    loaded = load_model(ModelRequest(model=str(folder)))
    inputs = example_inputs(loaded, batch=2, seq=8, seed=0)
    again = rebuild_model(loaded.source)
    assert again.fingerprint == loaded.fingerprint
    with torch.no_grad():
        assert torch.equal(again.model(**inputs)[0], loaded.model(**inputs)[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_stages_have_the_requested_dtype(folder, dtype):
    model = load_model(ModelRequest(model=str(folder), dtype=dtype)).model
    assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, dtype)}


def test_random_weights_are_the_same_for_a_seed(folder):
    shutil.rmtree(folder / "2_Dense" / "model.safetensors", ignore_errors=True)
    one, other = (load_model(ModelRequest(model=str(folder), random_weights=True, seed=3)).model for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))


def test_task_of_the_user_leaves_the_stages_out_with_a_note(folder):
    loaded = load_model(ModelRequest(model=str(folder), task="feature-extraction"))
    assert type(loaded.model).__name__ == "BertModel"
    assert any("modules.json" in note for note in loaded.notes)


def test_sentence_task_of_a_plain_folder_is_its_base_model(tmp_path):
    root = write_sentence_folder(tmp_path / "model", [])
    assert type(load_model(ModelRequest(model=str(root), task="sentence-similarity")).model).__name__ == "BertModel"


def replaced(root: Path, file: str, **values: object) -> None:
    content = json.loads((root / file).read_text())
    (root / file).write_text(json.dumps({**content, **values}))


def rename_module(root: Path, kind: str, number: int = 1) -> None:
    entries = json.loads((root / "modules.json").read_text())
    entries[number]["type"] = kind
    (root / "modules.json").write_text(json.dumps(entries))


def leave_the_folder(root: Path) -> None:
    entries = json.loads((root / "modules.json").read_text())
    entries[2]["path"] = "../dense"
    (root / "modules.json").write_text(json.dumps(entries))


BAD = {
    "code": (lambda root: rename_module(root, "custom_st.Pooling"), "custom_st.Pooling"),
    "unknown stage": (lambda root: rename_module(root, "sentence_transformers.models.CNN", 2), "models.CNN"),
    "no transformer": (lambda root: rename_module(root, "sentence_transformers.models.BoW", 0), "models.BoW"),
    "outside": (leave_the_folder, "outside of the folder"),
    "not JSON": (lambda root: (root / "modules.json").write_text("{"), "modules.json"),
    "not a list": (lambda root: (root / "modules.json").write_text('{"type": 1}'), "modules.json"),
    "mode": (lambda root: replaced(root, "1_Pooling/config.json", pooling_mode="median"), "'median'"),
    "activation": (lambda root: replaced(root, "2_Dense/config.json", activation_function="os.system"), "os.system"),
    "no sizes": (lambda root: (root / "2_Dense/config.json").write_text("{}"), "2_Dense"),
    "no weights": (lambda root: (root / "2_Dense/model.safetensors").unlink(), "2_Dense"),
    "damaged": (lambda root: (root / "2_Dense/model.safetensors").write_bytes(b"{"), "2_Dense"),
    "names": (lambda root: save_file({"w": torch.ones(2)}, root / "2_Dense/model.safetensors"), "linear.weight"),
    "shapes": (lambda root: replaced(root, "2_Dense/config.json", out_features=9), "2_Dense"),
    "task": (lambda root: replaced(root, "sentence_bert_config.json", transformer_task="fill-mask"), "fill-mask"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_folder_is_refused(name, folder):
    spoil, word = BAD[name]
    spoil(folder)
    with pytest.raises(BadModelFolder) as caught:
        load_model(ModelRequest(model=str(folder)))
    assert word in caught.value.what


def test_generation_and_labels_are_refused(folder):
    with pytest.raises(ThunderError):
        load_model(ModelRequest(model=str(folder), task="generate"))
    with pytest.raises(BadOption):
        load_model(ModelRequest(model=str(folder), task="image-classification"))
