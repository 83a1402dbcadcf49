"""The options that name a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Option

from ..basics.errors import InputError
from ..model import Model

if TYPE_CHECKING:
    from ..profile import Source

DEFAULT_PRESET = "qwen-27b"


@dataclass(frozen=True)
class ModelOptions:
    """Which model."""

    preset: Annotated[
        str | None, Option("--preset", metavar="NAME", help=f"A built-in model (default {DEFAULT_PRESET}).")
    ] = None
    model: Annotated[
        str | None,
        Option("--model", metavar="PATH", help="A YAML spec, a config.json or its folder, a cached hub id."),
    ] = None
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="PATH=VALUE", help="Override a field of the model; repeatable."),
    ] = None

    ledger: Annotated[
        str | None, Option("--ledger", metavar="FILE", help="A traced model (`actplan trace -o`) in place of one.")
    ] = None

    @property
    def reference(self) -> str:
        """The model as the user named it."""
        return self.ledger or self.model or self.preset or DEFAULT_PRESET

    def source(self) -> Source:
        """The model, or the ledger in place of one, that is named."""
        if self.ledger is None:
            return self.load()
        if self.preset is not None or self.model is not None or self.settings:
            raise InputError(
                "a ledger is a whole model", where="--ledger", allowed="without --preset, --model and --set"
            )
        from ..loading import load_ledger

        return load_ledger(self.ledger)

    def load(self, settings: Sequence[str] | None = None) -> Model:
        """The model named, with `--set` applied (or the settings given here instead)."""
        from ..model.reading import load_model

        if self.ledger is not None:
            raise InputError(
                "this needs an architecture, not a ledger", where="--ledger", allowed="--preset or --model"
            )
        if self.preset is not None and self.model is not None:
            raise InputError("--preset and --model both name a model", allowed="one of them")
        overrides = tuple(self.settings or ()) if settings is None else settings
        if self.model is None:
            return load_model(self.preset or DEFAULT_PRESET, preset=True, overrides=overrides)
        from ..loading import hub_cache

        return load_model(self.model, preset=False, overrides=overrides, hub_cache=hub_cache())
