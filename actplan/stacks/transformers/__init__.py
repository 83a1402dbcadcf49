"""Layers as the framework's own forward functions write them, with their locals, run on shapes."""
