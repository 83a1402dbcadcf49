"""Megatron-LM's arguments -> the options of `actplan estimate --stack megatron`. Defaults are those of
megatron/training/arguments.py (Megatron-Core 0.16.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ..basics.errors import InputError
from ..configs.files import Source
from ..configs.megatron import read_arguments
from ..training.megatron import MegatronOptions
from .records import UnexpressedError
from .shapes import flattened, nearest

BASES = ("llama-3-8b", "llama-2-7b", "qwen3-8b", "gpt2")
LATENT, EXPERTS = ("deepseek-v3",), ("qwen3-30b-a3b", "mixtral-8x7b")
NOT_PLANNED = {
    "export-kd-teacher-load": "a distillation teacher is a second model, described elsewhere",
    "hybrid-override-pattern": "hybrid models",
    "hybrid-layer-pattern": "hybrid models",
    "mtp-num-layers": "multi-token prediction",
    "encoder-num-layers": "an encoder and a decoder",
    "fp8-format": "products in 8 bits",
    "fp8-recipe": "products in 8 bits",
    "use-megatron-fsdp": "Megatron-FSDP's buffers",
    "use-torch-fsdp2": "FSDP2 under Megatron-LM",
    "moe-token-drop-policy": "tokens that are dropped",
    "defer-embedding-wgrad-compute": "the embedding's gradient, put off to the end of the step",
    "recompute-granularity-per-stage-micro-batch": "a recomputation of its own for each micro-batch",
    "cpu-offloading-num-layers": "layers whose activations are offloaded",
    "microbatch-group-size-per-virtual-pipeline-stage": "a group of micro-batches that is not the pipeline's length",
}
"""Arguments that change memory and have no option here."""
SWITCHES = {
    "no-gradient-accumulation-fusion": "gradient_accumulation_fusion=false",
    "no-bias-gelu-fusion": "bias_activation_fusion=false",
    "no-bias-swiglu-fusion": "bias_activation_fusion=false",
    "no-bias-dropout-fusion": "bias_dropout_fusion=false",
    "no-masked-softmax-fusion": "masked_softmax_fusion=false",
    "no-rope-fusion": "apply_rope_fusion=false",
}
BACKENDS = {"unfused": "eager", "flash": "flash", "fused": "cudnn", "auto": "cudnn", "local": "eager"}
OPTIMIZERS = {"adam": None, "sgd": "sgd-momentum", "muon": "muon"}


class Arguments:
    """Arguments by name, with dashes; a value of the wrong kind is one that cannot be expressed."""

    def __init__(self, given: Mapping[str, object]) -> None:
        self.values = {str(name).lstrip("-").replace("_", "-"): value for name, value in given.items()}

    def number(self, name: str, default: int | None = None) -> int:
        """Return a whole number from 1."""
        value = self.values.get(name, default)
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value[:20])
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UnexpressedError(f"--{name} is not a positive whole number: {str(value)[:40]}")
        return value

    def share(self, name: str, default: float) -> float:
        """Return a number such as a dropout's."""
        value = self.values.get(name, default)
        if not isinstance(value, int | float):
            raise UnexpressedError(f"--{name} is not a number: {str(value)[:40]}")
        return float(value)

    def flag(self, name: str) -> bool:
        """Return whether a switch is on."""
        return self.values.get(name, False) not in (False, None, "false", "False", 0)

    def word(self, name: str, default: str) -> str:
        """Return a word."""
        value = self.values.get(name, default)
        return value if isinstance(value, str) else default


