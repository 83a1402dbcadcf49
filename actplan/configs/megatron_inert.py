"""Arguments of Megatron-LM that change no memory of a training step (megatron/training/arguments.py and config/ at
d98e8a6)."""

from __future__ import annotations

from .fields import Inert

INERT = Inert(
    """max-tokens-to-oom temperature top-k top-p num-tokens-to-generate output-path return-log-probs prompts
    prompt-file model-provider apply-layernorm-1p use-flashinfer-fused-rope flash-decode
    disable-gloo-process-groups use-te export-te-mcore-model no-record-throughput defer-embedding-wgrad-compute
    wgrad-deferral-limit out-seq-length decoder-seq-length rotary-embedding-config
    no-use-tokenizer-model-from-checkpoint-args special-tokens overlap-p2p-communication-warmup-flush
    microbatch-group-size-per-virtual-pipeline-stage DDP-impl empty-unused-memory-level termination-id
    use-legacy-static-engine enable-chunked-prefill adam-beta1 adam-beta2 adam-eps sgd-momentum weight-decay
    start-weight-decay end-weight-decay weight-decay-incr-style apply-wd-to-qk-layernorm clip-grad lion-beta1
    lion-beta2 no-weight-decay-cond-type train-iters train-samples exit-interval exit-duration-in-mins
    exit-on-missing-checkpoint exit-signal-handler exit-signal manual-gc manual-gc-interval no-manual-gc-eval
    use-mcore-models use-legacy-models no-check-for-nan-in-loss-and-grad check-for-nan-in-loss-and-grad
    check-for-large-grads check-for-spiky-loss check-weight-hash-across-dp-replicas-interval rerun-mode
    error-injection-rate error-injection-type result-rejected-tracker-filename seed data-parallel-random-init
    init-method-std init-method-xavier-uniform embedding-init-method-std norm-epsilon layernorm-epsilon rotary-base
    rotary-percent rotary-interleaved rotary-seq-len-interpolation-factor rotary-scaling-factor use-rope-scaling
    rope-scaling-factor rope-type mscale mscale-all-dim no-rope-fusion apply-rope-fusion no-masked-softmax-fusion
    masked-softmax-fusion no-bias-gelu-fusion no-bias-swiglu-fusion no-bias-dropout-fusion bias-gelu-fusion
    bias-swiglu-fusion bias-dropout-fusion no-persist-layer-norm persist-layer-norm no-gradient-accumulation-fusion
    gradient-accumulation-fusion no-mmap-bin-files mmap-bin-files num-workers num-dataset-builder-threads split
    mock-data distributed-backend distributed-timeout-minutes distributed-timeout-seconds-after-init local-rank
    rank world-size finetune init-model-with-meta-device use-cpu-initialization overlap-grad-reduce
    overlap-param-gather no-align-param-gather align-param-gather overlap-param-gather-with-optimizer-step
    no-async-tensor-model-parallel-allreduce tp-comm-overlap-cfg disable-tp-comm-bulk-wgrad
    disable-tp-comm-bulk-dgrad dataloader-type no-data-sharding reset-position-ids reset-attention-mask
    eod-mask-loss no-create-attention-mask-in-dataloader vocab-file merge-file vocab-extra-ids tokenizer-model
    special-tokens-file tiktoken-pattern tiktoken-num-special-tokens tokenizer-prompt-format profile profile-ranks
    use-pytorch-profiler record-memory-history memory-snapshot-path nvtx-ranges enable-experimental
    calculate-per-token-loss attention-softmax-in-fp32 apply-query-key-layer-scaling softmax-type
    accumulate-allreduce-grads-in-fp32 no-weight-decay data-sharding bert-no-binary-head onnx-safe
    auto-detect-ckpt-format dist-ckpt-strictness async-save use-persistent-ckpt-worker use-dist-ckpt
    override-opt_param-scheduler use-checkpoint-opt_param-scheduler use-checkpoint-args
    use-mp-args-from-checkpoint-args pretrained-checkpoint override-opt-param-scheduler
    use-checkpoint-opt-param-scheduler non-persistent-save-interval mtp-loss-scaling-factor loss-scale
    initial-loss-scale min-loss-scale loss-scale-window hysteresis delayed-wgrad-compute timing-log-level
    timing-log-option barrier-with-L1-time log-throughput test-mode te-rng-tracker inference-rng-tracker
    one-logger-async use-tp-pp-dp-mapping nccl-communicator-config-path use-sharp high-priority-stream-groups
    use-ring-exchange-p2p lazy-mpu-init gradient-reduce-div-fusion no-gradient-reduce-div-fusion
    suggested-communication-unit-size keep-fp8-transpose-cache ddp-bucket-size ddp-num-buckets
    ddp-average-in-collective ddp-pad-buckets-for-high-nccl-busbw no-pin-cpu-grads no-pin-cpu-params
    overlap-cpu-optimizer-d2h-h2d use-torch-optimizer-for-cpu-offload enable-ft-package calc-ft-timeouts fp8-margin
    fp8-interval fp8-amax-history-len fp8-amax-compute-algo fp8-wgrad no-fp8-wgrad first-last-layers-bf16
    num-layers-at-start-in-bf16 num-layers-at-end-in-bf16 warmup decoupled-lr decoupled-min-lr config-logger-dir
    app-tag-run-name app-tag-run-version skip-train adlr-autoresume adlr-autoresume-interval window-attn-skip-freq
    cache-mla-latents clone-scatter-output-in-embedding batch-invariant-mode disable-symmetric-registration
    fsdp-manual-registration create-all-gather-group megatron-fsdp-version no-one-logger tensorboard-queue-size
    tokenizer-hf-include-special-tokens train-sync-interval eval-micro-batch-size eval-global-batch-size qk-clip
    qk-clip-alpha qk-clip-threshold use-te-rng-tracker""",
    r"(log|tensorboard|wandb|save|load|ckpt|data|lr|min-lr|eval|tokenizer|inference|rl|grpo|langrl|inprocess|one-logger|ft|"
    r"profile|dataloader|train-data|valid-data|test-data|fim|muon|per-split|per-dataset|object-storage|non-persistent|exit|"
    r"async|straggler|yarn|mid-level|replication|dist-ckpt|no-load|no-save|use-checkpoint|energy|dump|verify|strict-fsdp|"
    r"nccl|logging|s3|replication|workload|run-workload|memory-snapshot|mlflow|comet)(-\w.*)? "
    r"(no-)?(ckpt|save|load|log|async|data)-.* "
    r"moe-(router-(load-balancing-type|pre-softmax|group-topk|num-groups|topk-scaling-factor|enable-expert-bias|"
    r"bias-update-rate|topk-limited-devices|padding-for-fp8|fusion|padding-for-quantization|force-biased|num-nodes)|"
    r"aux-loss-coeff|z-loss-coeff|input-jitter-eps|extended-tp|use-legacy-grouped-gemm|per-layer-logging|enable-deepep|"
    r"flex-dispatcher-backend|shared-expert-overlap|shared-expert-gate|deepep-num-sms|hybridep-num-sms|"
    r"apply-probs-on-input|upcycling-granularity|use-upcycling|token-dispatcher-type|token-drop-policy|pad-expert-input-to-capacity)",
)
