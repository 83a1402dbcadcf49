"""Megatron-LM's arguments -> what `states` needs: the GPT model's parameters, the mesh, the recipe, the
layer split.

Accepts the arguments as a mapping (a YAML file's `MODEL_ARGS`, a checkpoint's `args`), keys with or without
the leading dashes, `-` or `_`. Defaults are those of megatron/training/arguments.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from megatron_gpt import GptShape, MlaShape, MoeShape, gpt_units

from actplan.basics.errors import InputError
from actplan.basics.units import BF16, FP16, FP32, DType, parse_dtype
from actplan.memory.gpus import Gpu, library_workspace
from actplan.memory.states import PipelineSplit, States, Unit, states
from actplan.training.mesh import Mesh
from actplan.training.optimizers import OPTIMIZERS, AdamW, Optimizer, Sgd
from actplan.training.recipes import MEGATRON_BF16, MEGATRON_FP16, MEGATRON_FP32, Recipe
from actplan.training.sharding import MegatronDdp

GPT2_VOCABULARY = 50257
"""Of the tokenizer GPT2BPETokenizer, where no vocabulary is given."""
_OPTIMIZERS: dict[str, Optimizer] = {
    "adam": AdamW("fused"),
    "sgd": Sgd(momentum=True),
}
_UNKNOWN_MODELS = {
    "export-kd-teacher-load": "a distillation teacher is a second model, described elsewhere",
    "hybrid-override-pattern": "hybrid models are not GPT models",
    "mtp-num-layers": "multi-token prediction layers",
}


@dataclass(frozen=True, slots=True)
class MegatronRun:
    """A run of Megatron-LM's GPT.

    Attributes:
        transformer_engine: its linear layers bring a workspace of their own.
        deterministic: `--deterministic-mode` needs CUBLAS_WORKSPACE_CONFIG=:4096:8.
        boundary_bytes: the hidden states of one micro-batch that one stage hands to the next.
        attention_buffer_bytes: the global memory buffer for the scores of local, unfused attention.
    """

    shape: GptShape
    mesh: Mesh
    recipe: Recipe
    split: PipelineSplit
    transformer_engine: bool
    deterministic: bool
    boundary_bytes: int
    attention_buffer_bytes: int

    def units(self) -> tuple[Unit, ...]:
        """The whole model, as one rank's tensor- and expert-parallel share."""
        return gpt_units(self.shape, self.mesh)

    def states(self, stage: int = -1) -> States:
        """One rank of a pipeline stage; negative stages count from the last."""
        at = stage if stage >= 0 else self.mesh.pp + stage
        return states(
            self.units(),
            self.recipe,
            self.mesh,
            stage=at,
            split=self.split,
            boundary_bytes=self.boundary_bytes,
        )

    def static_bytes(self, gpu: Gpu | None = None, stage: int = -1) -> int:
        """What is allocated after a step: the states, and on a given GPU the library workspaces that PyTorch
        and Transformer Engine keep in the allocator (`library_workspace`), and the local attention's
        buffer."""
        total = self.states(stage).total_bytes("after_step")
        if gpu is None:
            return total
        kept = library_workspace(gpu, deterministic=self.deterministic, transformer_engine=self.transformer_engine)
        return total + kept.low + self.attention_buffer_bytes


def read_megatron(
    arguments: Mapping[str, object], world_size: int, *, padded_vocabulary: int | None = None
) -> MegatronRun:
    """The run that these arguments start on `world_size` ranks."""
    args = _Arguments(arguments)
    for name, why in _UNKNOWN_MODELS.items():
        if args.flag(name):
            raise InputError(f"is not read: {why}", where=f"--{name}")
    mesh = _mesh(args, world_size)
    shape = _shape(args, mesh, padded_vocabulary)
    dtype = _dtype(args)
    micro, length = args.number("micro-batch-size", 1), args.number("seq-length", 1024)
    tokens = micro * mesh.divide(length, "cp", "the sequence length")
    rows = tokens // mesh.tp if mesh.sp else tokens
    local = args.word("transformer-impl", "transformer_engine") == "local"
    scores = micro * shape.num_attention_heads // mesh.tp * (length // mesh.cp) ** 2 * dtype.itemsize
    return MegatronRun(
        shape=shape,
        mesh=mesh,
        recipe=_recipe(args, dtype),
        split=_split(args),
        transformer_engine=not local,
        deterministic=args.flag("deterministic-mode"),
        boundary_bytes=rows * shape.hidden_size * dtype.itemsize,
        attention_buffer_bytes=scores if local else 0,
    )


