//! The text side of a Hugging Face folder.

use std::collections::BTreeMap;
use std::path::Path;

use aqueduct_core::{Refusal, TokenId, plain_json, scaled_positions};
use serde_json::Value;
use tokenizers::{AddedToken, Tokenizer};

use super::calls::ENDS_OF_TURNS;
use super::channels::ENDS_OF_ANSWERS;
use super::template::TOOL_USE;
use super::{TextError, Vocabulary, dialect, merges, ranks, recommended, sentence, tekken};

/// # Errors
/// A missing or broken `tokenizer.json`, where there is no other tokeniser, or another file that is
/// there and broken.
pub(super) fn read(folder: &Path) -> Result<Vocabulary, TextError> {
    let config = json(&folder.join("config.json"))?;
    let generation = json(&folder.join("generation_config.json"))?;
    let texts = json(&folder.join("tokenizer_config.json"))?;
    let texts = beside(texts, json(&folder.join("special_tokens_map.json"))?);
    let more = json(&folder.join("added_tokens.json"))?;
    let mut tokenizer = tokenizer(folder, &texts, &config)?;
    check(&generation, &config, &texts)?;
    add_tokens(&mut tokenizer, &texts, &more)
        .map_err(|error| TextError::invalid("added tokens", error))?;
    let named = |field: &str| tokenizer.token_to_id(token_text(&texts[field])?);
    let first = |field: &str| ids(&generation[field]).or_else(|| ids(&config[field]));
    // One that is written down as null is none, whatever the model was made with.
    let bos = match texts.get("bos_token") {
        Some(Value::Null) => None,
        _ => named("bos_token").or_else(|| first("bos_token_id")?.first().copied()),
    };
    let mut eos: Vec<TokenId> = named("eos_token").into_iter().collect();
    // Files of models that speak in channels, who have them all, may name but one of their ends.
    let ends = ENDS_OF_ANSWERS.iter().map(|name| tokenizer.token_to_id(name));
    let ends: Vec<TokenId> = ends.collect::<Option<_>>().unwrap_or_default();
    let turns = ENDS_OF_TURNS.iter().filter_map(|name| tokenizer.token_to_id(name));
    for id in first("eos_token_id").unwrap_or_default().into_iter().chain(ends).chain(turns) {
        if !eos.contains(&id) {
            eos.push(id);
        }
    }
    let of_text = text_model(&config);
    let number = |field: &str| of_text[field].as_u64().and_then(|value| u32::try_from(value).ok());
    let model_tokens = number("vocab_size");
    warn_of_ends(&eos, model_tokens);
    // Command R was made for more positions than the field says that others have.
    let made_for = number("model_max_length").filter(|_| of_text["model_type"] == "cohere");
    let max_positions =
        made_for.or_else(|| number("max_position_embeddings").map(|most| positions(most, of_text)));
    let named = &texts["chat_template"];
    let of_processor = json(&folder.join("chat_template.json"))?;
    let template = text(&folder.join("chat_template.jinja"))?
        .or_else(|| named.as_str().map(str::to_owned))
        .or_else(|| among(named, "default"))
        .or_else(|| of_processor["chat_template"].as_str().map(str::to_owned));
    let tool_template = text(&folder.join(format!("additional_chat_templates/{TOOL_USE}.jinja")))?
        .or_else(|| among(named, TOOL_USE));
    let special = SPECIAL.iter().filter_map(|name| Some((*name, token_text(&texts[*name])?)));
    let special = special.map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
    Ok(Vocabulary {
        tokenizer,
        bos,
        eos,
        model_tokens,
        max_positions,
        template,
        tool_template,
        special,
        sampling: recommended::of_folder(&generation)?,
    })
}

