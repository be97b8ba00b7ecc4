"""Recipes: named declarations of what is done to a model, by whom, and how exact the result has to be."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from thunder_core.errors import BadOption, RecipeMismatch, UnknownName
from thunder_core.lower.executor import Executor
from thunder_core.requirement import Cuda, Degradation, Package, Requirement
from thunder_core.transform import Transform, order_transforms

__all__ = [
    "Cuda",
    "Degradation",
    "Lookaside",
    "Package",
    "Plugin",
    "Recipe",
    "RecipeOptions",
    "Requirement",
    "Tolerance",
    "Transform",
    "order_transforms",
]


@dataclass(frozen=True)
class Tolerance:
    """How far an optimized output may be from the reference, which is the same model in higher precision.

    `times_eager`: its error may be this many times eager PyTorch's own, plus `floor` times the reference's largest
    magnitude. `kl`: mean Kullback-Leibler divergence of the logits over positions, in nats. `top1`: share of the
    positions at which the most probable token agrees. The last two are for language models.
    """

    times_eager: float = 2.0
    floor: float = 1e-6
    kl: float = 1e-3
    top1: float = 0.99


# Rounding to a dtype of p bits of precision moves a value by up to 2**-p of itself; a few such roundings are allowed.
TOLERANCES: Mapping[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(floor=1e-12, kl=1e-9),
    torch.float32: Tolerance(floor=4e-6, kl=1e-5),
    torch.float16: Tolerance(floor=4e-3),
    torch.bfloat16: Tolerance(floor=3e-2, kl=5e-3, top1=0.97),
}


class RecipeOptions(BaseModel):
    """The options of a recipe, as typed fields with defaults; `--set name=value` sets one."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Lookaside:
    """Run `replacement` wherever the traced program calls `function`, with the same arguments."""

    function: Callable[..., Any]
    replacement: Callable[..., Any]


@dataclass(frozen=True)
class Plugin:
    """A bundle of lookasides, transforms and executors that is added to a recipe with `+`."""

    name: str
    lookasides: tuple[Lookaside, ...] = ()
    transforms: tuple[Transform, ...] = ()
    executors: tuple[str | Executor, ...] = ()
    needs: tuple[Requirement, ...] = ()

    def __add__(self, other: Plugin) -> Plugin:
        return Plugin(
            name=f"{self.name} + {other.name}",
            lookasides=self.lookasides + other.lookasides,
            transforms=self.transforms + other.transforms,
            executors=tuple(dict.fromkeys(self.executors + other.executors)),
            needs=tuple(dict.fromkeys(self.needs + other.needs)),
        )


class Recipe:
    """What is done to a model. A recipe is a file that defines one subclass; its docstring is its description.

    `families` are the model types of transformers that it takes, empty for every module; `needs` is what the whole of
    it wants of a machine; `executors` are in the order in which they may claim; `sample` names the small model that
    stands in where no model is given.
    """

    compiler: ClassVar[Literal["jit", "thunderfx"]] = "jit"
    families: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[Requirement, ...]] = ()
    executors: ClassVar[tuple[str | Executor, ...]] = ("torch",)
    sample: ClassVar[str] = "llama3"
    Options: ClassVar[type[RecipeOptions]] = RecipeOptions

    def __init__(self, **options: object) -> None:
        """Raises `UnknownName` for an option that the recipe does not have, `BadOption` for a value it cannot take."""
        self.chosen = self._parsed(options)
        self.added = Plugin("")

    @property
    def name(self) -> str:
        """The name of its file, with hyphens."""
        return type(self).__module__.rpartition(".")[2].replace("_", "-")

    @property
    def options(self) -> Mapping[str, object]:
        """The options in force, defaults included."""
        return self.chosen.model_dump()

    @classmethod
    def summary(cls) -> str:
        """The first line of its description."""
        return (cls.__doc__ or "").strip().partition("\n")[0]

    def validate(self, model: torch.nn.Module) -> None:
        """Raise `RecipeMismatch` for a model of another family than the recipe is for."""
        family = getattr(getattr(model, "config", None), "model_type", None)
        if self.families and family not in self.families:
            raise RecipeMismatch(
                f"recipe {self.name} is for {', '.join(self.families)}; this model is {family or type(model).__name__}",
                fix="use hf-transformers, which takes every model of the transformers library, or the family's own recipe",
            )

    def setup_transforms(self) -> tuple[Transform, ...]:
        """The transforms, in any order: their traits decide."""
        return self.added.transforms

    def setup_lookasides(self) -> tuple[Lookaside, ...]:
        """The lookasides."""
        return self.added.lookasides

    def setup_executors(self) -> tuple[str | Executor, ...]:
        """The executors in the order in which they may claim; eager PyTorch comes last by itself."""
        return tuple(dict.fromkeys((*self.added.executors, *type(self).executors)))

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        """How exact the result has to be for a model of that dtype."""
        return TOLERANCES.get(dtype, TOLERANCES[torch.float32])

    def degraded(self) -> tuple[Degradation, ...]:
        """What this machine cannot do of it."""
        named = [(self.name, need) for need in (*type(self).needs, *self.added.needs)]
        named += [(transform.name, need) for transform in self.setup_transforms() for need in transform.needs]
        found = [(part, need, need.missing()) for part, need in named]
        return tuple(Degradation(part, reason, need.fix) for part, need, reason in found if reason)

    def __add__(self, plugin: Plugin) -> Recipe:
        """The same recipe with a plug-in's parts as well."""
        more = type(self)(**self.options)
        more.added = replace(self.added + plugin, name=plugin.name)
        return more

    def _parsed(self, options: Mapping[str, object]) -> RecipeOptions:
        known = list(self.Options.model_fields)
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                fix = f"{hint}it takes: {', '.join(known)}" if known else "leave it out: this recipe takes no options"
                raise UnknownName(f"recipe {self.name} has no option {name!r}", fix=fix)
        try:
            return self.Options.model_validate(options)
        except ValidationError as error:
            first = error.errors()[0]
            what = f"{first['loc'][0]}={first['input']!r}: {first['msg']}"
            raise BadOption(f"recipe {self.name} cannot take {what}", fix="see `thunder recipes show`") from None
