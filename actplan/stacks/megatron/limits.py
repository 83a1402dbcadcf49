"""What Megatron-Core refuses, and what is not planned of it: no numbers for a run that cannot start."""

from __future__ import annotations

from ...basics.errors import InputError
from ...basics.units import FP32
from ...model import Attention, GatedDeltaNet, LatentAttention, Layer, Model, Moe
from ...training import Run
from ...training.megatron import MegatronOptions
from ...training.policies import Modules
from ...training.stacks import refuse_words
from ..walking import Keeps
from .scope import Scope

KERNELS = ("cudnn", "flash", "eager")
PARTS = ("core_attn", "mlp", "moe", "moe_act", "shared_experts", "layernorm", "mla_up_proj")
"""What `recompute_modules` may name here."""


def options_of(run: Run) -> MegatronOptions:
    """Return what the run says of Megatron-Core alone.

    Raises:
        InputError: it says something of another stack.
    """
    options = run.stack_options or MegatronOptions()
    if not isinstance(options, MegatronOptions):
        raise InputError("these are another stack's settings", where="stack_options", allowed="MegatronOptions(...)")
    return options


def check(model: Model, run: Run, options: MegatronOptions, keeps: Keeps) -> None:
    """Raise InputError for a run or a model that Megatron-Core does not train, or that is not planned."""
    _check_words(run, options)
    if run.mtp:
        from . import prediction

        prediction.check(model, run)
    if any(keeps.values()):
        wrong = "Megatron-Core keeps no single outputs of a layer that is run again"
        raise InputError(wrong, where="--checkpoint", allowed="layer, every:K, first:N, modules:")
    predicting = (model.mtp_layer,) if run.mtp and model.mtp_layer is not None else ()
    for layer in dict.fromkeys((*model.layers, *predicting)):
        if isinstance(layer.mixer, (Attention, LatentAttention)):
            _check_heads(run, layer.mixer)
        if isinstance(layer.mixer, Attention) and _is_odd(layer.mixer, run):
            wrong = f"{model.name} has attention with sinks, softcap or windows, not planned with --stack megatron"
            hint = "windows: --attention cudnn or flash, --cp 1"
            raise InputError(wrong, where="--stack", allowed="transformers", hint=hint)
        _check_layer(model, layer, local=options.transformer_impl == "local")
    if options.moe_shared_expert_overlap:
        _check_overlap(model, run, options)
    if model.exits:
        raise InputError("Megatron-Core has no early exits", where="exits", allowed="--stack transformers")


def _check_words(run: Run, options: MegatronOptions) -> None:
    allowed = {
        "--attention": ("eager",) if options.transformer_impl == "local" else KERNELS,
        "--kernels": ("hf",),
        "--linear-attention": ("fla",),
        "--loss": ("naive", "none"),
        "--precision": ("pure",),
    }
    given = {
        "--attention": run.attention, "--kernels": run.kernels, "--linear-attention": run.linear_attention,
        "--loss": run.loss, "--precision": run.precision,
    }  # fmt: skip
    local = "Megatron's own layers run torch's products (--attention eager)"
    reasons = {
        "--loss": f"--loss {run.loss} is not Megatron's; its kinds are --stack-set cross_entropy_loss_fusion=true",
        **({"--attention": local} if options.transformer_impl == "local" else {}),
    }
    refuse_words("megatron", given, allowed, reasons)
    if run.mesh.cp > 1:
        _check_context(run)
    if run.dtype is FP32:
        raise InputError("Transformer Engine's layers are planned in 16 bits", where="--dtype", allowed="bf16, fp16")
    wrong = {
        "--lora-rank": run.adapters, "--quantise": run.quantised, "--qat": run.fake_quantised,
        "--compile": run.compile if run.compiled else None,
        "--freeze": None if run.trains_all or run.adapters or run.quantised else run.frozen,
        "--hold-logits": run.hold_logits or None, "--padding": run.padding_mask or None,
        "--checkpoint-dtype": run.checkpoint_dtype,
    }  # fmt: skip
    for option, value in wrong.items():
        if value is not None:
            raise InputError("not planned with --stack megatron", where=option, allowed="--stack transformers")


