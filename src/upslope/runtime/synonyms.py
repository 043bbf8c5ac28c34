"""What settings and knobs are called in other libraries, and what is meant by them here.

The libraries are TRL with peft and bitsandbytes, vLLM, Stable-Baselines3, d3rlpy, CORL, verl and CleanRL. One table for flags and
for keyword arguments.
No torch here: the command line reads this file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, get_args

from upslope.errors import did_you_mean
from upslope.runtime.settings import Domain, Settings

PartPaths = Iterable[tuple[str, Any]]
"""The parts of a method with their paths (`Method.parts`)."""

DOMAINS = get_args(Domain)
SETTINGS: dict[str, tuple[str, ...]] = {
    "lr": ("learning_rate", "policy_lr", "actor_lr", "optim_lr", "step_size", "actor_learning_rate"),
    "schedule": ("lr_scheduler_type", "lr_schedule", "lr_scheduler", "learning_rate_schedule", "lr_decay_style"),
    "warmup": ("warmup_steps", "lr_warmup_steps", "num_warmup_steps", "warmup_ratio", "lr_warmup_steps_ratio"),
    "lr_floor": ("min_lr", "min_lr_ratio", "min_lr_rate"),
    "grad_clip": ("max_grad_norm", "clip_grad", "clip_grad_norm", "gradient_clip", "gradient_clipping"),
    "adam_beta2": ("beta2", "adam_beta_2", "beta_2"),
    "adam_eps": ("adam_epsilon", "optimizer_eps", "optim_eps"),
    "adam_states": ("optim", "optimizer_offload", "offload_optimizer", "use_8bit_adam"),
    "weight_decay": ("wd", "l2"),
    "steps": ("max_steps", "total_timesteps", "total_steps", "num_train_epochs", "total_epochs", "train_steps", "num_train_steps",
              "total_training_steps", "max_timesteps", "iterations", "num_updates", "n_updates", "total_episodes",
              "training_steps"),
    "passes": ("epochs", "n_epochs", "num_epochs", "ppo_epochs", "update_epochs", "num_iterations", "num_ppo_epochs"),
    "tasks_per_step": ("batch_size", "train_batch_size", "per_device_train_batch_size", "rollout_batch_size",
                       "generation_batch_size", "gradient_accumulation_steps", "prompts_per_step", "num_prompts"),
    "updates_per_step": ("num_minibatches", "num_mini_batches", "n_minibatches", "nminibatches", "steps_per_generation",
                         "ppo_mini_batch_size", "gradient_steps", "n_steps_per_epoch", "utd_ratio", "utd"),
    "minibatch": ("batch_size", "minibatch_size", "mini_batch_size", "ppo_mini_batch_size"),
    "samples_per_task": ("num_generations", "group_size", "rollout_n", "n_samples", "num_samples", "num_return_sequences",
                         "num_samples_per_prompt", "samples_per_prompt", "n_samples_per_prompt"),
    "train_problems": ("max_train_samples", "train_max_samples", "max_samples", "num_train_samples"),
    "max_tokens": ("max_completion_length", "max_new_tokens", "max_response_length", "response_length", "max_length",
                   "max_completion_tokens", "generate_max_len"),
    "envs": ("n_envs", "num_envs", "num_environments"),
    "env_workers": ("num_workers", "n_workers", "num_rollout_workers"),
    "horizon": ("n_steps", "num_steps", "rollout_length", "rollout_steps", "rollout_fragment_length", "steps_per_epoch",
                "train_freq"),
    "normalise_observations": ("norm_obs", "normalize_observations", "normalize_obs", "observation_scaler", "normalize"),
    "offline_steps": ("offline_iterations", "num_offline_steps", "n_pretrain_steps"),
    "normalise_rewards": ("norm_reward", "normalize_rewards", "normalize_reward"),
    "eval_every": ("eval_steps", "eval_freq", "test_freq", "eval_interval", "evaluation_interval"),
    "test_task": ("eval_env", "test_env", "eval_task", "evaluation_env"),
    "eval_problems": ("n_eval_episodes", "eval_episodes", "num_eval_episodes", "eval_samples"),
    "checkpoint_every": ("save_steps", "save_freq", "save_interval", "checkpoint_freq", "checkpoint_interval"),
    "keep_checkpoints": ("save_total_limit", "max_actor_ckpt_to_keep", "max_checkpoints"),
    "seed": ("random_seed", "random_state", "rng_seed"),
    "learners": ("num_processes", "nproc_per_node", "world_size", "num_gpus", "n_gpus_per_node", "data_parallel_size"),
    "shard": ("fsdp", "fsdp_config", "use_fsdp", "fsdp2", "fsdp_size", "deepspeed", "zero_stage"),
    "threads": ("num_threads", "n_threads", "torch_threads"),
    "engine": ("use_vllm", "vllm_mode", "vllm_server_base_url", "rollout_engine"),
    "speculate": ("speculative_config", "num_speculative_tokens", "speculative_model", "prompt_lookup_num_tokens",
                  "prompt_lookup_max", "ngram_prompt_lookup_max", "assistant_model", "speculative_decoding"),
    "sampling_precision": ("quantization", "rollout_quantization", "vllm_quantization", "fp8"),
    "precision": ("bf16", "fp16", "dtype", "torch_dtype", "mixed_precision"),
    "recompute": ("gradient_checkpointing", "enable_gradient_checkpointing", "activation_checkpointing"),
    "lora": ("lora_r", "lora_rank", "use_peft", "peft_config"),
    "base_precision": ("load_in_4bit", "use_4bit", "bnb_4bit_quant_type", "quantization_config", "qlora", "use_qlora",
                       "bnb_4bit_use_double_quant", "use_bnb_nested_quant", "quantization_bit"),
    "watch_kl": ("log_kl", "compute_kl"),
    "samples_logged": ("log_completions", "num_completions_to_print", "log_samples"),
    "stop": ("stop_strings", "stop_token", "stop_sequences"),
    "columns": ("prompt_key", "prompt_column"),
    "template": ("chat_template_kwargs", "apply_chat_template_kwargs"),
    "long": ("truncation", "filter_overlong_prompts", "max_prompt_length"),
}  # fmt: skip
"""By setting of ours, its names elsewhere."""

FLAGS: dict[str, tuple[str, ...]] = {
    "--task": ("dataset", "dataset_name", "train_dataset", "train_files", "env", "env_id", "environment", "env_name"),
    "--data": ("dataset_id", "offline_dataset", "replay_buffer", "minari_dataset"),
    "--test-data": ("eval_dataset", "val_files", "test_dataset", "validation_data"),
    "--model": ("model_name", "model_name_or_path", "model_path", "pretrained"),
    "--reward": ("reward_funcs", "reward_fn", "reward_function", "reward_func", "custom_reward_function", "reward_weights"),
    "--out": ("output_dir", "output", "save_dir", "run_dir", "default_local_dir", "log_dir", "logdir"),
    "--tracker": ("report_to", "logger", "track", "tensorboard_log", "use_wandb", "wandb"),
    "--quiet": ("silent", "disable_tqdm"),
}
"""By other flag of ``train``, its names elsewhere."""
KEYWORDS = {"--tracker": "trackers", "--quiet": "watcher"}
"""Where the keyword argument is called otherwise than the flag."""

KNOBS: dict[str, tuple[str, ...]] = {
    "advantage.*.gamma": ("gamma", "discount", "discount_factor"),
    "advantage.*.lam": ("gae_lambda", "lam", "lambda", "lmbda", "gae_lam"),
    "advantage.GroupBaseline.scale": ("scale_rewards", "norm_adv_by_std_in_grpo"),
    "regularize.ReferenceKL.weight": ("beta", "kl_coef", "kl_coeff", "kl_loss_coef", "init_kl_coef", "kl_penalty", "kl_weight"),
    "regularize.EntropyBonus.weight": ("ent_coef", "entropy_coef", "entropy_coeff", "entropy_weight", "entropy_bonus"),
    "models.ValueFunction.weight": ("vf_coef", "value_coef", "vf_loss_coef", "vf_coeff", "value_loss_coef"),
    "models.ValueFunction.clip": ("clip_range_vf", "cliprange_value", "vf_clip", "vf_clip_param"),
    "surrogate.*.low": ("clip_range", "cliprange", "clip_ratio", "clip_eps", "clip_epsilon", "clip_coef", "clip_param", "epsilon",
                        "epsilon_low", "clip_ratio_low", "eps_clip"),
    "surrogate.*.high": ("clip_range", "cliprange", "clip_ratio", "clip_eps", "clip_epsilon", "clip_coef", "clip_param", "epsilon",
                         "epsilon_high", "clip_ratio_high", "eps_clip"),
    "surrogate.PessimisticClip.dual": ("clip_ratio_c", "dual_clip", "delta"),
    "data.*.gamma": ("gamma", "discount", "discount_factor"),
    "data.*.capacity": ("buffer_size", "replay_size", "replay_buffer_size", "buffer_capacity"),
    "data.MixedReplay.demonstrated": ("offline_ratio", "mixing_ratio"),
    "acting.UniformFirst.steps": ("learning_starts", "random_steps", "start_steps", "start_timesteps"),
    "acting.GaussianNoise.std": ("action_noise", "expl_noise", "exploration_noise"),
    "acting.EpsilonGreedy.share": ("exploration_fraction",),
    "acting.EpsilonGreedy.start": ("exploration_initial_eps", "start_e"),
    "acting.EpsilonGreedy.end": ("exploration_final_eps", "end_e"),
    "policy.*.every": ("policy_delay", "policy_freq", "policy_frequency", "update_actor_interval"),
    "models.QFunction.lag": ("tau", "polyak", "soft_target_update_rate"),
    "models.QFunction.lag_every": ("target_update_interval", "target_network_frequency"),
    "models.QFunction.lr_scale": ("critic_learning_rate", "critic_lr", "q_lr", "qf_lr"),
    "models.MLPEnsemble.members": ("n_critics", "num_critics", "num_qs"),
    "models.SmoothedAction.noise": ("target_policy_noise", "target_smoothing_sigma", "policy_noise"),
    "models.SmoothedAction.clip": ("target_noise_clip", "target_smoothing_clip", "noise_clip"),
    "models.BestChoice.double": ("double_q", "double_dqn"),
    "models.Temperature.start": ("ent_coef", "initial_temperature", "init_temperature", "alpha"),
    "models.Temperature.target_entropy": ("target_entropy",),
    "models.Temperature.lr_scale": ("temp_learning_rate", "alpha_lr"),
    "models.Conservative.weight": ("conservative_weight", "cql_alpha", "min_q_weight"),
    "models.Conservative.samples": ("n_action_samples", "cql_n_actions"),
    "models.Conservative.importance": ("cql_importance_sample",),
    "models.SoftValue.entropy": ("backup_entropy",),
    "models.ExpectileValue.expectile": ("expectile", "iql_tau"),
    "surrogate.DeterministicImprovement.scale": ("alpha",),
    "surrogate.AdvantageWeighted.beta": ("weight_temp", "beta"),
    "surrogate.AdvantageWeighted.cap": ("max_weight", "exp_adv_max"),
}  # fmt: skip
"""By ``slot.Class.field`` (``*``: of any class), the names of a knob elsewhere."""
HAS = {"data.*.gamma": "sac", "data.*.capacity": "sac", "data.MixedReplay.demonstrated": "rlpd",
       "acting.UniformFirst.steps": "sac", "acting.GaussianNoise.std": "td3", "acting.EpsilonGreedy.share": "dqn",
       "acting.EpsilonGreedy.start": "dqn", "acting.EpsilonGreedy.end": "dqn", "policy.*.every": "td3",
       "models.QFunction.lag": "sac", "models.QFunction.lag_every": "sac", "models.QFunction.lr_scale": "sac",
       "models.MLPEnsemble.members": "sac", "models.SmoothedAction.noise": "td3", "models.SmoothedAction.clip": "td3",
       "models.BestChoice.double": "dqn", "models.Temperature.start": "sac", "models.Temperature.target_entropy": "sac",
       "models.Temperature.lr_scale": "sac", "models.Conservative.weight": "cql", "models.Conservative.samples": "cql",
       "models.Conservative.importance": "cql", "models.SoftValue.entropy": "cql", "models.ExpectileValue.expectile": "iql",
       "surrogate.DeterministicImprovement.scale": "td3-bc", "surrogate.AdvantageWeighted.beta": "iql",
       "surrogate.AdvantageWeighted.cap": "iql",
       "advantage.*.gamma": "ppo", "advantage.*.lam": "ppo", "regularize.EntropyBonus.weight": "ppo",
       "models.ValueFunction.weight": "ppo", "models.ValueFunction.clip": "ppo"}  # fmt: skip
"""A method that has the knob; of the others grpo has it."""
PLACES = {"ValueFunction": "value", "ExpectileValue": "value", "QFunction": "q", "MLPEnsemble": "q.network",
          "SmoothedAction": "q.target", "BestChoice": "q.target", "SoftValue": "q.target", "Conservative": "q.penalty",
          "Temperature": "temperature", "GaussianNoise": "1", "EpsilonGreedy": "1"}  # fmt: skip
"""By class, where methods have it below its slot, if not there itself."""

PARTS: dict[str, tuple[str, ...]] = {
    "aggregate": ("loss_type", "loss_agg_mode"),
    "ratio": ("importance_sampling_level",),
    "filter": ("filter_groups",),
    "controller": ("target_kl",),
    "policy.hidden": ("net_arch",),
}
"""By path that every method takes, what is chosen there, as another part or as the network's, and its names elsewhere."""


