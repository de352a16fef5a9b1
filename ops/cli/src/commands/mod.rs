//! One file for each command.

pub(crate) mod bench_decode;
pub(crate) mod bench_exchange;
pub(crate) mod bench_kernels;
pub(crate) mod bench_prefill;
pub(crate) mod bench_prefix;
pub(crate) mod bench_profile;
pub(crate) mod bench_recover;
pub(crate) mod bench_scores;
pub(crate) mod bench_serve;
pub(crate) mod bench_soak;
pub(crate) mod coordinator;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod eval_logits;
pub(crate) mod eval_merge;
pub(crate) mod eval_ppl;
pub(crate) mod generate;
pub(crate) mod gpu_bench;
pub(crate) mod gpu_check;
pub(crate) mod gpu_devices;
pub(crate) mod gpu_nccl;
pub(crate) mod keys;
pub(crate) mod node;
pub(crate) mod serve;
pub(crate) mod worker;
