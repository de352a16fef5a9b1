//! Models that think between tags before they answer.

use std::sync::Arc;

use aqueduct_coordinator::generation::Generator;
use aqueduct_coordinator::http::ApiOptions;
use aqueduct_coordinator::text::Start;
use serde_json::{Value, json};

use super::client::{
    self, Server, allows, answering, asked, follows, generator, last_form, serving, start, text,
    text_with_marks, text_with_template,
};
use super::script::Script;

/// The gist of Qwen 3's and DeepSeek's.
const TEMPLATE: &str = "\
    {%- for message in messages %}\
    <{{ message.role }}>\
    {%- if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\
    {{- '\n\n' }}{% endif %}{{ message.content }}\
    {%- endfor %}\
    {%- if tools %}{{ tools | tojson }}<tool_call>{\"name\": .., \"arguments\": ..}</tool_call>\
    {%- endif %}\
    {%- if add_generation_prompt %}<assistant>\
    {%- if begins is defined and begins %}<think>\n{% endif %}\
    {%- if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}\
    {%- endif %}";
const BEGUN: &str = "\nBy the pond.\n</think>\n\nAt Walden.";

/// Who answers so, and ends there.
async fn saying(answer: &str) -> Server {
    client::saying(text_with_template(TEMPLATE), answer).await
}

/// How the prompt ended that was asked for last.
fn prompt(server: &Server) -> String {
    let seen = server.script.seen.lock().unwrap().pop().unwrap();
    text().spell(&seen.prompt, Start::Text)
}

/// What a call says and thinks, at once and as a stream.
async fn check(server: &Server, more: Value, content: &str, thought: Option<&str>) {
    let mut body = asked(more);
    let reply = server.chat(body.clone()).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let reply = reply.json();
    let message = &reply["choices"][0]["message"];
    assert_eq!(message["content"], content, "{reply}");
    assert_eq!(message["reasoning_content"].as_str(), thought, "{reply}");
    let counted = &reply["usage"]["completion_tokens_details"]["reasoning_tokens"];
    assert_eq!(counted.as_u64().is_some_and(|tokens| tokens > 0), thought.is_some(), "{reply}");

    body["stream"] = json!(true);
    let reply = server.chat(body).await;
    let joined = |field: &str| {
        let events = reply.events();
        let parts = events.iter().map(|event| event["choices"][0]["delta"][field].as_str());
        parts.flatten().collect::<String>()
    };
    assert_eq!(joined("content"), content, "{}", reply.body);
    assert_eq!(joined("reasoning_content"), thought.unwrap_or_default(), "{}", reply.body);
}

#[tokio::test]
async fn what_was_thought_stands_beside_what_was_said() {
    let server = saying(&format!("<think>{BEGUN}")).await;
    check(&server, json!({}), "At Walden.", Some("By the pond.")).await;
    check(&server, json!({ "reasoning_format": "auto" }), "At Walden.", Some("By the pond.")).await;
    let whole = format!("<think>{BEGUN}");
    check(&server, json!({ "reasoning_format": "none" }), &whole, None).await;
    // A stop string is looked for in what is said.
    let stop = json!({ "stop": ["pond", " Wal"] });
    check(&server, stop, "At", Some("By the pond.")).await;
    // Log probabilities are those of what is said.
    let weighed = asked(json!({ "logprobs": true }));
    let reply = server.chat(weighed).await.json();
    let entries = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let told: String = entries.iter().filter_map(|entry| entry["token"].as_str()).collect();
    assert_eq!(told.trim_start(), "At Walden.", "{reply}");

    let cut = json!({ "max_tokens": 4 });
    let reply = server.chat(asked(cut)).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], "", "{reply}");

    let reply = server.chat(asked(json!({ "reasoning_format": "loud" }))).await;
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("reasoning_format")));
    let reply = server.completion(json!({ "prompt": "Where?", "max_tokens": 90 })).await.json();
    assert_eq!(reply["choices"][0]["text"], whole, "{reply}");

    let plain = saying("At Walden.").await;
    check(&plain, json!({}), "At Walden.", None).await;
    // What was held back because thoughts might have begun so is told with what follows.
    for answer in [" \n<b>At Walden.", "<thin", "\n"] {
        let held = saying(answer).await;
        for stream in [false, true] {
            let weighed = asked(json!({ "logprobs": true, "stream": stream }));
            let reply = held.chat(weighed).await;
            let events = if stream { reply.events() } else { vec![reply.json()] };
            let lists = events.iter().map(|event| &event["choices"][0]["logprobs"]["content"]);
            let entries = lists.filter_map(Value::as_array).flatten();
            let told: String = entries.filter_map(|entry| entry["token"].as_str()).collect();
            assert_eq!(told, answer, "{}", reply.body);
        }
    }
}

