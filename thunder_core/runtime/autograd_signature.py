"""The signature of a program as an operation of autograd, as plain data, which manifests hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AutogradSignature:
    """The results and inputs by which autograd knows a computation that is one of its operations.

    It has `count` results, and behind them what is saved. `results` are the places of those that gradients come in
    for, `strides` how these are laid out (in elements), and `followed` the inputs that gradients go out for. `random`
    programs draw random numbers, and those that write to their inputs cannot be run a second time. `viewed` are the
    inputs that the tail takes before the results, where there is a tail. With `beneath_autocast`, forward and backward
    hold the casts that autocast makes, and run while it is off. `within` has, for each of `results`, those of its
    number that are computed from it: what comes through them, a hook of that result cannot be shown.
    """

    count: int
    results: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    followed: tuple[int, ...]
    random: bool = False
    writes: bool = False
    viewed: tuple[int, ...] = ()
    beneath_autocast: bool = False
    within: tuple[tuple[int, ...], ...] = ()