/// That of `tokenizer.json`, or where there is no such file of another one.
fn tokenizer(folder: &Path, texts: &Value, config: &Value) -> Result<Tokenizer, TextError> {
    let path = folder.join("tokenizer.json");
    if !path.exists()
        && let Some(read) = other_tokenizer(folder, texts, config)
    {
        return read;
    }
    let invalid = |error: tokenizers::Error| TextError::invalid(path.display().to_string(), error);
    let bytes =
        std::fs::read(&path).map_err(|source| TextError::Read { path: path.clone(), source })?;
    let mut tokenizer = Tokenizer::from_bytes(&bytes).map_err(invalid)?;
    dialect::translate(&mut tokenizer).map_err(invalid)?;
    // A training pipeline's settings: a long prompt must not be cut in silence.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(invalid)?;
    Ok(tokenizer)
}

/// That of another file than `tokenizer.json`, if there is one.
fn other_tokenizer(
    folder: &Path,
    texts: &Value,
    config: &Value,
) -> Option<Result<Tokenizer, TextError>> {
    let [tekken, ranks, pieces] =
        [tekken::FILE, ranks::FILE, sentence::FILE].map(|name| folder.join(name));
    let described = described_tokens(texts);
    if tekken.exists() {
        return Some(tekken::read(&tekken));
    }
    if ranks.exists() {
        return Some(ranks::read(&ranks, texts, described));
    }
    if pieces.exists() {
        return Some(sentence::read(&pieces, texts, &described));
    }
    let are_there = merges::FILES.iter().all(|name| folder.join(name).exists());
    are_there.then(|| merges::read(folder, texts, &config["model_type"], &described))
}

/// Refuses what would be passed over as if it were not there.
fn check(generation: &Value, config: &Value, texts: &Value) -> Result<(), TextError> {
    let ends = [generation, config].map(|file| &file["eos_token_id"]);
    let ends = ends.into_iter().find(|ends| !ends.is_null());
    // Some write -1 for none.
    let is_no_id = |ends: &&Value| ids(ends).is_none() && ends.as_i64().is_none_or(|id| id >= 0);
    if let Some(ends) = ends.filter(is_no_id) {
        let message = format!("{ends} is neither an id nor a list of ids");
        return Err(TextError::invalid("eos_token_id", message));
    }
    let template = &texts["chat_template"];
    if !(template.is_null() || template.is_string() || template.is_array()) {
        let message = format!("{template} is neither a text nor a list of named ones");
        return Err(TextError::invalid("chat_template", message));
    }
    match text_model(config)["max_position_embeddings"].as_u64() {
        Some(0) => Err(TextError::invalid("max_position_embeddings", "0 is for no prompt")),
        _ => Ok(()),
    }
}

/// An end that the model cannot say is no reason not to serve it: others may end its answers.
fn warn_of_ends(eos: &[TokenId], model_tokens: Option<u32>) {
    let is_beyond = |token: &&TokenId| model_tokens.is_some_and(|most| **token >= most);
    if let Some(token) = eos.iter().find(is_beyond) {
        tracing::warn!(token, ?model_tokens, "an end token is none of the model's: it never comes");
    }
}

