"""Try every model type of the installed Transformers, small: which give a ledger, and why the others do not.

    python tests/trace/coverage_models.py [--types a,b] [--again] [--output FILE]

Types already in the output are not tried again, unless asked for.

Each type runs in a process of its own, with a time limit, so that one that hangs or aborts costs only itself.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import re
import sys
from pathlib import Path
from typing import Any

SMALL: dict[str, Any] = {
    "num_hidden_layers": 5,
    "n_layer": 5,
    "n_layers": 5,
    "num_layers": 5,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "hidden_size": 64,
    "d_model": 64,
    "n_embd": 64,
    "dim": 64,
    "embed_dim": 64,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "ffn_dim": 128,
    "n_inner": 128,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": 256,
    "num_experts": 4,
    "num_local_experts": 4,
}
MISSING: dict[str, Any] = {
    "n_routed_experts": 8,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}
"""Fields that some defaults leave empty, so that the model cannot be built."""
REASONS = (
    (
        r"Unrecognized configuration class|Could not find \w+ neither",
        "a part of another model, which no auto class builds",
    ),
    (r"ImportError|requires the \w+ library|No module named", "needs a library that the trace extra does not bring"),
    (
        r"DataDependent|DynamicOutputShape|_local_scalar_dense|nonzero|NaN detected",
        "its forward looks at values (a mask's, an index's), and fake tensors have none",
    ),
    (r"the fit is off by", "its sizes follow from the length in a way that no polynomial fits"),
    (
        r"[Ii]mage|pixel|[Vv]ideo|[Aa]udio|Bbox|patch|5D tensor|spatial shapes|expected 5|expected input\[|"
        r"Given groups",
        "needs images, video or sound beside tokens, of a size that its default processor makes",
    ),
    (
        r"NoneType|missing \d+ required|must specify|have to specify|cannot be None|is required|must be provided|"
        r"_forward_unimplemented|expected 3, got 2|unexpected keyword argument|prediction_length|labels",
        "needs an input that is neither tokens nor a picture, such as a state, a prompt or labels of its own",
    ),
    (r"scalar type|dtype BFloat16", "does not run in bf16"),
    (
        r"reduction dim|split_with_sizes|size|shape|stride|dimension|Dimension|indices|index|divisible|KeyError|"
        r"Unrecognized model type",
        "its default configuration, made shallow, and the input that is made up for it do not fit together",
    ),
)
"""What an error of a traced step says of the model, the first that applies."""
REFERENCE = Path(__file__).parent.parent / "reference" / "trace_coverage.json"
SEQ, BATCH, LIMIT_S = 48, 2, 90


def small_config(model_type: str) -> Any:
    """The type's default configuration with as many fields made small as it accepts together."""
    from transformers import AutoConfig

    default = AutoConfig.for_model(model_type)
    known = {k: v for k, v in SMALL.items() if isinstance(getattr(default, k, None), int)}
    layers = {k: v for k, v in known.items() if "layer" in k}
    for fields in (known, layers, {}):
        try:
            return AutoConfig.for_model(model_type, **fields)
        except Exception:
            continue
    return default


def shallow_config(model_type: str) -> Any:
    """The type's default configuration with few layers; widths cost nothing on fake tensors."""
    from transformers import AutoConfig

    default = AutoConfig.for_model(model_type)
    fields = {k: v for k, v in SMALL.items() if "layer" in k and isinstance(getattr(default, k, None), int)}
    fields |= {k: v for k, v in MISSING.items() if hasattr(default, k) and getattr(default, k) is None}
    return AutoConfig.for_model(model_type, **fields)


def attempt(model_type: str) -> dict[str, Any]:
    """One type: with few layers, then also narrow, then as it is by default."""
    from transformers import AutoConfig

    tried: list[str] = []
    for make in (shallow_config, small_config, AutoConfig.for_model):
        try:
            return _ledger(make(model_type))
        except Exception as error:
            tried.append(f"{type(error).__name__}: {_short(error)}")
    return without(tried[0])


def _short(error: BaseException) -> str:
    """The beginning of a message, without where a module lies on this machine."""
    return re.sub(r" from '[^']*'", "", " ".join(str(error).split()))[:200]


def without(error: str) -> dict[str, Any]:
    """The record of a type that gives no ledger: why, in words, and the error itself."""
    words = next((words for pattern, words in REASONS if re.search(pattern, error)), None)
    return {"status": "no ledger", "reason": words or "its default configuration does not run", "error": error}


