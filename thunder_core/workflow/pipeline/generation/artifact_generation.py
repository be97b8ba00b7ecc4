"""Generate text from a prompt, token by token, with only the programs of an artifact: nothing is traced."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os.path import commonprefix
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers.cache_utils import DynamicCache
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer

from thunder_core.backend.runtime.module import programs_of
from thunder_core.backend.runtime.prologues.uninterrupted import STREAMER, settled_guards
from thunder_core.foundation.errors import BadOption, CannotGenerate, NotFinite, SequenceTooLong
from thunder_core.foundation.options.generation_lengths import GenerationLengths
from thunder_core.foundation.transformers_versions import cache_argument
from thunder_core.workflow.artifact.format.manifest import Manifest
from thunder_core.workflow.artifact.format.read import Artifact, open_artifact
from thunder_core.workflow.artifact.format.signature import require_authentic
from thunder_core.workflow.artifact.loading import load_opened
from thunder_core.workflow.artifact.trust.consent import NO_CONSENT, Consent
from thunder_core.workflow.benchmark.memory_bandwidth import memory_bandwidth
from thunder_core.workflow.models.folder.origin import find_origin, request_of
from thunder_core.workflow.models.folder.weight_bytes import LARGE_WEIGHT_BYTES, weight_bytes
from thunder_core.workflow.models.inputs.tokens import tokenizer_for_data
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.pipeline.request.run_request import PROMPT_FIX, Sampling
from thunder_core.workflow.pipeline.session.rebuild import load_model_of

USUAL_NEW_TOKENS = 128
NON_FINITE_MESSAGE = "probability tensor contains"  # a part of PyTorch's error about NaN in probabilities
MAX_UNSETTLED_TOKENS = 4  # the last tokens, whose text later tokens may change; ` ' v e` is the longest contraction
FIX_MAKE_AGAIN = (
    "make the artifact again with `thunder optimize MODEL --task generate --prompt-length N --new-tokens M`, for "
    "prompts of up to N tokens and up to M new tokens"
)


@dataclass(frozen=True)
class Token:
    """A generated token, the seconds since the previous token, and whether the token ends the text."""

    id: int
    seconds: float
    ends: bool


OnToken = Callable[[Token], object]


class WeightTraffic(NamedTuple):
    """The bytes of weights that each token reads, and the memory bandwidth of the device in bytes per second."""

    weights: int
    bandwidth: float


@dataclass(frozen=True, eq=False)
class Generator(ABC):
    """An artifact that generates text with only its programs."""

    artifact: Artifact
    loaded: LoadedModel
    compiled: Any
    trust_remote_code: bool

    @abstractmethod
    def most_new_tokens(self, prompt: int) -> int:
        """Return the largest number of new tokens after a prompt of `prompt` tokens; 0 if the prompt is too long."""

    @property
    @abstractmethod
    def served(self) -> str:
        """The lengths that the artifact's programs support, in words."""

    @abstractmethod
    def generate(self, prompt: Sequence[int], count: int, sampling: Sampling, on_token: OnToken) -> None:
        """Generate `count` tokens after a prompt, or up to the token that ends the text; call `on_token` with each."""

    def weight_traffic(self) -> WeightTraffic | None:
        """Return the memory traffic of the weights; None for a model so small that its weights may stay in caches."""
        weights = weight_bytes(self.loaded.model)
        return (
            WeightTraffic(weights, memory_bandwidth(self.loaded.model.device))
            if weights >= LARGE_WEIGHT_BYTES
            else None
        )

    def tokenizer(self) -> Any:
        """Return the tokenizer in the model's folder; raise `BadData` if there is none."""
        origin = find_origin(request_of(self.artifact.manifest.source))
        return tokenizer_for_data(
            origin,
            "the prompt is text",
            fix="pass the prompt as tokens (--prompt-ids 1,2,3), or put the model's tokenizer.json into its folder",
            trust_remote_code=self.trust_remote_code,
        )

    def new_tokens(self, prompt: Sequence[int], requested: int | None) -> int:
        """Return the requested number of tokens to generate after a prompt, or the default within the artifact's limit.

        Raises `BadOption` for an empty prompt or an unknown token, and `SequenceTooLong` for too many tokens.
        """
        vocabulary = self.loaded.config.get_text_config().vocab_size
        if not prompt:
            raise BadOption("the prompt has no tokens", fix=PROMPT_FIX)
        if max(prompt) >= vocabulary:
            raise BadOption(
                f"the prompt has the token {max(prompt)}, which is not in the model's vocabulary",
                fix=f"use tokens from 0 to {vocabulary - 1}",
            )
        most = self.most_new_tokens(len(prompt))
        if most < (requested or 1):
            raise SequenceTooLong(
                f"a prompt of {len(prompt)} tokens and {requested or 1} new tokens exceed the lengths that "
                f"{self.artifact.folder} serves: {self.served}",
                fix=f"use at most {most} new tokens (--new-tokens), or {FIX_MAKE_AGAIN}"
                if most
                else f"shorten the prompt, or {FIX_MAKE_AGAIN}",
            )
        return requested or min(most, USUAL_NEW_TOKENS)


