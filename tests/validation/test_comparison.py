"""A validation passes if the model equals eager, fails if it does not, and leaves the model unchanged."""

from __future__ import annotations

import copy
import math
import random
import threading
from collections.abc import Callable

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from thunder_core.foundation.errors import NotComparable, OutOfTolerance
from thunder_core.foundation.transformers_versions import CACHE_NAMES
from thunder_core.passes.recipe import Tolerance
from thunder_core.workflow.validation import ValidationReport, comparison, precision, validate
from thunder_core.workflow.validation.comparison import ValidationSettings

Inputs = list[dict[str, torch.Tensor]]


class Small(torch.nn.Module):
    """A linear layer with a running sum, dropout and an integer output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        """Return values, ranks, noise and the number of calls."""
        self.seen += x.sum()
        self.calls += 1
        y = self.linear(x)
        return {"y": y, "rank": y.argsort(-1), "noise": torch.rand(2), "seen": self.seen.clone()}


@pytest.fixture
def model() -> Small:
    """The small model with seeded weights."""
    torch.manual_seed(0)
    return Small()


def inputs_for(count: int = 3) -> Inputs:
    """Seeded inputs of several lengths."""
    generator = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(2 + n, 8, generator=generator)} for n in range(count)]


def with_changed_output(model: Small, change: Callable[[dict[str, object]], object]) -> Callable[..., object]:
    """The model with its output changed by a function."""
    return lambda **inputs: change(model(**inputs))


def check(optimized: Callable[..., object], model: torch.nn.Module, **options: object) -> ValidationReport:
    """Validate on the usual inputs with a tolerance for rounding."""
    return validate(optimized, model, inputs_for(), Tolerance(), ValidationSettings(language_model=False, **options))


def test_eager_itself_passes_and_the_model_is_unchanged(model: Small) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = check(model, model)
    assert report.passed
    assert (report.inputs, report.reference_dtype, report.notes) == (3, "float64", ())
    assert [output.name for output in report.outputs] == ["y", "rank", "noise", "seen", "seen after the call"]
    y = report.outputs[0]
    assert y.optimized == y.eager
    assert 0 < y.eager.maximum < 1e-6
    assert y.shapes == ((2, 8), (3, 8), (4, 8))
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert model.linear.weight.dtype == torch.float32


def test_the_random_state_is_unchanged(model: Small) -> None:
    torch.manual_seed(5)
    random.seed(5)
    expected = (torch.rand(1).item(), random.random())
    torch.manual_seed(5)
    random.seed(5)
    check(model, model)
    assert (torch.rand(1).item(), random.random()) == expected
    assert torch.is_grad_enabled()


def test_progress_counts_every_run(model: Small) -> None:
    seen: list[tuple[int, int]] = []
    check(model, model, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(number, 9) for number in range(1, 10)]


def test_wrong_output_fails_with_its_measurements(model: Small) -> None:
    wrong = with_changed_output(model, lambda out: {**out, "y": out["y"] * 1.01})
    with pytest.raises(OutOfTolerance) as caught:
        check(wrong, model)
    report = caught.value.report
    assert isinstance(report, ValidationReport)
    assert not report.passed
    assert report.worst.name == "y"
    assert [output.passed for output in report.outputs] == [False, True, True, True, True]
    assert "`y` differs from the float64 reference by more than the recipe allows: its largest error is" in str(
        caught.value
    )
    assert f"times_eager={math.ceil(report.worst.smallest_tolerance * 100) / 100:g} passes" in caught.value.fix
    assert caught.value.status == 4


def test_the_smallest_tolerance_is_the_smallest_that_passes(model: Small) -> None:
    wrong = with_changed_output(model, lambda out: {**out, "y": out["y"] + 1e-5})
    with pytest.raises(OutOfTolerance) as caught:
        check(wrong, model)
    smallest = caught.value.report.worst.smallest_tolerance
    wrong = with_changed_output(model, lambda out: {**out, "y": out["y"] + 1e-5})
    enough = Tolerance(times_eager=smallest * 1.0001)
    assert validate(wrong, model, inputs_for(), enough, ValidationSettings(language_model=False)).passed
    wrong = with_changed_output(model, lambda out: {**out, "y": out["y"] + 1e-5})
    with pytest.raises(OutOfTolerance):
        validate(
            wrong,
            model,
            inputs_for(),
            Tolerance(times_eager=smallest * 0.999),
            ValidationSettings(language_model=False),
        )


def test_integers_must_be_equal(model: Small) -> None:
    wrong = with_changed_output(model, lambda out: {**out, "rank": out["rank"].flip(-1)})
    with pytest.raises(OutOfTolerance, match=r"`rank` differs .* its integers, NaN or infinities differ from eager"):
        check(wrong, model)


def test_nan_must_be_at_eagers_places(model: Small) -> None:
    wrong = with_changed_output(model, lambda out: {**out, "y": out["y"].masked_fill(out["y"] > 1, math.nan)})
    with pytest.raises(OutOfTolerance) as caught:
        check(wrong, model)
    assert math.isinf(caught.value.report.worst.smallest_tolerance)
    assert ValidationReport.model_validate_json(caught.value.report.model_dump_json()) == caught.value.report


class Opaque(torch.nn.Module):
    """A model that returns an iterator and a tensor."""

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        """Return the doubled input and an empty iterator."""
        return {"y": x * 2, "more": iter(())}


def test_opaque_outputs_are_noted() -> None:
    report = check(Opaque(), Opaque())
    assert report.notes == (
        "`more`: only its type was compared, because the contents of class tuple_iterator cannot be compared",
    )


def test_another_structure_is_not_comparable(model: Small) -> None:
    with pytest.raises(NotComparable, match="`output` is tuple"):
        check(with_changed_output(model, lambda out: tuple(out.values())), model)
    with pytest.raises(NotComparable, match="contains no tensor"):
        validate(lambda x: None, Nothing(), inputs_for(), Tolerance(), ValidationSettings(language_model=False))


class Nothing(torch.nn.Module):
    """A model that returns nothing."""

    def forward(self, x: torch.Tensor) -> None:
        """Take an input and return None."""


class FloatOnly(torch.nn.Module):
    """A model that runs in a single precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(8, dtype=dtype))
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply in the given precision."""
        return x.to(self.dtype) @ self.weight


@pytest.mark.parametrize(("dtype", "reference"), [(torch.float32, "float32"), (torch.bfloat16, "eager")])
def test_a_model_that_runs_in_no_higher_precision_is_noted(dtype: torch.dtype, reference: str) -> None:
    model = FloatOnly(dtype)
    report = check(model, model)
    assert report.reference_dtype == reference
    assert len(report.notes) == (1 if reference == "float32" else 2)
    assert report.notes[0].startswith("the model does not run in float64 (")


class Particular(torch.nn.Module):
    """A model that accepts one dtype alone, and raises an error like a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        assert x.dtype == torch.float32, "float32 only"
        return x * self.weight


