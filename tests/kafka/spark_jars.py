"""The jars of Spark's own Kafka connector, by Maven, once per user."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

POM = Path(__file__).with_name("pom.xml")


def jars() -> list[str]:
    """Paths of the jars that pom.xml names; what is there is not fetched again."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windrow" / "kafka-jars"
    names = {
        "spark-sql-kafka-0-10_2.13-4.2.0.jar",
        "spark-token-provider-kafka-0-10_2.13-4.0.0.jar",
        "kafka-clients-3.9.1.jar",
        "commons-pool2-2.12.0.jar",
    }
    if not names <= {p.name for p in cache.glob("*.jar")}:
        command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
        subprocess.run([*command, f"-DoutputDirectory={cache}"], check=True)
    return sorted(str(cache / name) for name in names)
