//! Texts as tokens, and back.

use serde_json::{Value, json};

use super::client::{Server, answering, start, text};

async fn posted(server: &Server, path: &str, body: Value) -> Value {
    let reply = server.post(path, &body.to_string()).await;
    let json = reply.json();
    if reply.status == 200 { json } else { json["error"]["param"].clone() }
}

#[tokio::test]
async fn texts_and_chats_are_tokens() {
    let server = start(answering("x")).await;
    let check = async |body: Value, want: &str| {
        let tokens = text().encode(want, true).unwrap();
        let reply = posted(&server, "/tokenize", body).await;
        assert_eq!(reply["tokens"], json!(tokens), "{want}");
        assert_eq!(
            (&reply["count"], &reply["max_model_len"]),
            (&json!(tokens.len()), &json!(1000))
        );
    };
    check(json!({ "model": "tiny", "prompt": "The pond, é." }), "The pond, é.").await;
    check(json!({ "content": "The pond" }), "The pond").await;
    check(json!({ "prompt": "The pond", "add_special_tokens": false }), "The pond").await;
    let messages = json!([{ "role": "user", "content": "Where?" }]);
    check(json!({ "messages": messages }), "user: Where?\nassistant:").await;
    let stands = json!({ "messages": messages, "add_generation_prompt": false });
    check(stands, "user: Where?\n").await;
    let body = json!({ "prompt": "The pond", "return_token_strs": true });
    let reply = posted(&server, "/tokenize", body).await;
    let texts: Vec<&str> =
        reply["token_strs"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    assert_eq!(texts.concat(), "The pond");
    assert!(server.script.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn tokens_are_texts_with_special_ones() {
    let server = start(answering("x")).await;
    let tokens = [text().encode("The pond, é.", false).unwrap(), vec![0]].concat();
    let reply = posted(&server, "/detokenize", json!({ "tokens": tokens })).await;
    assert_eq!(reply["prompt"], "The pond, é.<|endoftext|>");
    assert_eq!(reply["content"], reply["prompt"]);
}

/// So that its caller sees by how much it is.
#[tokio::test]
async fn a_text_may_be_longer_than_the_model_takes() {
    let server = start(answering("x")).await;
    let long = "The pond. ".repeat(2000);
    let body = json!({ "prompt": long, "add_special_tokens": false });
    let reply = posted(&server, "/tokenize", body).await;
    let count = reply["tokens"].as_array().unwrap().len();
    assert!(count > 2000, "{count}");
    assert_eq!((&reply["count"], &reply["max_model_len"]), (&json!(count), &json!(1000)));
    let back = posted(&server, "/detokenize", json!({ "tokens": reply["tokens"] })).await;
    assert_eq!(back["prompt"], long);
    let body = json!({ "prompt": long, "return_token_strs": true });
    assert_eq!(posted(&server, "/tokenize", body).await, "return_token_strs");
    let messages = json!([{ "role": "user", "content": long }]);
    let reply = posted(&server, "/tokenize", json!({ "messages": messages })).await;
    assert!(reply["count"].as_u64().unwrap() > count as u64, "{}", reply["count"]);
}

/// But not however long it is: that keeps a processor busy for as long.
#[tokio::test]
async fn a_text_is_counted_up_to_a_bound() {
    let server = start(answering("x")).await;
    let (text, most) = (text(), 1 << 20);
    let tokens = json!({ "tokens": vec![0; most + 1] });
    assert_eq!(posted(&server, "/detokenize", tokens).await, "tokens");
    let longest = (0..text.vocab()).map(|token| text.token_bytes(token).len()).max().unwrap();
    let long = "a".repeat(3 * longest * most + 1);
    let refusal = text.encode_any(&long, true).unwrap_err();
    assert_eq!((&*refusal.field, &*refusal.bound), ("prompt_tokens", "at most 1048576"));
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let server = start(answering("x")).await;
    let check = async |path: &str, body: Value, param: Value| {
        assert_eq!(posted(&server, path, body.clone()).await, param, "{path} {body}");
    };
    check("/tokenize", json!({}), json!("messages")).await;
    check("/tokenize", json!({ "prompt": 5 }), json!("prompt")).await;
    check("/tokenize", json!({ "prompt": "a", "content": "a" }), json!("content")).await;
    check("/tokenize", json!({ "prompt": "a", "truncate": 5 }), json!("truncate")).await;
    check("/tokenize", json!({ "prompt": "a", "model": "other" }), json!("model")).await;
    check("/tokenize", json!({ "content": "a", "with_pieces": true }), json!("with_pieces")).await;
    check("/detokenize", json!({}), json!("tokens")).await;
    check("/detokenize", json!({ "tokens": [4096] }), json!("tokens")).await;
    check("/detokenize", json!({ "tokens": ["a"] }), json!("tokens")).await;
}
