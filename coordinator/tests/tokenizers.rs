//! Tokenisers against the Hugging Face library: from GGUF metadata, and the shipped model's.
//! The fixtures are made by `tokenizers/make.py`.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use aqueduct_coordinator::text::{
    CallNotation, ChatMessage, Conversation, GgufVocabulary, Role, Start, TextError, TextModel,
};
use aqueduct_core::Session;
use proptest::prelude::*;
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokenizers").join(name)
}

fn shipped() -> TextModel {
    TextModel::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../model")).unwrap()
}

/// Tokens to text one by one, as a stream would have it.
fn streamed(text: &TextModel, tokens: &[u32], start: Start) -> String {
    let mut detokenizer = text.detokenizer(start);
    let mut got: String = tokens.iter().map(|token| text.push(&mut detokenizer, *token)).collect();
    got += &detokenizer.finish();
    got
}

#[test]
fn a_text_begins_as_the_tokeniser_has_it() {
    for name in ["qwen2", "llama3", "llama2"] {
        let text = TextModel::load(&fixture(&format!("{name}.gguf"))).unwrap();
        let begin = text.begin().unwrap();
        assert_eq!(begin.len(), usize::from(name == "llama2"), "{name}");
        assert!(begin.iter().all(|token| text.is_special(*token)), "{name}");
        let words = "the pond";
        let whole = [begin, text.encode(words, false).unwrap()].concat();
        assert_eq!(whole, text.encode(words, true).unwrap(), "{name}");
    }
    assert!(shipped().begin().unwrap().is_empty());
}

#[test]
fn gguf_tokenisers_agree_with_hugging_face() {
    for name in ["qwen2", "llama3", "llama2"] {
        let text = TextModel::load(&fixture(&format!("{name}.gguf"))).unwrap();
        let rows = std::fs::read_to_string(fixture(&format!("{name}.json"))).unwrap();
        let rows: Vec<Value> = serde_json::from_str(&rows).unwrap();
        for row in rows {
            let want: Vec<u32> = serde_json::from_value(row["ids"].clone()).unwrap();
            let got = text.encode(row["text"].as_str().unwrap(), true).unwrap();
            assert_eq!(got, want, "{name}: {}", row["text"]);
            assert_eq!(text.decode(&got), row["decoded"], "{name}");
        }
    }
}

/// Against SentencePiece itself: see `tokenizers/make_sentence.py`.
#[test]
fn folders_may_have_a_sentence_piece_model_alone() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tokenizer.model", "config.json"] {
        std::fs::copy(fixture("sentence").join(name), folder.path().join(name)).unwrap();
    }
    let rows = std::fs::read_to_string(fixture("sentence/texts.json")).unwrap();
    let rows: Vec<Value> = serde_json::from_str(&rows).unwrap();
    let config = std::fs::read(fixture("sentence/tokenizer_config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    for (legacy, of) in [(Value::Null, "legacy"), (true.into(), "legacy"), (false.into(), "new")] {
        let mut config = config.clone();
        config["legacy"] = legacy;
        let file = folder.path().join("tokenizer_config.json");
        std::fs::write(file, config.to_string()).unwrap();
        let text = TextModel::load(folder.path()).unwrap();
        for row in &rows {
            let want: Vec<u32> = serde_json::from_value(row["ids"][of].clone()).unwrap();
            let said = row["text"].as_str().unwrap();
            assert_eq!(text.encode(said, true).unwrap(), want, "{of}: {said:?}");
        }
        let whole = text.encode("the pond\n\n 東京", true).unwrap();
        assert_eq!(text.decode(&whole), "the pond\n\n 東京");
        assert_eq!(text.eos(), [2]);
    }
}

/// Against transformers: see `tokenizers/make_merges.py`.
#[test]
fn folders_may_have_a_vocabulary_and_merges_alone() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["vocab.json", "merges.txt", "config.json"] {
        std::fs::copy(fixture("merges").join(name), folder.path().join(name)).unwrap();
    }
    let made = std::fs::read_to_string(fixture("merges/texts.json")).unwrap();
    let made: Value = serde_json::from_str(&made).unwrap();
    for class in ["opt", "qwen2"] {
        let made_by = &made[class];
        let config = made_by["tokenizer_config"].to_string();
        std::fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
        let text = TextModel::load(folder.path()).unwrap();
        let said = made["texts"].as_array().unwrap();
        for (said, want) in said.iter().zip(made_by["rows"].as_array().unwrap()) {
            let ids: Vec<u32> = serde_json::from_value(want["ids"].clone()).unwrap();
            assert_eq!(text.encode(said.as_str().unwrap(), true).unwrap(), ids, "{class}: {said}");
            assert_eq!(text.decode(&ids), want["decoded"], "{class}");
        }
        assert_eq!(text.eos(), [made_by["eos"].as_u64().unwrap() as u32], "{class}");
    }
}

