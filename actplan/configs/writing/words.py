"""Options on their way into another tool's settings: each is taken by name, and whatever nobody took is refused."""

from __future__ import annotations

from collections.abc import Mapping

from ...basics.errors import InputError

Settings = dict[tuple[str, ...], object]
"""Path of a key -> its value; None: the key is to be away."""
BESIDE = frozenset(
    ("dp", "gpu", "gpus", "limit", "fit_on", "strict", "allocator", "tokens", "mfu", "device", "preset", "model")
)
"""Options that no file holds: the launcher's ranks, the device, the price."""
DEFAULTS: dict[str, str] = {
    "seq": "8192",
    "batch": "1",
    "microbatches": "1",
    "attention": "sdpa",
    "kernels": "hf",
    "loss": "naive",
    "checkpoint": "none",
    "stack": "transformers",
    "linear_attention": "fla",
}
"""What an option is where nobody says."""
OPTIMIZERS = {
    "adamw": "adamw_torch",
    "adamw-fused": "adamw_torch_fused",
    "adamw8bit": "adamw_bnb_8bit",
    "paged-adamw": "paged_adamw_32bit",
    "paged-adamw8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
    "lion": "lion_32bit",
    "lion8bit": "lion_8bit",
    "sgd": "sgd",
}
"""The Trainer's names (transformers/training_args.py, OptimizerNames)."""
ATTENTIONS = {
    "sdpa": "sdpa",
    "eager": "eager",
    "flex": "flex_attention",
    "flash2": "flash_attention_2",
    "flash": "flash_attention_3",
}


class Words:
    """Options by name. `tool`: what they are written for, for messages. `model`: the model's reference."""

    def __init__(self, options: Mapping[str, object], model: str | None = None) -> None:
        self.options = {name: value for name, value in options.items() if value not in (None, False, "", ())}
        self.model, self.tool = model, ""
        self.taken: set[str] = set()

    def get(self, name: str) -> str:
        """Return an option's word, its default where nobody says; it counts as taken."""
        self.taken.add(name)
        value = self.options.get(name, DEFAULTS.get(name, ""))
        return value if isinstance(value, str) else "true" if value is True else str(value)

    def flag(self, name: str) -> bool:
        """Return whether an option without a value is on."""
        self.taken.add(name)
        return self.options.get(name) in (True, "true")

    def number(self, name: str) -> int:
        """Return an option that is a count."""
        from ...basics.units import parse_count

        return parse_count(self.get(name) or "1", f"--{name}")

    def list(self, name: str) -> list[str]:
        """Return an option that is a list."""
        return [word for word in self.get(name).split(",") if word]

    def one_of(self, name: str, known: Mapping[str, object], what: str = "") -> object:
        """Return what a word is called elsewhere; refuse one that is called nothing there."""
        word = self.get(name)
        if word not in known:
            raise self.cannot(f"--{name.replace('_', '-')} {word}", allowed=", ".join(known), hint=what)
        return known[word]

    def cannot(self, option: str, allowed: str | None = None, hint: str = "") -> InputError:
        """The error that says what the framework cannot express."""
        return InputError(f"{self.tool} cannot express {option}", where="--to", allowed=allowed, hint=hint or None)

    def check(self) -> None:
        """Raise InputError for options that nobody took, but for those that no file holds."""
        plain = {name for name, value in self.options.items() if DEFAULTS.get(name) == value}
        left = sorted(set(self.options) - self.taken - BESIDE - plain)
        if left:
            raise self.cannot(", ".join(f"--{name.replace('_', '-')} {self.options[name]}" for name in left))