def _check_context(run: Run) -> None:
    """Raise InputError for a way of dividing the sequence that is not planned."""
    if run.attention == "eager":
        raise InputError("unfused attention needs the whole sequence", where="--attention", allowed="cudnn, flash")
    if run.local_length % 2:
        raise InputError("each rank takes two chunks of the sequence", where="--cp", allowed="an even local length")


def _check_overlap(model: Model, run: Run, options: MegatronOptions) -> None:
    """Raise InputError for shared experts beside an exchange that cannot be there."""
    where, policy = "moe_shared_expert_overlap", run.checkpoint
    if not any(isinstance(x.mlp, Moe) and x.mlp.shared_expert_intermediate_size for x in model.layers):
        raise InputError(f"{model.name} has no shared experts", where=where, allowed="false")
    if options.moe_token_dispatcher_type != "alltoall":
        raise InputError("only the all-to-all dispatcher has them beside its exchange", where=where, allowed="false")
    if isinstance(policy, Modules) and "shared_experts" in policy.names:
        raise InputError("shared experts beside the exchange are not run again", where=where, allowed="false")
    if options.transformer_impl == "local":
        raise InputError("local layers are not planned with shared experts beside", where=where, allowed="false")


def _check_heads(run: Run, mixer: Attention | LatentAttention) -> None:
    """Raise InputError where heads cannot be exchanged for rows."""
    groups = mixer.num_attention_heads if isinstance(mixer, LatentAttention) else mixer.num_key_value_heads
    local = max(1, groups // run.mesh.tp)
    if run.context_attention == "all-to-all" and local % run.mesh.cp:
        wrong = f"{local} key-value heads of a rank cannot be divided by {run.mesh.cp}"
        raise InputError(wrong, where="--cp", allowed="a divisor of them, or --cp-attention ring")


def check_parts(m: Scope) -> None:
    """Raise InputError for a part to recompute that no layer has."""
    for name in sorted(m.recomputed - m.met):
        raise InputError(
            f"no part {name[:64]!r} to recompute in {m.model.name}", where="--checkpoint", choices=PARTS, got=name
        )


def _is_odd(mixer: Attention, run: Run) -> bool:
    """A window is the kernel's own affair, but for products in torch and for divided sequences."""
    windowed = mixer.sliding_window is not None and (run.attention == "eager" or run.mesh.cp > 1)
    return mixer.sinks or bool(mixer.softcap) or windowed


def _check_layer(model: Model, layer: Layer, *, local: bool) -> None:
    wrong = None
    if layer.residual.type != "pre_norm" and not layer.residual.type.startswith("pre_norm_"):
        wrong = f"a residual stream of kind {layer.residual.type}"
    elif layer.beside is not None:
        wrong = "two mixers side by side"
    elif not isinstance(layer.mixer, (Attention, GatedDeltaNet, LatentAttention)):
        wrong = f"a mixer of kind {layer.kind}"
    elif isinstance(layer.mixer, LatentAttention) and layer.mixer.bias:
        wrong = "biases in latent attention"
    elif isinstance(layer.mixer, GatedDeltaNet) and local:
        wrong = "Gated DeltaNet, which local layers do not have,"
    elif layer.mlp is None:
        wrong = "a layer without a feed-forward network"
    elif isinstance(layer.mlp, Moe) and (layer.mlp.expert_gate != "silu" or layer.mlp.expert_bias):
        wrong = "experts with biases or another gate than SiLU's"
    if wrong:
        raise InputError(
            f"{model.name} has {wrong}, not planned with --stack megatron", where="--stack", allowed="transformers"
        )
