//! Arguments of the commands that stay up.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aqueduct_coordinator::http::Origins;
use aqueduct_coordinator::text::{TextError, TextModel};
use aqueduct_core::{Refusal, Sampling, limits};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use tokio::net::TcpListener;

use super::{
    AuditArg, BatchArg, ClusterArgs, ClusterTlsArgs, EtcdArgs, GroupArgs, ModelArgs, PolicyArgs,
    PoolArg, SchedulerArgs, ServerTlsArgs, SnapshotArgs, StallArg,
};
use crate::front;

const RESUME_GRACE_S_MAX: i64 = (limits::RESUME_GRACE_MS_MAX / 1000) as i64;

/// Where what callers leave out of sampling comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GenerationConfig {
    /// The model's files
    Auto,
    /// Nowhere: a temperature of 1 and all tokens
    None,
}

impl GenerationConfig {
    /// The text side of `model`.
    ///
    /// # Errors
    /// A tokeniser, or recommendations, that cannot be used.
    pub(crate) fn text(self, model: &Path) -> Result<TextModel, TextError> {
        let text = TextModel::load(model)?;
        Ok(match self {
            Self::Auto => text,
            Self::None => text.with_sampling(Sampling::default()),
        })
    }
}

/// Where a coordinator answers, and what it assumes.
#[derive(Debug, Clone, Args)]
pub(crate) struct FrontArgs {
    /// Model name in the API [default: the name of the model's folder or file]
    #[arg(long, visible_alias = "alias", value_name = "NAME", env = "AQUEDUCT_SERVED_MODEL_NAME",
          hide_env_values = true, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) served_model_name: Option<String>,
    /// Listen address of the OpenAI-compatible HTTP API
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub(crate) http: String,
    /// Origins whose web pages may call the HTTP API (CORS), such as https://chat.example:8443,
    /// separated by commas; or local (the machine that the browser runs on, at any port), * (all)
    /// or none
    #[arg(
        long,
        value_name = "ORIGINS",
        default_value = "local",
        env = "AQUEDUCT_ALLOWED_ORIGINS",
        hide_env_values = true
    )]
    pub(crate) allowed_origins: Origins,
    /// Most tokens of a chat answer if the caller sets no limit; fewer if the model has fewer
    /// positions left
    #[arg(long, value_name = "TOKENS", default_value_t = limits::CHAT_TOKENS_DEFAULT,
          value_parser = clap::value_parser!(u32).range(1..=limits::OUTPUT_TOKENS_MAX as i64))]
    pub(crate) chat_max_tokens: u32,
    /// Source of default sampling parameters: auto (the model's generation_config.json, or
    /// general.sampling of a GGUF file) or none (temperature 1, all tokens)
    #[arg(
        long,
        value_enum,
        value_name = "WHICH",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub(crate) generation_config: GenerationConfig,
    /// Listen address of the gRPC API
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070")]
    pub(crate) grpc: String,
    #[command(flatten)]
    pub(crate) monitor: MonitorArg,
    #[command(flatten)]
    pub(crate) tls: ServerTlsArgs,
    /// File of accepted API keys, made by `aqueduct keys new` [default: anybody may call]
    #[arg(long, value_name = "FILE", env = "AQUEDUCT_API_KEYS", hide_env_values = true)]
    pub(crate) api_keys: Option<PathBuf>,
    /// Most prompt tokens in flight: of one request, and per worker over all requests; always at
    /// least one chunk
    #[arg(long = "batch", value_name = "TOKENS",
          default_value_t = limits::BATCH_TOKENS_DEFAULT)]
    pub(crate) batch_tokens: u32,
    /// Journal folder: requests under way when the process ends continue when it is restarted with
    /// the same folder [default: no journal]
    #[arg(long, value_name = "DIR", env = "AQUEDUCT_DATA_DIR", hide_env_values = true)]
    pub(crate) data_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) grace: GraceArg,
    #[command(flatten)]
    pub(crate) admission: AdmissionArgs,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
}

