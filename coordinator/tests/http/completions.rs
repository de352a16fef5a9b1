//! `/v1/completions`: shapes, streams, several prompts, echo, log probabilities, stop strings.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use aqueduct_coordinator::generation::Generator;
use aqueduct_coordinator::http::ApiOptions;
use aqueduct_coordinator::text::TextModel;
use aqueduct_core::work::Outputs;
use aqueduct_core::{BelowFloor, Exchange, Floor, PolicyKind, Sampling, WireDtype};
use serde_json::{Value, json};

use super::client::{allows, answering, generator, last_form, serving, start, text};

#[tokio::test]
async fn a_whole_answer() {
    let server = start(answering(" by the pond")).await;
    let reply = server.completion(json!({ "prompt": "I lived", "seed": 5, "model": "tiny" })).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let body = reply.json();
    let prompt_tokens = text().encode("I lived", true).unwrap().len();
    let tokens = text().encode(" by the pond", false).unwrap().len();
    assert_eq!(body["object"], "text_completion");
    assert_eq!(body["id"], "cmpl-r0000000000000007");
    assert_eq!(
        body["choices"],
        json!([{
            "index": 0, "text": " by the pond", "logprobs": null, "finish_reason": "length",
        }])
    );
    assert_eq!(
        body["usage"],
        json!({
            "prompt_tokens": prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": prompt_tokens + tokens,
            "prompt_tokens_details": { "cached_tokens": 2 },
        })
    );
    let figures = &body["aqueduct"];
    assert_eq!(figures["retained_mass_per_layer"], json!([0.5, 0.5]));
    assert_eq!(figures["memory_bytes"], 99);
    assert_eq!(figures["dense_bytes"], (prompt_tokens + tokens) * 10);
    assert_eq!(figures["prefill_seconds"], 0.25);
    assert_eq!(figures["seed"], 5);
    assert_eq!(figures["warnings"], json!([]));
}

#[tokio::test]
async fn what_the_caller_asks_reaches_the_runtime() {
    let server = start(answering("x")).await;
    let body = json!({
        "prompt": [5, 6, 7], "max_tokens": 3, "n": 2, "temperature": 0.5, "top_p": 0.9,
        "top_k": -1, "min_p": 0.05, "presence_penalty": -1, "frequency_penalty": 0.5,
        "repetition_penalty": 1.1, "logit_bias": { "9": -5, "8": 1.5 }, "seed": 11,
        "ignore_eos": true, "stop_token_ids": [9, 4], "min_tokens": 3, "logprobs": 2,
        "user": "somebody",
        "aqueduct": {
            "policy": "h2o", "sinks": 2, "local": 600, "heavy": 9, "decay": 0.95, "window": 16,
            "age_normalised": true, "chunk_tokens": 512, "deadline_ms": 1500,
        },
    });
    let reply = server.completion(body).await.json();
    let warnings = reply["aqueduct"]["warnings"].as_array().unwrap();
    assert!(warnings[0].as_str().unwrap().starts_with("local = 600 was lowered to 511"));
    assert_eq!(reply["aqueduct"]["decay"], 0.95);
    let seen = server.script.seen.lock().unwrap().pop().unwrap();
    assert_eq!(seen.prompt, [5, 6, 7]);
    assert_eq!((seen.max_tokens, seen.choices, seen.chunk_tokens), (3, 2, 512));
    assert_eq!((seen.sampling.temperature, seen.sampling.top_p), (0.5, 0.9));
    assert_eq!((seen.sampling.top_k, seen.sampling.seed), (0, 11));
    assert_eq!((seen.sampling.min_p, seen.sampling.presence_penalty), (0.05, -1.0));
    let Sampling { frequency_penalty, repetition_penalty, .. } = seen.sampling;
    assert_eq!((frequency_penalty, repetition_penalty), (0.5, 1.1));
    assert_eq!(seen.steering.bias, [(8, 1.5), (9, -5.0)]);
    assert_eq!((seen.sampling.logprobs, seen.outputs), (Some(2), Outputs::None));
    assert_eq!((seen.policy.sinks, seen.policy.local, seen.policy.heavy), (2, 600, 9));
    assert_eq!((seen.policy.scoring.decay, seen.policy.scoring.window), (0.95, 16));
    assert!(seen.policy.scoring.age_normalised);
    assert_eq!((seen.eos.as_slice(), seen.sampling.min_tokens), ([9, 4].as_slice(), 3));
    assert_eq!(seen.deadline.as_millis(), 1500);
}

