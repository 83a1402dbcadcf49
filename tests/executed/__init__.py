"""Real frameworks, run and measured, against what the command says of the same run.

PyTorch's checkpointing, optimizers, FSDP2, DDP and tensor parallelism, peft's adapters, TRL's loss and Transformers'
Trainer run here on small models, mostly on fake tensors, and a meter counts what is alive. The command is asked about
the same model and options, and must give the same bytes.

Nothing here imports `actplan.trace`: the measuring programs are a counter of their own, so that an assumption which
both the analytic side and the tracer make is found out. `kernels.py` says what stands in for what, and on what
assumption. Every measurement runs in a process of its own (`processes.py`), since some replace parts of PyTorch.
"""
