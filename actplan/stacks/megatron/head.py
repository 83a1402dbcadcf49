"""What stands around the layers: embedding, rotary table, output projection and loss.

megatron/core of 0.16.1: models/common/embeddings/language_model_embedding.py, models/gpt/gpt_model.py,
models/common/language_module/language_module.py, tensor_parallel/layers.py (VocabParallelEmbedding). The loss of a
micro-batch is reduced as pretrain_gpt.py's `loss_func` does.
"""

from __future__ import annotations

from ...autograd import Tensor
from ...autograd.storage import Storage
from ...autograd.strides import contiguous_strides
from ...basics.units import BOOL, FP32, INT64
from ...ops import vocab_parallel
from ...ops.communication import all_reduce, reduce_scatter
from ...ops.dropout import dropout
from ...ops.elementwise import add, mul
from ...ops.embedding import embedding as lookup
from ...ops.embedding import masked_in_place
from ...ops.parallel_linear import parallel_linear
from ...ops.scalars import div, total
from ...ops.views import contiguous, transpose, view
from .scope import Scope


def given(m: Scope, name: str, shape: tuple[int, ...], *, fp32: bool = False) -> Tensor:
    """A tensor that the data loader made: not counted as born in the step."""
    dtype = FP32 if fp32 else INT64
    storage = Storage(0, None, "input", name)
    storage.owner = f"input:{name}"
    return Tensor(m.tape, shape, contiguous_strides(shape), dtype, storage)


def embed(m: Scope, ids: Tensor) -> Tensor:
    """Token ids [b, s] to [s, b, h]: words and learned positions, dropout; this rank's rows under sequence
    parallelism."""
    model, sequence = m.model, m.mesh.sp and m.mesh.tp > 1
    positions = model.embedding.max_position_embeddings
    # with learned positions the rows are divided after these are added
    scatters = sequence and positions is None
    words = m.call("word_embeddings", _words, ids, scatters)
    if positions is not None:
        places = m.call("position_embeddings", _positions, ids, positions)
        embedded = add(words, places)
    else:
        embedded = words
    if not scatters:
        embedded = contiguous(transpose(embedded, 0, 1))
    if sequence and not scatters:
        from ...ops.communication import scatter

        embedded = scatter(embedded, 0, m.mesh.tp)
    if scatters:
        # a view would keep the whole embedding alive (`clone_scatter_output_in_embedding`)
        from ...ops.views import clone

        embedded = clone(embedded)
    probability = model.embedding.dropout
    if not probability:
        return embedded
    return m.call("embedding_dropout", lambda m: dropout(embedded, probability))


def _words(m: Scope, ids: Tensor, scatters: bool) -> Tensor:
    ranks = m.mesh.tp
    weight = m.parameter("weight", m.local(m.model.vocab_size, "vocabulary"), m.model.hidden_size)
    mask = None
    if ranks > 1:
        mask = m.tape.empty(ids.shape, BOOL, "or")
        ids = m.tape.empty(ids.shape, INT64, "sub")
    made = lookup(ids, weight)
    if mask is None:
        return made
    made = masked_in_place(made, mask)
    if scatters:
        return reduce_scatter(contiguous(transpose(made, 0, 1)), 0, ranks)
    return all_reduce(made)


def _positions(m: Scope, ids: Tensor, rows: int) -> Tensor:
    return lookup(ids, m.parameter("weight", rows, m.model.hidden_size))


def output_weight(m: Scope) -> Tensor:
    """The output projection's weight: the embedding's own where they are tied."""
    path = "embedding.word_embeddings.weight" if m.model.tie_word_embeddings else "output_layer.weight"
    shape = (m.local(m.model.vocab_size, "vocabulary"), m.model.hidden_size)
    return m.tape.parameter(path, shape, m.dtype)


def logits(m: Scope, hidden: Tensor) -> Tensor:
    """[s, b, h] to [s, b, vocabulary / ranks], by Megatron's own linear whatever the layers are."""
    fused = m.options.gradient_accumulation_fusion
    return parallel_linear(hidden, output_weight(m), None, m.divided("column"), fused=fused)


def language_loss(m: Scope, hidden: Tensor, labels: Tensor) -> Tensor:
    """The loss of each token, [b, s]."""
    made = m.call("output_layer", logits, hidden)
    return cross_entropy(m, made, labels)


def cross_entropy(m: Scope, made: Tensor, labels: Tensor) -> Tensor:
    """`compute_language_model_loss`."""
    labels = contiguous(transpose(labels, 0, 1))
    if not m.options.cross_entropy_loss_fusion:
        loss = vocab_parallel.vocab_parallel_cross_entropy(made)
    elif m.options.cross_entropy_fusion_impl == "native":
        loss = vocab_parallel.native_fused_cross_entropy(made)
    else:
        loss = vocab_parallel.te_cross_entropy(made, labels, m.mesh.tp)
    return contiguous(transpose(loss, 0, 1))


def reduced(m: Scope, losses: Tensor, mask: Tensor) -> Tensor:
    """sum(losses · mask) / sum(mask)."""
    losses = view(losses, -1)
    mask = view(mask, -1)
    return div(total(mul(losses, mask)), m.tape.empty((), FP32, "sum"))
