"""Fuzzing of machines without I/O, by libFuzzer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import TypeGuard


def fuzz(run: Callable[[bytes], object], *modules: ModuleType) -> None:
    """Fuzz with the arguments of libFuzzer. It watches ``modules``: all that are loaded would take minutes."""
    import atheris

    for module in modules:
        for function in _functions(module):
            atheris.instrument_func(function)
    atheris.Setup(sys.argv, run)
    atheris.Fuzz()


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    for owner in (module, *(kind for kind in vars(module).values() if isinstance(kind, type))):
        if owner is module or owner.__module__ == module.__name__:
            yield from (one for one in vars(owner).values() if _is_of(module, one))


def _is_of(module: ModuleType, one: object) -> TypeGuard[FunctionType]:
    return isinstance(one, FunctionType) and one.__module__ == module.__name__
