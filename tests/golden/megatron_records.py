"""Traced runs of Megatron-Core with Transformer Engine (tests/reference/megatron_autograd.json and
megatron_variants.json), and the model and run that must reproduce each."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from actplan.model import Attention, GatedDeltaNet, LatentAttention, Layer, Mlp, Model, Moe
from actplan.model.parts import Embedding, Mtp, Residual, Rope
from actplan.training import Run
from actplan.training.megatron import MegatronOptions
from actplan.training.mesh import Mesh
from actplan.training.policies import EveryK, EveryLayer, FirstN, Modules, NoCheckpoint, Policy

REFERENCE = Path(__file__).parent.parent / "reference"
RECORDS: dict[str, dict[str, Any]] = {
    record["id"]: record for record in json.loads((REFERENCE / "megatron_autograd.json").read_text(encoding="utf-8"))
}
Args = dict[str, Any]
_VARIANTS = json.loads((REFERENCE / "megatron_variants.json").read_text(encoding="utf-8"))
VARIANTS: dict[str, dict[str, Any]] = {
    record["id"]: {**record, "args": {**_VARIANTS["args"], **record["args"]}} for record in _VARIANTS["runs"]
}
"""Smaller runs, two layers or four, each of which differs in an option or two."""
ACTIVATIONS = {"gelu": ("gelu", False), "swiglu": ("silu", True), "geglu": ("gelu", True), "srelu": ("relu2", False)}
ATTENTION = {"unfused": "eager", "flash": "flash", "cudnn": "cudnn"}
CONTEXT = {"p2p": "ring", "a2a": "all-to-all", "all_gather": "all-gather"}


def model_of(a: Args) -> Model:
    """The model that a record's arguments describe: of a pipeline, the layers of one stage."""
    kind = "layer" if a["norm"] == "LayerNorm" else "rms"
    residual = Residual(dropout=a["hidden_dropout"])
    layers = []
    for i in range(a["layers"] // a["pp"]):
        mixer, mlp = _mixer(a, i), _mlp(a, i)
        name = f"{type(mixer).__name__} {type(mlp).__name__}"
        layers.append(Layer(kind=name, mixer=mixer, mlp=mlp, norm=kind, residual=residual))
    learned = a["seq"] if a["pos"] == "learned_absolute" else None
    return Model(
        name="traced",
        title="traced",
        source="megatron_autograd.json",
        hidden_size=a["hidden"],
        vocab_size=a["vocab"],
        layers=tuple(layers),
        norm=kind,
        rope=Rope(fraction=a["rotary_percent"]),
        residual=residual,
        embedding=Embedding(dropout=a["hidden_dropout"], max_position_embeddings=learned),
        tie_word_embeddings=a["tied"],
        mtp=Mtp(num_layers=a["mtp"]) if a["mtp"] else None,
        mtp_layer=layers[-1] if a["mtp"] else None,
    )


def _mixer(a: Args, i: int) -> Attention | LatentAttention | GatedDeltaNet:
    if a["gdn_freq"] and (i + 1) % a["gdn_freq"]:
        return GatedDeltaNet(
            num_key_heads=a["gdn_k_heads"],
            num_value_heads=a["gdn_v_heads"],
            key_head_dim=a["gdn_k_dim"],
            value_head_dim=a["gdn_v_dim"],
            conv_kernel_size=a["gdn_conv"],
        )
    if a["mla"]:
        return LatentAttention(
            num_attention_heads=a["heads"],
            kv_lora_rank=a["kv_lora"],
            qk_nope_head_dim=a["qk_dim"],
            qk_rope_head_dim=a["rope_dim"],
            v_head_dim=a["v_dim"],
            q_lora_rank=a["q_lora"],
            dropout=a["attn_dropout"],
        )
    return Attention(
        num_attention_heads=a["heads"],
        num_key_value_heads=a["kv_heads"] or a["heads"],
        head_dim=a["head_dim"] or a["hidden"] // a["heads"],
        qkv_bias=a["bias"] or a["qkv_bias"],
        out_bias=a["bias"],
        qk_norm=a["qk_norm"],
        output_gate=a["output_gate"],
        rope=a["pos"] == "rope",
        dropout=a["attn_dropout"],
    )


def _mlp(a: Args, i: int) -> Mlp | Moe:
    often = a["moe_freq"]
    if a["experts"] and (often[i] if isinstance(often, list) else i % often == 0):
        return Moe(
            num_experts=a["experts"],
            num_experts_per_tok=a["topk"],
            moe_intermediate_size=a["moe_ffn"] or a["ffn"],
            router="sigmoid" if a["score"] == "sigmoid" else "softmax",
            n_group=a["groups"] or 1,
            topk_group=a["group_topk"] or 1,
            shared_expert_intermediate_size=a["shared_ffn"],
            shared_expert_gate=a["shared_gate"],
        )
    activation, gated = ACTIVATIONS[a["act"]]
    return Mlp(intermediate_size=a["ffn"] or 4 * a["hidden"], activation=activation, gated=gated, bias=a["bias"])


def run_of(a: Args) -> Run:
    """The run that a record's arguments describe."""
    etp = a["etp"] or (a["tp"] if a["experts"] else 1)
    dp = max(1, -(-a["ep"] * etp // (a["tp"] * a["cp"])))
    return Run(
        sequence_length=a["seq"],
        micro_batch_size=a["mbs"],
        stack="megatron",
        stack_options=options_of(a),
        attention=ATTENTION[a["attn"]],
        loss="none" if a["no_logits"] or a["pp"] > 1 else "naive",
        mesh=Mesh(dp=dp, tp=a["tp"], sp=a["sp"] and a["tp"] > 1, cp=a["cp"], ep=a["ep"], etp=etp),
        checkpoint=_policy(a),
        context_attention=CONTEXT[a["cp_comm"]],
        mtp=bool(a["mtp"]),
    )


def _policy(a: Args) -> Policy:
    if a["recompute"] == "selective":
        return Modules(tuple(a["recompute_modules"]))
    if a["recompute"] == "none":
        return NoCheckpoint()
    count = a["recompute_num"]
    if a["recompute_method"] == "block":
        return FirstN(count)
    return EveryLayer() if count == 1 else EveryK(count)


def options_of(a: Args) -> MegatronOptions:
    """Megatron's own settings, by its own names."""
    return MegatronOptions(
        transformer_impl="local" if a["spec"] == "local" else "transformer_engine",
        cross_entropy_loss_fusion=a["loss"] != "vocab",
        cross_entropy_fusion_impl="te" if a["loss"] == "te" else "native",
        gradient_accumulation_fusion=a["grad_fusion"],
        bias_activation_fusion=a["bias_act_fusion"],
        bias_dropout_fusion=a["bias_dropout_fusion"],
        masked_softmax_fusion=a["masked_softmax_fusion"],
        apply_rope_fusion=a["rope_fusion"],
        attention_softmax_in_fp32=a["softmax_fp32"],
        deterministic_mode=a["deterministic"],
        create_attention_mask_in_dataloader=a["mask"],
        distribute_saved_activations=a["distribute"],
        moe_token_dispatcher_type=a["dispatcher"],
        moe_grouped_gemm=a["grouped_gemm"],
        moe_permute_fusion=a["permute_fusion"],
        moe_shared_expert_overlap=a["shared_overlap"],
        moe_router_dtype=a["router_dtype"],
        moe_router_fusion=a["router_fusion"],
        moe_router_pre_softmax=a["pre_softmax"],
        moe_router_load_balancing_type=a["lb"],
        moe_aux_loss_coeff=a["aux_coeff"],
        moe_z_loss_coeff=a["z_coeff"],
        moe_router_enable_expert_bias=a["expert_bias"],
        moe_expert_capacity_factor=a["capacity"],
        moe_pad_expert_input_to_capacity=a["pad_to_capacity"],
    )


def place(module: str) -> str:
    """The layer that a module lies in, `loss` for what has no module, or the module itself."""
    layer = re.match(r"(decoder|mtp)\.layers\.\d+", module)
    return layer[0] if layer else "loss" if module in ("", "<loss>") else module


def traced(record: dict[str, Any]) -> dict[str, int]:
    """Saved bytes of each layer and of each module outside of them."""
    found = dict(record["layer_saved_bytes"])
    for module, size in record["outside_layers"].items():
        found[place(module)] = found.get(place(module), 0) + size
    return {where: size for where, size in found.items() if size}
