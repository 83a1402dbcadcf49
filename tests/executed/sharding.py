"""Measures FSDP2, DDP and tensor parallelism on the first rank of a fake process group."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from executed.activations import FAKE
from executed.meters import Allocations, storage_key
from executed.models import build, decoder_layers
from executed.policies import executed, parse
from executed.process_group import local, ranks, sharding_is_seen, step_counts_without_numbers

Peaks = dict[str, dict[str, int]]


def run_fsdp2(
    model: str,
    layers: int,
    batch: int,
    seq: int,
    dp: int,
    reshard: str = "default",
    policy: str = "none",
    microbatches: int = 1,
    bf16_shards: bool = False,
    steps: int = 2,
) -> Peaks:
    """Measure steps of `fully_shard` on each layer and on the root, with AdamW.

    Shards are fp32 or bf16, products bf16, and gradients reduced in fp32, as torchtitan sets them. `reshard` is the
    command's word: `default` leaves the last layer and the root gathered, `never` all layers, `always` none.
    """
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with ranks(dp) as mesh, FAKE, step_counts_without_numbers():
        built = build(model, layers, "flash", torch.bfloat16 if bf16_shards else torch.float32)
        blocks = decoder_layers(built)
        with executed(built, parse(policy, layers)):
            for block in blocks:
                after = {"default": block is not blocks[-1], "never": False, "always": True}[reshard]
                fully_shard(block, mesh=mesh, mp_policy=mixed, reshard_after_forward=after)
            root = {"reshard_after_forward": True} if reshard == "always" else {}
            fully_shard(built, mesh=mesh, mp_policy=mixed, **root)
            optimizer = torch.optim.AdamW(built.parameters(), foreach=True)
            ids = torch.zeros(batch, seq, dtype=torch.long)
            meter = Allocations([ids, *map(local, built.parameters()), *built.buffers()])
            with sharding_is_seen(meter), meter:
                _train(built, optimizer, ids, meter, steps, microbatches)
    return meter.phases()


def run_ddp(model: str, layers: int, batch: int, seq: int, dp: int, dtype: str, steps: int = 3) -> Peaks:
    """Measure steps of `DistributedDataParallel` with AdamW, on real CPU tensors: its reducer is C++ and looks at its
    buckets. A communication hook hands each bucket back, as a collective that is through at once."""
    with ranks(dp):
        torch.manual_seed(0)
        built = build(model, layers, "eager", getattr(torch, dtype))
        ids = torch.zeros(batch, seq, dtype=torch.long)
        meter = Allocations([ids, *built.parameters(), *built.buffers()])
        with meter:
            meter.enter_phase("wrap")
            wrapped = torch.nn.parallel.DistributedDataParallel(built)
            wrapped.register_comm_hook(None, _hand_back)
            optimizer = torch.optim.AdamW(built.parameters(), foreach=True)
            _train(wrapped, optimizer, ids, meter, steps)
    return meter.phases()


def _hand_back(_state, bucket):  # type: ignore[no-untyped-def]  # DDP compares an annotation, which is a text here
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _train(model: Any, optimizer: Any, ids: Any, meter: Allocations, steps: int, microbatches: int = 1) -> None:
    for step in range(steps):
        for number in range(microbatches):
            meter.enter_phase(f"forward_loss {step}.{number}")
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            meter.enter_phase(f"backward {step}.{number}")
            loss.backward()
            del loss
        meter.enter_phase(f"optimizer_step {step}")
        optimizer.step()
        meter.enter_phase(f"zero_grad {step}")
        optimizer.zero_grad()


def run_tensor_parallel(model: str, layers: int, batch: int, seq: int, tp: int, sequence_parallel: bool) -> list[int]:
    """Measure the bytes that each decoder layer saves under `parallelize_module`, on one rank.

    With sequence parallelism the norms and the residual stream hold the rank's rows only.
    """
    with ranks(tp) as mesh, FAKE:
        built = build(model, layers, "flash", torch.bfloat16)
        blocks = decoder_layers(built)
        for block in blocks:
            parallelize_module(block, mesh, _sharding_plan(block, sequence_parallel))
            if hasattr(block.self_attn, "num_heads"):
                block.self_attn.num_heads //= tp
        return _saved_by_layer(built, blocks, batch, seq, seq // tp if sequence_parallel else seq)


def _sharding_plan(block: Any, sequence_parallel: bool) -> dict[str, Any]:
    plan: dict[str, Any] = {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    plan |= {f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
    if not sequence_parallel:
        return plan | {"self_attn.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        plan[name] = RowwiseParallel(output_layouts=Shard(1))
    plan["self_attn"] = PrepareModuleInput(
        input_kwarg_layouts={"hidden_states": Shard(1)}, desired_input_kwarg_layouts={"hidden_states": Replicate()}
    )
    plan["mlp"] = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    before = ("input_layernorm", "pre_feedforward_layernorm")
    after = ("post_attention_layernorm", "post_feedforward_layernorm")
    sandwich = hasattr(block, "pre_feedforward_layernorm")
    plan |= {name: SequenceParallel() for name in before if hasattr(block, name)}
    plan |= {name: SequenceParallel(use_local_output=sandwich) for name in after if hasattr(block, name)}
    return plan


def _saved_by_layer(model: Any, blocks: list[Any], batch: int, seq: int, rows: int) -> list[int]:
    """Run the layers one after another on the rank's rows, and add up what each packs first."""
    hidden_size = model.config.hidden_size
    hidden = torch.empty(batch, rows, hidden_size, dtype=torch.bfloat16, requires_grad=True) * 1
    positions = torch.arange(seq)[None]
    kind = ["sliding_attention"] if "gemma3" in model.config.model_type else []
    rope = model.model.rotary_emb(torch.empty(1, seq, hidden_size, dtype=torch.bfloat16), positions, *kind)
    owned = {storage_key(local(tensor)) for tensor in (*model.parameters(), *model.buffers())}
    saved: list[dict[int, int]] = []
    alive = []

    def pack(tensor: Any) -> Any:
        part = local(tensor)
        part = getattr(part, "elem", part)
        key = storage_key(part)
        if key not in owned and all(key not in layer for layer in saved):
            alive.append(part)
            saved[-1][key] = part.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        for block in blocks:
            saved.append({})
            hidden = block(hidden, position_embeddings=rope, attention_mask=None, position_ids=positions)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
    return [sum(layer.values()) for layer in saved]
