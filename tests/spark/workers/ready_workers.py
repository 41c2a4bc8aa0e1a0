"""Fork server of Spark's Python workers in tests: as `pyspark.daemon`, but with all imports of a worker already made.

In a folder of its own, which all processes of a run find (`tests/conftest.py`).
"""

import pyspark.sql.worker.plan_data_source_read
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import windrow.runners.tasks  # noqa: F401

if __name__ == "__main__":
    manager()
