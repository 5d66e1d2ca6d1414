"""Composes `/openapi.json` from the files in `schemas/`."""

from __future__ import annotations

from typing import Any

from decisions.schema import ShapeLimits


def openapi(version: str, limits: ShapeLimits | None = None) -> dict[str, Any]:
    """Placeholder"""
    return {"openapi": "3.1.0", "info": {"title": "Canvasgate", "version": version}, "paths": {}}