/// Against Mistral's own library: see `tokenizers/make_tekken.py`.
#[test]
fn folders_may_have_a_tekken_file_alone() {
    let text = TextModel::load(&fixture("tekken")).unwrap();
    let rows = std::fs::read_to_string(fixture("tekken/texts.json")).unwrap();
    let rows: Vec<Value> = serde_json::from_str(&rows).unwrap();
    for row in rows {
        let want: Vec<u32> = serde_json::from_value(row["ids"].clone()).unwrap();
        assert_eq!(text.encode(row["text"].as_str().unwrap(), true).unwrap(), want, "{row}");
        assert_eq!(text.decode(&want), row["decoded"], "{row}");
    }
    assert_eq!((text.begin().unwrap(), text.eos()), (vec![1], &[2][..]));
}

fn families() -> GgufVocabulary {
    let bytes = std::fs::read(fixture("families.gguf")).unwrap();
    GgufVocabulary::from_gguf(&aqueduct_gguf::Gguf::parse_metadata(&bytes).unwrap()).unwrap()
}

/// Against llama.cpp: see `tokenizers/make_families.py`.
#[test]
fn names_of_pretokenisers_cut_words_as_llama_cpp_does() {
    let vocabulary = families();
    let called = |name: &str| {
        GgufVocabulary { pre: Some(name.into()), ..vocabulary.clone() }.build().map(TextModel::new)
    };
    let cases = std::fs::read_to_string(fixture("families.json")).unwrap();
    let cases: Value = serde_json::from_str(&cases).unwrap();
    let texts: Vec<&str> =
        cases["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    for family in cases["families"].as_array().unwrap() {
        for name in family["names"].as_array().unwrap() {
            let text = called(name.as_str().unwrap()).unwrap().unwrap();
            for (said, want) in texts.iter().zip(family["ids"].as_array().unwrap()) {
                let want: Vec<u32> = serde_json::from_value(want.clone()).unwrap();
                let got = text.encode(said, false).unwrap();
                assert_eq!(got, want, "{name}: {said:?}");
                assert_eq!(text.decode(&got), said.replace("<|end|>", ""), "{name}");
            }
        }
    }
    let unknown = called("of another family").err().unwrap().to_string();
    assert!(unknown.starts_with("tokenizer.ggml.pre = of another family: must be"), "{unknown}");
}

/// Phi 3's templates have the end of a line behind every special token.
#[test]
fn special_tokens_of_phi_3_take_what_is_behind_them() {
    let bytes = std::fs::read(fixture("llama2.gguf")).unwrap();
    let gguf = aqueduct_gguf::Gguf::parse_metadata(&bytes).unwrap();
    let llama = GgufVocabulary::from_gguf(&gguf).unwrap();
    assert!(!llama.strips_right);
    let phi = GgufVocabulary { strips_right: true, ..llama.clone() };
    let [llama, phi] = [llama, phi].map(|it| TextModel::new(it.build().unwrap()).unwrap());
    let encoded = |text: &TextModel, said: &str| text.encode(said, false).unwrap();
    for (spaced, plain) in [("a</s>\n b", "a</s>b"), ("</s> \n</s>", "</s></s>")] {
        assert_eq!(encoded(&phi, spaced), encoded(&phi, plain), "{spaced:?}");
        assert_ne!(encoded(&llama, spaced), encoded(&llama, plain), "{spaced:?}");
    }
    for said in ["<s>\n b", "<unk> b", "a\n b", "a</s>"] {
        assert_eq!(encoded(&phi, said), encoded(&llama, said), "{said:?}");
    }
}

/// Gemma 4's pieces are of characters, as SentencePiece's are, and merges are listed.
#[test]
fn listed_merges_may_be_of_characters() {
    let pieces = ["<pad>", "<bos>", "\u{2581}", "a", "b", "\n", "\u{2581}a", "\u{2581}ab", "\n\n"];
    let bytes = (0..=255).map(|byte| format!("<0x{byte:02X}>"));
    let tokens: Vec<String> = pieces.iter().map(|&piece| piece.into()).chain(bytes).collect();
    let vocabulary = GgufVocabulary {
        model: "gemma4".into(),
        kinds: tokens.iter().map(|token| if token.starts_with("<0x") { 6 } else { 1 }).collect(),
        tokens,
        merges: ["\u{2581} a", "\u{2581}a b", "\n \n"].map(Into::into).into(),
        bos: Some(1),
        adds_bos: Some(false),
        ..GgufVocabulary::default()
    };
    let text = TextModel::new(vocabulary.build().unwrap()).unwrap();
    let check = |said: &str, want: &[u32]| {
        assert_eq!(text.encode(said, false).unwrap(), want, "{said:?}");
        assert_eq!(text.decode(want), said);
    };
    check(" ab\n\na", &[7, 8, 3]);
    check("a  ab", &[3, 2, 7]);
    check("\u{e9}b", &[9 + 0xc3, 9 + 0xa9, 4]);
    assert_eq!(text.encode("b", true).unwrap(), [1, 4]);
}

