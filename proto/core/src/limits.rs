//! Every bound of the system, in one place, with the relations between them checked by the
//! compiler. A limit that a user may lower is a default in a `config.rs`; what stands here is
//! the most that the code is built for.

mod relations;

/// Longest prompt, in tokens. Positions are `u32` and leave room for what is generated.
pub const PROMPT_TOKENS_MAX: u32 = 1 << 24;
/// Most tokens generated for one request.
pub const OUTPUT_TOKENS_MAX: u32 = 1 << 20;
/// Largest chunk, in tokens.
pub const CHUNK_TOKENS_MAX: u32 = 1 << 16;
/// Chunk size unless the caller names another.
pub const CHUNK_TOKENS_DEFAULT: u32 = 1024;
/// Tokens of one request in flight at once, unless configured otherwise.
pub const BATCH_TOKENS_DEFAULT: u32 = 4096;
/// Decoded and prompt tokens of one step of a worker whose scheduler is `static`, unless
/// configured otherwise.
pub const STEP_TOKENS_DEFAULT: u32 = 2048;
/// Chunks of one prompt: each is looked at whenever a coordinator decides anything.
pub const CHUNKS_MAX: u32 = 1 << 16;
/// Bytes of what a worker says of a failure; more is cut off.
pub const FAILURE_BYTES_MAX: usize = 4 << 10;
/// Largest number of remembered keys of each kind, per layer and KV head, that a policy may ask
/// for.
pub const MEMORY_TOKENS_MAX: u32 = 1 << 20;
/// Completions of one request (`n`).
pub const CHOICES_MAX: u32 = 64;
/// Completions of all prompts of one call, each of which is a request: as many as a long queue has.
pub const CALL_CHOICES_MAX: usize = 1024;
/// Seconds that a device may take to come to a layer's end, unless configured otherwise: the
/// longest chunks of the largest models take minutes on few processors.
pub const STALL_S_DEFAULT: u64 = 1800;
/// Completions whose next tokens one worker computes together: as many rows as every backend
/// computes with the bits of one (a library of matrix products may be asked for more).
pub const DECODE_BATCH_MAX: usize = 64;
/// Tokens of all completions of a request that a new home is told; it draws later ones again.
pub const BEGUN_TOKENS_MAX: usize = 1 << 18;
/// Alternatives reported per token (`logprobs`).
pub const TOP_LOGPROBS_MAX: u32 = 20;
/// End tokens that a model may have.
pub const EOS_TOKENS_MAX: usize = 64;
/// Keys of a KV head that a memory map tells of; those with the highest scores.
pub const SEEN_KEYS_MAX: usize = 4096;
/// Keys of a KV head that are told of what one token looked at; the heaviest.
pub const LOOKED_KEYS_MAX: usize = 16;
/// Tokens of a completion whose looks are told.
pub const LOOKED_TOKENS_MAX: u32 = 256;
/// Longest prompt of a request with a memory map.
pub const MAP_PROMPT_TOKENS_MAX: u32 = 1 << 20;
/// Tokens whose text one page of a memory map has.
pub const MAP_PAGE_TOKENS_MAX: usize = 8192;
/// Memory maps that a coordinator keeps, the last ones.
pub const MAPS_MAX: usize = 8;
/// Requests that its console shows, the last ones.
pub const BOARD_REQUESTS_MAX: usize = 64;
/// Longest grammar that an answer may have to follow, in bytes.
pub const GRAMMAR_BYTES_MAX: usize = 128 << 10;
/// Bytes of what an answer's thoughts begin or end with.
pub const THOUGHT_MARK_BYTES_MAX: usize = 64;
/// Tokens that end an answer's thoughts, and that follow their end.
pub const THOUGHT_END_TOKENS_MAX: usize = 64;
/// Most bytes of all the tokens of a vocabulary that answers follow grammars in.
pub const VOCABULARY_BYTES_MAX: usize = 3 << 20;
/// Tokens of one request whose logits are biased.
pub const LOGIT_BIAS_MAX: usize = 1024;
/// Most that is added to a logit, or taken off.
pub const LOGIT_BIAS_MOST: f32 = 100.0;
/// Largest presence or frequency penalty, of either sign.
pub const PENALTY_MOST: f32 = 2.0;
/// Least repetition penalty: what logits are divided by must leave them finite.
pub const REPETITION_PENALTY_MIN: f32 = 0.01;
/// Largest repetition penalty.
pub const REPETITION_PENALTY_MAX: f32 = 10.0;
/// Stop strings of one request, and the length of one, in bytes.
pub const STOP_STRINGS_MAX: usize = 16;
/// Longest stop string, in bytes.
pub const STOP_BYTES_MAX: usize = 1024;