def _ledger(config: Any) -> dict[str, Any]:
    from actplan.basics.errors import InputError
    from actplan.profile.ledger_file import evaluate_ledger
    from actplan.profile.ledger_notes import check_verdict
    from actplan.trace import TraceOptions, fit_ledger

    options = TraceOptions(dtype="bf16", attention="sdpa")
    ledger = fit_ledger(config, options, lengths=(SEQ - 13, SEQ), batches=(BATCH,), check=[(BATCH, SEQ - 5)])
    check = ledger.checked[0]
    if check.saved_error_bytes:
        raise ValueError(f"the fit is off by {check.saved_error_bytes} bytes at a length it has not seen")
    try:
        check_verdict(ledger)
        verdict = "given"
    except InputError:
        verdict = "refused"
    return {
        "status": "ledger",
        "class": ledger.run["class"],
        "loss": ledger.run["loss"],
        "head_and_loss": ledger.end.head and ledger.end.loss,
        "verdict": verdict,
        "layer_kinds": sum(stage.role == "layer" for stage in ledger.stages.values()),
        "saved_error_bytes": check.saved_error_bytes,
        "peak_error": check.peak_error,
        "saved_bytes": evaluate_ledger(ledger, BATCH, SEQ - 5).saved_bytes,
        "notes": list(ledger.notes),
    }


def _child(model_type: str, pipe: Any) -> None:
    import resource

    import torch

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    try:
        pipe.send(attempt(model_type))
    except BaseException as error:
        pipe.send(without(f"{type(error).__name__}: {_short(error)}"))


def in_process(model_type: str, limit_s: float = 6 * LIMIT_S) -> dict[str, Any]:
    """`attempt` in a forked process."""
    ours, theirs = mp.get_context("fork").Pipe()
    child = mp.get_context("fork").Process(target=_child, args=(model_type, theirs))
    child.start()
    theirs.close()
    try:
        slow: dict[str, Any] = {"status": "no ledger", "reason": f"takes more than {limit_s:.0f} s"}
        found: dict[str, Any] = ours.recv() if ours.poll(limit_s) else slow
    except EOFError:
        found = {"status": "no ledger", "reason": f"takes more than {LIMIT_S} s of one core, or more memory"}
    child.kill()
    child.join()
    return found


def model_types() -> dict[str, str]:
    """Every model type -> what it is: `text` for one with a language-model class, else `other`."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return {name: "text" if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else "other" for name in CONFIG_MAPPING_NAMES}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--output", default=str(REFERENCE))
    options = parser.parse_args(arguments)
    import torch
    import transformers

    _warm()
    kinds = model_types()
    every = sorted(kinds, key=lambda name: (kinds[name] != "text", name))
    path = Path(options.output)
    known: dict[str, Any] = {}
    if path.exists() and not options.again:
        known = json.loads(path.read_text(encoding="utf-8"))["models"]
    results = {name: known[name] for name in every if name in known}
    chosen = options.types.split(",") if options.types else [name for name in every if name not in results]
    for model_type in chosen:
        results[model_type] = {"kind": kinds.get(model_type, "other"), **in_process(model_type)}
        print(model_type, results[model_type], flush=True)
        _write(path, results, torch.__version__, transformers.__version__)


def _warm() -> None:
    """Import what every child needs, once; no backward here: autograd's threads do not survive a fork."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import AutoConfig, AutoModelForCausalLM

    import actplan.trace.fit  # noqa: F401

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", num_hidden_layers=1))
        model(torch.zeros(1, 8, dtype=torch.long))


def _write(path: Path, results: dict[str, Any], torch_version: str, transformers_version: str) -> None:
    ok = sum(r["status"] == "ledger" for r in results.values())
    body = {
        "torch": torch_version,
        "transformers": transformers_version,
        "batch": BATCH,
        "lengths": [SEQ - 13, SEQ],
        "checked_at": SEQ - 5,
        "with_ledger": ok,
        "with_head_and_loss": sum(r.get("head_and_loss", False) for r in results.values()),
        "without": len(results) - ok,
        "models": results,
    }
    whole = path.with_suffix(".tmp")
    whole.write_text(json.dumps(body, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    whole.replace(path)


if __name__ == "__main__":
    main(sys.argv[1:])
