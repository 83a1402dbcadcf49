"""Published and measured records, run through the planner: predicted against measured.

A reader for each format maps a record to the words of `actplan estimate`, by rules that read its configuration and
never its measurement. The words are parsed and answered as the command parses and answers them, so the printed command
gives the same number. What cannot be said in these words is a reason, not a number.
"""

from .files import read_records, shared_records
from .judging import judge
from .records import Record, UnexpressedError
from .summing import summary

__all__ = ["Record", "UnexpressedError", "judge", "read_records", "shared_records", "summary"]
