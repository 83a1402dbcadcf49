"""Readers and writers of other tools' configurations, one a file."""
