//! Patterns of strings and of names, as far as grammars can follow them.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::compile::is_followed;
use crate::numbers;
use crate::schema::{is_cut_off, is_remark};

type Fields = Map<String, Value>;

/// What is looked at with a pattern, since both are asked of one string.
const BESIDE: [&str; 3] = ["format", "minLength", "maxLength"];

/// Patterns of one schema that are tried, each of which is compiled by itself.
const TRIED_MOST: usize = 200;

/// Patterns that were tried, by what was asked of strings.
#[derive(Default)]
pub(crate) struct Known(HashMap<String, bool>);

impl Known {
    /// Leaves out of `fields` the patterns that cannot be followed, or are too many to try, and
    /// several of names unless they `may_be_compared`.
    pub(crate) fn keep(&mut self, fields: &mut Fields, may_be_compared: bool) {
        if let Some(pattern) = fields.get("pattern") {
            let mut string = json!({ "type": "string", "pattern": pattern });
            for name in BESIDE {
                if let Some(value) = fields.get(name).filter(|value| !is_remark(value)) {
                    string[name] = value.clone();
                }
            }
            numbers::mend(string.as_object_mut().expect("made here"));
            if !self.follows(string) {
                fields.remove("pattern");
            }
        }
        let Some(Value::Object(named)) = fields.get_mut("patternProperties") else { return };
        if named.len() > 1 && !may_be_compared {
            fields.remove("patternProperties");
            return;
        }
        named.retain(|pattern, _| self.follows(json!({ "type": "string", "pattern": pattern })));
        let names = named.keys().map(|pattern| (pattern.clone(), Value::Bool(true)));
        let names = json!({ "type": "object", "patternProperties": names.collect::<Fields>() });
        if named.is_empty() || named.len() > 1 && !self.follows(names) {
            fields.remove("patternProperties");
        }
    }

    fn follows(&mut self, schema: Value) -> bool {
        let may_try = self.0.len() < TRIED_MOST;
        *self.0.entry(schema.to_string()).or_insert_with(|| {
            let is_cut_off = is_cut_off(schema.as_object().expect("made here"));
            may_try && !is_cut_off && is_followed(schema)
        })
    }
}