/// Where a process tells those who watch it how it is.
#[derive(Debug, Clone, Args)]
pub(crate) struct MonitorArg {
    /// Listen address of /metrics, /livez and /readyz, over plain HTTP [default: none]
    #[arg(long = "monitor", value_name = "ADDR")]
    address: Option<String>,
}

impl MonitorArg {
    /// Bound, if wanted.
    ///
    /// # Errors
    /// An address that is none, or that is taken.
    pub(crate) async fn bind(&self) -> Result<Option<TcpListener>, Refusal> {
        match &self.address {
            Some(address) => front::bind("monitor", address).await.map(Some),
            None => Ok(None),
        }
    }
}

/// How much a coordinator takes on; what is over a bound is refused with 429. Fields are called as
/// the coordinator's options are, by which errors find the flags.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct AdmissionArgs {
    /// Most requests that are prefilled or decoded at once; others wait
    #[arg(long = "max-running", visible_alias = "max-num-seqs", value_name = "N",
          default_value_t = limits::RUNNING_REQUESTS_DEFAULT)]
    pub(crate) running_requests: usize,
    /// Most requests that wait; more are refused with 429
    #[arg(long = "max-queued", value_name = "N",
          default_value_t = limits::QUEUE_REQUESTS_DEFAULT)]
    pub(crate) queued_requests: usize,
    /// Most prompt tokens that wait, over all requests; one request alone may have more
    #[arg(long = "queue-tokens", value_name = "TOKENS",
          default_value_t = limits::QUEUE_TOKENS_DEFAULT)]
    pub(crate) queued_tokens: u64,
    /// Longest accepted prompt, in tokens
    #[arg(long = "max-prompt-tokens", value_name = "TOKENS",
          default_value_t = limits::PROMPT_TOKENS_MAX)]
    pub(crate) prompt_tokens_max: u32,
    /// Seconds that a request may take, waiting included; a caller may ask for less
    #[arg(id = "request_deadline", long = "deadline-s", alias = "deadline-seconds",
          value_name = "S", default_value_t = limits::REQUEST_DEADLINE_MS / 1000)]
    pub(crate) deadline_seconds: u64,
    /// Seconds that requests of a lost worker wait for a new worker, if the remaining ones cannot
    /// take over
    #[arg(long = "worker-grace-s", alias = "worker-grace-seconds", value_name = "S",
          default_value_t = limits::WORKER_GRACE_MS / 1000)]
    pub(crate) worker_grace_seconds: u64,
    /// Seconds that a resumable request continues without its caller, and that its answer is kept
    /// after its end
    #[arg(long, value_name = "S", env = "AQUEDUCT_RESUME_GRACE_S", hide_env_values = true,
          default_value_t = (limits::RESUME_GRACE_MS / 1000) as u32,
          value_parser = clap::value_parser!(u32).range(1..=RESUME_GRACE_S_MAX))]
    pub(crate) resume_grace_s: u32,
    /// Milliseconds after which a slow chunk is also given to an idle worker (a hedge), if it takes
    /// three times as long as others; 0: never
    #[arg(long, value_name = "MS", default_value_t = limits::HEDGE_AFTER_MS)]
    pub(crate) hedge_ms: u64,
}

/// How long a stop may take.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct GraceArg {
    /// Seconds that work under way may take to finish after SIGTERM; nothing new is accepted
    #[arg(
        long,
        value_name = "S",
        env = "AQUEDUCT_GRACE_S",
        hide_env_values = true,
        default_value_t = 30
    )]
    grace_s: u32,
}

impl GraceArg {
    pub(crate) fn period(self) -> Duration {
        Duration::from_secs(self.grace_s.into())
    }
}

/// How a worker that stays up serves many.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServingArgs {
    #[command(flatten)]
    pub(crate) scheduler: SchedulerArgs,
    #[command(flatten)]
    pub(crate) audit: AuditArg,
    #[command(flatten)]
    pub(crate) batch: BatchArg,
    #[command(flatten)]
    pub(crate) stall: StallArg,
    #[command(flatten)]
    pub(crate) snapshots: SnapshotArgs,
}

