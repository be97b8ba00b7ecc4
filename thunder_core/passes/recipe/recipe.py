"""Recipes: named declarations of what is done to a model, by whom, and how exact the result has to be."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

import torch

from thunder_core.backend.claiming.executor import Executor
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadRecipe, BadSymbolicArgument, RecipeConflict, RecipeMismatch
from thunder_core.foundation.options.left_out import left_out_texts
from thunder_core.foundation.options.quality import Quality
from thunder_core.foundation.options.symbolic_arguments import Given, SymbolicArgument, symbolic_arguments
from thunder_core.foundation.options.tolerance import Tolerance
from thunder_core.passes.recipe.composition import Composition, name_of
from thunder_core.passes.recipe.dimensions import DIMENSIONS
from thunder_core.passes.recipe.options import RecipeOptions, hyphenated, parsed_options
from thunder_core.passes.recipe.plugin import Composable, ExecutorRank, Plugin, as_composable, composed
from thunder_core.passes.recipe.settings import WITHOUT, settings_of
from thunder_core.tracing.extension.authorship import called
from thunder_core.tracing.extension.declaration import require_row, require_traits, vet_class
from thunder_core.tracing.extension.lookaside import Lookaside
from thunder_core.tracing.extension.requirement import Cuda, Degradation, Package, Processor, Requirement
from thunder_core.tracing.extension.traits import TRAITS, Traits
from thunder_core.tracing.extension.transform import Transform, order_transforms

__all__ = [
    "Cuda",
    "Degradation",
    "Lookaside",
    "Package",
    "Plugin",
    "Processor",
    "Quality",
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


DECLARED: Mapping[str, tuple[type, ...]] = {
    "families": (str,),
    "parts": (str,),
    "executors": (str, Executor),
}
TAKEN_FOR = {
    "transforms": "setup_transforms",
    "lookasides": "setup_lookasides",
    "operators": "setup_operators",
    "settings": "setup_config",
    "family": "families",
}
READ = (
    *(*DECLARED, *TRAITS, "requirements"),
    *("compiler", "sample", "device", "dtype", "dimensions", "symbolic", "Options", "validate", "tolerance", "quality"),
)


class Recipe(Traits, Composable):
    """A recipe says what is done to a model: a file that defines one subclass, whose docstring is its description.

    `families` are the model types of transformers that it takes, empty for every module; `requirements` are what the
    whole of it wants of a machine, and `parts` say in words what is lost without; `executors` are in the order in which
    they may claim; `sample` names the small model that stands in where no model is given. `device` and `dtype` are
    where and in which dtype a model is run whose user names none, the dtype on that device alone; empty, they are the
    best device that there is, and the checkpoint's dtype. `dimensions` call sizes of the model's inputs by one name
    (`seq`), for `--dynamic seq=1:8192` and `compile(..., symbolic=["seq"])`; inputs that a model does not have may be
    among them. `symbolic` are the dimensions, or arguments, that are symbolic where nobody says otherwise.
    `compiler` is "jit", or "thunderfx", by which Dynamo acquires the program, whatever recipes it is added to.
    Its traits (`after`, `before`, `needs`, `excludes`, `provides`) are those of `Traits`.

    Authors override `validate`, `tolerance` and the methods `setup_...`, each of which speaks for this recipe alone.
    What brings a sum together (`composition` and the like) is not to be overridden.
    """

    compiler: ClassVar[Literal["jit", "thunderfx"]] = "jit"
    families: ClassVar[tuple[str, ...]] = ()
    parts: ClassVar[tuple[str, ...]] = ()
    executors: ClassVar[tuple[str | Executor, ...]] = ("torch",)
    sample: ClassVar[str] = "llama3"
    device: ClassVar[str] = ""
    dtype: ClassVar[str] = ""
    dimensions: ClassVar[Mapping[str, tuple[str, ...]]] = DIMENSIONS
    symbolic: ClassVar[Given] = ()
    Options: ClassVar[type[RecipeOptions]] = RecipeOptions
    executor_rank: ClassVar[ExecutorRank] = ExecutorRank.RECIPE

    def __init_subclass__(cls) -> None:
        """Raises `BadRecipe` for what it declares and nobody reads, or declares otherwise than it is read."""
        super().__init_subclass__()
        vet_class(cls, Recipe, READ, others=TAKEN_FOR)
        for name, kinds in DECLARED.items():
            require_row(cls.__name__, name, getattr(cls, name), kinds)
        require_traits(cls.__name__, cls)
        require_dimensions(cls)
        if not (isinstance(cls.Options, type) and issubclass(cls.Options, RecipeOptions)):
            raise BadRecipe(
                f"{cls.__name__}: Options is not a subclass of RecipeOptions", fix="write class Options(RecipeOptions)"
            )

    def __init__(self, **options: object) -> None:
        """Raises `UnknownName` for an option that the recipe does not have, `BadOption` for a value it cannot take."""
        self.added: tuple[Composable, ...] = ()
        self.compiler_asked = ""
        self.chosen = parsed_options(self.name, self.Options, options)

    @property
    def title(self) -> str:
        """The name of its class in lower case with hyphens, which is the name of its file."""
        return hyphenated(type(self).__name__)

    @property
    def labels(self) -> frozenset[str]:
        """Its own name, and what it provides."""
        return frozenset((self.title, *self.provides))

    @property
    def acquires_by(self) -> str:
        """The name of what acquires programs: `jit`, or `thunderfx` where a recipe of the sum says so."""
        return self.compiler_asked or next((part.compiler for part in self.recipes if part.compiler != "jit"), "jit")

    def acquired_by(self, compiler: str) -> Recipe:
        """The recipe with another compiler, whatever its parts say."""
        changed = copy.copy(self)
        changed.compiler_asked = compiler
        return changed

    @property
    def name(self) -> str:
        """Its own name; of a sum, the names of its recipes and then of its plug-ins."""
        return " + ".join(part.title for part in self.components)

    @property
    def options(self) -> Mapping[str, object]:
        """The options in force, defaults included; of a sum, `recipe.option` for a name that several recipes have."""
        chosen = [(recipe.title, recipe.chosen.model_dump()) for recipe in self.recipes]
        names = [name for _, options in chosen for name in options]
        return {
            name if names.count(name) == 1 else f"{title}.{name}": value
            for title, options in chosen
            for name, value in options.items()
        }

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
                fix=f"use a recipe for this model: {others}",
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

    def setup_operators(self) -> tuple[Executor, ...]:
        """The operators of its own: executors that each have a function for one of PyTorch's, and may claim first."""
        return ()

    def setup_config(self) -> Mapping[str, object]:
        """The settings of `jit` that it asks for: `cache`, `memory_budget` and the like, and `symbolic`."""
        return {}

    def setup_requirements(self) -> tuple[tuple[str, Requirement], ...]:
        """The requirements that it has of a machine by itself, each with the part of it that does."""
        parts = self.parts or (self.title,)
        return tuple((part, need) for need in self.requirements for part in parts)

    @property
    def rank(self) -> tuple[object, ...]:
        """Its name and its class: recipes come before plug-ins."""
        return 0, self.title, f"{type(self).__module__}.{type(self).__qualname__}"

    def is_same(self, other: Composable) -> bool:
        """Whether another one is of the same class; raises `RecipeConflict` where it was given other options."""
        if type(self) is not type(other):
            return False
        mine, others = ({name: value for name, value in vars(one).items() if name != "added"} for one in (self, other))
        if mine != others:
            raise RecipeConflict(
                f"the recipe {self.title} is given twice with different options, one of them {self.chosen}",
                fix=f"give {self.title} once",
            )
        return True

    def combined_with(self, others: Sequence[Composable]) -> Recipe:
        """A copy of the recipe by itself, to which others are added."""
        more = copy.copy(self)
        more.added = tuple(others)
        return more

    @property
    def components(self) -> tuple[Composable, ...]:
        """The recipe, and all that was added to it, in the order of their names: each speaks for itself alone."""
        return (self, *self.added)

    @property
    def composition(self) -> Composition:
        """The parts of the whole sum together, which is the same in whatever order they were added."""
        return Composition(self.components)

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The recipe, and the recipes that were added to it."""
        return tuple(part for part in self.components if isinstance(part, Recipe))

    def validate_all(self, model: torch.nn.Module) -> None:
        """Raise what a recipe of the sum raises for a model that it does not take."""
        for recipe in self.recipes:
            recipe.validate(model)

    def loosest_tolerance(self, dtype: torch.dtype) -> Tolerance:
        """The tolerance of the result of the whole sum: of several recipes the loosest counts."""
        stated: list[Tolerance] = [called(recipe, "tolerance", Tolerance, dtype) for recipe in self.recipes]
        return functools.reduce(Tolerance.or_looser, stated)

    @property
    def loosest_quality(self) -> Quality:
        """The bound of what the whole sum loses of a model by changing it: of several recipes the loosest counts."""
        given = (called(recipe, "quality", (Quality, type(None))) for recipe in self.recipes)
        stated = [found for found in given if found is not None]
        return functools.reduce(Quality.or_looser, stated) if stated else Quality()

    def all_transforms(self) -> tuple[Transform, ...]:
        """The transforms of the whole sum in their order; this, and the like, raise as `Composition` does."""
        return self.composition.transforms().ordered()

    def all_lookasides(self) -> tuple[Lookaside, ...]:
        """The lookasides of the whole sum, by name; raises `RecipeConflict` for two that are for one function."""
        return self.composition.lookasides

    def all_executors(self) -> tuple[str | Executor, ...]:
        """The executors of the whole sum in the order in which they may claim, eager PyTorch last."""
        return self.composition.executor_row

    def all_dimensions(self) -> Mapping[str, tuple[str, ...]]:
        """The names of sizes by the dimensions that they are called, of the whole sum."""
        found: dict[str, tuple[str, ...]] = {}
        for recipe in self.recipes:
            for dimension, names in recipe.dimensions.items():
                found[dimension] = tuple(dict.fromkeys((*found.get(dimension, ()), *names)))
        return found

    def symbolic_arguments(self, given: Given | None = None) -> tuple[SymbolicArgument, ...]:
        """The arguments that are symbolic: those that are given, or the sum's own, with dimensions spelled out.

        Raises `RecipeConflict` where parts of the sum give one argument different ranges.
        """
        if given is not None:
            stated = [("", one) for one in symbolic_arguments(given)]
        else:
            rows: list[tuple[str, Any]] = [(one.title, settings_of(one).get("symbolic", ())) for one in self.components]
            rows += [(recipe.title, recipe.symbolic) for recipe in self.recipes]
            stated = [(title, one) for title, row in rows for one in symbolic_arguments(row)]
        return tuple(one for argument in common_ranges(stated) for one in self.spelled_out(argument))

    def spelled_out(self, argument: SymbolicArgument) -> tuple[SymbolicArgument, ...]:
        """The sizes that a dimension is a name of, which a call need not have; any other argument as it is."""
        dimension, _, companion = argument.name.partition(" with ")
        names = self.all_dimensions().get(dimension)
        if names is None:
            return (argument,)
        condition = f" with {companion}" if companion else ""
        return tuple(replace(argument, name=f"{name}{condition}", required=False) for name in names)

    def all_requirements(self) -> tuple[tuple[str, Requirement], ...]:
        """The requirements that the whole sum has of a machine; who names a GPU wants one."""
        stated = self.composition.requirements
        is_stated = any(isinstance(need, Cuda) for _, need in stated)
        return (
            stated if is_stated else (*stated, *(("the GPU", Cuda()) for one in self.recipes if "cuda" in one.device))
        )

    @property
    def shared_sample(self) -> str:
        """The name of the small model that stands in for a model of the sum: of the recipe for the fewest families."""
        stating = [one for one in self.recipes if any("sample" in vars(kind) for kind in own_classes(type(one)))]
        stating.sort(key=lambda one: (not one.families, len(one.families), one.title))
        return stating[0].sample if stating else self.sample

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        """The tolerance of the result for a model of that dtype."""
        return TOLERANCES.get(dtype, TOLERANCES[torch.float32])

    def quality(self) -> Quality | None:
        """The bound of what a model may lose as its transforms prepare it; None where it says nothing of that."""
        return None

    def degraded(self, target: str = "", device: torch.device | None = None) -> tuple[Degradation, ...]:
        """The parts that this machine cannot do: for a model on a device, or for a GPU of the architecture `target`."""
        named = [(transform.name, need) for transform in self.all_transforms() for need in transform.requirements]
        needs = (*self.all_requirements(), *named)
        found = [(part, need, lacks(need, target, device)) for part, need in needs]
        return tuple(Degradation(part, reason, need.fix) for part, need, reason in found if reason)

    def with_(
        self,
        *,
        transforms: Sequence[Transform] = (),
        executors: Sequence[str | Executor] = (),
        lookasides: Sequence[Lookaside] = (),
        operators: Sequence[Executor] = (),
        **settings: object,
    ) -> Recipe:
        """The recipe with these parts and settings of `jit` (`memory_budget=0.5`), each as if it had been added."""
        parts = [as_composable(part) for part in (*transforms, *lookasides)]
        parts += [Plugin(name_of(one), executors=(one,)) for one in executors]
        parts += [Plugin(one.name, operators=(one,)) for one in operators]
        parts += without_parts(settings.pop(WITHOUT, ()))
        parts += [Plugin(f"{name}={value}", settings={name: value}) for name, value in settings.items()]
        return cast(Recipe, composed((self, *parts)))


def without_parts(without: object) -> list[Composable]:
    """The plug-ins that leave something out of what they are added to, one for each; raises `BadOption`."""
    return [Plugin(f"{WITHOUT}={text}", settings={WITHOUT: (text,)}) for text in left_out_texts(without)]


def own_classes(kind: type[Recipe]) -> tuple[type, ...]:
    """A recipe's class, and those that it inherits besides `Recipe` and what that is made of."""
    return tuple(one for one in kind.__mro__ if one not in Recipe.__mro__)


