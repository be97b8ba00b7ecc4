"""A transformer with the stages of sentence-transformers, as one module that returns sentence embeddings.

Programs of artifacts refer to this Python module and run without transformers, so it does not import that library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import nn

from thunder_core.tracing.library.model_output import ModelOutput
from thunder_core.tracing.library.sentences.ranking import ranking_loss
from thunder_core.tracing.library.sentences.stages import (
    MASK,
    POOLINGS,
    SENTENCE,
    TOKENS,
    Dense,
    Features,
    Normalize,
    OnSentence,
    Pooling,
)

KEY = "thunder_sentence_stages"  # the attribute of a config that lists the stages
ACTIVATIONS = "torch.nn."
PAIRS = 3  # the number of dimensions of the tokens of pairs
# The names of the modes in configs of older releases, in the order in which the results are concatenated.
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

Settings = Mapping[str, Any]


class SentenceModel(nn.Module):
    """A transformer, and stages that compute a sentence embedding from its last hidden state.

    The config is the transformer's config, which lists the stages in its attribute `KEY`.
    """

    main_input_name = "input_ids"
    base_model_prefix = ""

    def __init__(self, transformer: nn.Module) -> None:
        """Build the stages in the config of a transformer, with random weights."""
        super().__init__()
        self.transformer: Any = transformer
        self.config: Any = self.transformer.config
        self.stages = nn.ModuleList(build_stage(stage) for stage in getattr(self.config, KEY))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the transformer."""
        return cast(torch.dtype, self.transformer.dtype)

    @property
    def device(self) -> torch.device:
        """The device of the transformer."""
        return cast(torch.device, self.transformer.device)

    def tie_weights(self) -> None:
        """Tie the weights of the transformer."""
        self.transformer.tie_weights()

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        prompt_length: int | None = None,
        **inputs: Any,
    ) -> ModelOutput:
        """Return the `sentence_embedding`, [batch, width], and the `token_embeddings`, [batch, tokens, width].

        `prompt_length` is the number of tokens of a prompt, for models that leave the prompt out of the pooling.
        Tokens of [batch, texts, tokens] are groups of texts for training (`ranking_loss`): the output is the `loss` and
        the `sentence_embedding`, [batch, texts, width].
        """
        named = {"input_ids": input_ids, MASK: attention_mask, "token_type_ids": token_type_ids}
        tensors = {name: value for name, value in named.items() if value is not None}
        if input_ids is None or input_ids.dim() < PAIRS:
            return self.embed(tensors, prompt_length, inputs)
        flat = {name: value.flatten(0, 1) for name, value in tensors.items()}
        sentences = self.embed(flat, prompt_length, inputs)[SENTENCE].unflatten(0, input_ids.shape[:2])
        return ModelOutput({"loss": ranking_loss(sentences), SENTENCE: sentences})

    def embed(
        self, tensors: Mapping[str, torch.Tensor], prompt_length: int | None, inputs: Mapping[str, Any]
    ) -> ModelOutput:
        """Return the embeddings of texts."""
        attention_mask = tensors.get(MASK)
        tokens = self.transformer(**tensors, **inputs)[0]
        features: Features = {TOKENS: tokens, MASK: mask_of(tokens, attention_mask)}
        for stage in self.stages:
            features = stage(features, prompt_length)
        return ModelOutput({name: features[name] for name in (SENTENCE, TOKENS) if name in features})


def mask_of(tokens: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """Return the attention mask of tokens, or a mask of ones if its length is not the number of tokens."""
    if attention_mask is not None and attention_mask.shape[-1] == tokens.shape[1]:
        return attention_mask
    return torch.ones(tokens.shape[:-1], device=tokens.device, dtype=torch.int64)


# ---- stages -------------------------------------------------------------------------------------------------------


def build_stage(stage: Settings) -> nn.Module:
    """Return the module of a stage, with random weights; raise ValueError for settings that are not valid."""
    return BUILDERS[str(stage["kind"])](stage["settings"])


def build_pooling(settings: Settings) -> nn.Module:
    """Return a pooling by the modes in its settings; the default is the mean."""
    named_modes = settings.get("pooling_mode") or [mode for flag, mode in FLAGS.items() if settings.get(flag)]
    modes = (named_modes,) if isinstance(named_modes, str) else tuple(named_modes) or ("mean",)
    unknown = [mode for mode in modes if mode not in POOLINGS]
    if unknown:
        raise ValueError(f"there is no pooling mode {unknown[0]!r:.80}; the modes are {', '.join(POOLINGS)}")
    return Pooling(modes, include_prompt=bool(settings.get("include_prompt", True)))


def build_normalize(settings: Settings) -> nn.Module:
    """Return a normalization of the embeddings that its settings name."""
    return Normalize(*ends_of(settings))


def build_dense(settings: Settings) -> nn.Module:
    """Return a linear layer with the activation in its settings; the default is Tanh."""
    source, target = ends_of(settings)
    return Dense(
        (int(settings["in_features"]), int(settings["out_features"])),
        activation_of(settings.get("activation_function", "torch.nn.modules.activation.Tanh")),
        bias=bool(settings.get("bias", True)),
        source=source,
        target=target,
        use_residual=bool(settings.get("use_residual", False)),
    )


def build_layer_norm(settings: Settings) -> nn.Module:
    """Return a layer norm of sentence embeddings."""
    return OnSentence("norm", nn.LayerNorm(int(settings["dimension"])))


def build_dropout(settings: Settings) -> nn.Module:
    """Return a dropout of sentence embeddings, which does nothing in eval mode."""
    return OnSentence("dropout_layer", nn.Dropout(float(settings.get("dropout", 0.2))))


def ends_of(settings: Settings) -> tuple[str, str]:
    """Return the names of the embeddings that a stage reads and writes."""
    source = str(settings.get("module_input_name") or SENTENCE)
    return source, str(settings.get("module_output_name") or source)


def activation_of(path: object) -> nn.Module:
    """Return the activation with a name in `torch.nn`; raise ValueError for others, which could be any code."""
    name = str(path).rpartition(".")[2]
    kind = getattr(nn, name, None) if path is not None else nn.Identity
    if path is not None and (not str(path).startswith(ACTIVATIONS) or not is_module_class(kind)):
        raise ValueError(f"the activation {path!r:.120} is not a module of {ACTIVATIONS.removesuffix('.')}")
    activation: nn.Module = cast(Any, kind)()
    return activation


def is_module_class(kind: object) -> bool:
    """Whether an object is a class of modules."""
    return isinstance(kind, type) and issubclass(kind, nn.Module)


BUILDERS: Mapping[str, Callable[[Settings], nn.Module]] = {
    "Pooling": build_pooling,
    "Normalize": build_normalize,
    "Dense": build_dense,
    "LayerNorm": build_layer_norm,
    "Dropout": build_dropout,
}