def megatron_words(
    given: Mapping[str, object], ranks: int, device: str, vocabulary: int | None = None
) -> tuple[str, ...]:
    """Return the options of the run that these arguments start on so many ranks.

    vocabulary: padded, where the source says it. Raises UnexpressedError for what no option says.
    """
    args = Arguments(given)
    for name, what in NOT_PLANNED.items():
        if args.flag(name):
            raise UnexpressedError(f"--{name}: {what}")
    if args.number("num-distributed-optimizer-instances", 1) > 1:
        raise UnexpressedError("--num-distributed-optimizer-instances: shards of several instances")
    mesh = _mesh(args, ranks)
    return (
        *_model(args, vocabulary),
        *("--stack", "megatron", *(word for text in _settings(args) for word in ("--stack-set", text))),
        *("--seq", str(args.number("seq-length", 1024)), "--batch", str(args.number("micro-batch-size", 1))),
        *("--attention", _attention(args, device), *_recompute(args)),
        *(word for name, degree in mesh.items() if degree > 1 for word in (f"--{name}", str(degree))),
        *(("--sp",) if args.flag("sequence-parallel") and mesh["tp"] > 1 else ()),
        *_recipe(args),
        *_micro_batches(args, mesh),
        *_split(args, mesh["pp"]),
        *("--gpu", device),
    )


