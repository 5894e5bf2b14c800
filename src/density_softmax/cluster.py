"""Ray clusters, for everything that runs on one."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from density_softmax.errors import UserError

# Imports of this module stay light: every worker of a cluster has it.


def import_ray(module: str = "ray") -> Any:
    """Import Ray, or say what to install.

    Args:
        module: `ray`, or a part of it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"--engine ray needs {module} ({error}): pip install 'density-softmax[cluster]'"
        ) from None


def enter_cluster(ray: Any) -> bool:
    """Enter the cluster of $RAY_ADDRESS, or one made of this machine.

    Args:
        ray: the package.

    Returns:
        False if this process was in a cluster before: others will leave it.
    """
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS", "local")
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray has no common base for what can go wrong here
        raise UserError(
            f"Ray at '{address}' cannot be used ({error}); its logs are in "
            "/tmp/ray/session_latest/logs, and --engine local needs no cluster"
        ) from error
    return True


@contextmanager
def in_cluster() -> Iterator[Any]:
    """Enter a cluster, and leave it at the end unless this process was in it before.

    Yields:
        The package `ray`.
    """
    ray = import_ray()
    entered = enter_cluster(ray)
    try:
        yield ray
    finally:
        if entered:
            ray.shutdown()