/// Tokens that templates may name, besides those that begin and end.
const SPECIAL: [&str; 5] = ["unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The fields of `texts`, and of `more` where there is no such field.
fn beside(texts: Value, more: Value) -> Value {
    match (texts, more) {
        (Value::Object(mut texts), Value::Object(more)) => {
            for (name, value) in more {
                texts.entry(name).or_insert(value);
            }
            Value::Object(texts)
        }
        (Value::Null, more) => more,
        (texts, _) => texts,
    }
}

/// Adds the tokens that other files name than the tokeniser's own, as the `transformers` library
/// does: by id where one is said, then those that are special.
fn add_tokens(tokenizer: &mut Tokenizer, texts: &Value, more: &Value) -> tokenizers::Result<()> {
    let mut by_id: BTreeMap<u64, AddedToken> = BTreeMap::new();
    for (text, id) in more.as_object().into_iter().flatten() {
        let token = AddedToken::from(text.clone(), false);
        by_id.extend(id.as_u64().map(|id| (id, token)));
    }
    by_id.extend(described_tokens(texts));
    // transformers 5 calls them otherwise, and may have a name for each.
    let special = [&texts["extra_special_tokens"], &texts["additional_special_tokens"]];
    let special = special.into_iter().flat_map(all).filter_map(token_text);
    let special = special.map(|text| AddedToken::from(text, true));
    let is_new = |token: &AddedToken| tokenizer.token_to_id(&token.content).is_none();
    let new: Vec<AddedToken> = by_id.into_values().chain(special).filter(is_new).collect();
    tokenizer.add_tokens(new)?;
    Ok(())
}

/// The tokens of which `tokenizer_config.json` says what they take and where they stand.
fn described_tokens(texts: &Value) -> BTreeMap<u64, AddedToken> {
    let all = texts["added_tokens_decoder"].as_object().into_iter().flatten();
    all.filter_map(|(id, described)| {
        let says = |name: &str| described[name] == true;
        let token = AddedToken::from(token_text(described)?, says("special"))
            .lstrip(says("lstrip"))
            .rstrip(says("rstrip"))
            .single_word(says("single_word"))
            .normalized(says("normalized"));
        Some((id.parse().ok()?, token))
    })
    .collect()
}

/// Of a model that reads more than text, what is said of the one inside that does.
fn text_model(config: &Value) -> &Value {
    let whole = match &config["thinker_config"] {
        thinker @ Value::Object(_) => thinker,
        _ => config,
    };
    let inside = ["text_config", "llm_config"].map(|name| &whole[name]);
    inside.into_iter().find(|text| text.is_object()).unwrap_or(config)
}

/// Positions of a model that was made for `most`: rotary embeddings may be scaled. Gemma 3 and
/// gpt-oss tell how many that makes.
fn positions(most: u32, config: &Value) -> u32 {
    let is_told = |name: &str| name.starts_with("gemma3") || name == "gpt_oss";
    if config["model_type"].as_str().is_some_and(is_told) {
        return most;
    }
    let given = [&config["rope_scaling"], &config["rope_parameters"]];
    let says = |given: &&Value| given.as_object().is_some_and(|fields| !fields.is_empty());
    let given = given.into_iter().find(says).unwrap_or(&Value::Null);
    // transformers 5 may say it for each type of layer; those with a window may not be scaled.
    let nested = ["full_attention", "sliding_attention"].map(|layers| &given[layers]);
    let scaling = nested.into_iter().find(|value| value.is_object()).unwrap_or(given);
    let kind = scaling["rope_type"].as_str().or(scaling["type"].as_str()).unwrap_or("default");
    let original = "original_max_position_embeddings";
    let original = config[original].as_f64().or(scaling[original].as_f64());
    match scaling["factor"].as_f64() {
        Some(factor) => scaled_positions(most, kind, factor, original),
        None => most,
    }
}

/// Null when the file is not there.
fn json(path: &Path) -> Result<Value, TextError> {
    let Some(text) = text(path)? else { return Ok(Value::Null) };
    serde_json::from_slice(&plain_json(text.as_bytes()))
        .map_err(|error| TextError::invalid(path.display().to_string(), error))
}

fn text(path: &Path) -> Result<Option<String>, TextError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Read { path: path.to_owned(), source }),
    }
}

