"""Helpers of one folder are importable from every test."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / folder) for folder in ("cli", "golden", "plan", "schedule")]