class _Arguments:
    """Reads arguments by name; a value of the wrong kind is an error that names it."""

    def __init__(self, raw: Mapping[str, object]) -> None:
        self.values = {str(key).lstrip("-").replace("_", "-"): value for key, value in raw.items()}

    def number(self, name: str, default: int | None = None) -> int:
        value = self.values.get(name, default)
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value[:20])
        if value is None:
            raise InputError("is missing", where=f"--{name}")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{value!r} is not a positive whole number", where=f"--{name}")
        return value

    def optional(self, name: str) -> int | None:
        return self.number(name) if self.values.get(name) is not None else None

    def flag(self, name: str) -> bool:
        value = self.values.get(name, False)
        return bool(value) and value not in ("false", "False")

    def word(self, name: str, default: str) -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str):
            raise InputError(f"{value!r} is not a word", where=f"--{name}")
        return value


def _mesh(args: _Arguments, world_size: int) -> Mesh:
    tp = args.number("tensor-model-parallel-size", 1)
    pp = args.number("pipeline-model-parallel-size", 1)
    cp = args.number("context-parallel-size", 1)
    ep = args.number("expert-model-parallel-size", 1)
    etp = args.number("expert-tensor-parallel-size", tp)
    if world_size % (tp * pp * cp):
        raise InputError(f"{world_size} ranks cannot be divided into tp × pp × cp = {tp} × {pp} × {cp}")
    dense = not args.values.get("num-experts")
    return Mesh(
        dp=world_size // (tp * pp * cp),
        tp=tp,
        sp=args.flag("sequence-parallel") and tp > 1,
        cp=cp,
        pp=pp,
        vpp=_virtual(args, pp),
        ep=1 if dense else ep,
        etp=1 if dense else etp,
    )


def _virtual(args: _Arguments, pp: int) -> int:
    chunks = args.optional("num-virtual-stages-per-pipeline-rank")
    if chunks is not None:
        return chunks
    layers = args.optional("num-layers-per-virtual-pipeline-stage")
    if layers is None or pp == 1:
        return 1
    total = args.number("num-layers")
    if total % (pp * layers):
        raise InputError(
            f"{total} layers cannot be divided into {pp} stages with chunks of {layers}",
            where="--num-layers-per-virtual-pipeline-stage",
        )
    return total // (pp * layers)