/// Llama 3's files say `<|end_of_text|>`, and its turns end with `<|eot_id|>`.
#[test]
fn answers_end_with_what_is_called_an_end() {
    const CONTROL: i32 = 3;
    const ORDINARY: i32 = 1;
    let check = |renamed: [(usize, &str, i32); 2], said: &[u32], want: &[u32]| {
        let mut vocabulary = GgufVocabulary { eos: said.to_vec(), ..families() };
        for (id, name, kind) in renamed {
            vocabulary.tokens[id] = name.into();
            vocabulary.kinds[id] = kind;
        }
        let text = TextModel::new(vocabulary.build().unwrap()).unwrap();
        assert_eq!(text.eos(), want, "{renamed:?} {said:?}");
    };
    let end = families().eos[0];
    let turn = |kind| [(7, "<|eot_id|>", kind), (9, "<|eom_id|>", kind)];
    check(turn(CONTROL), &[end], &[end, 7, 9]);
    check(turn(CONTROL), &[9], &[9, 7, end]);
    check(turn(ORDINARY), &[end], &[end]);
    check(turn(ORDINARY), &[], &[end]);
    // Ordinary ones are text, but for those that no text has.
    let gemma = [(7, "<start_of_turn>", ORDINARY), (9, "<end_of_turn>", ORDINARY)];
    check(gemma, &[end], &[end, 9]);
    check([(7, "<|eot_id|>", CONTROL), (9, "<|start|>", CONTROL)], &[5, end], &[5, end, 7]);
}

#[test]
fn a_sentence_piece_answer_has_no_leading_space_and_a_continuation_has() {
    let text = TextModel::load(&fixture("llama2.gguf")).unwrap();
    let tokens = text.encode("the pond", false).unwrap();
    assert_eq!(streamed(&text, &tokens, Start::Text), "the pond");
    assert_eq!(streamed(&text, &tokens, Start::Continuation), " the pond");
}

#[test]
fn the_shipped_model_has_an_end_token_and_a_vocabulary() {
    let text = shipped();
    assert_eq!(text.eos(), [0]);
    assert_eq!(text.vocab(), 4096);
    assert!(text.template().warning().is_some());
    assert_eq!(text.decode(&[0, 1, 2]), "");
    assert_eq!(text.token_bytes(0), b"<|endoftext|>");
    assert_eq!(text.token_bytes(u32::MAX), b"");
}

#[test]
fn refuses_prompts_that_are_too_long_and_tokens_that_do_not_exist() {
    let text = shipped().with_prompt_tokens_max(8);
    assert!(text.encode("eight tokens or fewer", true).is_ok());
    let refusal = text.encode(&"many words ".repeat(20), true).unwrap_err();
    assert_eq!(refusal.bound, "at most 8");
    let refusal = text.encode(&"a".repeat(1 << 20), true).unwrap_err();
    assert_eq!(refusal.value, "those of 1048576 bytes");
    assert_eq!(text.check(&[5, 4096]).unwrap_err().value, "4096");
    assert!(text.check(&[0; 9]).is_err());
}

#[test]
fn a_folder_of_one_gguf_is_that_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("llama2.gguf"), folder.path().join("m.gguf")).unwrap();
    let tokens = |path: &Path| TextModel::load(path).unwrap().encode("In the folder", true);
    assert_eq!(tokens(folder.path()).unwrap(), tokens(&fixture("llama2.gguf")).unwrap());
    std::fs::write(folder.path().join("n.gguf"), "").unwrap();
    let refused = TextModel::load(folder.path()).err().unwrap().to_string();
    assert!(refused.contains("2 .gguf files: name one of them"), "{refused}");
}

