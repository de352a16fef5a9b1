//! Bodies of HTTP calls: any bytes are a request within the limits or the caller's mistake.
#![no_main]
#![forbid(unsafe_code)]

use aqueduct_coordinator::http::{ApiError, parse_chat, parse_completion};
use aqueduct_core::limits;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    match parse_completion(body) {
        Ok(request) => {
            let choices = request.prompts.len() * request.params.choices as usize;
            assert!((1..=limits::CHOICES_MAX as usize).contains(&choices));
        }
        Err(error) => is_the_callers(&error),
    }
    match parse_chat(body) {
        Ok(request) => assert!(!request.messages.is_empty()),
        Err(error) => is_the_callers(&error),
    }
});

fn is_the_callers(error: &ApiError) {
    assert!(error.status.is_client_error(), "{}", error.message);
}
