"""Packages that cannot live in windrow's environment: each has one of its own, made once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .data import cache


def python(package: str) -> str:
    """The Python of an environment that has a package, `name==version`."""
    path = os.path.join(cache(), package.replace("==", "-"))
    program = os.path.join(path, "bin", "python")
    if not os.path.exists(os.path.join(path, "made")):
        subprocess.run([sys.executable, "-m", "venv", "--clear", path], check=True)
        subprocess.run([program, "-m", "pip", "install", "--quiet", package], check=True)
        Path(path, "made").touch()
    return program
