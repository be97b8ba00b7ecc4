"""Recipes: named declarations of what is done to a model, by whom, and how exact the result has to be."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from thunder_core import plugins
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

    def or_looser(self, other: Tolerance) -> Tolerance:
        """What either of the two lets pass."""
        return Tolerance(
            times_eager=max(self.times_eager, other.times_eager),
            floor=max(self.floor, other.floor),
            kl=max(self.kl, other.kl),
            top1=min(self.top1, other.top1),
        )


# Rounding to a dtype of p bits of precision moves a value by up to 2**-p of itself; a few such roundings are allowed.
TOLERANCES: Mapping[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(floor=1e-12, kl=1e-9),
    torch.float32: Tolerance(floor=4e-6, kl=1e-5),
    torch.float16: Tolerance(floor=5e-4),
    torch.bfloat16: Tolerance(floor=4e-3, kl=5e-3, top1=0.97),
}


LAST = "torch"  # the executor that runs whatever no other one claims


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

    def setup_transforms(self) -> tuple[Transform, ...]:
        """The transforms."""
        return self.transforms

    def setup_lookasides(self) -> tuple[Lookaside, ...]:
        """The lookasides."""
        return self.lookasides

    def setup_executors(self) -> tuple[str | Executor, ...]:
        """The executors."""
        return self.executors

    def setup_needs(self) -> tuple[tuple[str, Requirement], ...]:
        """What it needs of a machine."""
        return tuple((self.name, need) for need in self.needs)


class Recipe:
    """What is done to a model. A recipe is a file that defines one subclass; its docstring is its description.

    `families` are the model types of transformers that it takes, empty for every module; `needs` is what the whole of
    it wants of a machine, and `parts` say in words what is lost without; `executors` are in the order in which they may
    claim; `sample` names the small model that stands in where no model is given.
    """

    compiler: ClassVar[Literal["jit", "thunderfx"]] = "jit"
    families: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[Requirement, ...]] = ()
    parts: ClassVar[tuple[str, ...]] = ()
    executors: ClassVar[tuple[str | Executor, ...]] = ("torch",)
    sample: ClassVar[str] = "llama3"
    Options: ClassVar[type[RecipeOptions]] = RecipeOptions

    def __init__(self, **options: object) -> None:
        """Raises `UnknownName` for an option that the recipe does not have, `BadOption` for a value it cannot take."""
        self.added: tuple[Plugin | Recipe, ...] = ()
        self.chosen = self._parsed(options)

    @property
    def name(self) -> str:
        """The name of its class in lower case with hyphens, which is the name of its file; then what was added."""
        return " + ".join((hyphenated(type(self).__name__), *(part.name for part in self.added)))

    @property
    def options(self) -> Mapping[str, object]:
        """The options in force, defaults included."""
        return self.chosen.model_dump()

    @classmethod
    def summary(cls) -> str:
        """The first line of its description."""
        return (cls.__doc__ or "").strip().partition("\n")[0]

    def validate(self, model: torch.nn.Module) -> None:
        """Raise `RecipeMismatch` for a model of another family than the recipe, and those added to it, are for."""
        family = getattr(getattr(model, "config", None), "model_type", None)
        if self.families and family not in self.families:
            others = " or ".join((*recipes_for(family), "hf-transformers" if family else "default"))
            raise RecipeMismatch(
                f"recipe {self.name} is for {', '.join(self.families)}; this model is {family or type(model).__name__}",
                fix=f"use a recipe that takes it: {others}",
            )
        for recipe in self._recipes:
            recipe.validate(model)

    def setup_transforms(self) -> tuple[Transform, ...]:
        """The transforms, in any order: their traits decide."""
        return tuple(transform for part in self.added for transform in part.setup_transforms())

    def setup_lookasides(self) -> tuple[Lookaside, ...]:
        """The lookasides."""
        return tuple(lookaside for part in self.added for lookaside in part.setup_lookasides())

    def setup_executors(self) -> tuple[str | Executor, ...]:
        """The executors in the order in which they may claim: those that were added first, eager PyTorch last."""
        added = [executor for part in self.added for executor in part.setup_executors()]
        ordered = dict.fromkeys((*added, *type(self).executors))
        return (*(executor for executor in ordered if executor != LAST), LAST)

    def setup_needs(self) -> tuple[tuple[str, Requirement], ...]:
        """What it needs of a machine, each with the part of it that does."""
        parts = type(self).parts or (hyphenated(type(self).__name__),)
        own = [(part, need) for need in type(self).needs for part in parts]
        return (*own, *(need for part in self.added for need in part.setup_needs()))

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        """How exact the result has to be for a model of that dtype; of several recipes the loosest counts."""
        own = TOLERANCES.get(dtype, TOLERANCES[torch.float32])
        for recipe in self._recipes:
            own = own.or_looser(recipe.tolerance(dtype))
        return own

    def degraded(self, target: str = "") -> tuple[Degradation, ...]:
        """What this machine, or a GPU of the architecture `target` (`sm_90`), cannot do of it."""
        named = [(transform.name, need) for transform in self.setup_transforms() for need in transform.needs]
        needs = (*self.setup_needs(), *named)
        found = [(part, need, need.missing_for(target) if target else need.missing()) for part, need in needs]
        return tuple(Degradation(part, reason, need.fix) for part, need, reason in found if reason)

    def __add__(self, other: Plugin | Recipe) -> Recipe:
        """The same recipe with the parts of another, or of a plug-in, as well."""
        more = type(self)(**self.options)
        more.added = (*self.added, other)
        return more

    @property
    def _recipes(self) -> tuple[Recipe, ...]:
        return tuple(part for part in self.added if isinstance(part, Recipe))

    def _parsed(self, options: Mapping[str, object]) -> RecipeOptions:
        known = list(self.Options.model_fields)
        for name in options:
            if name not in known:
                fix = (
                    f"{plugins.meant(name, known)}it takes: {', '.join(known)}"
                    if known
                    else "leave it out: this recipe takes no options"
                )
                raise UnknownName(f"recipe {self.name} has no option {name!r}", fix=fix)
        try:
            return self.Options.model_validate(options)
        except ValidationError as error:
            first = error.errors()[0]
            what = f"{first['loc'][0]}={first['input']!r}: {first['msg']}"
            raise BadOption(f"recipe {self.name} cannot take {what}", fix="see `thunder recipes show`") from None


def hyphenated(class_name: str) -> str:
    """`HFLlama3Hopper` as `hf-llama3-hopper`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", class_name).lower()


def recipes_for(family: str | None) -> tuple[str, ...]:
    """The names of the recipes that are made for a family of models."""
    modules = [plugins.load("recipes", one.name) for one in plugins.listing("recipes") if one.reason is None]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    fitting = {kind for kind in kinds if issubclass(kind, Recipe) and family in kind.families}
    return tuple(sorted(hyphenated(kind.__name__) for kind in fitting))
