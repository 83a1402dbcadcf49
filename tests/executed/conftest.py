"""The frameworks that some of these tests need beside the trace extra.

Without them (`pip install '.[test,trace]'`) such a test is skipped and says which extra it needs. Continuous
integration sets ACTPLAN_EXECUTED=all, and there a missing framework is an error.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True, scope="module")
def frameworks(request: pytest.FixtureRequest) -> None:
    """Skip a module whose `NEEDS` are not installed."""
    missing = [name for name in getattr(request.module, "NEEDS", ()) if find_spec(name) is None]
    if not missing:
        return
    reason = f"needs {', '.join(missing)}: pip install '.[test,trace,executed]'"
    if os.environ.get("ACTPLAN_EXECUTED") == "all":
        pytest.fail(reason)
    pytest.skip(reason)
