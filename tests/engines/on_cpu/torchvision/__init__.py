"""Stands in for torchvision, which transformers imports beside Gemma's image processor. Nothing here sees an image.

The registry's torchvision is a CUDA build that does not load beside a CPU build of torch, and where it is installed it
breaks most of transformers; so tests that read text alone go without it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from unittest.mock import MagicMock

__version__ = "0"


class Absent(ModuleType):
    """A module in which every public name can be found and none works."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> MagicMock:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}", side_effect=NotImplementedError)


for name in ("io", "transforms", "transforms.functional", "transforms.v2", "transforms.v2.functional"):
    sys.modules[f"torchvision.{name}"] = Absent(f"torchvision.{name}")
