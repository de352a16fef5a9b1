//! Bodies of HTTP calls, and ids of events: any bytes are a request within the limits or the
//! caller's mistake.
#![no_main]
#![forbid(unsafe_code)]

use aqueduct_coordinator::http::{
    ApiError, Usual, parse_chat, parse_completion, parse_message, parse_response,
};
use aqueduct_coordinator::streams::EventId;
use aqueduct_core::limits;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    let usual = Usual::default();
    match parse_completion(body, &usual) {
        Ok(request) => {
            let choices = request.prompts.len() * request.params.choices as usize;
            assert!((1..=limits::CALL_CHOICES_MAX).contains(&choices));
        }
        Err(error) => is_the_callers(&error),
    }
    match parse_chat(body, &usual) {
        Ok(request) => assert!(!request.chat.messages.is_empty()),
        Err(error) => is_the_callers(&error),
    }
    match parse_response(body, &usual) {
        Ok((chat, _)) => assert!(!chat.chat.messages.is_empty() && chat.params.choices == 1),
        Err(error) => is_the_callers(&error),
    }
    match parse_message(body, &usual) {
        Ok(chat) => assert!(!chat.chat.messages.is_empty() && chat.params.choices == 1),
        Err(error) => is_the_callers(&error),
    }
    let text = String::from_utf8_lossy(body);
    if let Ok(id) = text.parse::<EventId>() {
        assert!(text.len() <= limits::EVENT_ID_BYTES_MAX);
        if let Some(place) = id.place {
            let choices = place.to_string().split('.').count();
            assert!(place.check("last-event-id", choices as u32).is_ok(), "{text}");
        }
    }
});

fn is_the_callers(error: &ApiError) {
    assert!(error.status.is_client_error(), "{}", error.message);
}
