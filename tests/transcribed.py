"""The transcripts, read once for all that play them."""

from pathlib import Path

from windrow.testing.transcripts import Transcript, load

FOLDER = Path(__file__).resolve().parent / "transcripts"
TRANSCRIPTS: dict[Path, list[Transcript]] = {file: load(file) for file in sorted(FOLDER.rglob("*.yaml"))}
