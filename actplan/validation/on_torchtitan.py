"""Runs of torchtitan: FSDP2 over fp32 shards, bf16 compute, fp32 reduction."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .records import Fields, Record, UnexpressedError
from .shapes import model_words

SEPARATE, FUSED = ("wq", "wk", "wv", "wo", "w1", "w3", "w2"), ("wqkv", "wo", "w1", "w3", "w2")
"""The products of a block in the order in which it runs them, with q, k and v apart or in one."""


def words(record: Fields) -> tuple[str, ...]:
    """Return the options of a run. Raises UnexpressedError where the record says too little, or what has no option."""
    values = record.values
    dims = values.get("dims") if isinstance(values.get("dims"), dict) else None
    model = model_words(dims, record.text("model"))  # type: ignore[arg-type]
    for name in ("seq", "micro_batch"):
        if not isinstance(values.get(name), int):
            raise UnexpressedError(f"{name.replace('_', ' ')} is not a number in the record")
    return (
        *(*model, "--stack", "torchtitan", "--stack-set", "fuse_qkv=false", "--attention", "sdpa"),
        *("--seq", str(values["seq"]), "--batch", str(values["micro_batch"])),
        *("--checkpoint", _checkpoint(str(values.get("checkpointing")))),
        *(
            *_loss(record),
            *_mesh(record),
            "--recipe",
            "fsdp",
            "--optimizer",
            "adamw-fused",
            "--allocator",
            "expandable",
        ),
    )


def per_op(products: Sequence[str]) -> str:
    """Return the policy of per-op checkpointing: attention, and every second product from the first on
    (torchtitan/distributed/activation_checkpoint.py, SelectiveAC)."""
    return f"selective:attention,{','.join(products[::2])}"


def _checkpoint(text: str) -> str:
    if text.startswith("none"):
        return "none"
    if text.startswith(("full", "layer")):
        return "layer"
    if re.match(r"selective( \(?op\b|$)", text):
        return per_op(SEPARATE)
    raise UnexpressedError(f"checkpointing is not said: {text}")


def _loss(record: Fields) -> tuple[str, ...]:
    text = str(record.values.get("loss")).lower()
    if "chunked" in text:
        return ("--loss", "torchtitan")
    if "naive" not in text:
        raise UnexpressedError(f"no loss of that name: {text}")
    return ("--loss", "naive")


def _degrees(record: Fields) -> dict[str, object]:
    return dict(record.mapping("parallelism"))


def _mesh(record: Fields) -> tuple[str, ...]:
    degrees = _degrees(record)
    if degrees.get("pp", 1) != 1:
        raise UnexpressedError("the micro-batches of the pipeline are not in the record")
    found = ["--dp", str(degrees.get("fsdp", degrees.get("dp", 1)))]
    for name in ("tp", "cp", "ep"):
        if degrees.get(name, 1) != 1:
            found += [f"--{name}", str(degrees[name])]
    if degrees.get("tp", 1) != 1:
        found.append("--sp")
    reshard = degrees.get("reshard_after_forward")
    if reshard is not None:
        found += ["--reshard", "always" if reshard is True else str(reshard).split()[0]]
    return tuple(found)


# --- torchtitan_autograd.json ---------------------------------------------------------------------------------

TOTALS = ("end_forward_bytes", "peak_forward_bytes", "peak_backward_bytes")
POLICIES = {"none": "none", "full": "layer", "selective": per_op(FUSED), "layer2": "one-in:2"}
EVERY = {"none": 0, "full": 1, "selective": 1, "layer2": 2}
"""Which layers each checkpoints: every one, every second, none."""
LOSSES = {"plain": "naive", "chunked": "torchtitan"}


def read_trace(record: Fields, config: Callable[[str], str]) -> Record:
    """Return a traced run of one rank as a record.

    Its PyTorch has no CUDA, so that SiLU's backward is composed of other ops. Its ledger counts what a checkpoint keeps
    where that was made, ours where it is kept."""
    args = record.inside("args")
    reason: str | None = None
    options: tuple[str, ...] = ()
    try:
        options = _traced(args, record.inside("versions").text("torch"))
    except UnexpressedError as error:
        reason = str(error)
    measured = record.sizes(TOTALS if args.values.get("no_logits") else ("saved_bytes", *TOTALS))
    layers = _layers(record) if reason is None else []
    measured |= {f"layer_saved_bytes:{number}": size for number, size in enumerate(layers)}
    return Record(
        id=record.text("id"),
        source=f"torchtitan {record.inside('versions').text('torchtitan')}, fake tensors",
        group="torchtitan, traced",
        measured=measured,
        words=options,
        reason=reason,
    )


def _traced(args: Fields, torch: str) -> tuple[str, ...]:
    model = model_words(None, f"torchtitan/{args.text('model')}-{args.text('flavor')}")
    policy, loss = args.text("ac"), args.text("loss")
    if policy not in POLICIES or loss not in LOSSES:
        raise UnexpressedError(f"no policy {policy} or no loss {loss}")
    return (
        *(*model, "--set", f"num_layers={args.number('layers')}", "--stack", "torchtitan"),
        *("--seq", str(args.number("seq")), "--batch", str(args.number("mbs")), "--attention", args.text("attn")),
        *("--checkpoint", POLICIES[policy]),
        *(("--loss-chunks", str(args.number("chunks"))) if loss == "chunked" else ()),
        *("--loss", "none" if args.values.get("no_logits") else LOSSES[loss]),
        *(("--stack-set", "silu_backward=composite") if torch.endswith("+cpu") else ()),
    )


def _layers(record: Fields) -> list[int]:
    """Return the saved bytes of each layer; a checkpointed layer's input belongs to it, and not to what made it."""
    args = record.inside("args")
    found = {int(name.rpartition(".")[2]): int(str(size)) for name, size in record.mapping("layer_saved_bytes").items()}
    sizes = [found.get(number, 0) for number in range(args.number("layers"))]
    every = EVERY[args.text("ac")]
    boundary = int(str(record.mapping("outside_layers").get("tok_embeddings", 0)))
    for number in range(0, len(sizes), every) if every else ():
        sizes[number] += boundary
        if number:
            sizes[number - 1] -= boundary
    return sizes