#[tokio::test]
async fn a_prompt_may_begin_them() {
    let server = saying(BEGUN).await;
    let begins = json!({ "chat_template_kwargs": { "begins": true } });
    check(&server, begins, "At Walden.", Some("By the pond.")).await;
    assert!(prompt(&server).ends_with("<assistant><think>\n"));
    check(&server, json!({}), BEGUN, None).await;

    let silent = saying("At Walden.").await;
    let none = json!({ "chat_template_kwargs": { "enable_thinking": false } });
    check(&silent, none.clone(), "At Walden.", None).await;
    // Where they are over nothing is held back, so log probabilities are of all that is said.
    let marked = saying("<b>At Walden.").await;
    let mut weighed = asked(none);
    weighed["logprobs"] = json!(true);
    let reply = marked.chat(weighed).await.json();
    let entries = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let told: String = entries.iter().filter_map(|entry| entry["token"].as_str()).collect();
    assert_eq!(told, "<b>At Walden.", "{reply}");
}

#[tokio::test]
async fn a_grammar_is_of_what_is_said() {
    let text = text_with_template(TEMPLATE);
    for (begins, budget) in [(false, None), (true, None), (false, Some(0)), (true, Some(0))] {
        let has_thoughts = budget.is_none();
        let thought = if begins { "\nHm.\n</think>\n\n" } else { "<think>\nHm.\n</think>\n\n" };
        let answer = if has_thoughts { format!("{thought}{{}}") } else { "{}".to_owned() };
        let server = saying(&answer).await;
        let asked = json!({
            "response_format": { "type": "json_object" },
            "chat_template_kwargs": { "begins": begins },
            "thinking_token_budget": budget,
            "max_tokens": 90,
        });
        check(&server, asked, "{}", has_thoughts.then_some("Hm.")).await;
        assert!(allows(&server, &text, &answer), "{begins} {budget:?}");
        // Where the prompt does not begin them, there may be none.
        assert_eq!(allows(&server, &text, "{}"), !begins || !has_thoughts);
        assert!(!allows(&server, &text, &format!("{thought}Yes.")));
        let thinking = last_form(&server).thinking;
        assert_eq!(thinking.map(|thinking| thinking.most), has_thoughts.then_some(Some(45)));
        let ended = match (begins, has_thoughts) {
            (true, true) => "<assistant><think>\n",
            (true, false) => "<assistant><think>\n\n</think>\n\n",
            (false, _) => "<assistant>",
        };
        let prompt = prompt(&server);
        assert!(prompt.ends_with(ended), "{prompt}");
    }
    // In a short answer there is no room for them.
    for (max_tokens, most) in [(63, None), (64, Some(Some(32)))] {
        let server = saying("{}").await;
        let short = json!({
            "response_format": { "type": "json_object" },
            "chat_template_kwargs": { "begins": true },
            "max_tokens": max_tokens,
        });
        assert_eq!(server.chat(asked(short)).await.status, 200);
        assert_eq!(last_form(&server).thinking.map(|thinking| thinking.most), most);
        let is_closed = prompt(&server).ends_with("</think>\n\n");
        assert_eq!(is_closed, most.is_none(), "{max_tokens}");
    }
    // Thoughts that the template has ended are over.
    let server = saying("{}").await;
    let silent = json!({
        "response_format": { "type": "json_object" },
        "chat_template_kwargs": { "enable_thinking": false },
    });
    check(&server, silent, "{}", None).await;
    assert!(last_form(&server).thinking.is_none() && allows(&server, &text, "{}"));
    // Who goes on with a message is behind its thoughts.
    let messages =
        json!([{ "role": "user", "content": "?" }, { "role": "assistant", "content": "{" }]);
    let body = json!({
        "messages": messages, "continue_final_message": true,
        "response_format": { "type": "json_object" },
    });
    let reply = server.chat(body).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], "{}", "{reply}");
    assert!(last_form(&server).thinking.is_none());
}

