"""Keys of Axolotl that change no memory of a training step (src/axolotl/utils/schemas/ at 067b021)."""

from __future__ import annotations

from .fields import Inert

INERT = Inert(
    """freeze_mm_modules model_quantization_config_kwargs eaft_alpha eaft_k test_value lisa_step_interval
    lisa_layers_attribute relora_prune_ratio relora_cpu_offload expert_parallel_num_nvl_bytes dsv4_fp4_grouped_mode
    strict resume_from_checkpoint auto_resume_from_checkpoints resize_token_embeddings_to_32x
    mean_resizing_embeddings shrink_embeddings reinit_weights center_rewards_coefficient datasets test_datasets
    shuffle_merged_datasets shuffle_before_merging_datasets skip_prepare_dataset num_dataset_shards_to_save
    remove_unused_columns push_dataset_to_hub hf_use_auth_token device device_map world_size local_rank ddp_timeout
    ddp_broadcast_buffers ddp_find_unused_parameters do_causal_lm_eval eval_causal_lm_metrics do_bench_eval
    bench_dataset bench_split metric_for_best_model greater_is_better loss_watchdog_threshold
    loss_watchdog_patience gc_steps gc_collect_steps torch_empty_cache_steps tf32 gradient_checkpointing_kwargs
    excess_length_strategy eval_sequence_len min_sample_len max_prompt_len sample_packing_group_size
    sample_packing_bin_size sample_packing_sequentially sample_packing_mp_start_method eval_sample_packing
    sample_packing_seq_len_multiplier curriculum_sampling multipack_real_batches pretrain_multipack_buffer_size
    pretrain_multipack_attn pretraining_sample_concatenation streaming streaming_multipack_buffer_size
    flex_attn_compile_kwargs fsdp_final_state_dict_type val_set_size heads_k_stride special_tokens tokens
    added_tokens_overrides torch_compile_backend torch_compile_mode torch_compile_options max_steps warmup_steps
    warmup_ratio eval_steps evals_per_epoch eval_strategy evaluation_strategy save_steps saves_per_epoch
    save_strategy save_total_limit save_first_step logging_steps early_stopping_patience load_best_model_at_end
    save_only_model use_tensorboard profiler_steps profiler_steps_start include_tokens_per_second include_tkps
    neftune_noise_alpha noisy_embedding_alpha orpo_alpha simpo_gamma cpo_alpha kto_desirable_weight
    kto_undesirable_weight rl_beta dpo_beta dpo_label_smoothing dpo_loss_weights low_cpu_mem_usage chat_template
    chat_template_jinja chat_template_kwargs eot_tokens default_system_message fix_untrained_tokens is_preprocess
    preprocess_iterable total_num_tokens total_supervised_tokens sample_packing_eff_est axolotl_config_path
    generate_samples base_model_config base_model_ignore_patterns cls_model_config tokenizer_config
    processor_kwargs output_dir hub_model_id hub_strategy hub_revision save_safetensors bos_token eos_token
    pad_token unk_token additional_special_tokens lora_model_dir lora_alpha lora_fan_in_fan_out lora_alpha_pattern
    peft_use_rslora peft_init_lora_weights qlora_sharded_model_loading lora_on_cpu loraplus_lr_ratio
    loraplus_lr_embedding merge_lora merge_method eval_batch_size train_on_inputs group_by_length learning_rate
    embedding_lr embedding_lr_scale weight_decay optim_args torchdistx_path lr_scheduler lr_scheduler_kwargs
    lr_quadratic_warmup cosine_min_lr_ratio cosine_constant_lr_ratio lr_div_factor lr_groups max_grad_norm
    num_epochs seed debug model_type model_config revision_of_model type_of_model gptq_model_v1 gptq_groupsize
    gptq_disable_exllama eval_table_size eval_max_new_tokens dataloader_pin_memory use_ray ray_run_name
    ray_num_workers resources_per_worker chunked_cross_entropy_num_chunks max_packed_sequence_len adam_eps eta_min
    gpu gpu_count project_name secrets provider branch volumes node_count memory memory_preprocess timeout
    timeout_preprocess dockerfile_commands accelerator_config full_finetune num_labels image_size
    image_resize_algorithm experimental_skip_move_to_device llmcompressor jagged_restart_steps
    jagged_restart_warmup_steps jagged_restart_anneal_steps generation_max_new_tokens use_glm_dsa_kernels
    is_multimodal train_on_eot""",
    r"wandb_.* mlflow_.* use_(wandb|mlflow|comet|trackio|swanlab|otel_metrics) comet_.* trackio_.* swanlab_.* otel_.* "
    r"gradio_.* dataset_.* dataloader_.* adam_.* tokenizer_.* processor_type is_\w+_derived_model generation_.* "
    r"num_generation_samples skip_.* shuffle_.* train_.* hf_mlflow.* datasets\..* ddp_(?!bucket).*",
)
