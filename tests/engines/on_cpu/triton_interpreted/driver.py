"""The driver of a device that is always there: vLLM counts the active ones before it uses Triton at all."""

from __future__ import annotations

from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase


class CpuDriver(DriverBase):  # type: ignore[misc]  # Triton has no types here
    """This machine's processor."""

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError

    def get_benchmarker(self) -> Any:
        raise NotImplementedError