@contextmanager
def finite_logits() -> Iterator[None]:
    """Raise `NotFinite` in place of PyTorch's error if the block samples from logits that are NaN or infinite."""
    try:
        yield
    except RuntimeError as error:
        if NON_FINITE_MESSAGE not in str(error):
            raise
        raise NotFinite(
            "the model's logits are NaN or infinite, so no token can be sampled",
            fix="check the weights; `thunder debug ARTIFACT --nan` finds the first line that produces such a value",
        ) from error


class TokenListener(BaseStreamer):
    """A streamer of the transformers library that reports each token and its time; the prompt comes first."""

    def __init__(self, on_token: OnToken, ends: frozenset[int]) -> None:
        """Report tokens to `on_token`; `ends` are the tokens that end a text."""
        self.on_token, self.ends = on_token, ends
        self.had_prompt = False
        self.began = time.perf_counter()

    def put(self, value: torch.Tensor) -> None:
        """Report a token of shape [1]; the first value is the prompt, which is not reported."""
        if not self.had_prompt:
            self.had_prompt = True
            return
        token, now = int(value.reshape(-1)[0]), time.perf_counter()
        self.on_token(Token(token, now - self.began, token in self.ends))
        self.began = time.perf_counter()

    def end(self) -> None:
        """Do nothing: all tokens have been reported."""


@dataclass(frozen=True, eq=False)
class LibraryGenerator(Generator):
    """An artifact that was made for generation: `generate` of the transformers library calls its programs."""

    lengths: GenerationLengths

    def most_new_tokens(self, prompt: int) -> int:
        """Return the largest number of new tokens, which for an encoder-decoder does not depend on the prompt."""
        if prompt > self.lengths.prompt_length:
            return 0
        return self.lengths.new_tokens if self.loaded.config.is_encoder_decoder else self.lengths.total - prompt

    @property
    def served(self) -> str:
        """The largest length of a prompt, and the largest number of tokens in total or, for an encoder-decoder, of new
        tokens.
        """
        if self.loaded.config.is_encoder_decoder:
            return f"prompts of up to {self.lengths.prompt_length} tokens, and {self.lengths.new_tokens} new tokens"
        return f"prompts of up to {self.lengths.prompt_length} tokens, and {self.lengths.total} tokens in total"

    def generate(self, prompt: Sequence[int], count: int, sampling: Sampling, on_token: OnToken) -> None:
        """Generate tokens with the model's generation config, which `sampling` overrides."""
        ids = torch.tensor([prompt], device=self.loaded.model.device)
        if sampling.seed is not None:
            torch.manual_seed(sampling.seed)
        with finite_logits():
            self.compiled.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                num_beams=1,
                do_sample=sampling.samples,
                streamer=TokenListener(on_token, ends_of(self.loaded)),
                **sampling.stated,
            )


