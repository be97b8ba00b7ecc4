"""Small configs of model types: the config class's defaults with small sizes, in the config and in those within it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

WIDTH, HEADS, LAYERS, VOCABULARY, SIDE = 32, 2, 2, 99, 32
SIZES: Mapping[str, int] = {
    "hidden_size d_model n_embd embed_dim dim projection_dim embedding_dim embedding_size d_embed": WIDTH,
    "decoder_hidden_size fpn_feature_size mask_feature_size moe_intermediate_size n_inner": WIDTH,
    "shared_expert_intermediate_size": WIDTH,
    "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff d_inner": 2 * WIDTH,
    "num_attention_heads n_head num_heads encoder_attention_heads n_heads decoder_attention_heads": HEADS,
    "num_key_value_heads num_decoder_attention_heads": HEADS,
    "num_hidden_layers n_layer num_layers encoder_layers decoder_layers num_decoder_layers n_layers": LAYERS,
    "num_encoder_layers depth num_blocks": LAYERS,
    "num_experts num_local_experts n_routed_experts moe_num_experts": 4,
    "head_dim d_kv qk_nope_head_dim v_head_dim": WIDTH // HEADS,
    "q_lora_rank kv_lora_rank qk_rope_head_dim patch_size num_queries": 8,
    "vocab_size text_vocab_size": VOCABULARY,
    "image_size input_size": SIDE,
    "max_position_embeddings n_positions": 128,
}
SMALL: Mapping[str, int] = {name: size for names, size in SIZES.items() for name in names.split()}
# Heads by what they are for: the first mapping that names a type decides.
HEADS_OF_TYPES = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_CTC_MAPPING_NAMES",
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
    "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_VISUAL_QUESTION_ANSWERING_MAPPING_NAMES",
    "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_TIME_SERIES_PREDICTION_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
)


def model_types() -> list[str]:
    """Every type that has a model class, in order of the alphabet."""
    return sorted(model_type for model_type in CONFIG_MAPPING if architecture_of(model_type))


def architecture_of(model_type: str) -> str:
    """The name of the class of a type, with its first head; empty for a type that has none."""
    for mapping in HEADS_OF_TYPES:
        names = getattr(modeling_auto, mapping, {}).get(model_type)
        if names:
            return str(names if isinstance(names, str) else names[0])
    return ""


def small_config(model_type: str) -> PretrainedConfig:
    """A config of the type with small sizes, which names the class with the type's first head."""
    config = CONFIG_MAPPING[model_type]()
    for part in parts_of(config):
        for name, size in SMALL.items():
            value = getattr(part, name, None)
            if type(value) is int and value > size:
                setattr(part, name, size)
        shorten_lists(part)
    if getattr(getattr(config, "backbone_config", None), "model_type", "") == "timm_backbone":  # of another package
        config.backbone_config = small_config("resnet")
    config.architectures = [architecture_of(model_type)]
    return config


def parts_of(config: Any) -> Iterator[Any]:
    """A config and the configs within it."""
    yield config
    for value in list(vars(config).values()):
        if isinstance(value, PretrainedConfig):
            yield from parts_of(value)


def shorten_lists(config: Any) -> None:
    """Cut the lists that have an entry for each layer to the number of layers, and make their tokens fit."""
    layers = getattr(config, "num_hidden_layers", LAYERS)
    kinds = getattr(config, "layer_types", None)
    if isinstance(kinds, list) and type(layers) is int:
        config.layer_types = kinds[:layers]
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if isinstance(token := getattr(config, name, None), int) and token >= VOCABULARY:
            setattr(config, name, 1)