#[tokio::test]
async fn thoughts_may_be_bounded() {
    let text = text_with_template(TEMPLATE);
    let server = saying(BEGUN).await;
    let begins = |more: Value| {
        let mut body = json!({ "chat_template_kwargs": { "begins": true } });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (budget, most) in [
        (json!({ "thinking_token_budget": 3 }), Some(Some(3))),
        (json!({ "thinking_budget_tokens": 0 }), Some(Some(0))),
        (json!({ "thinking_token_budget": -1 }), None),
        (json!({ "thinking_token_budget": null }), None),
    ] {
        let schema = json!({ "response_format": { "type": "json_object" }, "max_tokens": 40 });
        check(&server, begins(budget.clone()), "At Walden.", Some("By the pond.")).await;
        let seen = server.script.seen.lock().unwrap().pop().unwrap();
        let form = seen.constraint.map(|constraint| constraint.form);
        let told = form.map(|form| form.thinking.unwrap().most);
        assert_eq!(told, most, "{budget}");
        // Any number is more than half of all.
        if budget["thinking_token_budget"] == -1 {
            let mut body = begins(budget);
            body.as_object_mut().unwrap().extend(schema.as_object().unwrap().clone());
            assert_eq!(server.chat(asked(body)).await.status, 200);
            assert_eq!(last_form(&server).thinking.map(|thinking| thinking.most), Some(None));
        }
    }
    // What ends a call may stand within a text of it: it stops no answer of one call.
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let one = json!({ "tools": tools, "parallel_tool_calls": false, "thinking_token_budget": 3 });
    server.chat(asked(one)).await;
    let stop = server.script.seen.lock().unwrap().pop().unwrap().telling.stop;
    assert!(stop.is_empty(), "{stop:?}");
    // They are ended as the template would end them, and what follows is the model's.
    server.chat(asked(begins(json!({ "thinking_token_budget": 1 })))).await;
    let tokens = |text_of: &[&str]| -> Vec<_> {
        text_of.iter().flat_map(|part| text.encode(part, false).unwrap()).collect()
    };
    assert!(follows(&server, &tokens(&["a", "\n</think>\n\n", "So."])));
    assert!(!follows(&server, &tokens(&["a", "So."])));

    let refused = async |server: &Server, path: &str, body: Value, param: &str| {
        let reply = server.post(path, &body.to_string()).await;
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert_eq!(reply.json()["error"]["param"], param, "{}", reply.body);
    };
    let chat = "/v1/chat/completions";
    let (vllm, llama) = ("thinking_token_budget", "thinking_budget_tokens");
    refused(&server, chat, asked(json!({ llama: -2 })), llama).await;
    refused(&server, chat, asked(json!({ vllm: "high" })), vllm).await;
    refused(&server, "/v1/completions", json!({ "prompt": "a", vllm: 5 }), vllm).await;
    refused(&server, "/v1/responses", json!({ "input": "a", vllm: 1u64 << 40 }), vllm).await;
    let plain = start(answering("There.")).await;
    refused(&plain, chat, asked(json!({ vllm: 5 })), vllm).await;
    assert_eq!(plain.chat(asked(json!({ vllm: -1 }))).await.status, 200);
}

#[tokio::test]
async fn thoughts_are_given_back_and_gone_on_with() {
    let server = saying(BEGUN).await;
    let messages = json!([
        { "role": "user", "content": "Where?" },
        { "role": "assistant", "content": "There.", "reasoning_content": "Hm." },
        { "role": "user", "content": "Where?" },
    ]);
    server.chat(json!({ "messages": messages })).await;
    let prompt = prompt(&server);
    assert!(prompt.contains("<think>\nHm.\n</think>\n\nThere."), "{prompt}");
    // Who goes on with a message is behind its thoughts.
    let messages = json!([
        { "role": "user", "content": "Where?" },
        { "role": "assistant", "content": "There, " },
    ]);
    let body = json!({
        "messages": messages, "continue_final_message": true, "add_generation_prompt": false,
    });
    let reply = server.chat(body).await.json();
    assert_eq!(reply["choices"][0]["message"]["content"], BEGUN, "{reply}");
}

#[tokio::test]
async fn calls_stand_behind_them() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
    let server = saying(&format!("<think>Say {call}?</think>\n\n{call}")).await;
    let tool = json!({ "type": "function", "function": { "name": "f" } });
    let reply = server.chat(asked(json!({ "tools": [tool] }))).await.json();
    let message = &reply["choices"][0]["message"];
    assert_eq!(message["tool_calls"].as_array().map(Vec::len), Some(1), "{reply}");
    assert_eq!(message["reasoning_content"], format!("Say {call}?"));
}

