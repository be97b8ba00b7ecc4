"""Recipes: named declarations of what is done to a model, by whom, and how exact the result has to be."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch

from thunder_core import plugins
from thunder_core.claiming.executor import Executor
from thunder_core.errors import BadRecipe, BadSymbolicArgument, RecipeConflict, RecipeMismatch
from thunder_core.extension.declaration import options_of, require_row, returned, vet_class
from thunder_core.extension.lookaside import Lookaside, require_distinct
from thunder_core.extension.requirement import Cuda, Degradation, Package, Requirement
from thunder_core.extension.transform import Transform, order_transforms
from thunder_core.options.symbolic_arguments import Given, SymbolicArgument, symbolic_arguments
from thunder_core.options.tolerance import Tolerance
from thunder_core.recipe.dimensions import DIMENSIONS
from thunder_core.recipe.options import RecipeOptions, hyphenated, parsed_options

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


# Rounding to a dtype of p bits of precision moves a value by up to 2**-p of itself; a few such roundings are allowed.
TOLERANCES: Mapping[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(floor=1e-12, kl=1e-9),
    torch.float32: Tolerance(floor=4e-6, kl=1e-5),
    torch.float16: Tolerance(floor=5e-4),
    torch.bfloat16: Tolerance(floor=4e-3, kl=5e-3, top1=0.97),
}


LAST = "torch"  # the executor that runs whatever no other one claims


PARTS: Mapping[str, tuple[type, ...]] = {
    "lookasides": (Lookaside,),
    "transforms": (Transform,),
    "executors": (str, Executor),
    "needs": (Requirement,),
}
DECLARED: Mapping[str, tuple[type, ...]] = {
    "families": (str,),
    "needs": (Requirement,),
    "parts": (str,),
    "executors": (str, Executor),
}
TAKEN_FOR = {"transforms": "setup_transforms", "lookasides": "setup_lookasides", "family": "families"}
READ = (
    *DECLARED,
    *("compiler", "sample", "device", "dtype", "dimensions", "symbolic", "Options", "validate", "tolerance"),
)


@dataclass(frozen=True)
class Plugin:
    """A bundle of lookasides, transforms and executors that is added to a recipe, or to another plug-in, with `+`."""

    name: str
    lookasides: tuple[Lookaside, ...] = ()
    transforms: tuple[Transform, ...] = ()
    executors: tuple[str | Executor, ...] = ()
    needs: tuple[Requirement, ...] = ()

    def __init_subclass__(cls) -> None:
        """Raises `BadRecipe` for what it declares and nobody reads."""
        super().__init_subclass__()
        vet_class(cls, Plugin, PARTS, but=options_of(cls))

    def __post_init__(self) -> None:
        for name, kinds in PARTS.items():
            require_row(self.name, name, getattr(self, name), kinds)

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
        """The needs that it has of a machine."""
        return tuple((self.name, need) for need in self.needs)

    @property
    def summands(self) -> tuple[Plugin, ...]:
        """Itself."""
        return (self,)

    def __add__(self, other: object) -> Plugin | Recipe:
        """Both plug-ins as one; with a recipe, the recipe with this plug-in."""
        added = summand(other)
        return (
            added + self if isinstance(added, Recipe) else Plugins(f"{self.name} + {added.name}", added=(self, added))
        )

    def __radd__(self, other: object) -> Plugin | Recipe:
        """A transform, an executor or the class of a recipe, with this plug-in."""
        return summand(other) + self


@dataclass(frozen=True)
class Plugins(Plugin):
    """Several plug-ins as one."""

    added: tuple[Plugin, ...] = ()

    @property
    def summands(self) -> tuple[Plugin, ...]:
        """The plug-ins that it consists of."""
        return tuple(inner for one in self.added for inner in one.summands)


class Recipe:
    """A recipe says what is done to a model: a file that defines one subclass, whose docstring is its description.

    `families` are the model types of transformers that it takes, empty for every module; `needs` is what the whole of
    it wants of a machine, and `parts` say in words what is lost without; `executors` are in the order in which they may
    claim; `sample` names the small model that stands in where no model is given. `device` and `dtype` are where and in
    which dtype a model is run whose user names none, the dtype on that device alone; empty, they are the best device
    that there is, and the checkpoint's dtype. `dimensions` call sizes of the model's inputs by one name (`seq`), for
    `--dynamic seq=1:8192` and `compile(..., symbolic=["seq"])`; inputs that a model does not have may be among them.
    `symbolic` are the dimensions, or arguments, that are symbolic where nobody says otherwise. `compiler` is "jit";
    "thunderfx" is reserved for composing recipes, and refused with `BadOption` where the recipe is to be applied.
    """

    compiler: ClassVar[Literal["jit", "thunderfx"]] = "jit"
    families: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[Requirement, ...]] = ()
    parts: ClassVar[tuple[str, ...]] = ()
    executors: ClassVar[tuple[str | Executor, ...]] = ("torch",)
    sample: ClassVar[str] = "llama3"
    device: ClassVar[str] = ""
    dtype: ClassVar[str] = ""
    dimensions: ClassVar[Mapping[str, tuple[str, ...]]] = DIMENSIONS
    symbolic: ClassVar[Given] = ()
    Options: ClassVar[type[RecipeOptions]] = RecipeOptions

    def __init_subclass__(cls) -> None:
        """Raises `BadRecipe` for what it declares and nobody reads, or declares otherwise than it is read."""
        super().__init_subclass__()
        vet_class(cls, Recipe, READ, others=TAKEN_FOR)
        for name, kinds in DECLARED.items():
            require_row(cls.__name__, name, getattr(cls, name), kinds)
        require_dimensions(cls)
        if not (isinstance(cls.Options, type) and issubclass(cls.Options, RecipeOptions)):
            raise BadRecipe(f"{cls.__name__}: Options is no RecipeOptions", fix="write class Options(RecipeOptions)")

    def __init__(self, **options: object) -> None:
        """Raises `UnknownName` for an option that the recipe does not have, `BadOption` for a value it cannot take."""
        self.added: tuple[Plugin | Recipe, ...] = ()
        self.chosen = parsed_options(self.name, self.Options, options)

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
        """Raise `RecipeMismatch` for a model of another family than the recipe is for."""
        family = getattr(getattr(model, "config", None), "model_type", None)
        if self.families and family not in self.families:
            others = " or ".join((*recipes_for(family), "hf-transformers" if family else "default"))
            raise RecipeMismatch(
                f"recipe {self.name} is for {', '.join(self.families)}; this model is {family or type(model).__name__}",
                fix=f"use a recipe that takes it: {others}",
            )

    def setup_transforms(self) -> tuple[Transform, ...]:
        """The transforms of its own, in any order: their traits decide."""
        return ()

    def setup_lookasides(self) -> tuple[Lookaside, ...]:
        """The lookasides of its own: functions that are called in place of others, wherever the model calls these."""
        return ()

    def setup_executors(self) -> tuple[str | Executor, ...]:
        """The executors of its own in the order in which they may claim; eager PyTorch comes last in any case."""
        return tuple(self.executors)

    def setup_needs(self) -> tuple[tuple[str, Requirement], ...]:
        """The needs that it has of a machine by itself, each with the part of it that does."""
        parts = self.parts or (hyphenated(type(self).__name__),)
        return tuple((part, need) for need in self.needs for part in parts)

    @property
    def summands(self) -> tuple[Plugin | Recipe, ...]:
        """The recipe, and all that was added to it: each speaks for itself alone."""
        return (self, *(inner for part in self.added for inner in part.summands))

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The recipe, and the recipes that were added to it."""
        return tuple(part for part in self.summands if isinstance(part, Recipe))

    def validate_all(self, model: torch.nn.Module) -> None:
        """Raise what a recipe of the sum raises for a model that it does not take."""
        for recipe in self.recipes:
            recipe.validate(model)

    def loosest_tolerance(self, dtype: torch.dtype) -> Tolerance:
        """The tolerance of the result of the whole sum: of several recipes the loosest counts."""
        return functools.reduce(Tolerance.or_looser, (recipe.tolerance(dtype) for recipe in self.recipes))

    def all_transforms(self) -> tuple[Transform, ...]:
        """The transforms of the whole sum; this, and the like, raise `BadRecipe` for what cannot be one."""
        return tuple(one for part in self.summands for one in returned(part, "setup_transforms", (Transform,)))

    def all_lookasides(self) -> tuple[Lookaside, ...]:
        """The lookasides of the whole sum, by name; raises `RecipeConflict` for two that are for one function."""
        rows = (returned(part, "setup_lookasides", (Lookaside,)) for part in self.summands)
        return require_distinct([lookaside for row in rows for lookaside in row])

    def all_executors(self) -> tuple[str | Executor, ...]:
        """The executors of the whole sum: what was added may claim first, eager PyTorch last."""
        own, *added = (returned(part, "setup_executors", (str, Executor)) for part in self.summands)
        by_name = distinct((*(one for row in added for one in row), *own))
        last = by_name.pop(LAST, LAST)
        return (*by_name.values(), last)

    def all_dimensions(self) -> Mapping[str, tuple[str, ...]]:
        """The names of sizes by the dimensions that they are called, of the whole sum."""
        found: dict[str, tuple[str, ...]] = {}
        for recipe in self.recipes:
            for dimension, names in recipe.dimensions.items():
                found[dimension] = tuple(dict.fromkeys((*found.get(dimension, ()), *names)))
        return found

    def symbolic_arguments(self, given: Given | None = None) -> tuple[SymbolicArgument, ...]:
        """The arguments that are symbolic: those that are given, or the recipe's own, with dimensions spelled out."""
        stated = (given,) if given is not None else tuple(recipe.symbolic for recipe in self.recipes)
        named = {one.name: one for row in stated for one in symbolic_arguments(row)}
        return tuple(one for argument in named.values() for one in self.spelled_out(argument))

    def spelled_out(self, argument: SymbolicArgument) -> tuple[SymbolicArgument, ...]:
        """The sizes that a dimension is a name of, which a call need not have; any other argument as it is."""
        dimension, _, companion = argument.name.partition(" with ")
        names = self.all_dimensions().get(dimension)
        if names is None:
            return (argument,)
        condition = f" with {companion}" if companion else ""
        return tuple(replace(argument, name=f"{name}{condition}", required=False) for name in names)

    def all_needs(self) -> tuple[tuple[str, Requirement], ...]:
        """The needs of the whole sum of a machine; who names a GPU needs one."""
        stated = tuple(one for part in self.summands for one in returned(part, "setup_needs", (tuple,)))
        is_stated = any(isinstance(need, Cuda) for _, need in stated)
        return (
            stated if is_stated else (*stated, *(("the GPU", Cuda()) for one in self.recipes if "cuda" in one.device))
        )

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        """The tolerance of the result for a model of that dtype."""
        return TOLERANCES.get(dtype, TOLERANCES[torch.float32])

    def degraded(self, target: str = "", device: torch.device | None = None) -> tuple[Degradation, ...]:
        """The parts that this machine cannot do: for a model on a device, or for a GPU of the architecture `target`."""
        named = [(transform.name, need) for transform in self.all_transforms() for need in transform.needs]
        needs = (*self.all_needs(), *named)
        found = [(part, need, lacks(need, target, device)) for part, need in needs]
        return tuple(Degradation(part, reason, need.fix) for part, need, reason in found if reason)

    def __add__(self, other: object) -> Self:
        """Add another recipe, or a plug-in, a transform, an executor or a lookaside."""
        more = copy.copy(self)
        more.added = (*self.added, summand(other))
        return more

    def __radd__(self, other: object) -> Self:
        """Add to something that was given first and has no sum of its own."""
        return self + other


