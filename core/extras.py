"""Optional dependencies, which are installed only on request."""

from __future__ import annotations

import importlib.util

from windrow.core.errors import ConfigurationError


def need(module: str, extra: str, what: str) -> None:
    """Raise `ConfigurationError` where a module that `what` needs is not installed, with what to install."""
    try:
        found = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it lies in
        found = False
    if not found:
        raise ConfigurationError(
            f"{what} needs {module}, which is not installed: pip install 'windrow[{extra}]'"
        )