@dataclass(frozen=True)
class ServedLengths:
    """The lengths that an artifact's programs support: tokens in a call, and tokens in the cache before it."""

    tokens: int
    cached: int

    def new_tokens(self, prompt: int) -> int:
        """Return the largest number of new tokens after a prompt of `prompt` tokens; 0 if the prompt is too long."""
        after_prompt = self.cached - prompt + 2  # the last token is returned, but never enters the cache
        cached_before_last_part = (prompt - 1) // self.tokens * self.tokens
        return max(after_prompt, 1) if cached_before_last_part <= self.cached else 0


# The classes that change logits before sampling, in the order in which `generate` of transformers applies them.
WARPERS: dict[str, Callable[[Any], LogitsProcessor]] = {
    "temperature": TemperatureLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
}
NEUTRAL_SETTINGS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}  # values that change no logits


@dataclass(frozen=True, eq=False)
class StepGenerator(Generator):
    """An artifact of calls with a KV cache (`--dynamic cache=0:N`), which read the prompt in parts, then each token."""

    lengths: ServedLengths

    def most_new_tokens(self, prompt: int) -> int:
        """Return the number of tokens that the cache has room for after a prompt."""
        return self.lengths.new_tokens(prompt)

    @property
    def served(self) -> str:
        """The largest number of tokens in the cache."""
        return f"its cache has room for {self.lengths.cached} tokens"

    def generate(self, prompt: Sequence[int], count: int, sampling: Sampling, on_token: OnToken) -> None:
        """Generate tokens with the model's generation config, which `sampling` overrides."""
        cache = DynamicCache(config=self.loaded.config.get_text_config(decoder=True))
        warpers = warpers_of(self.loaded, sampling)
        listener = TokenListener(on_token, ends_of(self.loaded))
        listener.put(torch.tensor(prompt))
        if sampling.seed is not None:
            torch.manual_seed(sampling.seed)
        called = {STREAMER: listener, "cache": cache, "warpers": warpers}
        with settled_guards(programs_of(self.compiled).subject, called):
            self._continue(list(prompt), count, cache, warpers, listener, samples=sampling.samples)

    def _continue(
        self,
        unread_tokens: list[int],
        count: int,
        cache: DynamicCache,
        warpers: LogitsProcessorList,
        listener: TokenListener,
        *,
        samples: bool,
    ) -> None:
        """Generate `count` tokens after the unread tokens, and report the new tokens to the listener."""
        for _ in range(count):
            scores = self._scores(unread_tokens, cache)
            next_token = self._choose(warpers(torch.LongTensor([unread_tokens]), scores), samples=samples)
            listener.put(next_token)
            unread_tokens = next_token.tolist()
            if unread_tokens[0] in listener.ends:
                return

    def _scores(self, unread_tokens: list[int], cache: DynamicCache) -> torch.Tensor:
        """Return the logits after the cached and the unread tokens, of shape [1, vocabulary]."""
        cached = {cache_argument(self.loaded.model): cache}
        for start in range(0, len(unread_tokens), self.lengths.tokens):
            ids = torch.tensor([unread_tokens[start : start + self.lengths.tokens]], device=self.loaded.model.device)
            mask = ids.new_ones(1, cache.get_seq_length() + ids.shape[1])
            with torch.no_grad():
                logits: torch.Tensor = self.compiled(input_ids=ids, attention_mask=mask, **cached).logits
        return logits[:, -1].float()

    def _choose(self, scores: torch.Tensor, *, samples: bool) -> torch.Tensor:
        """Return the most likely token, or a sampled token, of shape [1]."""
        with finite_logits():
            return torch.multinomial(scores.softmax(-1), 1)[0] if samples else scores.argmax(-1)