#[test]
fn broken_files_are_one_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let load = || TextModel::load(folder.path()).err().unwrap();
    assert!(matches!(load(), TextError::Read { .. }));
    std::fs::write(folder.path().join("tokenizer.json"), "{\"model\": 1").unwrap();
    assert!(load().to_string().contains("tokenizer.json"));

    let whole = std::fs::read(fixture("llama2.gguf")).unwrap();
    let path = folder.path().join("model.gguf");
    for bytes in [0, 3, 20, 100, whole.len() / 2, whole.len() - 40] {
        std::fs::write(&path, &whole[..bytes]).unwrap();
        assert!(TextModel::load(&path).is_err(), "{bytes} bytes");
    }
}

#[test]
fn settings_of_a_folder_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tokenizer.json");
    std::fs::copy(model, folder.path().join("tokenizer.json")).unwrap();
    put("config.json", r#"{"vocab_size": 5000, "bos_token_id": 1, "eos_token_id": 1}"#);
    put("generation_config.json", r#"{"eos_token_id": [0, 2]}"#);
    put(
        "tokenizer_config.json",
        r#"{"eos_token": {"content": "<|im_end|>"}, "chat_template": [
            {"name": "tool_use", "template": "{{ tools }}<tool_call>{\"arguments\":"},
            {"name": "default", "template": "{{ bos_token }}|{{ eos_token }}"}]}"#,
    );
    let text = TextModel::load(folder.path()).unwrap();
    assert_eq!((text.eos(), text.vocab()), ([2, 0].as_slice(), 5000));
    let rendered = text.template().render(Conversation::of(&[]), UNIX_EPOCH).unwrap();
    assert_eq!(rendered, "<|im_start|>|<|im_end|>");
    assert_eq!(text.template().notation(), Some(CallNotation::Tagged));
    // What only older files say counts where newer ones are silent.
    put("special_tokens_map.json", r#"{"eos_token": "never", "unk_token": {"content": "<|u|>"}}"#);
    put("added_tokens.json", r#"{"<|old|>": 4096}"#);
    put(
        "tokenizer_config.json",
        r#"{"eos_token": {"content": "<|im_end|>"}, "additional_special_tokens": ["<|last|>"],
            "added_tokens_decoder": {"4097": {"content": "<|new|>", "special": true}},
            "chat_template": "{{ eos_token }}{{ unk_token }}{{ pad_token is defined }}"}"#,
    );
    let text = TextModel::load(folder.path()).unwrap();
    let rendered = text.template().render(Conversation::of(&[]), UNIX_EPOCH).unwrap();
    assert_eq!(rendered, "<|im_end|><|u|>False");
    let tokens = text.encode("<|old|><|new|><|last|>", false).unwrap();
    assert_eq!(tokens, [4096, 4097, 4098]);
    put("chat_template.jinja", "from the file");
    let text = TextModel::load(folder.path()).unwrap();
    let rendered = text.template().render(Conversation::of(&[]), UNIX_EPOCH).unwrap();
    assert_eq!(rendered, "from the file");
}