/// Arguments of `aqueduct serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
The policy flags are defaults, which a request may override. When both addresses are bound, one
JSON line with them is printed to stdout; port 0 takes a free port. On SIGINT or SIGTERM nothing
new is accepted, and answers under way have --grace-s to finish; a second signal cuts them off.

Examples:
  aqueduct serve --model model --workers 4
  curl localhost:8080/v1/completions -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 32}'")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) serving: ServingArgs,
    #[command(flatten)]
    pub(crate) front: FrontArgs,
}

/// Arguments of `aqueduct coordinator`.
#[derive(Debug, Args)]
#[command(after_help = "\
Only the model's tokeniser and configuration are read; the workers hold the weights. The workers
are those listed by --worker or, with --etcd, those registered in etcd, as they come and go.

Examples:
  aqueduct worker --model model --listen 127.0.0.1:7001 &
  aqueduct worker --model model --listen 127.0.0.1:7002 &
  aqueduct coordinator --model model --worker http://127.0.0.1:7001 \\
      --worker http://127.0.0.1:7002

  aqueduct worker --model model --listen 127.0.0.1:7001 --etcd http://127.0.0.1:2379 &
  aqueduct coordinator --model model --etcd http://127.0.0.1:2379

  aqueduct coordinator --model model --worker http://w1:7001 http://w2:7001 --data-dir /data \\
      --id c1 --peers c1=http://c1:7072,c2=http://c2:7072,c3=http://c3:7072")]
pub(crate) struct CoordinatorArgs {
    /// Model: Hugging Face folder or GGUF file
    #[arg(long, value_name = "PATH")]
    pub(crate) model: PathBuf,
    /// Addresses of workers, as http://host:port, or https://host:port with --cluster-tls-cert
    #[arg(id = "workers", long = "worker", value_name = "URL", num_args = 1..,
          required_unless_present = "etcd", conflicts_with = "etcd")]
    pub(crate) worker: Vec<String>,
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
    #[command(flatten)]
    pub(crate) group: GroupArgs,
    #[command(flatten)]
    pub(crate) tls: ClusterTlsArgs,
    #[command(flatten)]
    pub(crate) front: FrontArgs,
}

/// Arguments of `aqueduct worker`.
#[derive(Debug, Args)]
#[command(after_help = "\
When the model is loaded and the address is bound, one JSON line with it is printed to stdout;
port 0 takes a free port. On SIGINT or SIGTERM coordinators give the worker no new work, and what
it has may finish within --grace-s; a second signal ends it at once.

Example:
  aqueduct worker --model model --listen 0.0.0.0:7001 --advertise http://10.0.0.7:7001")]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Listen address
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7001")]
    pub(crate) listen: String,
    /// URL at which coordinators and other workers reach this one [default: the listen address, as
    /// http:// or https://]
    #[arg(long, value_name = "URL")]
    pub(crate) advertise: Option<String>,
    /// Compute threads; 0: one per core
    #[arg(long, value_name = "T", default_value_t = 0)]
    pub(crate) threads: usize,
    #[command(flatten)]
    pub(crate) etcd: EtcdArgs,
    #[command(flatten)]
    pub(crate) grace: GraceArg,
    #[command(flatten)]
    pub(crate) tls: ClusterTlsArgs,
    #[command(flatten)]
    pub(crate) monitor: MonitorArg,
    #[command(flatten)]
    pub(crate) pool: PoolArg,
    #[command(flatten)]
    pub(crate) serving: ServingArgs,
    /// When CUDA devices hand memory over by NCCL, which has neither encryption nor certificates:
    /// auto (if both ends have it and members speak plaintext), on (also if members speak TLS) or
    /// off (gRPC only)
    #[arg(long, value_name = "WHEN", env = "AQUEDUCT_LINK_NCCL", hide_env_values = true,
          hide_possible_values = true, value_enum, default_value_t = NcclArg::Auto)]
    pub(crate) link_nccl: NcclArg,
}

/// When memory sets go from device to device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NcclArg {
    Auto,
    On,
    Off,
}
