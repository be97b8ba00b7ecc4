"""Small configs of model types: the defaults of the config class with small sizes, also in nested configs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

WIDTH, HEADS, LAYERS, VOCABULARY, SIDE = 32, 2, 2, 99, 32
DEPTHS = (
    *("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers"),
    *("num_encoder_layers", "num_decoder_layers", "depth", "num_blocks"),
)
WIDTHS: Mapping[str, int] = {
    "hidden_size d_model n_embd embed_dim dim projection_dim embedding_dim embedding_size d_embed": WIDTH,
    "decoder_hidden_size fpn_feature_size mask_feature_size moe_intermediate_size n_inner": WIDTH,
    "shared_expert_intermediate_size projection_size": WIDTH,
    "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff d_inner": 2 * WIDTH,
    "num_attention_heads n_head num_heads encoder_attention_heads n_heads decoder_attention_heads": HEADS,
    "num_key_value_heads num_decoder_attention_heads": HEADS,
    "rotary_dim": WIDTH // HEADS // 2,
    "head_dim d_kv qk_nope_head_dim qk_rope_head_dim v_head_dim": WIDTH // HEADS,
    "q_lora_rank kv_lora_rank patch_size num_queries": 8,
}
COUNTS: Mapping[str, int] = {
    "num_experts num_local_experts n_routed_experts moe_num_experts": 4,
    "num_experts_per_tok num_experts_per_token moe_top_k moe_k top_k_experts": 2,
    "n_group topk_group": 1,
    "vocab_size text_vocab_size": VOCABULARY,
    "image_size input_size": SIDE,
    "max_position_embeddings n_positions": 128,
}


def by_name(*tables: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of tables by name; a key of a table has several names, separated by spaces."""
    return {name: size for table in tables for names, size in table.items() for name in names.split()}


DEPTH = {" ".join(DEPTHS): LAYERS}
SMALL = by_name(WIDTHS, COUNTS, DEPTH)
WIDER = SMALL | {name: (2 if "head" in name else 4) * size for name, size in by_name(WIDTHS).items()}
# The sizes that are reduced, from the smallest configs to configs that only have fewer layers: some types cannot be
# narrow.
LEVELS = (SMALL, WIDER, by_name(COUNTS, DEPTH), by_name(DEPTH))
# Values that some models need although the defaults of their config have None.
OPEN = {
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "prediction_length": 4,
    "vocab_size": VOCABULARY,
    "rope_theta": 10_000.0,
    "num_key_value_heads": HEADS,
    "n_group": 1,
    "topk_group": 1,
}
# Sizes by type, for types whose sizes depend on each other.
OWN: Mapping[str, Mapping[str, Any]] = {
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1},
    "bamba": {"mamba_n_heads": 4, "mamba_d_head": 16},
    "granitemoehybrid": {"mamba_n_heads": 4, "mamba_d_head": 16},
    "codegen": {"n_head": 4, "rotary_dim": 4},
    "longcat_flash": {"qk_head_dim": 2 * WIDTH // HEADS, "moe_topk": 2, "zero_expert_num": 2},
    "cosmos3_edge_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
    },
    **{name: {"head_dim": 16} for name in ("ministral", "hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text")},
}
SECTIONS = "mrope_section"  # of the frequencies of a head: those of time, height and width
PER_LAYER = "per_layer_config"  # by the number of a layer
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
KINDS = ("_types", "_type")  # the ends of names of lists with the kind of each layer
# The mappings of types to classes with a head, by the head's purpose. The first mapping that has a type decides.
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
    """Return all types that have a model class, sorted."""
    return sorted(model_type for model_type in CONFIG_MAPPING if architectures_of(model_type))


def architectures_of(model_type: str) -> list[str]:
    """Return the names of the classes of a type; classes with heads come first."""
    found = []
    for mapping in HEADS_OF_TYPES:
        names = getattr(modeling_auto, mapping, {}).get(model_type)
        found += [names] if isinstance(names, str) else list(names or ())[:1]
    return list(dict.fromkeys(found))


def small_config(model_type: str, sizes: Mapping[str, int] = SMALL, architecture: str = "") -> PretrainedConfig:
    """Return a config of a type with small sizes and an architecture, by default the class with the first head."""
    config_class = CONFIG_MAPPING[model_type]
    values = shrink(config_class().to_dict(), sizes) | (OWN.get(model_type, {}) if sizes is SMALL else {})
    config: PretrainedConfig = config_class.from_dict(values)
    if getattr(getattr(config, "backbone_config", None), "model_type", "") == "timm_backbone":  # of another package
        config.backbone_config = small_config("resnet")
    for part in parts_of(config):
        if SECTIONS in getattr(type(part), "ignore_keys_at_rope_validation", ()):
            set_sections(part)
    config.architectures = [architecture or architectures_of(model_type)[0]]
    return config


def shrink(values: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the values of a config with small sizes, also in nested configs."""
    result = dict(values) | {name: size for name, size in OPEN.items() if name in values and values[name] is None}
    for name, value in values.items():
        if isinstance(value, dict):
            result[name] = shrink(value, sizes)
        elif type(value) is int and name not in DEPTHS and value > sizes.get(name, value):
            result[name] = sizes[name]
    for name in DEPTHS:
        if name in sizes and type(values.get(name)) is int and not values.get("out_features"):
            result |= shorten_layers(values, name)
    if isinstance(result.get("vocab_size"), int):
        result |= {name: token_within(result[name], result["vocab_size"]) for name in TOKENS if name in result}
    return result


def set_sections(config: Any) -> None:
    """Write the sections of the frequencies of a head into a config: half as many as the rotated elements."""
    rope = config.rope_parameters
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    count = int(head * rope.get("partial_rotary_factor", 1.0)) // 2
    rope[SECTIONS] = [count - 2 * (3 * count // 8), 3 * count // 8, 3 * count // 8]


def token_within(token: Any, vocabulary: int) -> Any:
    """Return a token, a list of tokens or None, with 1 in place of tokens that are not in the vocabulary."""
    if isinstance(token, list):
        return [token_within(element, vocabulary) for element in token]
    return 1 if isinstance(token, int) and token >= vocabulary else token


def shorten_layers(values: Mapping[str, Any], depth: str) -> dict[str, Any]:
    """Return the reduced number of layers, and the lists with one entry for each layer.

    One layer of each kind remains, and at least two layers.
    """
    count = values[depth]
    lists = {name: value for name, value in values.items() if isinstance(value, list) and len(value) == count}
    kinds = list(zip(*(map(str, value) for name, value in lists.items() if name.endswith(KINDS)), strict=True))
    first = sorted({kind: place for place, kind in reversed(list(enumerate(kinds)))}.values())
    places = first + [index for index in range(count) if index not in first][: max(0, LAYERS - len(first))]
    found = {depth: len(places)} | {name: [value[place] for place in places] for name, value in lists.items()}
    if values.get(PER_LAYER):
        of_layers = {str(layer): settings for layer, settings in values[PER_LAYER].items()}
        kept = {number: of_layers.get(str(place)) for number, place in enumerate(places)}
        found[PER_LAYER] = {number: settings for number, settings in kept.items() if settings is not None}
    return found


def parts_of(config: Any) -> Iterator[Any]:
    """Yield a config and its nested configs."""
    yield config
    for value in list(vars(config).values()):
        if isinstance(value, PretrainedConfig):
            yield from parts_of(value)