def _shape(args: _Arguments, mesh: Mesh, padded_vocabulary: int | None) -> GptShape:
    hidden, heads = args.number("hidden-size"), args.number("num-attention-heads")
    gated = args.flag("swiglu")
    intermediate = args.optional("ffn-hidden-size")
    if intermediate is None:
        # arguments.py, validate_args: two thirds of 4 h, down to a multiple of 64, for a gated unit
        intermediate = (4 * hidden * 2 // 3) // 64 * 64 if gated else 4 * hidden
    grouped = args.flag("group-query-attention")
    return GptShape(
        num_layers=args.number("num-layers"),
        hidden_size=hidden,
        num_attention_heads=heads,
        num_query_groups=args.number("num-query-groups", 1) if grouped else heads,
        head_dim=args.number("kv-channels", max(hidden // heads, 1)),
        intermediate_size=intermediate,
        vocabulary=padded_vocabulary or _padded_vocabulary(args, mesh.tp),
        positions=_positions(args),
        gated=gated,
        bias=not args.flag("disable-bias-linear"),
        qkv_bias=args.flag("add-qkv-bias") or not args.flag("disable-bias-linear"),
        norm_bias=args.word("normalization", "LayerNorm") != "RMSNorm",
        qk_norm=args.flag("qk-layernorm"),
        untied=args.flag("untie-embeddings-and-output-weights"),
        mla=_mla(args),
        moe=_moe(args, intermediate),
        dtype=_dtype(args),
    )


def _padded_vocabulary(args: _Arguments, tp: int) -> int:
    """tokenizer/tokenizer.py, `_vocab_size_with_padding`: up to a multiple of 128 · tp. NullTokenizer adds
    one."""
    size = args.number("vocab-size", GPT2_VOCABULARY)
    size += args.word("tokenizer-type", "GPT2BPETokenizer") == "NullTokenizer"
    multiple = args.number("make-vocab-size-divisible-by", 128) * tp
    return -(-size // multiple) * multiple


def _positions(args: _Arguments) -> int:
    learned = args.word("position-embedding-type", "learned_absolute") == "learned_absolute"
    return args.number("max-position-embeddings", args.number("seq-length", 1024)) if learned else 0


def _mla(args: _Arguments) -> MlaShape | None:
    if not args.flag("multi-latent-attention"):
        return None
    return MlaShape(
        q_lora_rank=args.optional("q-lora-rank"),
        kv_lora_rank=args.number("kv-lora-rank", 32),
        qk_head_dim=args.number("qk-head-dim", 128),
        qk_pos_emb_head_dim=args.number("qk-pos-emb-head-dim", 64),
        v_head_dim=args.number("v-head-dim", 128),
    )


def _moe(args: _Arguments, intermediate: int) -> MoeShape | None:
    experts = args.optional("num-experts")
    if experts is None:
        return None
    frequency = args.values.get("moe-layer-freq", 1)
    return MoeShape(
        num_experts=experts,
        intermediate_size=args.number("moe-ffn-hidden-size", intermediate),
        shared_intermediate_size=args.optional("moe-shared-expert-intermediate-size") or 0,
        pattern=_pattern(frequency, args.number("num-layers")),
    )


def _pattern(frequency: object, num_layers: int) -> tuple[bool, ...]:
    """`N` (every N-th layer, from the first), or a list as `([0]*1+[1]*15)`."""
    if isinstance(frequency, int) and not isinstance(frequency, bool) and frequency > 0:
        return tuple(i % frequency == 0 for i in range(num_layers))
    flags: list[bool] = []
    for part in str(frequency).strip("() ").split("+"):
        items, _, times = part.partition("*")
        digits = [d.strip() for d in items.strip("[] ").split(",")]
        if not all(d in ("0", "1") for d in digits) or (times and not times.strip().isdigit()):
            raise InputError(f"{frequency!r} is not a pattern", where="--moe-layer-freq", allowed="N or ([0]*1+[1]*15)")
        flags.extend([d == "1" for d in digits] * int(times or "1"))
    if len(flags) != num_layers:
        raise InputError(f"{len(flags)} entries for {num_layers} layers", where="--moe-layer-freq")
    return tuple(flags)


def _dtype(args: _Arguments) -> DType:
    if args.flag("bf16"):
        return BF16
    return FP16 if args.flag("fp16") else FP32


def _recipe(args: _Arguments, dtype: DType) -> Recipe:
    sharding = MegatronDdp(
        distributed_optimizer=args.flag("use-distributed-optimizer"),
        instances=args.number("num-distributed-optimizer-instances", 1),
        overlap=args.flag("overlap-grad-reduce"),
        full_shard=args.flag("use-megatron-fsdp")
        and args.word("data-parallel-sharding-strategy", "no_shard") == "optim_grads_params",
    )
    base = {BF16: MEGATRON_BF16, FP16: MEGATRON_FP16, FP32: MEGATRON_FP32}[dtype]
    if dtype == BF16 and args.flag("grad-reduce-in-bf16"):
        base = replace(base, gradients=BF16, step_gradients=FP32, step_gradients_stay=True)
    name = args.word("optimizer", "adam")
    if name not in _OPTIMIZERS:
        raise InputError(f"{name!r} is not read", where="--optimizer", choices=_OPTIMIZERS, got=name)
    if args.flag("use-precision-aware-optimizer"):
        base = _precision_aware(args, base, sharding, name)
        return replace(base, sharding=sharding, fused_accumulation=not args.flag("no-gradient-accumulation-fusion"))
    return replace(
        base,
        optimizer=_OPTIMIZERS[name],
        sharding=sharding,
        fused_accumulation=not args.flag("no-gradient-accumulation-fusion"),
    )


def _precision_aware(args: _Arguments, base: Recipe, sharding: MegatronDdp, name: str) -> Recipe:
    """Transformer Engine's FusedAdam over gradients as they are, with moments and master weights in types of their own
    (megatron/core/optimizer/optimizer_config.py)."""
    if name != "adam" or not sharding.distributed_optimizer:
        wrong = "the precision-aware optimizer is Adam with the distributed optimizer"
        raise InputError(wrong, where="--use-precision-aware-optimizer", allowed="--use-distributed-optimizer")
    master = parse_dtype(args.word("main-params-dtype", "fp32"), "--main-params-dtype")
    moments = [parse_dtype(args.word(f"{name}-dtype", "fp32"), f"--{name}-dtype") for name in ("exp-avg", "exp-avg-sq")]
    return replace(
        base,
        master=None if base.master is None else master,
        remainders=base.weights == BF16 and master == FP32,
        step_gradients=None,
        step_gradients_stay=False,
        optimizer=AdamW("fused", state=moments[0], squares=moments[1], source=OPTIMIZERS["adamw-bf16"].source),
    )


def _split(args: _Arguments) -> PipelineSplit:
    return PipelineSplit(
        first=args.optional("decoder-first-pipeline-num-layers"),
        last=args.optional("decoder-last-pipeline-num-layers"),
        embedding=args.flag("account-for-embedding-in-pipeline-split"),
        loss=args.flag("account-for-loss-in-pipeline-split"),
    )