def require_dimensions(kind: type[Recipe]) -> None:
    """Raise `BadRecipe` for dimensions or symbolic arguments of a recipe that cannot be."""
    try:
        for dimension, names in kind.dimensions.items():
            require_row(kind.__name__, f"dimensions[{dimension!r}]", names, (str,))
            symbolic_arguments(names)
        symbolic_arguments(kind.symbolic)
    except BadSymbolicArgument as error:
        raise BadRecipe(f"{kind.__name__}: {error.what}", fix=error.fix) from error
    except AttributeError as error:
        raise BadRecipe(
            f"{kind.__name__}: dimensions is {kind.dimensions!r:.80}",
            fix='give the names of each: {"seq": ("input_ids.size(1)",)}',
        ) from error


def lacks(need: Requirement, target: str = "", device: torch.device | None = None) -> str | None:
    """The reason why a need is not met: for a GPU of the architecture `target`, a model on a device, or at all."""
    if target:
        return need.missing_for(target)
    return need.missing() if device is None else need.missing_on(device)


def summand(part: object) -> Plugin | Recipe:
    """A part that is added to a recipe or a plug-in, as one of these; raises `BadRecipe` for what cannot be."""
    if isinstance(part, Plugin | Recipe):
        return part
    if isinstance(part, Transform):
        return Plugin(part.name, transforms=(part,))
    if isinstance(part, Executor):
        return Plugin(part.name, executors=(part,))
    if isinstance(part, Lookaside):
        return Plugin(getattr(part.function, "__qualname__", "lookaside"), lookasides=(part,))
    if isinstance(part, type) and issubclass(part, Recipe):
        return part()
    kind = f"the class {part.__name__}" if isinstance(part, type) else f"{part!r:.80}, a {type(part).__name__}"
    raise BadRecipe(
        f"a recipe was to be added to {kind}",
        fix="add recipes, and instances of Plugin, Transform, Executor or Lookaside, one by one: recipe + plugin",
    )


def distinct(executors: Iterable[str | Executor]) -> dict[str, str | Executor]:
    """Each executor once, by its name, where it stands first; of a name and an object that has it, the object.

    Raises `RecipeConflict` for two objects of one name, of which only one could claim.
    """
    found: dict[str, str | Executor] = {}
    for one in executors:
        name = one if isinstance(one, str) else one.name
        other = found.setdefault(name, one)
        if isinstance(other, str):
            found[name] = one
        elif one is not other and not isinstance(one, str):
            raise RecipeConflict(f"two executors are called {name}", fix="leave one of them out, or name it otherwise")
    return found


def recipes_for(family: str | None) -> tuple[str, ...]:
    """The names of the recipes that are made for a family of models."""
    modules = [plugins.load("recipes", one.name) for one in plugins.listing("recipes") if one.reason is None]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    fitting = {kind for kind in kinds if issubclass(kind, Recipe) and family in kind.families}
    return tuple(sorted(hyphenated(kind.__name__) for kind in fitting))
