"""Refuse to build where src/windrow's links are not folders; everything else stands in pyproject.toml."""

from pathlib import Path

from setuptools import setup

PACKAGE = Path(__file__).resolve().parent / "src" / "windrow"

# A clone without symlinks holds a text file, without a suffix, in place of each link.
entries = sorted(PACKAGE.iterdir())
broken = [path.name for path in entries if not path.suffix and not path.is_dir()]
if broken or not any((path / "__init__.py").is_file() for path in entries):
    raise SystemExit(
        f"src/windrow: not a folder: {', '.join(broken) or 'no package found'}. "
        "This clone has no symbolic links, so the build would hold no code. "
        "Clone again with `git clone -c core.symlinks=true` (on Windows: in WSL)."
    )

setup()