def test_a_lower_precision_is_used_whichever_error_refuses_the_higher_one() -> None:
    model = Particular()
    report = check(model, model)
    assert (report.reference_dtype, len(report.notes)) == ("float32", 1)
    assert report.notes[0].startswith("the model does not run in float64 (float32 only")


def test_the_reference_is_float32_if_float64_does_not_fit(model: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    assert precision.widest_affordable(model) == torch.float64
    monkeypatch.setattr(precision, "free_memory", lambda device: 500)
    assert check(model, model).reference_dtype == "float32"


def test_results_that_modules_keep_do_not_stop_the_copy(model: Small) -> None:
    model.linear.kept = model.linear(torch.ones(8))
    assert check(model, model).passed
    assert model.linear.kept.grad_fn is not None


@pytest.mark.parametrize("kind", ["a lock", "results in a list"])
def test_a_model_that_cannot_be_copied_is_refused(model: Small, kind: str) -> None:
    model.kept = threading.Lock() if kind == "a lock" else [model.linear(torch.ones(8))]
    with pytest.raises(NotComparable, match="cannot be copied"):
        check(model, model)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_model_on_a_gpu_is_validated_there(llama: LlamaForCausalLM) -> None:
    there = copy.deepcopy(llama).cuda()
    tokens = [{name: value.cuda() for name, value in given.items()} for given in TOKENS]
    state = torch.cuda.get_rng_state()
    report = validate(copy.deepcopy(there), there, tokens, Tolerance(), ValidationSettings(language_model=True))
    assert report.passed
    assert report.outputs[0].eager.maximum > 0
    assert torch.equal(torch.cuda.get_rng_state(), state)


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    """A Llama of one layer in bfloat16."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        vocab_size=64,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16).eval()


TOKENS: Inputs = [{"input_ids": torch.arange(24).reshape(2, 12) + shift} for shift in (0, 20)]


def test_a_language_model_in_bfloat16_passes_with_its_logits_measured(llama: LlamaForCausalLM) -> None:
    other = copy.deepcopy(llama)
    other.set_attn_implementation("eager")
    report = validate(other, llama, TOKENS, Tolerance(floor=1e-2), ValidationSettings(language_model=True))
    logits, *caches = report.outputs
    assert logits.language is not None
    assert logits.language.kl < 1e-3
    assert logits.language.top1 == 1.0
    assert all(cache.language is None for cache in caches)
    assert report.outputs[1].name in {f"{name}.layers.0.keys" for name in CACHE_NAMES}


def test_a_language_model_with_other_predictions_fails(llama: LlamaForCausalLM) -> None:
    other = copy.deepcopy(llama)
    with torch.no_grad():
        other.lm_head.weight.copy_(other.lm_head.weight.flip(0))
    loose = Tolerance(times_eager=1e9)
    with pytest.raises(OutOfTolerance) as caught:
        validate(other, llama, TOKENS, loose, ValidationSettings(language_model=True))
    assert "KL divergence" in str(caught.value)
    assert "top-1 agreement" in str(caught.value)
    assert "a tolerance of" not in caught.value.fix


def test_a_language_model_without_logits_is_noted(model: Small) -> None:
    report = validate(model, model, inputs_for(), Tolerance(), ValidationSettings(language_model=True))
    assert report.notes == (
        f"no output is named `{comparison.LOGITS}`, so KL divergence and top-1 agreement were not measured",
    )


class Rotated(torch.nn.Module):
    """A rotation by complex numbers in a buffer, as in the position embeddings of Llama 4."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("turns", torch.polar(torch.ones(2), torch.tensor([0.5, 2.0])))

    def forward(self, x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Return the rotated rows."""
        pairs = torch.view_as_complex(self.layer(x).unflatten(-1, (2, 2))) + shift
        return torch.view_as_real(pairs * self.turns).flatten(-2)


def test_the_reference_keeps_the_imaginary_parts_of_complex_tensors() -> None:
    torch.manual_seed(0)
    model = Rotated()
    inputs = [{"x": torch.randn(3, 4), "shift": torch.randn(3, 2, dtype=torch.complex64)}]
    (output,) = validate(model, model, inputs, Tolerance(), ValidationSettings(language_model=False)).outputs
    assert output.eager.maximum < 1e-6
    with pytest.raises(OutOfTolerance):
        validate(
            lambda x, shift: model(x, shift) * 1.01,
            model,
            inputs,
            Tolerance(),
            ValidationSettings(language_model=False),
        )


class CountsLargeBatches(torch.nn.Module):
    """A linear layer, and a buffer that only calls with a large batch change."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 2:
            self.count += 1
        return self.linear(x)


def test_sizes_are_judged_if_only_some_inputs_change_the_state() -> None:
    model = CountsLargeBatches()
    inputs = [{"x": torch.randn(batch, 4)} for batch in (2, 4)]
    report = validate(
        model, model, inputs, Tolerance(), ValidationSettings(language_model=False, sizes=("2 x 4", "4 x 4"))
    )
    assert [(point.size, point.inputs, point.passed) for point in report.sizes] == [
        ("2 x 4", 1, True),
        ("4 x 4", 1, True),
    ]
    assert "count after the call" in {output.name for output in report.outputs}