/// What `read` makes of the file at `path`, which is not read where it has no bytes or more than
/// `most`.
pub(super) fn bounded<T>(
    path: &Path,
    most: u64,
    read: impl FnOnce(&Path) -> std::io::Result<T>,
) -> Result<T, TextError> {
    let io = |source| TextError::Read { path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(io)?.len();
    let name = path.file_name().unwrap_or_default().display();
    Refusal::unless_within(&format!("bytes of {name}"), bytes, 1, most)?;
    read(path).map_err(io)
}

/// A token by its text, plain or as an object.
pub(super) fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

/// What is in a list, or has names.
fn all(values: &Value) -> Vec<&Value> {
    match values {
        Value::Array(list) => list.iter().collect(),
        Value::Object(named) => named.values().collect(),
        _ => Vec::new(),
    }
}

/// One id or a list of ids.
fn ids(value: &Value) -> Option<Vec<TokenId>> {
    let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
    match value {
        Value::Array(list) => list.iter().map(id).collect(),
        _ => id(value).map(|id| vec![id]),
    }
}

/// The template of that name in a list of them.
fn among(templates: &Value, name: &str) -> Option<String> {
    let mut templates = templates.as_array().into_iter().flatten();
    let named = templates.find(|entry| entry["name"] == name)?;
    named["template"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenizers::models::bpe::BPE;

    use super::*;

    #[test]
    fn special_tokens_that_files_name_are_added() {
        let check = |texts: Value, want: &[&str]| {
            let mut tokenizer = Tokenizer::new(BPE::default());
            add_tokens(&mut tokenizer, &texts, &Value::Null).unwrap();
            let id = |text: &&str| tokenizer.token_to_id(text);
            let ids: Vec<_> = want.iter().map(id).collect();
            assert_eq!(ids, (0..).map(Some).take(want.len()).collect::<Vec<_>>(), "{texts}");
            assert_eq!(tokenizer.get_vocab_size(true), want.len(), "{texts}");
            let added = tokenizer.get_added_tokens_decoder();
            assert!(added.values().all(|token| token.special), "{texts}");
        };
        check(json!({}), &[]);
        check(
            json!({ "additional_special_tokens": ["<a>", { "content": "<b>" }] }),
            &["<a>", "<b>"],
        );
        check(json!({ "extra_special_tokens": ["<a>", { "content": "<b>" }] }), &["<a>", "<b>"]);
        let named = json!({ "image_token": "<i>", "boi_token": { "content": "<b>" } });
        check(json!({ "extra_special_tokens": named }), &["<i>", "<b>"]);
        let both = json!({
            "extra_special_tokens": ["<a>"], "additional_special_tokens": ["<a>", "<b>"],
        });
        check(both, &["<a>", "<b>"]);
        check(json!({ "extra_special_tokens": null }), &[]);
    }

    #[test]
    fn files_may_be_as_python_writes_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, r#"{ "limit": [0.0, Infinity], "name": "NaN" }"#).unwrap();
        assert_eq!(json(&path).unwrap(), json!({ "limit": [0.0, null], "name": "NaN" }));
        std::fs::write(&path, "{ Infinite }").unwrap();
        assert!(json(&path).is_err());
        assert_eq!(json(&folder.path().join("none.json")).unwrap(), Value::Null);
    }

    #[test]
    fn scaled_rotations_are_for_more_positions() {
        let check = |config: Value, want| assert_eq!(positions(32_768, &config), want, "{config}");
        let yarn = json!({ "type": "yarn", "factor": 4.0 });
        check(json!({}), 32_768);
        check(json!({ "rope_scaling": null }), 32_768);
        check(json!({ "rope_scaling": yarn }), 131_072);
        let original = "original_max_position_embeddings";
        check(json!({ "rope_scaling": yarn, original: 65_536 }), 262_144);
        let flat = json!({ "rope_type": "yarn", "factor": 16.0, original: 8192 });
        check(json!({ "rope_parameters": flat }), 131_072);
        check(json!({ "rope_parameters": { "full_attention": flat } }), 131_072);
        let both =
            json!({ "sliding_attention": { "rope_type": "default" }, "full_attention": flat });
        check(json!({ "rope_parameters": both }), 131_072);
        check(json!({ "rope_parameters": { "rope_type": "llama3", "factor": 8.0 } }), 32_768);
        let linear = json!({ "rope_type": "linear", "factor": 8.0 });
        check(json!({ "rope_scaling": linear }), 262_144);
        check(json!({ "rope_scaling": linear, "model_type": "gemma3_text" }), 32_768);
    }
}