#[tokio::test]
async fn prompts_of_a_call_have_seeds_of_their_own_unless_one_is_given() {
    let server = start(answering("x")).await;
    for (seed, is_one) in [(Value::Null, false), (json!(7), true)] {
        server.completion(json!({ "prompt": ["a", "a"], "seed": seed })).await;
        let seen = std::mem::take(&mut *server.script.seen.lock().unwrap());
        let seeds: Vec<u64> = seen.iter().map(|it| it.sampling.seed).collect();
        assert_eq!(seeds[0] == seeds[1], is_one, "{seed}: {seeds:?}");
    }
}

#[tokio::test]
async fn what_a_caller_does_not_say_is_as_the_model_recommends() {
    let script = Arc::new(answering("x"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model");
    let usual =
        Sampling { temperature: 0.25, top_k: 20, repetition_penalty: 1.5, ..Sampling::default() };
    let text = Arc::new(TextModel::load(&folder).unwrap().with_sampling(usual));
    let generator = Generator { text, ..generator(script.clone()) };
    let server = serving(generator, script, ApiOptions::new("tiny"), None).await;
    for (asked, want) in [
        (json!({}), usual),
        (json!({ "temperature": 0, "top_k": 0 }), Sampling { temperature: 0.0, top_k: 0, ..usual }),
        (json!({ "top_k": -1, "top_p": 0.5 }), Sampling { top_k: 0, top_p: 0.5, ..usual }),
    ] {
        let mut body = json!({ "prompt": "a", "seed": 0 });
        body.as_object_mut().unwrap().extend(asked.as_object().unwrap().clone());
        server.completion(body).await;
        let seen = server.script.seen.lock().unwrap().pop().unwrap();
        assert_eq!(seen.sampling, want, "{asked}");
    }
}

#[tokio::test]
async fn a_budget_in_one_number() {
    let server = start(answering("x")).await;
    for (asked, want) in [
        (json!({ "max_tokens": 64 }), (4, 28, 32)),
        (json!({ "policy": "window", "max_tokens": 64 }), (4, 60, 0)),
    ] {
        server.completion(json!({ "prompt": "a", "aqueduct": asked })).await;
        let policy = server.script.seen.lock().unwrap().pop().unwrap().policy;
        assert_eq!((policy.sinks, policy.local, policy.heavy), want);
    }
}

#[tokio::test]
async fn the_exchange_is_the_callers_choice_and_what_it_came_to_is_told() {
    let server = start(answering("x")).await;
    for (asked, want) in [
        (json!({}), (Exchange::Auto, WireDtype::F32)),
        (json!({ "exchange": "stay", "wire": "bf16" }), (Exchange::Stay, WireDtype::Bf16)),
    ] {
        let reply = server.completion(json!({ "prompt": "a", "aqueduct": asked })).await.json();
        let seen = server.script.seen.lock().unwrap().pop().unwrap();
        assert_eq!((seen.exchange, seen.wire), want);
        let figures = &reply["aqueduct"];
        assert_eq!(
            (&figures["exchange"], &figures["wire"]),
            (&json!("stay"), &json!(want.1.as_str()))
        );
        let bytes = (&figures["sent_bytes"], &figures["received_bytes"]);
        assert_eq!(bytes, (&json!(30), &json!(40)));
    }
}

#[tokio::test]
async fn what_the_memory_must_keep_is_the_callers_choice_and_what_it_came_to_is_told() {
    let server = start(answering("x")).await;
    let ask = async |quality: Value, stream: bool| {
        let body = json!({ "prompt": "a", "stream": stream, "aqueduct": quality });
        let reply = server.completion(body).await;
        let figures = match stream {
            true => reply.events().last().unwrap()["aqueduct"].clone(),
            false => reply.json()["aqueduct"].clone(),
        };
        (server.script.seen.lock().unwrap().pop().unwrap(), figures)
    };
    let (seen, figures) = ask(json!({ "quality": "exact" }), false).await;
    assert_eq!((seen.policy.kind, seen.floor), (PolicyKind::Dense, None));
    assert_eq!(
        (&figures["policy"], &figures["min_retained_mass"]),
        (&json!("dense"), &json!(null))
    );

    let floor = |below| Some(Floor { min_retained_mass: 0.75, below });
    for stream in [false, true] {
        let report = json!({ "min_retained_mass": 0.75, "below_floor": "report" });
        let (seen, figures) = ask(report, stream).await;
        assert_eq!(seen.floor, floor(BelowFloor::Report));
        assert_eq!((&figures["escalations"], &figures["local"]), (&json!(0), &json!(256)));
        let kept = "h2o 4 + 256 + 256 kept 0.5000 of the attention mass in the layer that kept \
                    least, below min_retained_mass = 0.75";
        assert_eq!(figures["warnings"], json!([kept]));

        let escalate = json!({ "quality": "memory", "min_retained_mass": 0.75 });
        let (seen, figures) = ask(escalate, stream).await;
        assert_eq!(seen.floor, floor(BelowFloor::Escalate));
        assert_eq!((&figures["escalations"], &figures["local"]), (&json!(1), &json!(512)));
        assert_eq!(figures["lowest_retained_mass"], 0.5);
        assert_eq!(figures["min_retained_mass"], 0.75);
        let again = format!("{kept}: prefilled again with h2o 4 + 512 + 511");
        assert_eq!(figures["warnings"], json!([again]));
    }
}

#[tokio::test]
async fn a_stream_says_what_the_whole_answer_says() {
    let server = start(answering(" — 😀 by the pond")).await;
    let body = json!({
        "prompt": "I", "max_tokens": 50, "stream": true,
        "stream_options": { "include_usage": true },
    });
    let reply = server.completion(body).await;
    assert!(reply.head.contains("content-type: text/event-stream; charset=utf-8"));
    let mut events = reply.events();
    let last = events.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert!(last["usage"]["total_tokens"].as_u64().unwrap() > 1);
    assert!(events.iter().all(|event| event["usage"].is_null()));
    let texts = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap());
    assert_eq!(texts.collect::<String>(), " — 😀 by the pond");
    let end = events.last().unwrap();
    assert_eq!(end["choices"][0]["finish_reason"], "length");
    assert_eq!(end["aqueduct"]["memory_bytes"], 99);
    let early = events.iter().rev().skip(1);
    assert!(early.clone().all(|event| event["choices"][0]["finish_reason"].is_null()));
    assert!(early.clone().all(|event| event.get("aqueduct").is_none()));
}

#[tokio::test]
async fn usage_with_every_chunk() {
    let server = start(answering(" by the pond")).await;
    let options = json!({ "include_usage": true, "continuous_usage_stats": true });
    let mut body =
        json!({ "prompt": "I", "max_tokens": 50, "stream": true, "stream_options": options });
    let events = server.completion(body.clone()).await.events();
    let counts = |event: &Value| {
        let usage = &event["usage"];
        (usage["prompt_tokens"].as_u64().unwrap(), usage["completion_tokens"].as_u64().unwrap())
    };
    let counts: Vec<_> = events.iter().map(counts).collect();
    let tokens = text().encode(" by the pond", false).unwrap().len() as u64;
    assert_eq!((counts[0].1, counts.last().unwrap().1), (1, tokens));
    let prompt_tokens = text().encode("I", true).unwrap().len() as u64;
    assert!(counts.iter().all(|(prompt, _)| *prompt == prompt_tokens), "{counts:?}");
    assert!(counts.is_sorted(), "{counts:?}");

    body["aqueduct"] = json!({ "resumable": true });
    let refused = server.completion(body).await.json();
    assert_eq!(refused["error"]["param"], "stream_options.continuous_usage_stats");
}

#[tokio::test]
async fn several_prompts_and_choices_are_numbered_through() {
    let server = start(answering(" yes")).await;
    let body = json!({ "prompt": ["a b", "c", "d"], "n": 2, "echo": true, "max_tokens": 9 });
    let whole = server.completion(body.clone()).await.json();
    let choices = whole["choices"].as_array().unwrap();
    let seen: Vec<_> = choices.iter().map(|one| (&one["index"], &one["text"])).collect();
    let want = ["a b yes", "a b yes", "c yes", "c yes", "d yes", "d yes"].map(Value::from);
    for (idx, (index, text)) in seen.iter().enumerate() {
        assert_eq!((*index, *text), (&json!(idx), &want[idx]));
    }
    assert_eq!(seen.len(), 6);
    assert_eq!(whole["aqueduct"].as_array().unwrap().len(), 3);

    let mut body = body;
    body["stream"] = json!(true);
    let mut texts = vec![String::new(); 6];
    for event in server.completion(body).await.events() {
        let choice = &event["choices"][0];
        texts[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
    }
    assert_eq!(texts, want);

    let lists = server.completion(json!({ "prompt": [[5], [6, 7]] })).await.json();
    assert_eq!(lists["choices"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn log_probabilities_have_their_lists() {
    let server = start(answering(" the pond")).await;
    let ids = text().encode(" the pond", false).unwrap();
    let body = json!({ "prompt": "I", "logprobs": 1 });
    let logprobs = server.completion(body).await.json()["choices"][0]["logprobs"].clone();
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), ids.len());
    assert_eq!(logprobs["tokens"][0], " the");
    assert_eq!(logprobs["token_logprobs"][0], -0.5);
    assert_eq!(logprobs["top_logprobs"][0], json!({ " the": -0.5 }));
    assert_eq!((&logprobs["text_offset"][0], &logprobs["text_offset"][1]), (&json!(0), &json!(4)));
    let silent = start(answering("")).await;
    let body = json!({ "prompt": "I", "logprobs": 1, "max_tokens": 0 });
    let nothing = silent.completion(body).await.json()["choices"][0]["logprobs"].clone();
    assert_eq!((&nothing["tokens"], &nothing["text_offset"]), (&json!([]), &json!([])));
    let none = server.completion(json!({ "prompt": "I", "logprobs": 0 })).await.json();
    assert!(none["choices"][0]["logprobs"]["top_logprobs"].is_null());
    assert_eq!(none["choices"][0]["logprobs"]["token_logprobs"][0], -0.5);
}

/// Where each token's first character is in the text as it is told, which has U+FFFD for bytes that
/// are part of none.
#[tokio::test]
async fn offsets_point_into_the_text() {
    let text = text();
    assert_eq!(text.token_bytes(256), [0x9f], "a byte that begins no character");
    let smile = text.encode("a😀b", false).unwrap();
    let (starts, _) = smile.iter().fold((Vec::new(), 0), |(mut starts, at), token| {
        let bytes = text.token_bytes(*token).len();
        starts.push(usize::from(at > 0) + usize::from(at > 4));
        (starts, at + bytes)
    });
    let open = smile.iter().copied().find(|token| text.token_bytes(*token)[0] == 0xf0).unwrap();
    assert!(text.token_bytes(open).len() < 4, "a part of the character");
    let server = start(answering("a😀b")).await;
    let check = async |prompt: &[u32], want: &[usize], words: &str| {
        let body = json!({ "prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 99 });
        let choice = server.completion(body).await.json()["choices"][0].clone();
        assert_eq!(choice["text"], format!("{words}a😀b"));
        let after = words.chars().count();
        let want = want.iter().copied().chain(starts.iter().map(|start| start + after));
        let want: Vec<usize> = want.collect();
        assert_eq!(choice["logprobs"]["text_offset"], json!(want), "{prompt:?}");
        let body = json!({ "prompt": prompt, "logprobs": 1, "max_tokens": 99 });
        let choice = server.completion(body).await.json()["choices"][0].clone();
        assert_eq!(choice["logprobs"]["text_offset"], json!(starts), "{prompt:?}");
    };
    let said = |tokens: &[u32]| text.decode(tokens);
    let (first, last) = (said(&[260]), said(&[902]));
    let chars = first.chars().count();
    let (one, two) = ([260, 256, 902], [260, 256, 256, 902]);
    check(&one, &[0, chars, chars + 1], &format!("{first}\u{fffd}{last}")).await;
    let words = format!("{first}\u{fffd}\u{fffd}{last}");
    check(&two, &[0, chars, chars + 1, chars + 2], &words).await;
    // What is open is given up by what does not go on with it, and by the prompt's end.
    let words = format!("{first}\u{fffd}{last}");
    check(&[260, open, 902], &[0, chars, chars + 1], &words).await;
    check(&[260, open], &[0, chars], &format!("{first}\u{fffd}")).await;
    let prompt = [&[260], smile.as_slice()].concat();
    let want: Vec<usize> =
        [0].into_iter().chain(starts.iter().map(|start| start + chars)).collect();
    check(&prompt, &want, &format!("{first}a😀b")).await;
}

#[tokio::test]
async fn echo_scores_the_prompt_without_generating() {
    let server = start(answering("never")).await;
    let prompt = "Time is but the stream";
    let ids = text().encode(prompt, true).unwrap();
    let body = json!({ "prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 0 });
    for stream in [false, true] {
        let mut body = body.clone();
        body["stream"] = json!(stream);
        let reply = server.completion(body).await;
        let (choice, end) = if stream {
            let events = reply.events();
            (events[0]["choices"][0].clone(), events.last().unwrap()["choices"][0].clone())
        } else {
            (reply.json()["choices"][0].clone(), reply.json()["choices"][0].clone())
        };
        assert_eq!((&choice["text"], &end["finish_reason"]), (&json!(prompt), &json!("length")));
        let logprobs = &choice["logprobs"];
        assert_eq!(logprobs["tokens"].as_array().unwrap().len(), ids.len());
        assert_eq!(logprobs["token_logprobs"][0], Value::Null);
        assert_eq!(logprobs["top_logprobs"][0], Value::Null);
        assert_eq!(logprobs["token_logprobs"][1], -0.5);
        let offsets: Vec<usize> = serde_json::from_value(logprobs["text_offset"].clone()).unwrap();
        for (offset, token) in offsets.iter().zip(logprobs["tokens"].as_array().unwrap()) {
            assert!(prompt[*offset..].starts_with(token.as_str().unwrap()));
        }
    }
    let seen = server.script.seen.lock().unwrap().pop().unwrap();
    assert_eq!((seen.max_tokens, seen.outputs), (0, Outputs::Logprobs(1)));
}

#[tokio::test]
async fn stop_strings_end_a_choice_across_tokens() {
    let server = start(answering(" one two three four")).await;
    let body = json!({ "prompt": "a", "stop": ["o th", "four"], "max_tokens": 40, "n": 2 });
    let reply = server.completion(body).await.json();
    for choice in 0..2 {
        assert_eq!(reply["choices"][choice]["text"], " one tw");
        assert_eq!(reply["choices"][choice]["finish_reason"], "stop");
        assert_eq!(reply["choices"][choice]["stop_reason"], "o th");
    }
    assert_eq!(server.script.stopped.load(Ordering::SeqCst), 2);

    let body = json!({ "prompt": "a", "stop": "four!", "max_tokens": 40, "stream": true });
    let events = server.completion(body).await.events();
    let texts = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap());
    assert_eq!(texts.collect::<String>(), " one two three four");
    let last = &events.last().unwrap()["choices"][0];
    assert_eq!((&last["finish_reason"], last.get("stop_reason")), (&json!("length"), None));
}

#[tokio::test]
async fn an_end_token_is_counted_and_not_shown() {
    let mut script = answering("done");
    script.answer.push(0);
    let tokens = script.answer.len();
    let server = start(script).await;
    let reply = server.completion(json!({ "prompt": "a", "logprobs": 0 })).await.json();
    let choice = &reply["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("done"), &json!("stop")));
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), tokens - 1);
    assert_eq!(reply["usage"]["completion_tokens"], tokens);
}

#[tokio::test]
async fn a_call_may_have_many_prompts() {
    let server = start(answering("x")).await;
    let prompts = vec!["a"; 130];
    let reply = server.completion(json!({ "prompt": prompts, "n": 2 })).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let reply = reply.json();
    let choices = reply["choices"].as_array().unwrap();
    let indices: Vec<_> = choices.iter().map(|choice| choice["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, (0..260).collect::<Vec<_>>());
    assert_eq!(reply["aqueduct"].as_array().map(Vec::len), Some(130));
    assert_eq!(server.script.seen.lock().unwrap().len(), 130);
    let events = server.completion(json!({ "prompt": prompts, "stream": true })).await.events();
    let last = events.iter().filter(|event| event["choices"][0]["finish_reason"].is_string());
    let mut last: Vec<_> =
        last.map(|event| event["choices"][0]["index"].as_u64().unwrap()).collect();
    last.sort_unstable();
    assert_eq!(last, (0..130).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_form_may_be_asked_for_in_other_words() {
    let server = start(answering("x")).await;
    let check = async |fields: Value, good: &[&str], bad: &[&str]| {
        let mut body = json!({ "prompt": "a" });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let reply = server.completion(body).await;
        assert_eq!(reply.status, 200, "{fields}: {}", reply.body);
        good.iter().for_each(|it| assert!(allows(&server, &text(), it), "{it} by {fields}"));
        bad.iter().for_each(|it| assert!(!allows(&server, &text(), it), "{it} by {fields}"));
    };
    let within = |name: &str, value: Value| json!({ "structured_outputs": { name: value } });
    check(within("json", json!({ "type": "boolean" })), &["true"], &["1"]).await;
    check(within("json_object", json!(true)), &["{}"], &["1"]).await;
    check(within("regex", json!("a+b")), &["ab", "aab"], &["b"]).await;
    let words = json!(["yes", "yes, no", "say \"so\""]);
    check(within("choice", words), &["yes", "yes, no", "say \"so\""], &["no", "yes,"]).await;
    check(within("grammar", json!("start: \"a\" \"b\"?")), &["a", "ab"], &["b"]).await;
    check(json!({ "guided_choice": ["a", "b"] }), &["a", "b"], &["ab"]).await;
    let schema = json!({ "type": "integer" });
    let described = json!({ "type": "json_schema", "json_schema": { "schema": schema } });
    let same = json!({ "json_schema": schema, "response_format": described });
    check(same, &["5"], &["true"]).await;
    check(json!({ "grammar": "" }), &[], &[]).await;
    assert!(last_form(&server).is_any());
    let other = json!({ "prompt": "a", "guided_regex": "a", "response_format": described });
    let reply = server.completion(other).await;
    let param = &reply.json()["error"]["param"];
    assert_eq!((reply.status, param), (400, &json!("guided_regex")), "{}", reply.body);
}

#[tokio::test]
async fn fields_of_vllm_reach_the_runtime() {
    let server = start(answering("x")).await;
    let body = json!({ "prompt": "a", "add_special_tokens": false, "cache_salt": "mine" });
    assert_eq!(server.completion(body).await.status, 200);
    let seen = server.script.seen.lock().unwrap().pop().unwrap();
    assert_eq!(seen.prompt, text().encode("a", false).unwrap());
    assert!(!seen.cache_prompt);
    assert_eq!(server.completion(json!({ "prompt": "a" })).await.status, 200);
    let seen = server.script.seen.lock().unwrap().pop().unwrap();
    assert_eq!(seen.prompt, text().encode("a", true).unwrap());
    assert!(seen.cache_prompt);
}