def warpers_of(loaded: LoadedModel, sampling: Sampling) -> LogitsProcessorList:
    """Return the processors of logits before sampling, from the model's generation settings and `sampling`.

    Like `generate` of transformers, this function leaves out the settings that change nothing.
    """
    config = loaded.model.generation_config
    model_settings = {name: getattr(config, name, None) for name in WARPERS} if sampling.samples else {}
    settings = {**model_settings, **sampling.stated}
    set_values = {name: settings[name] for name in WARPERS if settings.get(name) not in (None, NEUTRAL_SETTINGS[name])}
    return LogitsProcessorList(WARPERS[name](value) for name, value in set_values.items())


def ends_of(loaded: LoadedModel) -> frozenset[int]:
    """Return the tokens that end a text, from the model's generation config."""
    settings = loaded.model.generation_config
    end = None if settings is None else settings.eos_token_id
    return frozenset(() if end is None else [end] if isinstance(end, int) else end)


def open_generator(folder: Path, consent: Consent = NO_CONSENT) -> Generator:
    """Open an artifact that generates text.

    Raises the errors of `load`, and `CannotGenerate` if the artifact has no programs for generation. Nothing is traced:
    calls that no program accepts raise `WrongInputs`.
    """
    artifact = open_artifact(folder)
    require_authentic(artifact, consent)
    generation = artifact.manifest.generation
    served = served_lengths(folder, artifact.manifest) if generation is None else None
    loaded = load_model_of(artifact, trust_remote_code=consent.trust_remote_code)
    compiled = load_opened(artifact, loaded.model, consent, strict=True)
    parts = artifact, loaded, compiled, consent.trust_remote_code
    if generation is not None:
        return LibraryGenerator(*parts, generation.lengths)
    assert served is not None
    return StepGenerator(*parts, served)


def served_lengths(folder: Path, manifest: Manifest) -> ServedLengths:
    """Return the lengths that an artifact supports; raise `CannotGenerate` if its programs cannot generate text."""
    ranges = {name: (size, size) for name, size in manifest.random_inputs.items()} | dict(manifest.dynamic)
    if manifest.train or "cache" not in ranges:
        kind = "a training step" if manifest.train else "calls without a KV cache"
        raise CannotGenerate(f"{folder} has programs for {kind}, which cannot generate text", fix=FIX_MAKE_AGAIN)
    for name, needed in (("cache", 0), ("seq", 1), ("batch", 1)):
        lower, upper = ranges.get(name, (1, 1))
        if not lower <= needed <= upper:
            raise CannotGenerate(
                f"{folder} serves {name} from {lower} to {upper}, but generation needs {needed}",
                fix=FIX_MAKE_AGAIN,
            )
    return ServedLengths(tokens=ranges.get("seq", (1, 1))[1], cached=ranges["cache"][1])


class TextPieces:
    """The text of tokens in pieces, each returned as soon as later tokens cannot change it.

    A character may consist of several tokens. A tokenizer that cleans up spaces writes `it's` for the tokens `it`, `'`,
    `s`, so that a token changes the text of the tokens before it.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Decode tokens with `tokenizer.decode`."""
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self.returned = ""
        self.texts: deque[str] = deque(maxlen=1 + (MAX_UNSETTLED_TOKENS if cleans_up(tokenizer) else 0))

    def after(self, token: Token) -> str:
        """Add a token, and return the next piece of text that later tokens cannot change; it may be empty."""
        self.ids.append(token.id)
        text = self._text()
        if not text.endswith("\ufffd"):
            self.texts.append(text)
        if len(self.texts) < (self.texts.maxlen or 0):
            return ""
        settled = commonprefix(list(self.texts))  # noqa: RUF071 (of characters)
        if not settled.startswith(self.returned):
            return ""
        piece, self.returned = settled[len(self.returned) :], settled
        return piece

    def rest(self) -> str:
        """Return the rest of the text, after the last token."""
        return self._text()[len(self.returned) :]

    def _text(self) -> str:
        return str(self.tokenizer.decode(self.ids, skip_special_tokens=True))


def cleans_up(tokenizer: object) -> bool:
    """Whether a tokenizer removes spaces before punctuation and contractions from the text of tokens."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    return bool(getattr(tokenizer, "clean_up_tokenization_spaces", False) or getattr(decoder, "cleanup", False))
