"""The compiler that Triton wants a backend to have. Interpreted kernels never come to it."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import BaseBackend, GPUTarget


class NoCompiler(BaseBackend):  # type: ignore[misc]  # Triton has no types here
    """Refuses whatever it is asked for, so that a kernel that is not interpreted after all is noticed."""

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return False

    def hash(self) -> str:
        raise NotImplementedError

    def parse_options(self, options: dict[str, Any]) -> object:
        raise NotImplementedError

    def add_stages(self, stages: dict[str, Any], options: object) -> None:
        raise NotImplementedError

    def load_dialects(self, context: object) -> None:
        raise NotImplementedError

    def get_module_map(self) -> dict[str, Any]:
        raise NotImplementedError