/// Most bytes of payload in one frame of a hand-off or an exchange: few enough to be in a core's
/// cache from when they are gathered until they are sent, and from when they come until they are
/// read.
pub const FRAME_BYTES_MAX: usize = 512 << 10;
/// Most bytes of one gRPC message between workers and coordinators.
pub const GRPC_MESSAGE_BYTES_MAX: usize = (5 << 20) + (64 << 10);
/// Most bytes of one HTTP/2 frame between workers: a frame and its header go in one.
pub const HTTP2_FRAME_BYTES_MAX: u32 = 1 << 20;
/// Bytes that a worker's peer may send it before it must have read some.
pub const HTTP2_WINDOW_BYTES: u32 = 8 << 20;
/// Most bytes of one gRPC `Generate` or `Tokenize` request, which carries a whole prompt.
pub const PROMPT_BYTES_MAX: usize = 256 << 20;
/// Frames a link may have under way before the sender waits.
pub const LINK_WINDOW_FRAMES: usize = 16;
/// Memory sets that may wait for one link; they are kept for their next chunk anyway.
pub const LINK_PARCELS_MAX: usize = 4096;
/// How often a link tries to connect, or to send a set that arrived corrupt, before it gives up.
pub const LINK_TRIES_MAX: u32 = 5;
/// Memory sets that wait at a worker for their chunk, in bytes over all requests.
pub const INBOX_BYTES_DEFAULT: u64 = 8 << 30;
/// Pages of a worker for remembered keys and values, over all requests.
pub const POOL_BYTES_DEFAULT: u64 = 8 << 30;
/// Most of them: addresses for it are reserved at once, and a process has 2^47 or more.
pub const POOL_BYTES_MAX: u64 = 1 << 45;

/// Pools give room for so many tokens at once.
pub const PAGE_TOKENS: u64 = 16;

/// Asks about shards that may wait at one worker, or on one link.
pub const EXCHANGE_CALLS_MAX: usize = 4096;
/// Most bytes of one ask or answer, and of the asks that one stream may have wait at a worker.
pub const EXCHANGE_BYTES_MAX: u64 = 8 << 30;
/// Frames that an end of an exchange makes before the connection takes them.
pub const EXCHANGE_WINDOW_FRAMES: usize = 4;
/// Bytes of states, or of the keys for them, that a chunk has come before it merges them.
pub const EXCHANGE_AHEAD_BYTES: u64 = 512 << 20;
/// How long an asker waits for a holder before it asks again.
pub const EXCHANGE_RETRY_MS: u64 = 2_000;

/// Boundaries of one prompt that are kept as snapshots, evenly spaced, beside the last ones.
pub const SNAPSHOTS_PER_PROMPT: u32 = 16;
/// Boundaries of one prompt that have a name at all, from its beginning on.
pub const SNAPSHOT_CHAIN_MAX: usize = 1 << 14;
/// Snapshots that one worker keeps.
pub const SNAPSHOTS_MAX: usize = 1 << 14;
/// Snapshots that one event names.
pub const SNAPSHOT_NEWS_MAX: usize = 1 << 10;
/// How long who looks after the cluster waits for a snapshot that comes from disk.
pub const SNAPSHOT_READ_DEADLINE_MS: u64 = 10_000;
/// How long a chunk waits for the snapshot that stands for it, behind others that are read first.
/// The next chunk waits longer for what it is then given, or it would fail in its place.
pub const RESTORE_DEADLINE_MS: u64 = 100_000;
/// Bytes of memory that a worker that serves keeps snapshots in, unless told otherwise.
pub const SNAPSHOT_BYTES_DEFAULT: u64 = 1 << 30;
/// Bytes of one prompt's boundaries where each has states; two are kept whatever they have.
pub const SNAPSHOT_PROMPT_BYTES: u64 = SNAPSHOT_BYTES_DEFAULT / 8;
/// Bytes of disk for the same, where a folder is named.
pub const SNAPSHOT_DISK_BYTES_DEFAULT: u64 = 16 << 30;

