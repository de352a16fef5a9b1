//! What of one limit must hold beside another, checked when this is compiled.

use super::*;

const _: () = {
    assert!(PROMPT_TOKENS_MAX as u64 + (OUTPUT_TOKENS_MAX as u64) < u32::MAX as u64);
    assert!(CHUNK_TOKENS_DEFAULT <= CHUNK_TOKENS_MAX);
    // One request alone is no reason to take turns.
    assert!(CHOICES_MAX as usize <= DECODE_BATCH_MAX);
    assert!(BATCH_TOKENS_DEFAULT.is_multiple_of(CHUNK_TOKENS_DEFAULT));
    assert!(FRAME_BYTES_MAX + (64 << 10) <= GRPC_MESSAGE_BYTES_MAX);
    assert!(FRAME_BYTES_MAX + (64 << 10) <= HTTP2_FRAME_BYTES_MAX as usize);
    assert!(HTTP2_FRAME_BYTES_MAX < 1 << 24); // as HTTP/2 says
    assert!(GRPC_MESSAGE_BYTES_MAX <= HTTP2_WINDOW_BYTES as usize);
    assert!(GRPC_MESSAGE_BYTES_MAX <= PROMPT_BYTES_MAX);
    // A prompt of the greatest length fits one message: four bytes a token.
    assert!(PROMPT_TOKENS_MAX as usize * 4 <= PROMPT_BYTES_MAX);
    // The longest prompt, four bytes a token at most, and the rest of what was accepted.
    assert!(PROMPT_TOKENS_MAX as usize * 4 + (1 << 20) <= JOURNAL_RECORD_BYTES_MAX);
    assert!(
        GRAMMAR_BYTES_MAX
            + LOGIT_BIAS_MAX * 16
            + STOP_STRINGS_MAX * STOP_BYTES_MAX
            + WARNING_BYTES_MAX
            + TEXT_ARGUMENTS_BYTES_MAX
            < 1 << 20
    );
    assert!(RESUME_GRACE_MS <= RESUME_GRACE_MS_MAX);
    assert!(OTLP_INTERVAL_MS_MIN <= OTLP_INTERVAL_MS && OTLP_INTERVAL_MS <= OTLP_INTERVAL_MS_MAX);
    assert!(CHOICES_MAX as usize * 8 + REQUEST_ID_BYTES_MAX <= EVENT_ID_BYTES_MAX);
    assert!(JOURNAL_RECORD_BYTES_MAX as u64 <= JOURNAL_WAITING_BYTES);
    assert!(JOURNAL_WAITING_BYTES <= JOURNAL_LIVE_BYTES_MAX);
    assert!(JOURNAL_MESSAGE_BYTES <= JOURNAL_WAITING_BYTES);
    assert!(JOURNAL_MEMBERS_MAX % 2 == 1);
    assert!(JOURNAL_LIVE_BYTES_MAX + JOURNAL_ENDED_BYTES_MAX < PEER_BATCH_BYTES_MAX);
    // Whoever is quick sends a heartbeat, and hears of it, before it is given up.
    assert!(PEER_DEADLINE_MS < CONNECT_DEADLINE_MS);
    // One session of each of their groups.
    assert!(GROUPS_MAX > SESSIONS_MAX);
    // Two ways of each other worker; to a coordinator one for each call that a member passes on.
    assert!(SESSIONS_MAX + 2 * WORKERS_MAX < GRPC_CONNECTIONS_MAX);
    assert!(JOURNAL_MEMBERS_MAX * HTTP_CONNECTIONS_MAX < GRPC_CONNECTIONS_MAX);
    // A vocabulary of half a million tokens travels with the command that decodes, and so do the
    // tokens that there are: four bytes each.
    assert!(VOCAB_MAX < 1 << 28);
    assert!(4 * STATE_LEN_MAX as u64 <= STATE_BYTES_MAX);
    assert!(
        VOCABULARY_BYTES_MAX + GRAMMAR_BYTES_MAX + (512 << 10) + BEGUN_TOKENS_MAX * 4
            < GRPC_MESSAGE_BYTES_MAX
    );
    assert!(POOL_BYTES_DEFAULT <= POOL_BYTES_MAX);
    assert!((INBOX_BYTES_DEFAULT as usize) > FRAME_BYTES_MAX * LINK_WINDOW_FRAMES);
    assert!(LOGITS_EVENT_BYTES < GRPC_MESSAGE_BYTES_MAX);
    assert!(LINK_PARCELS_MAX >= LAYERS_MAX as usize);
    // Who is not led by anybody is found out long before what was given to it is missed.
    assert!(CONNECT_DEADLINE_MS < UNLED_MS && UNLED_MS + PEER_REACH_MS < HANDOFF_DEADLINE_MS / 2);
    // Who stands still is helped before it is given up.
    assert!(HEDGE_AFTER_MS < PING_INTERVAL_MS + PING_TIMEOUT_MS);
    // A hang is found out in less than three seconds, and by the coordinator before others tell.
    assert!(PING_INTERVAL_MS + PING_TIMEOUT_MS < 3_000);
    assert!(4 * REQUEST_ID_BYTES_MAX < OPERATOR_MESSAGE_BYTES_MAX);
    assert!(OPERATOR_MESSAGE_BYTES_MAX < GRPC_MESSAGE_BYTES_MAX);
    assert!(OPERATOR_LIST_MAX as usize <= SNAPSHOT_NEWS_MAX);
    assert!(PING_INTERVAL_MS + PING_TIMEOUT_MS < PEER_REACH_MS);
    assert!(SNAPSHOT_READ_DEADLINE_MS < RESTORE_DEADLINE_MS);
    assert!(RESTORE_DEADLINE_MS + CONNECT_DEADLINE_MS < HANDOFF_DEADLINE_MS);
    assert!(SNAPSHOT_CHAIN_MAX <= SNAPSHOTS_MAX && SNAPSHOT_NEWS_MAX <= SNAPSHOTS_MAX);
    assert!(SNAPSHOTS_MAX / SNAPSHOT_NEWS_MAX < EVENTS_MAX);
    // What the devices began may be late twice, and gRPC still has its time.
    assert!(4 * EXCHANGE_DEADLINE_MS < HANDOFF_DEADLINE_MS);
    assert!(HANDOFF_DEADLINE_MS < REQUEST_DEADLINE_MS);
};