#[test]
fn what_would_be_passed_over_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tokenizer.json");
    std::fs::copy(model, folder.path().join("tokenizer.json")).unwrap();
    let files = ["config.json", "generation_config.json", "tokenizer_config.json"];
    let check = |name: &str, said: &str, want: Option<&str>| {
        files.iter().for_each(|file| put(file, "{}"));
        put(name, said);
        let loaded = TextModel::load(folder.path()).map(drop).map_err(|error| error.to_string());
        match want {
            None => assert_eq!(loaded, Ok(()), "{name} {said}"),
            Some(field) => assert!(loaded.unwrap_err().starts_with(field), "{name} {said}"),
        }
    };
    for name in &files[..2] {
        check(name, r#"{"eos_token_id": [0, 1, "x"]}"#, Some("eos_token_id: "));
        check(name, r#"{"eos_token_id": "x"}"#, Some("eos_token_id: "));
        check(name, r#"{"eos_token_id": -1}"#, None);
        check(name, r#"{"eos_token_id": null}"#, None);
    }
    check("config.json", r#"{"vocab_size": 4096, "eos_token_id": 4096}"#, None);
    check("config.json", r#"{"max_position_embeddings": 0}"#, Some("max_position_embeddings: "));
    check("tokenizer_config.json", r#"{"chat_template": 5}"#, Some("chat_template: "));
    check("tokenizer_config.json", r#"{"chat_template": null}"#, None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn texts_come_back(words in "\\PC{0,60}") {
        let library = library();
        let text = shipped_once();
        let tokens = text.encode(&words, true).unwrap();
        prop_assert_eq!(text.decode(&tokens), library.decode(&tokens, true).unwrap());
        prop_assert_eq!(streamed(text, &tokens, Start::Text), text.decode(&tokens));
    }

    #[test]
    fn any_tokens_stream_as_the_library_decodes_them(
        tokens in proptest::collection::vec(0u32..4096, 0..40),
    ) {
        let want = library().decode(&tokens, true).unwrap();
        prop_assert_eq!(streamed(shipped_once(), &tokens, Start::Text), want);
    }
}

fn shipped_once() -> &'static TextModel {
    static MODEL: std::sync::OnceLock<TextModel> = std::sync::OnceLock::new();
    MODEL.get_or_init(shipped)
}

fn library() -> &'static tokenizers::Tokenizer {
    static LIBRARY: std::sync::OnceLock<tokenizers::Tokenizer> = std::sync::OnceLock::new();
    LIBRARY.get_or_init(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tokenizer.json");
        tokenizers::Tokenizer::from_file(path).unwrap()
    })
}

#[test]
fn a_turn_of_a_session_is_what_follows_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model");
    for file in ["config.json", "generation_config.json", "tokenizer.json"] {
        std::fs::copy(shipped.join(file), folder.path().join(file)).unwrap();
    }
    let template = "{% for message in messages %}\
        {% if loop.first or message.role != 'system' %}\
        [{{ message.role }}]{{ message.content }}{{ eos_token }}{% endif %}{% endfor %}[assistant]";
    let config = serde_json::json!({ "chat_template": template });
    std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let text = TextModel::load(folder.path()).unwrap();
    let end = text.eos()[0];
    let spelled = std::str::from_utf8(text.token_bytes(end)).unwrap().to_owned();
    let session =
        |pending| Session { model: [0; 8], settings: [0; 8], name: [0; 32], end: 9, pending };
    let asked = [ChatMessage::new(Role::User, "Why?")];
    let turn =
        |pending| text.chat(Conversation::of(&asked), Some(&session(pending)), UNIX_EPOCH).unwrap();
    let behind = format!("[user]Why?{spelled}[assistant]");
    // The end token is said once: by the answer, or, where that was cut off, by the turn.
    assert_eq!(turn(Some(end)).0, behind);
    assert_eq!(turn(Some(end)).1, text.encode(&behind, false).unwrap());
    assert_eq!(turn(Some(end + 1)).0, format!("{spelled}{behind}"));
    assert_eq!(turn(None).0, format!("{spelled}{behind}"));
    let (whole, _) = text.chat(Conversation::of(&asked), None, UNIX_EPOCH).unwrap();
    assert_eq!(whole, behind);
    // What a template passes over would be lost.
    let told = [ChatMessage::new(Role::System, "Be brief."), asked[0].clone()];
    let turn = text.chat(Conversation::of(&told), Some(&session(None)), UNIX_EPOCH);
    let refused = turn.unwrap_err().to_string();
    assert!(refused.starts_with("messages[0].role = system"), "{refused}");
    let plain = self::shipped();
    let (turn, _) = plain.chat(Conversation::of(&asked), Some(&session(None)), UNIX_EPOCH).unwrap();
    assert_eq!(turn, "\nuser: Why?\nassistant:");
}

/// As those of their `tokenizer.json`.
#[test]
fn letters_and_their_marks_are_one_where_the_model_has_it_so() {
    for (pre, is_composed) in [("olmo", true), ("mpt", true), ("command-r", true), ("gpt-2", false)]
    {
        let vocabulary = GgufVocabulary { pre: Some(pre.into()), ..families() };
        let text = TextModel::new(vocabulary.build().unwrap()).unwrap();
        let encoded = |said: &str| text.encode(said, false).unwrap();
        assert_eq!(encoded("e\u{301}") == encoded("\u{e9}"), is_composed, "{pre}");
    }
}

#[test]
fn turns_that_a_file_takes_for_text_are_none() {
    let mut vocabulary = families();
    for (id, name) in [(7, "<start_of_turn>"), (9, "<end_of_turn>")] {
        vocabulary.tokens[id] = name.into();
        vocabulary.kinds[id] = 1;
    }
    let text = TextModel::new(vocabulary.build().unwrap()).unwrap();
    assert_eq!(text.encode("<start_of_turn><end_of_turn>", false).unwrap(), [7, 9]);
    assert_eq!(text.decode(&[7, 9]), "");
}

/// A file may not say how much memory its tokens take.
#[test]
fn ids_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let model = serde_json::json!({ "type": "BPE", "vocab": { "a": u32::MAX }, "merges": [] });
    let decoder = serde_json::json!({ "type": "ByteLevel", "add_prefix_space": false,
        "trim_offsets": true, "use_regex": true });
    let file = serde_json::json!({ "version": "1.0", "model": model, "decoder": decoder,
        "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null });
    std::fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    let error = TextModel::load(folder.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains("token id"), "{error}");
}