/// Layers of a model.
pub const LAYERS_MAX: u32 = 512;
/// Query heads of a model.
pub const HEADS_MAX: u32 = 1024;
/// Elements of one head.
pub const HEAD_DIM_MAX: u32 = 1024;
/// Width of the residual stream, and of the feed-forward layer.
pub const WIDTH_MAX: u32 = 1 << 20;
/// Bytes of the states of all layers that have one, of one sequence.
pub const STATE_BYTES_MAX: u64 = 16 << 30;
/// Elements of the state of one of them.
pub const STATE_LEN_MAX: u32 = 1 << 28;
/// Tokens in a vocabulary.
pub const VOCAB_MAX: u32 = 1 << 22;

/// Workers in one cluster.
pub const WORKERS_MAX: usize = 1024;
/// Most bytes of what a worker says of itself in etcd.
pub const MEMBER_BYTES_MAX: usize = 16 << 10;
/// Addresses of etcd.
pub const ETCD_ENDPOINTS_MAX: usize = 16;
/// Shortest lease of a member, in seconds: it is renewed three times in one.
pub const ETCD_TTL_S_MIN: u32 = 2;
/// Compute threads of one process.
pub const THREADS_MAX: usize = 1024;
/// Requests that wait for their turn before new ones are refused.
pub const QUEUE_REQUESTS_DEFAULT: usize = 256;
/// Tokens of the prompts that wait before new ones are refused.
pub const QUEUE_TOKENS_DEFAULT: u64 = PROMPT_TOKENS_MAX as u64;
/// Most tokens of a chat's answer where its caller says nothing: enough for one that reasons, and
/// little beside the memory that exact attention sets aside for it.
pub const CHAT_TOKENS_DEFAULT: u32 = 4096;
/// Requests that are prefilled or decoded at once, unless configured otherwise.
pub const RUNNING_REQUESTS_DEFAULT: usize = 32;
/// The most, and the least: how early a request begins. Lower is earlier.
pub const PRIORITY_MAX: i32 = 100;
/// So much longer a request waits behind others for each step that its priority is above theirs.
pub const PRIORITY_STEP_MS: u64 = 10_000;
/// Most bytes of the id that a caller gives its call.
pub const REQUEST_ID_BYTES_MAX: usize = 128;
/// Most bytes of the key by which a caller starts a request once, however often it asks.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
/// Commands a worker may hold before the coordinator waits.
pub const COMMANDS_MAX: usize = 1024;
/// Events a worker may have under way to its coordinator.
pub const EVENTS_MAX: usize = 1024;

/// Most bytes of a model's fingerprint in a journal.
pub const FINGERPRINT_BYTES_MAX: usize = 256;
/// Bytes of the words in which a worker says what it computes with.
pub const DEVICE_BYTES_MAX: usize = 64;
/// Coordinators that keep one journal.
pub const JOURNAL_MEMBERS_MAX: usize = 7;
/// Most bytes of one record: an accepted request of the longest prompt.
pub const JOURNAL_RECORD_BYTES_MAX: usize = PROMPT_BYTES_MAX;
/// Bytes of requests under way that a journal keeps, and their tokens, before it refuses others.
pub const JOURNAL_LIVE_BYTES_MAX: u64 = 2 << 30;
/// Bytes of what ended requests have emitted that a journal keeps for callers who come back.
pub const JOURNAL_ENDED_BYTES_MAX: u64 = 64 << 20;
/// Ended requests that it keeps.
pub const JOURNAL_ENDED_MAX: usize = 4096;
/// How long it keeps them.
pub const JOURNAL_ENDED_MS: u64 = 600_000;
/// Bytes of the log after which it is replaced by a snapshot of what it comes to, if that is not
/// larger.
pub const JOURNAL_LOG_BYTES: u64 = 8 << 20;
/// Entries of the log after which the same happens.
pub const JOURNAL_LOG_ENTRIES: u64 = 16 << 10;
/// Bytes of records that wait for a majority before further ones are refused.
pub const JOURNAL_WAITING_BYTES: u64 = 1 << 30;
/// Bytes of the log that one message of a leader carries, if it is more than one record.
pub const JOURNAL_MESSAGE_BYTES: u64 = 1 << 20;
/// Most bytes that one coordinator sends another at once: all that a journal comes to.
pub const PEER_BATCH_BYTES_MAX: u64 = 3 << 30;
/// Messages to one coordinator that wait to be sent; further ones are lost.
pub const PEER_MESSAGES_MAX: usize = 256;
/// How long another coordinator may take to answer what it is sent, and a second more for every
/// [`PEER_BYTES_PER_S`].
pub const PEER_DEADLINE_MS: u64 = 2_000;
/// Bytes of a long message that come through in a second, or it is given up.
pub const PEER_BYTES_PER_S: u64 = 4 << 20;
/// Calls of other coordinators that are answered at once.
pub const PEER_CALLS_MAX: usize = 64;
/// Most bytes of a URL or a name of a coordinator.
pub const ADDRESS_BYTES_MAX: usize = 256;
/// Groups of coordinators whose terms a worker remembers.
pub const GROUPS_MAX: usize = 256;

