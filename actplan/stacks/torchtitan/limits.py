"""What torchtitan refuses, and what is not planned of it: no numbers for a run that cannot start."""

from __future__ import annotations

from ...basics.errors import InputError
from ...model import Attention, Layer, Mlp, Model
from ...training import Run
from ...training.policies import EveryLayer, FirstN, Heaviest, NoCheckpoint, OneIn, Selective
from ...training.stacks import refuse_words
from ...training.torchtitan import TorchtitanOptions

KERNELS = ("flex", "cudnn", "sdpa")
POLICIES = (NoCheckpoint, EveryLayer, FirstN, Heaviest, OneIn, Selective)
"""Each block is wrapped on its own (distributed/activation_checkpoint.py)."""
LOSSES = ("naive", "parallel", "torchtitan", "none")


def options_of(run: Run) -> TorchtitanOptions:
    """Return what the run says of torchtitan alone. Raises InputError where it says something of another stack."""
    options = run.stack_options or TorchtitanOptions()
    if not isinstance(options, TorchtitanOptions):
        raise InputError("these are another stack's settings", where="stack_options", allowed="TorchtitanOptions(...)")
    return options


def check_policy(run: Run) -> None:
    """Raise InputError for a policy that torchtitan has no setting for."""
    if not isinstance(run.checkpoint, POLICIES):
        able = "none, layer, one-in:K, first:N, heaviest:N, selective:"
        raise InputError("torchtitan checkpoints each block on its own", where="--checkpoint", allowed=able)


def check(model: Model, run: Run) -> None:
    """Raise InputError for a run or a model that torchtitan does not train, or that is not planned."""
    allowed = {
        "--attention": KERNELS, "--kernels": ("hf",), "--loss": LOSSES, "--precision": ("pure",),
    }  # fmt: skip
    given = {
        "--attention": run.attention, "--kernels": run.kernels, "--loss": run.loss, "--precision": run.precision,
    }  # fmt: skip
    reasons = {"--loss": f"--loss {run.loss} is not torchtitan's; its chunked loss is --loss torchtitan"}
    refuse_words("torchtitan", given, allowed, reasons)
    _check_run(run)
    for layer in dict.fromkeys(model.layers):
        _check_layer(model, layer)
    if model.exits:
        raise InputError("torchtitan has no early exits", where="exits", allowed="--stack transformers")


def _check_run(run: Run) -> None:
    wrong = {
        "--lora-rank": run.adapters, "--quantise": run.quantised, "--qat": run.fake_quantised,
        "--compile": run.compile if run.compiled else None,
        "--freeze": None if run.trains_all or run.adapters or run.quantised else run.frozen,
        "--hold-logits": run.hold_logits or None, "--padding": run.padding_mask or None,
        "--checkpoint-dtype": run.checkpoint_dtype, "--mtp": run.mtp or None,
        "--cp": run.mesh.cp if run.mesh.cp > 1 else None, "--ep": run.mesh.ep if run.mesh.ep > 1 else None,
    }  # fmt: skip
    for option, value in wrong.items():
        if value is not None:
            raise InputError("not planned with --stack torchtitan", where=option, allowed="--stack transformers")
    if run.loss == "parallel" and run.mesh.tp == 1:
        raise InputError("there is one tensor-parallel rank", where="--loss", allowed="--tp 2 or more, or --loss naive")
    if run.loss == "torchtitan" and run.local_length % run.loss_chunks:
        raise InputError(
            f"{run.local_length:,} tokens of a sequence are not {run.loss_chunks} equal chunks",
            where="--loss-chunks",
            allowed="a number that divides the tokens of a sequence on one rank",
        )


def _check_layer(model: Model, layer: Layer) -> None:
    wrong = None
    if layer.residual.type != "pre_norm":
        wrong = f"a residual stream of kind {layer.residual.type}"
    elif not layer.norm.startswith("rms"):
        wrong = f"a norm of kind {layer.norm}"
    elif layer.beside is not None or not isinstance(layer.mixer, Attention):
        wrong = f"a mixer of kind {layer.kind}"
    elif layer.mixer.sinks or layer.mixer.softcap or layer.mixer.output_gate or layer.mixer.dropout:
        wrong = "attention with sinks, a softcap, a gate or dropout"
    elif not isinstance(layer.mlp, Mlp) or not layer.mlp.gated or layer.mlp.activation != "silu":
        wrong = "a layer whose network is not a dense SwiGLU"
    if wrong:
        raise InputError(
            f"{model.name} has {wrong}, not planned with --stack torchtitan", where="--stack", allowed="transformers"
        )