def common_ranges(stated: Iterable[tuple[str, SymbolicArgument]]) -> tuple[SymbolicArgument, ...]:
    """Each argument once, with the range that one of the parts gives it; raises `RecipeConflict` for two of them."""
    found: dict[str, tuple[str, SymbolicArgument]] = {}
    for owner, argument in stated:
        other, known = found.setdefault(argument.name, (owner, argument))
        if argument.has_range and not known.has_range:
            found[argument.name] = (owner, argument)
        elif argument.has_range and (argument.lower, argument.upper) != (known.lower, known.upper):
            raise RecipeConflict(
                f"{other} has {argument.name} {known.range_text}, but {owner} has it {argument.range_text}",
                fix=f"leave out {other} or {owner}, or pass symbolic= yourself",
            )
    return tuple(argument for _, argument in found.values())


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
            fix='write the names of each dimension: {"seq": ("input_ids.size(1)",)}',
        ) from error


def lacks(need: Requirement, target: str = "", device: torch.device | None = None) -> str | None:
    """The reason why a need is not met: for a GPU of the architecture `target`, a model on a device, or at all."""
    if target:
        return need.missing_for(target)
    return need.missing() if device is None else need.missing_on(device)


def recipes_for(family: str | None) -> tuple[str, ...]:
    """The names of the recipes that are made for a family of models."""
    modules = [plugins.load("recipes", one.name) for one in plugins.listing("recipes") if one.reason is None]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    fitting = {kind for kind in kinds if issubclass(kind, Recipe) and family in kind.families}
    return tuple(sorted(hyphenated(kind.__name__) for kind in fitting))