/// Most bytes of what a caller is told besides its answer.
pub const WARNING_BYTES_MAX: usize = 16 << 10;
/// Most bytes of the names of tools' arguments that are texts.
pub const TEXT_ARGUMENTS_BYTES_MAX: usize = 64 << 10;
/// How long an answer waits for a caller who may come back to it, unless configured otherwise.
pub const RESUME_GRACE_MS: u64 = 60_000;
/// The longest that it may be configured to.
pub const RESUME_GRACE_MS_MAX: u64 = 3_600_000;
/// Answers that have ended and are kept in memory for callers who come back.
pub const STREAMS_ENDED_MAX: usize = 1024;
/// About how many bytes of them.
pub const STREAMS_ENDED_BYTES_MAX: u64 = 64 << 20;
/// Most bytes of the id of an event: a number for each completion.
pub const EVENT_ID_BYTES_MAX: usize = 1024;
/// Requests that one answer to an operator lists.
pub const OPERATOR_LIST_MAX: u32 = 1000;
/// Chunks of one request that are shown to an operator: of more the last ones.
pub const OPERATOR_CHUNKS_MAX: usize = 1024;
/// Ended requests that a coordinator can still say something of.
pub const ENDED_REQUESTS_MAX: usize = 256;
/// Steps of one request that it remembers from its beginning, and from its end.
pub const TRACE_STEPS_MAX: usize = 512;
/// Remembered keys that one answer shows.
pub const SHOWN_KEYS_MAX: usize = 1 << 13;
/// Most bytes of a snapshot's file in one message.
pub const SNAPSHOT_PART_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a snapshot's file.
pub const SNAPSHOT_FILE_BYTES_MAX: u64 = 1 << 40;
/// Questions about snapshots that a worker answers at once; their threads are not the device's.
pub const SNAPSHOT_QUESTIONS_MAX: usize = 4;
/// Questions of operators to workers that a coordinator waits for answers to.
pub const OPERATOR_ASKS_MAX: usize = 64;
/// Tokens of prompts that a coordinator remembers for the sake of their snapshots.
pub const SNAPSHOT_ORIGIN_TOKENS_MAX: usize = 1 << 24;
/// Most bytes of what an operator asks: a part of a snapshot's file, or much less.
pub const OPERATOR_MESSAGE_BYTES_MAX: usize = SNAPSHOT_PART_BYTES_MAX + 4096;
/// How long an operator waits for an answer of a coordinator or a worker.
pub const OPERATOR_DEADLINE_MS: u64 = 10_000;

/// How often figures are pushed to a collector, unless configured otherwise: OpenTelemetry's own.
pub const OTLP_INTERVAL_MS: u64 = 60_000;
/// The shortest interval that it may be configured to.
pub const OTLP_INTERVAL_MS_MIN: u64 = 100;
/// The longest.
pub const OTLP_INTERVAL_MS_MAX: u64 = 86_400_000;
/// How long a collector may take for what it is sent.
pub const OTLP_DEADLINE_MS: u64 = 10_000;
/// Most bytes of its answer to figures: which of them it did not take, in words.
pub const OTLP_ANSWER_BYTES_MAX: usize = 64 << 10;

