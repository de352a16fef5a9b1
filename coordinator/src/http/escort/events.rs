//! A stream's events, told whole, and where its caller stands.

use axum::body::Bytes;
use bytes::BytesMut;

/// How a line says where an event stands, and one that says it to the caller.
const PLACE_LINE: &[u8] = b": at ";
const ID_LINE: &[u8] = b"id: ";
/// How the last event of an answer begins.
const LAST_LINES: [&[u8]; 4] = [
    b"data: [DONE]",
    b"event: response.completed",
    b"event: response.incomplete",
    b"event: response.failed",
];

/// Where the caller stands.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Place {
    /// Nothing was told.
    #[default]
    Start,
    /// Behind something that does not say where that is.
    Nowhere,
    /// As this member was told.
    OfEscort(String),
    /// As its caller was.
    OfCaller(String),
}

/// A stream's bytes as events, of which none is told in part.
#[derive(Debug, Default)]
pub(super) struct Events {
    held: BytesMut,
    /// So much of it has no end of an event.
    looked_at: usize,
    pub(super) place: Place,
    /// Whether its last event was told.
    pub(super) is_over: bool,
}

impl Events {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// What has not come to its end never does.
    pub(super) fn cut(&mut self) {
        (self.held, self.looked_at) = (BytesMut::new(), 0);
    }

    /// The next one that is whole, without what only this member is told.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        let from = self.looked_at.saturating_sub(1);
        let Some(at) = self.held[from..].windows(2).position(|two| two == b"\n\n") else {
            self.looked_at = self.held.len();
            return None;
        };
        self.looked_at = 0;
        let event = self.held.split_to(from + at + 2).freeze();
        Some(self.told(event))
    }

    pub(super) fn rest(&mut self) -> Option<Bytes> {
        let rest = self.held.split().freeze();
        (!rest.is_empty()).then_some(rest)
    }

    fn told(&mut self, event: Bytes) -> Bytes {
        let (mut at, mut mark) = (0, None);
        let mut says = false;
        for line in event.split_inclusive(|byte| *byte == b'\n') {
            let end = at + line.len();
            let text = |line: &[u8]| String::from_utf8_lossy(line).trim_end().to_owned();
            if let Some(place) = line.strip_prefix(PLACE_LINE) {
                self.place = Place::OfEscort(text(place));
                mark = Some(at..end);
            } else if let Some(id) = line.strip_prefix(ID_LINE) {
                self.place = Place::OfCaller(text(id));
            }
            says |= line.starts_with(b"data:");
            self.is_over |= LAST_LINES.iter().any(|last| line.starts_with(last));
            at = end;
        }
        if says && self.place == Place::Start {
            self.place = Place::Nowhere;
        }
        match mark {
            None => event,
            Some(mark) => [&event[..mark.start], &event[mark.end..]].concat().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_told_whole_and_without_what_is_for_members() {
        let stream = "data: {}\n: at cmpl-r1:2\n\n:\n\nevent: a\ndata: 1\n: at r1:3\n\n\
            id: x:4\ndata: 2\n\ndata: 3\n\n";
        let want = "data: {}\n\n:\n\nevent: a\ndata: 1\n\nid: x:4\ndata: 2\n\ndata: 3\n\n";
        for length in 1..stream.len() {
            let (mut events, mut told) = (Events::default(), Vec::new());
            for part in stream.as_bytes().chunks(length) {
                events.add(part);
                while let Some(event) = events.next() {
                    assert!(event.ends_with(b"\n\n"), "{event:?}");
                    told.extend_from_slice(&event);
                }
            }
            assert_eq!(String::from_utf8(told).unwrap(), want, "in parts of {length}");
            assert_eq!(events.rest(), None);
            assert_eq!(events.place, Place::OfCaller("x:4".to_owned()));
            assert!(!events.is_over);
        }
    }

    #[test]
    fn nothing_follows_the_last_event() {
        let check = |stream: &str, want: bool| {
            let mut events = Events::default();
            events.add(stream.as_bytes());
            while events.next().is_some() {}
            assert_eq!(events.is_over, want, "{stream:?}");
        };
        check("data: {\"text\":\"data: [DONE]\"}\n\n", false);
        check("data: [DONE]\n\n", true);
        check("event: response.completed\ndata: {}\n\n", true);
        check("event: response.created\ndata: {}\n\n", false);
    }

    #[test]
    fn a_place_is_behind_what_was_told() {
        let check = |stream: &str, want: Place| {
            let mut events = Events::default();
            events.add(stream.as_bytes());
            while events.next().is_some() {}
            assert_eq!(events.place, want, "{stream:?}");
        };
        check("", Place::Start);
        check(":\n\n", Place::Start);
        check("data: 1\n\n", Place::Nowhere);
        check("data: 1\n: at a:1\n\n", Place::OfEscort("a:1".to_owned()));
        check("data: 1\n: at a:1\n\ndata: 2\n: at a:2\n", Place::OfEscort("a:1".to_owned()));
        check("data: 1\nid: a:1\n\n", Place::OfCaller("a:1".to_owned()));
    }
}
