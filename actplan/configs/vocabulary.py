"""The few words that every framework's file is read in."""

from __future__ import annotations

FIELDS: dict[str, str] = {
    "sequence_length": "tokens of a row",
    "micro_batch_size": "sequences (pairs for dpo and orpo) that a GPU runs at once",
    "microbatches": "micro-batches of an optimizer step on one data-parallel rank",
    "global_batch_size": "sequences of an optimizer step over all ranks",
    "precision": "bf16 weights | autocast bf16 | bf16 + fp32 master | fp16 + fp32 master | fp32",
    "precision_detail": "types of trainable, frozen, master, grads, states, and of what is computed in",
    "fp8": "backend, recipe, and whether shards are gathered in it",
    "attention": "flash | sdpa | eager | cudnn | flex | auto",
    "checkpoint": "none | layer | every:k | selective:<modules> | selective-op",
    "kernels": "hf | liger | te | native",
    "compile": "whether torch.compile is on",
    "loss": "naive | fused (logits whole, softmax fused) | chunked | linear-fused (logits never whole)",
    "optimizer": "adamw, adamw-8bit, paged-adamw-8bit, adafactor, lion, muon, ...",
    "optimizer_in_backward": "whether each gradient is stepped on and freed at once",
    "lora": "rank, alpha, targets, dropout, dora",
    "quantised": "none | nf4 | nf4-double | fp4 | fp4-double | int8 | a method",
    "sharding": "none | ddp | zero-1 | zero-2 | zero-3 | fsdp1 | fsdp2 | megatron-dist | megatron-fsdp",
    "offload": "params, grads, optimizer, activations",
    "dp_shard": "ranks that share one copy of the states",
    "dp_replicate": "copies of the states",
    "tp": "tensor parallelism",
    "sp": "Megatron's sequence parallelism inside the tensor-parallel group",
    "cp": "ranks that divide a sequence for attention",
    "cp_kind": "ring | ulysses | ...",
    "pp": "pipeline stages",
    "vpp": "model chunks of a stage",
    "ep": "expert parallelism",
    "etp": "tensor parallelism inside an expert",
    "packing": "none | packed | varlen (padding removed inside a micro-batch)",
    "padding": "none | longest | max",
    "task": "sft | pretrain | dpo | orpo | kto | reward | grpo | ppo",
    "extra_models": "other models on the same GPU",
    "trainable": "what is trained",
    "frozen": "what is not",
}
"""Every field that a file can decide, in the order in which they are shown. A field that a file and its framework leave
open is left out."""
PAIRED = ("dpo", "orpo", "kto-pair", "reward", "simpo", "cpo", "ipo")
"""Tasks whose batch counts pairs: each is two sequences."""