/// Most bytes of an API key.
pub const API_KEY_BYTES_MAX: usize = 128;
/// Most bytes of a file of API keys.
pub const KEY_FILE_BYTES_MAX: usize = 16 << 20;
/// Most bytes of what an API key is called.
pub const KEY_NAME_BYTES_MAX: usize = 256;
/// Most tokens that an API key may have in a minute.
pub const KEY_TOKENS_PER_MINUTE_MAX: u64 = 1 << 40;
/// Connections of one listener that may be showing who they are at once.
pub const HANDSHAKES_MAX: usize = 256;
/// HTTP connections served at once.
pub const HTTP_CONNECTIONS_MAX: usize = 1024;
/// Connections to one port of gRPC at once, be it for callers, of a worker or within a group.
pub const GRPC_CONNECTIONS_MAX: usize = 8192;
/// Calls under way at once that a caller may have on one connection; further ones wait with it.
pub const GRPC_CALLS_MAX: u32 = 4096;
/// How long an HTTP connection may be silent while it sends a request.
pub const HTTP_READ_TIMEOUT_MS: u64 = 30_000;
/// How long what is written to a connection, of whatever port, may wait before its other end has
/// taken any of it.
pub const WRITE_STALL_MS: u64 = 60_000;
/// Bytes of calls' bodies that are read or prepared at once, beside the first few of each.
pub const BODIES_BYTES_MAX: usize = 4 * PROMPT_BYTES_MAX;

/// Most bytes that a coordinator keeps of all calls that it has passed on, until they are answered:
/// as long as it has them it can make them again, of whoever leads next.
pub const ESCORTED_BYTES_MAX: usize = PROMPT_BYTES_MAX;
/// Requests that one worker remembers anything of.
pub const WORKER_REQUESTS_MAX: usize = 4096;
/// Coordinator sessions that one worker serves.
pub const SESSIONS_MAX: usize = 64;
/// Most bytes of logits in one event (but always a whole row).
pub const LOGITS_EVENT_BYTES: usize = 1 << 20;

/// How long a chunk waits for a memory set before its request fails.
pub const HANDOFF_DEADLINE_MS: u64 = 120_000;
/// How long what a lost worker leaves, and no other can take over, waits for one to come, unless
/// configured otherwise: as long as a process may take to be started again and load its model.
pub const WORKER_GRACE_MS: u64 = 60_000;
/// How long a chunk takes at least, and several times as long as others, before an idle worker is
/// given it as well, unless configured otherwise.
pub const HEDGE_AFTER_MS: u64 = 500;
/// How long a connection to a peer may take.
pub const CONNECT_DEADLINE_MS: u64 = 10_000;
/// How long a connection from worker to worker may take, and for how long one that cannot be
/// reached is tried before that is told.
pub const PEER_REACH_MS: u64 = 3_000;
/// How long a worker takes what others bring though no coordinator has a session with it: longer
/// than one that leads newly needs to open its sessions, and to hear that it is deposed.
pub const UNLED_MS: u64 = 15_000;
/// How often a worker is asked whether it lives, by who waits for it.
pub const PING_INTERVAL_MS: u64 = 800;
/// How long it may take to say so before it is taken for hung. Threads that answer do nothing
/// else, so a long chunk does not keep them from it.
pub const PING_TIMEOUT_MS: u64 = 1_700;
/// The same of a caller to the only server that it knows: there is nobody to go to instead.
pub const LONE_PING_INTERVAL_MS: u64 = 10_000;
/// How long that server may take.
pub const LONE_PING_TIMEOUT_MS: u64 = 10_000;
/// How long two devices may take to join, and to exchange a memory set, before gRPC carries it.
pub const EXCHANGE_DEADLINE_MS: u64 = 10_000;
/// Peers whose devices may be joining a worker's at once.
pub const JOINS_MAX: usize = 64;
/// How long a request may take unless the caller says otherwise.
pub const REQUEST_DEADLINE_MS: u64 = 3_600_000;
