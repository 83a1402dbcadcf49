"""A plan as a short module of PyTorch that checkpoints exactly its segments.

The module is for any model whose decoder layers stand in a list and take the hidden states first and return them:
Transformers' (`model.model.layers`, transformers/models/*/modeling_*.py, 5.24) and most loops of one's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...training.policies import Segment

MATMULS = ("mm", "addmm", "bmm", "_grouped_mm", "convolution")
HEAD = '''"""Checkpoints {what}.

Written by `actplan export --to torch`. Call `apply(model.model.layers)` once, before training, on decoder layers that
take the hidden states first and return them. Parameters keep their names; `gradient_checkpointing` stays off.
"""

import torch
from torch.utils.checkpoint import checkpoint{imports}

SEGMENTS = {segments}
"""First and last layer of each checkpointed segment; layers in none are stored."""
'''
BODY = '''

def apply(layers):
    """Checkpoint the segments of a list of {count} layers, in place."""
    if len(layers) != {count}:
        raise ValueError(f"the plan is for {count} layers, not {{len(layers)}}")
    for first, last in SEGMENTS:
        calls = []
        for i in range(first, last + 1):
            layers[i].forward = _deferred(layers[i], calls, i == last{kept_argument})


def _deferred(layer, calls, last{kept_parameter}):
    """A layer's forward: all but the last of a segment only note their call, the last runs all of them."""
    own = layer.forward

    def forward(hidden, *args, **kwargs):
        if not (torch.is_grad_enabled() and layer.training):
            return own(hidden, *args, **kwargs)
        calls.append((own, args, kwargs))
        if not last:
            return hidden
        noted = list(calls)
        calls.clear()

        def segment(hidden):{reset}
            for run, args, kwargs in noted:
                hidden = run(hidden, *args, **kwargs)
            return hidden

        return checkpoint(segment, hidden, use_reentrant=False{context})

    return forward
'''
KEPT = '''
KEPT = {kept}
"""Layer -> what it keeps of its outputs: attention's and products' by their op, others by their module."""
_ATTENTION = ("scaled_dot_product", "flash_attn")
_MATMULS = {matmuls}


def _contexts(layer, words, inside):
    """The contexts of a selective checkpoint; `inside` is not empty while a module that is named runs."""
    for name, module in layer.named_modules():
        if any(name == word or name.endswith("." + word) for word in words):
            module.register_forward_pre_hook(lambda *_: inside.append(True))
            module.register_forward_hook(lambda *_: inside.pop() and None)

    def policy(ctx, op, *args, **kwargs):
        name = str(op).removeprefix("aten.").split(".")[0]
        attends = any(word in str(op) for word in _ATTENTION)
        product = name in _MATMULS
        keeps = ("attention" in words and attends) or ("matmul" in words and product) or (inside and product)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return lambda: create_selective_checkpoint_contexts(policy)

'''


def module(segments: Sequence[Segment], keeps: Mapping[int, frozenset[str]], count: int, what: str) -> str:
    """Return the text of the module.

    Args:
        segments: (first, last) of each, both included. keeps: a segment's first layer -> what it keeps.
        count: layers of the model. what: the model and the policy, for the first line.
    """
    kept = {first: tuple(sorted(words)) for first, words in keeps.items() if words}
    imports = ", CheckpointPolicy, create_selective_checkpoint_contexts" if kept else ""
    text = HEAD.format(what=what, imports=imports, segments=_tuple([f"({a}, {b})" for a, b in segments]))
    if kept:
        listed = "{" + ", ".join(f"{i}: {words!r}" for i, words in sorted(kept.items())) + "}"
        text += KEPT.format(kept=listed, matmuls=repr(MATMULS)).rstrip("\n") + "\n"
    body = BODY.format(
        count=count,
        kept_argument=", KEPT.get(i, ())" if kept else "",
        kept_parameter=", words" if kept else "",
        context=", **more" if kept else "",
        reset="\n            inside.clear()  # a replay stops early, inside of a module" if kept else "",
    )
    if kept:
        body = body.replace(
            "    own = layer.forward\n",
            "    own, inside = layer.forward, []\n"
            '    more = {"context_fn": _contexts(layer, words, inside)} if words else {}\n',
        )
    return text + body


def _tuple(items: Sequence[str]) -> str:
    return "(" + "".join(f"{item}, " for item in items).rstrip(" ") + ")" if items else "()"