/// Models whose tags and calls are tokens of their own, as Mistral's.
#[tokio::test]
async fn marks_are_tokens_of_their_own() {
    let template = "{% for message in messages %}[INST]{{ message.content }}[/INST]\
        {% if tools %}{{ tools | length }}{% endif %}{% endfor %}\
        {# [THINK]..[/THINK][TOOL_CALLS]name[ARGS]{} #}";
    let marks = ["[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "</end>"];
    let text = text_with_marks(template, &marks, &["</end>"]);
    let answer = "[THINK]By the pond.[/THINK]I look.[TOOL_CALLS]f[ARGS]{\"x\": 1}[TOOL_CALLS]f\
        [ARGS]{}</end>";
    let answer = text.encode(answer, false).unwrap();
    let script = Arc::new(Script { answer, ..Script::default() });
    let generator = Generator { text, ..generator(script.clone()) };
    let server = serving(generator, script, ApiOptions::new("tiny"), None).await;

    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let reply = server.chat(asked(json!({ "tools": tools }))).await.json();
    let choice = &reply["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{reply}");
    assert_eq!(choice["message"]["content"], "I look.");
    assert_eq!(choice["message"]["reasoning_content"], "By the pond.");
    let [first, second] = choice["message"]["tool_calls"].as_array().unwrap().as_slice() else {
        panic!("two calls: {reply}");
    };
    assert_eq!(first["function"], json!({ "name": "f", "arguments": "{\"x\": 1}" }));
    assert_eq!(second["function"], json!({ "name": "f", "arguments": "{}" }));
    assert_eq!(first["id"].as_str().map(str::len), Some(9));

    let shown = json!({ "reasoning_format": "none", "tools": tools, "logprobs": true });
    let choice = &server.chat(asked(shown)).await.json()["choices"][0];
    assert_eq!(choice["message"]["content"], "[THINK]By the pond.[/THINK]I look.", "{choice}");
    let first = &choice["logprobs"]["content"][0]["token"];
    assert_eq!(first, "[THINK]", "{choice}");

    let required = asked(json!({ "tools": tools, "tool_choice": "required" }));
    let reply = server.chat(required).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let text = text_with_marks(template, &marks, &["</end>"]);
    for (answer, is_allowed) in [
        ("[TOOL_CALLS]f[ARGS]{}", true),
        ("[THINK]By the pond.[/THINK][TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]f[ARGS]{}", true),
        ("[THINK]By the pond.[/THINK]I look.[TOOL_CALLS]f[ARGS]{}", false),
        ("[TOOL_CALLS]g[ARGS]{}", false),
        ("[THINK]By[TOOL_CALLS]f[ARGS]{}", false),
    ] {
        assert_eq!(allows(&server, &text, answer), is_allowed, "{answer}");
    }
    let either = json!({ "tools": tools, "response_format": { "type": "json_object" } });
    assert_eq!(server.chat(asked(either)).await.status, 200);
    assert!(
        allows(&server, &text, "{\"f\": 1}") && allows(&server, &text, "[TOOL_CALLS]f[ARGS]{}")
    );
    assert!(!allows(&server, &text, "There."));
}

#[tokio::test]
async fn they_are_an_item_of_a_response() {
    let server = saying(&format!("<think>{BEGUN}")).await;
    let reply = server.post("/v1/responses", r#"{"input": "Where?"}"#).await.json();
    let [thought, said] = reply["output"].as_array().unwrap().as_slice() else {
        panic!("two items: {reply}");
    };
    let want = json!([{ "type": "reasoning_text", "text": "By the pond." }]);
    assert_eq!(thought["content"], want, "{reply}");
    assert_eq!(said["content"][0]["text"], "At Walden.");
}