def meant(name: str, known: Iterable[str], parts: PartPaths = (), flags: bool = False) -> str:
    """`` Did you mean 'x'?`` for a name of another library, a knob of the method at hand or a slip; nothing if nobody knows it.

    Args:
        name: a flag or a keyword argument that is not ours.
        known: the names there are, for slips.
        parts: of the method at hand, so that a knob is shown with its path in it.
        flags: whether flags are given, or keyword arguments.
    """
    word = name.lstrip("-").replace("-", "_").replace(".", "_").lower()
    found = [_setting(target, flags) for target, names in SETTINGS.items() if word in names]
    found += [_flag(target, flags) for target, names in FLAGS.items() if word in names]
    found += [(_set(path, flags), "") for path, names in PARTS.items() if word in names]
    found += _knobs(word, list(parts), flags)
    if not found:
        return did_you_mean(name, known)
    one = len({note for _, note in found}) == 1  # text or control is said where it tells two of them apart
    told = [f"{text!r}" if not note or (one and note in DOMAINS) else f"{text!r} ({note})" for text, note in dict.fromkeys(found)]
    return f" Did you mean {' or '.join(told)}?"


def _setting(name: str, flags: bool) -> tuple[str, str]:
    (field,) = (f for f in dataclasses.fields(Settings) if f.name == name)
    return f"--{name.replace('_', '-')}" if flags else name, field.metadata.get("domain", "")