def _mesh(args: Arguments, ranks: int) -> dict[str, int]:
    tp = args.number("tensor-model-parallel-size", 1)
    pp = args.number("pipeline-model-parallel-size", 1)
    cp = args.number("context-parallel-size", 1)
    if ranks % (tp * pp * cp):
        raise UnexpressedError(f"{ranks} ranks are not tp × pp × cp = {tp} × {pp} × {cp} times a whole number")
    found = {"dp": ranks // (tp * pp * cp), "tp": tp, "cp": cp, "pp": pp, "vpp": _virtual(args, pp)}
    if args.values.get("num-experts"):
        found["ep"] = args.number("expert-model-parallel-size", 1)
        found["etp"] = args.number("expert-tensor-parallel-size", tp)
    return found


def _virtual(args: Arguments, pp: int) -> int:
    if args.values.get("num-virtual-stages-per-pipeline-rank") is not None:
        return args.number("num-virtual-stages-per-pipeline-rank")
    if args.values.get("num-layers-per-virtual-pipeline-stage") is None or pp == 1:
        return 1
    return args.number("num-layers") // (pp * args.number("num-layers-per-virtual-pipeline-stage"))


def _model(args: Arguments, vocabulary: int | None) -> tuple[str, ...]:
    """The sizes as `configs.megatron_model` reads them, and what only Megatron's own layers tell apart."""
    try:
        document = read_arguments(args.values, Source(Path("arguments"), "arguments")).document
    except InputError as error:
        raise UnexpressedError(error.message()) from None
    if document is None:
        raise UnexpressedError("the model's sizes are not all in the arguments")
    if "moe" in document and not args.flag("swiglu"):
        raise UnexpressedError("--num-experts without --swiglu: experts without a gate")
    if "kinds" in document:
        raise UnexpressedError("--moe-layer-freq: layers with and without experts")
    learned = args.word("position-embedding-type", "learned_absolute") == "learned_absolute"
    dropout = args.share("hidden-dropout", 0.1)
    fields = {
        **flattened(document, given_only=True),
        "rope.fraction": args.share("rotary-percent", 1.0),
        "residual.dropout": dropout,
        "embedding.dropout": dropout,
        "embedding.max_position_embeddings": (
            args.number("max-position-embeddings", args.number("seq-length", 1024)) if learned else None
        ),
    }
    for name in ("fused_qkv", "qkv_layout"):
        fields.pop(f"attention.{name}", None)  # Megatron's layers fuse them whatever the model says
    if vocabulary is not None:
        fields["vocab_size"] = vocabulary
    if "mlp" in document:
        gated = args.flag("swiglu")
        plain = "relu2" if args.flag("squared-relu") else "gelu"
        fields |= {"mlp.gated": gated, "mlp.activation": "silu" if gated else plain}
        fields["mlp.bias"] = not args.flag("disable-bias-linear")
    if "latent_attention" in document:
        count = args.number("num-layers")
        kind = "latent_attention" if "moe" in document else "latent_attention_dense"
        return nearest({**fields, "layers": f"{count} x {kind}"}, LATENT)
    return nearest(fields, EXPERTS if "moe" in document else BASES)


def _settings(args: Arguments) -> Iterator[str]:
    """What the stack's own options say, each by Megatron's name for it."""
    for name, text in SWITCHES.items():
        if args.flag(name):
            yield text
    for name in MegatronOptions.__struct_fields__:
        value = args.values.get(name.replace("_", "-"))
        if value is not None and not (name == "transformer_impl" and value == "transformer_engine"):
            yield f"{name}={str(value).lower() if isinstance(value, bool) else value}"


def _attention(args: Arguments, device: str) -> str:
    if args.word("transformer-impl", "transformer_engine") == "local":
        return "eager"
    backend = args.word("attention-backend", "auto")
    if backend not in BACKENDS:
        raise UnexpressedError(f"--attention-backend {backend}")
    # cuDNN's kernel comes first on Hopper and Blackwell, FlashAttention before (TE, get_attention_backend)
    return "flash" if backend == "auto" and device.startswith("a100") else BACKENDS[backend]


def _recompute(args: Arguments) -> tuple[str, ...]:
    granularity = args.values.get("recompute-granularity")
    if granularity is None:
        return ("--checkpoint", "modules:core_attn") if args.flag("recompute-activations") else ()
    if granularity == "selective":
        modules = args.values.get("recompute-modules", ["core_attn"])
        named = modules.split() if isinstance(modules, str) else modules if isinstance(modules, list) else ["core_attn"]
        return ("--checkpoint", f"modules:{','.join(map(str, named))}")
    count, method = args.number("recompute-num-layers", 1), args.word("recompute-method", "uniform")
    if method == "block":
        return ("--checkpoint", f"first:{count}")
    return ("--checkpoint", "layer" if count == 1 else f"every:{count}")


def _recipe(args: Arguments) -> tuple[str, ...]:
    name = args.word("optimizer", "adam")
    if name not in OPTIMIZERS:
        raise UnexpressedError(f"--optimizer {name}")
    optimizer = OPTIMIZERS[name]
    distributed = args.flag("use-distributed-optimizer")
    aware, low = args.flag("use-precision-aware-optimizer"), args.flag("grad-reduce-in-bf16")
    if args.flag("bf16"):
        recipe = "megatron-bf16-aware" if aware else "megatron-bf16-grads" if low else "megatron-bf16-dist"
        if not distributed:
            if low or aware:
                raise UnexpressedError("gradients in bf16 without the distributed optimizer")
            recipe = "megatron-bf16"
    elif distributed:
        raise UnexpressedError("the distributed optimizer in a type other than bf16")
    else:
        recipe = "megatron-fp16" if args.flag("fp16") else "megatron-fp32"
    return ("--recipe", recipe, *(("--optimizer", optimizer) if optimizer else ()))


def _micro_batches(args: Arguments, mesh: Mapping[str, int]) -> tuple[str, ...]:
    if "global-batch-size" not in args.values:
        return ()
    each = args.number("micro-batch-size", 1) * mesh["dp"]
    total = args.number("global-batch-size")
    if total % each:
        raise UnexpressedError(f"{total} sequences are not whole micro-batches of {each}")
    return ("--microbatches", str(total // each)) if total // each > 1 else ()


def _split(args: Arguments, pp: int) -> tuple[str, ...]:
    """How layers are dealt to pipeline stages, where that is not evenly."""
    parts = []
    for end in ("first", "last"):
        name = f"decoder-{end}-pipeline-num-layers"
        if args.values.get(name) is not None:
            parts.append(f"{end}={args.number(name)}")
    parts += [part for part in ("embedding", "loss") if args.flag(f"account-for-{part}-in-pipeline-split")]
    return ("--pp-split", ",".join(parts)) if parts and pp > 1 else ()


def device_of(text: str) -> str:
    """Return the device of a machine's name such as dev_dgx_h100."""
    return "gb200" if "gb200" in text else "h100-80gb" if "h100" in text else "a100-80gb"
