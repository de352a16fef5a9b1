//! A completion as it streams: what is asked, and what came of it, to be compared bit by bit.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::io::{BufRead, BufReader};

use serde_json::{Value, json};

use crate::binary::{Running, model};

/// By choice: text and log probabilities as they came, and why it ended.
pub(crate) type Answer = Vec<(Vec<Value>, Value)>;

/// How far an answer has come.
#[derive(Debug, Clone, Copy)]
pub(crate) enum At {
    Prefill { done: u64, total: u64 },
    Decode { tokens: usize },
}

/// Two seeded completions of `tokens` tokens each after so much of the book.
pub(crate) fn ask(chars: usize, tokens: usize, memory: Value) -> Value {
    let book = std::fs::read_to_string(model().join("../ops/demo/walden.txt")).unwrap();
    json!({
        "prompt": book.chars().take(chars).collect::<String>(),
        "max_tokens": tokens, "n": 2, "seed": 11, "temperature": 0.9, "logprobs": 2,
        "stream": true, "return_progress": true, "ignore_eos": true, "cache_prompt": false,
        "aqueduct": memory,
    })
}

/// What comes of `ask`, in one uninterrupted stream; `see` is told how far it is.
pub(crate) fn answer(coordinator: &Running, ask: &Value, mut see: impl FnMut(At)) -> Answer {
    let stream = coordinator.send("POST", "/v1/completions", &ask.to_string());
    let choices = ask["n"].as_u64().unwrap() as usize;
    let mut answer: Answer = vec![(Vec::new(), Value::Null); choices];
    let mut tokens = 0;
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        let Some(data) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else {
            continue;
        };
        let chunk: Value = serde_json::from_str(data).unwrap();
        assert!(chunk["error"].is_null(), "{chunk}");
        let progress = &chunk["prompt_progress"];
        see(match progress["processed"].as_u64() {
            Some(done) => At::Prefill { done, total: progress["total"].as_u64().unwrap() },
            None => At::Decode { tokens },
        });
        let Some(choice) = chunk["choices"].get(0).filter(|_| progress.is_null()) else {
            continue;
        };
        let (pieces, finish) = &mut answer[choice["index"].as_u64().unwrap() as usize];
        if !choice["logprobs"].is_null() || choice["text"] != "" {
            pieces.push(json!([choice["text"], choice["logprobs"]]));
            tokens += 1;
        }
        if !choice["finish_reason"].is_null() {
            *finish = choice["finish_reason"].clone();
        }
    }
    assert!(answer.iter().all(|(_, finish)| !finish.is_null()), "{answer:?}");
    answer
}

/// When a fault comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// When so many percent of the prompt are done.
    Prefill(u64),
    /// When so many tokens are there.
    Decode(usize),
}

impl Moment {
    /// Whether it has come.
    pub(crate) fn is_at(self, at: At) -> bool {
        match (self, at) {
            (Self::Prefill(percent), At::Prefill { done, total }) => {
                done * 100 > percent * total && done < total
            }
            (Self::Decode(after), At::Decode { tokens }) => tokens >= after,
            _ => false,
        }
    }
}

/// The same; at `moment`, which must come, `fault` happens.
pub(crate) fn answer_with(
    coordinator: &Running,
    ask: &Value,
    moment: Moment,
    fault: impl FnOnce(),
) -> Answer {
    let mut fault = Some(fault);
    let answer = answer(coordinator, ask, |at| {
        if let Some(fault) = fault.take_if(|_| moment.is_at(at)) {
            fault();
        }
    });
    assert!(fault.is_none(), "too late for a fault: {moment:?}");
    answer
}
