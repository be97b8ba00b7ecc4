"""Small models of real architectures, each with a name and a config, for the samples of recipes and for tests."""

from __future__ import annotations

from thunder_core.workflow.models.request.request import SampleModel

SPECIAL_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

DECODER = {
    **SPECIAL_TOKENS,
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}

GROUPED_DECODER = {**DECODER, "num_key_value_heads": 2}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}

SAMPLES: dict[str, SampleModel] = {
    "llama": SampleModel("LlamaForCausalLM", DECODER),
    "llama3": SampleModel(
        "LlamaForCausalLM",
        {
            **SPECIAL_TOKENS,
            "vocab_size": 1024,
            "hidden_size": 256,
            "intermediate_size": 896,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-5,
            "rope_parameters": LLAMA3_ROPE,
            "tie_word_embeddings": False,
        },
    ),
    "mistral": SampleModel("MistralForCausalLM", {**GROUPED_DECODER, "sliding_window": 16}),
    "qwen2": SampleModel("Qwen2ForCausalLM", GROUPED_DECODER),
    "qwen3": SampleModel("Qwen3ForCausalLM", {**GROUPED_DECODER, "head_dim": 16}),
    "gemma2": SampleModel(
        "Gemma2ForCausalLM",
        {**GROUPED_DECODER, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16},
    ),
    "phi3": SampleModel(
        "Phi3ForCausalLM", {**GROUPED_DECODER, "original_max_position_embeddings": 256, "sliding_window": 16}
    ),
    "mixtral": SampleModel(
        "MixtralForCausalLM",
        {**GROUPED_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    "gpt2": SampleModel(
        "GPT2LMHeadModel",
        {**SPECIAL_TOKENS, "vocab_size": 512, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256},
    ),
    "bert": SampleModel("BertForMaskedLM", DECODER),
    "vit": SampleModel(
        "ViTForImageClassification",
        {
            "image_size": 32,
            "patch_size": 8,
            "num_channels": 3,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_labels": 10,
        },
    ),
    "t5": SampleModel(
        "T5ForConditionalGeneration",
        {
            "pad_token_id": 0,
            "eos_token_id": 1,
            "decoder_start_token_id": 0,
            "vocab_size": 512,
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_layers": 2,
            "num_decoder_layers": 2,
            "num_heads": 4,
        },
    ),
}