def _flag(flag: str, flags: bool) -> tuple[str, str]:
    return flag if flags else KEYWORDS.get(flag, flag.removeprefix("--").replace("-", "_")), ""


def _knobs(word: str, parts: list[tuple[str, Any]], flags: bool) -> list[tuple[str, str]]:
    """Knobs of the method at hand that a word means; of a method that has them, if this one has not."""
    patterns = [pattern for pattern, names in KNOBS.items() if word in names]
    paths = [path for pattern in patterns for path in knob_paths(pattern, parts)]
    if not paths:  # a knob by its own name
        paths = [f"{_plain(path, parts)}.{word}" for path, part in parts if word in {f.name for f in dataclasses.fields(part)}]
    note = ""
    if not paths and patterns:
        having = HAS.get(patterns[0], "grpo")
        paths = [_usual_path(pattern) for pattern in patterns if not parts or HAS.get(pattern, "grpo") == having]
        note = f"for a method that has it, such as {having}" if parts else ""
    return [(_set(path, flags), note) for path in paths]


def _set(path: str, flags: bool) -> str:
    return f"--set {path}=..." if flags else f"knobs={{'{path}': ...}}"


def _usual_path(pattern: str) -> str:
    slot, kind, name = pattern.split(".")
    return ".".join([slot, *([PLACES[kind]] if kind in PLACES else []), name])


def knob_paths(pattern: str, parts: PartPaths) -> list[str]:
    """Where a method has the knob ``slot.Class.field``."""
    slot, kind, name = pattern.split(".")
    parts = list(parts)
    found = [(path, part) for path, part in parts if path.partition(".")[0] == slot and kind in ("*", type(part).__name__)]
    return [f"{_plain(path, parts)}.{name}" for path, part in found if name in {f.name for f in dataclasses.fields(part)}]


def _plain(path: str, parts: PartPaths) -> str:
    """Without the number of a part that is alone in its slot."""
    slot = path.removesuffix(".0")
    return path if any(other == f"{slot}.1" for other, _ in parts) else slot
