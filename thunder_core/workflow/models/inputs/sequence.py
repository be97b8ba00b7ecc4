"""The longest sequence that a model accepts."""

from __future__ import annotations

from transformers import PretrainedConfig

from thunder_core.foundation.errors import SequenceTooLong

LIMITS = (
    "max_position_embeddings",
    "n_positions",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_len",
    "n_ctx",
)

# Families with relative positions; configs of old checkpoints still contain a limit.
UNLIMITED = frozenset({"t5", "mt5", "umt5", "longt5", "switch_transformers", "udop", "pop2piano", "xlnet", "bloom"})

# Families whose positions start after the padding token's id, so that the table of positions has additional rows.
OFFSET = frozenset(
    {
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
        "camembert",
        "data2vec-text",
        "ibert",
        "longformer",
        "luke",
        "lilt",
        "markuplm",
        "layoutlmv3",
        "mpnet",
        "esm",
    }
)


def longest_sequence(config: PretrainedConfig) -> int | None:
    """Return the largest number of tokens in a sequence that a model accepts, or None without a limit."""
    if config.model_type in UNLIMITED:
        return None
    text = config.get_text_config()
    limits = [getattr(text, name, None) for name in LIMITS]
    longest = next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)
    if longest is None or config.model_type not in OFFSET:
        return longest
    return longest - (text.pad_token_id or 0) - 1


def check_sequence_length(config: PretrainedConfig, seq: int) -> None:
    """Raise `SequenceTooLong` if a sequence has more tokens than the model has positions."""
    longest = longest_sequence(config)
    if longest is not None and seq > longest:
        raise SequenceTooLong(
            f"a sequence of {seq} tokens is longer than the model's {longest} positions",
            fix=f"use --seq {longest} or less",
        )
