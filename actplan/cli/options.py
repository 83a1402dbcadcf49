"""The options that commands share, each defined here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from msgspec.structs import replace

from ..basics.errors import InputError
from ..basics.units import parse_dtype
from ..model import Model
from ..training import Run, StackName, StackOptions
from ..training.choices import check_chunks, with_settings
from ..training.given import Given, based
from ..training.setting import Said, Setting, flag
from ..training.settings import BY_NAME, PLAIN, SETTINGS

OF_A_LEDGER = ("seq", "batch", "checkpoint", "checkpoint_dtype", "dp", "pp", "vpp")
"""What may still be chosen where the model is a ledger."""
OF_A_TRACE = (
    *("seq", "batch", "dtype", "device", "checkpoint"),
    *("attention", "linear_attention", "kernels", "loss", "hold_logits"),
)
"""What a traced step follows."""


class RunOptions:
    """How a step of it runs: the text of every setting by its name. `sweep` reads lists and ranges where `estimate`
    wants one value."""

    def __init__(self, **said: Said) -> None:
        self.said = {**{setting.name: setting.unsaid for setting in SETTINGS}, **said}

    def text(self, name: str) -> str | None:
        """The text that names the values of a setting, None where nothing is said of it."""
        said = self.said[name]
        return None if said is None else str(said)

    def run(self, model: Model | None) -> Run:
        """The one run that is meant, whatever recipe trains it."""
        return self.based(self.single(model), model)

    def single(self, model: Model | None) -> Run:
        """The one run that is meant, before its recipe and the checkpoint decide about its base."""
        return self.assemble(model, {setting.field: _only(setting, values) for setting, values in self.axes().items()})

    def based(self, run: Run, model: Model | None) -> Run:
        """A run with its quantised base as the options and the checkpoint have it."""
        return based(run, model, self.given(run))

    def given(self, run: Run) -> Given:
        """Which settings of an assembled run the options chose."""
        adapters = self.text("lora_dtype")
        return Given(
            dtype=None if self.said["dtype"] is None else run.dtype,
            precision=None if self.said["precision"] is None else run.precision,
            lora_dtype=None if adapters is None else parse_dtype(adapters, "--lora-dtype"),
            quantised=self.said["quantise"] is not None,
            experts=self.said["quantise_experts"] is True,
            bitsandbytes=self.text("bitsandbytes"),
        )

    def check_ledger(self) -> None:
        """Raise InputError if an option is given that a ledger cannot follow."""
        for name in self._given():
            if name not in OF_A_LEDGER:
                divides = BY_NAME[name].divides
                raise InputError(
                    "a traced model is whole on its rank" if divides else "the trace has decided this",
                    where=flag(name),
                    allowed=f"{', '.join(map(flag, OF_A_LEDGER))} with --ledger",
                    hint=None if divides else "trace again with this option",
                )

    def check_activations(self) -> None:
        """Errors if an option is given that divides states alone, where activations are all that is asked about."""
        for name in ("dp", "pp", "vpp"):
            if self.said[name] is not None:
                wrong = "divides weights, states or stages, and this is about the activations of one rank"
                raise InputError(wrong, where=flag(name), allowed="with `actplan estimate` or `sweep`")

    def check_trace(self) -> None:
        """Errors if an option is given that a traced step does not follow."""
        for name in self._given():
            if name not in OF_A_TRACE:
                flags = ", ".join(flag(one) for one in OF_A_TRACE)
                hint = "see --autocast" if name == "precision" else None
                raise InputError("a trace does not follow it", where=flag(name), allowed=flags, hint=hint)

    def _given(self) -> list[str]:
        """Names of the options that are not as they are without any."""
        return [name for name, said in self.said.items() if said != BY_NAME[name].unsaid]

    def axes(self) -> dict[Setting, tuple[object, ...]]:
        """Every value of every setting that is given or has a default."""
        check_chunks(self.text("loss_chunks"), str(self.text("loss")))
        found = {setting: _values(setting, self.said[setting.name]) for setting in SETTINGS if setting.field}
        return {setting: values for setting, values in found.items() if values}

    def assemble(self, model: Model | None, chosen: Mapping[str, object]) -> Run:
        """A run from parsed settings, and what the model decides where none is given."""
        if "attention" not in chosen:
            chosen = {**chosen, "attention": self._attention(model, chosen)}
        elif model is not None and _refuses_sdpa(model, chosen):
            raise InputError("Transformers refuses sdpa for this model", where="--attention", allowed="eager, flash")
        run = replace(with_settings(PLAIN, chosen), stack_options=self._stack_options())
        if self.said["cp_attention"] is not None and self.said["cp"] is None:
            raise InputError("no ranks divide the sequence", where="--cp-attention", allowed="with --cp 2 or more")
        if not self.said["hold_logits_in_step"]:
            return run
        if run.hold_logits:
            raise InputError("says otherwise than --hold-logits", where="--hold-logits-in-step", allowed="one of them")
        return replace(run, hold_logits=True, logits_outlive_step=False)

    def _attention(self, model: Model | None, chosen: Mapping[str, object]) -> str:
        """The kernel that the stack picks; Transformers picks eager attention where the model refuses sdpa."""
        stack = cast(StackName, chosen.get("stack", PLAIN.stack))
        if stack == "transformers":
            return "sdpa" if model is None or model.supports_sdpa else "eager"
        from ..training.stacks import options_of

        return (self._stack_options() or options_of(stack)()).attention_by_default()

    def _stack_options(self) -> StackOptions | None:
        """What the options say of the stack alone; an error where several are compared, whose names differ."""
        settings = self.said["stack_set"]
        if not isinstance(settings, list) or not settings:
            return None
        from ..training.stacks import SET, parse_options

        named = [word.strip() for word in str(self.text("stack")).split(",")]
        if len(named) > 1:
            raise InputError("each stack has settings of its own", where=SET, allowed="one --stack with it")
        return parse_options(cast(StackName, named[0]), settings)


def _values(setting: Setting, said: Said) -> tuple[object, ...]:
    """The values that an option names; nothing where it says nothing."""
    if said is None or (said is False and not setting.off):
        return ()
    return (said,) if setting.read is None else setting.read(str(said), setting.flag)


def _refuses_sdpa(model: Model, chosen: Mapping[str, object]) -> bool:
    """Whether sdpa is chosen where Transformers refuses it for the model."""
    ours = chosen.get("stack", PLAIN.stack) == "transformers"
    return ours and chosen["attention"] == "sdpa" and not model.supports_sdpa


def _only(setting: Setting, values: Sequence[object]) -> object:
    if len(values) != 1:
        hint = "`actplan sweep` takes lists and ranges"
        raise InputError(f"{len(values)} values", where=setting.flag, allowed="one value", hint=hint)
    return values[0]
