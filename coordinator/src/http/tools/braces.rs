//! Grammars of calls as Gemma 4 writes them, whose texts stand between marks within lists and
//! objects too: what JSON schemas say is said anew.

use aqueduct_grammar::narrowed;
use serde_json::{Map, Value, json};

use super::arguments::{Argument, Arguments, FOLLOWED, Kind, with_definitions};
use super::grammar::{either, in_order};
use crate::text::{CallNotation, QUOTE, TextModel};

/// Lists and objects within each other that are followed.
const DEPTH_MAX: usize = 6;
/// Elements that lists may be made to have, at most: a grammar grows with them.
const ELEMENTS_MAX: u64 = 1000;
/// What values are that are neither texts nor hold others.
const PLAIN: [&str; 4] = ["number", "integer", "boolean", "null"];
/// What asks for something of lists, and is followed.
const OF_LISTS: [&str; 3] = ["items", "minItems", "maxItems"];
/// Rules for what no schema says more of.
const ANY: &str = "any_value";
const ANY_FIELDS: &str = "any_fields";

/// What a value is.
#[derive(Debug, Clone, PartialEq)]
enum Form {
    /// One of these texts.
    Words(Vec<String>),
    /// Any text of so many characters.
    Text {
        least: u64,
        most: Option<u64>,
    },
    /// What a schema describes, which is neither a text nor holds others.
    Plain(Value),
    /// So many of these.
    List {
        of: Box<Form>,
        least: u64,
        most: Option<u64>,
    },
    /// These, in this order.
    Fields(Vec<Field>),
    /// An object.
    AnyFields,
    Any,
}

/// A part of an object.
#[derive(Debug, Clone, PartialEq)]
struct Field {
    name: String,
    is_required: bool,
    form: Form,
}

/// Something of the schema of a function's arguments that is not followed.
pub(super) fn unfollowed(schema: &Value) -> Option<String> {
    let mut reader = Reader::default();
    reader.object(schema);
    reader.unfollowed
}

/// The rules of a call of `name`, whose arguments `schema` describes.
pub(super) fn call(idx: usize, (name, schema): (&str, &Value), text: &TextModel) -> String {
    let (head, tail) = CallNotation::Braces.around_arguments(name);
    let mut writer = Writer { text, idx, count: 0, rules: String::new() };
    let arguments = writer.value(&Reader::default().object(schema));
    let (head, tail) = (text.in_grammar(&head), text.in_grammar(&tail));
    format!("call_{idx}: {head} {arguments} {tail}\n{}", writer.rules)
}

/// Rules that any call's may name.
pub(super) fn shared(text: &TextModel) -> String {
    let plain = narrowed(json!({ "type": ["number", "boolean", "null"] }));
    let (head, body, tail) = between_quotes(text, "any_text");
    format!(
        "{ANY}: {head} {body} {tail}| any_list | {ANY_FIELDS} | any_plain\n\
         {}any_plain: %json {plain}\n\
         any_list: \"[\" ({ANY} (\",\" {ANY})*)? \"]\"\n\
         {ANY_FIELDS}: \"{{\" (any_field (\",\" any_field)*)? \"}}\"\n\
         any_field: /[A-Za-z_$][A-Za-z0-9_.$-]{{0,63}}/ \":\" {ANY}\n",
        text_rule(text, "any_text", "{0,}"),
    )
}

/// What stands before a text that the rule of this name is, the rule, and what stands behind it.
fn between_quotes<'n>(text: &TextModel, name: &'n str) -> (String, &'n str, String) {
    let quote = text.in_grammar(QUOTE);
    // A mark that is text itself is a part of the rule.
    let tail = if is_token(&quote) { format!("{quote} ") } else { String::new() };
    (quote, name, tail)
}

/// A rule for texts of so many characters.
fn text_rule(text: &TextModel, name: &str, times: &str) -> String {
    let quote = text.in_grammar(QUOTE);
    let suffix = if is_token(&quote) { String::new() } else { format!("[suffix={quote}]") };
    format!("{name}{suffix}: /(?s:.{times})/\n")
}

/// Whether a mark is a token, of which no text has a part.
fn is_token(quote: &str) -> bool {
    quote.starts_with('<')
}

/// Reads schemas.
#[derive(Default)]
struct Reader {
    depth: usize,
    unfollowed: Option<String>,
}

impl Reader {
    fn miss(&mut self, what: &str) {
        self.unfollowed.get_or_insert_with(|| what.to_owned());
    }

    /// What `schema`, which describes an object, says; fields stand as the template sorts them.
    fn object(&mut self, schema: &Value) -> Form {
        let Arguments { list, unfollowed } = Arguments::of(schema);
        if let Some(what) = unfollowed {
            self.miss(&what);
        }
        let may_have_others = schema.get("additionalProperties") != Some(&json!(false));
        if list.is_empty() && may_have_others {
            if schema["additionalProperties"].is_object() {
                self.miss("additionalProperties");
            }
            return Form::AnyFields;
        }
        if list.iter().any(|argument| !CallNotation::Braces.can_name(&argument.name)) {
            self.miss("properties");
            return Form::AnyFields;
        }
        let field = |Argument { name, is_required, kind }| {
            let form = self.form(kind);
            Field { name, is_required, form }
        };
        let mut fields: Vec<Field> = list.into_iter().map(field).collect();
        fields.sort_by_cached_key(|field| field.name.to_lowercase());
        Form::Fields(fields)
    }

    fn form(&mut self, kind: Kind) -> Form {
        let schema = match kind {
            Kind::Words(words) => return Form::Words(words),
            Kind::Text { least, most } => return Form::Text { least, most },
            Kind::Json(schema) => schema,
        };
        let whole = Arguments::whole(&schema);
        let kinds: Vec<&str> = match whole.get("type") {
            Some(Value::String(kind)) => vec![kind.as_str()],
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let of_enum = whole.get("enum").and_then(Value::as_array);
        let mut values = of_enum.into_iter().flatten().chain(whole.get("const"));
        let has_values = whole.contains_key("enum") || whole.contains_key("const");
        let is_plain =
            |value: &Value| !(value.is_string() || value.is_array() || value.is_object());
        let are_plain = values.all(is_plain);
        let is_of_plain = kinds.iter().all(|kind| PLAIN.contains(kind));
        if are_plain && is_of_plain && (has_values || !kinds.is_empty()) {
            return Form::Plain(schema);
        }
        let is_deep = self.depth >= DEPTH_MAX;
        self.depth += 1;
        let form = match kinds.as_slice() {
            ["array"] if !is_deep && !has_values => self.list(&schema, &whole),
            ["object"] if !is_deep && !has_values => self.object(&Value::Object(whole.clone())),
            _ => {
                let asks = |key: &&String| *key == "type" || !FOLLOWED.contains(&key.as_str());
                if let Some(key) = whole.keys().find(asks) {
                    self.miss(key);
                }
                Form::Any
            }
        };
        self.depth -= 1;
        form
    }

    fn list(&mut self, schema: &Value, whole: &Map<String, Value>) -> Form {
        let is_followed = |key: &str| FOLLOWED.contains(&key) || OF_LISTS.contains(&key);
        let is_known = |key: &str| is_followed(key) || key == "x-guidance";
        if let Some(key) = whole.keys().find(|key| !is_known(key)) {
            self.miss(key);
        }
        let mut bound = |key: &str| {
            let bound = whole.get(key)?.as_u64();
            let fits = bound.filter(|bound| *bound <= ELEMENTS_MAX);
            if fits.is_none() {
                self.miss(key);
            }
            fits
        };
        let (least, most) = (bound("minItems").unwrap_or(0), bound("maxItems"));
        let items = whole.get("items").filter(|items| items.is_object());
        // An element is read as the only field of an object would be.
        let holder = items.map(|items| json!({ "properties": { "items": items } }));
        let of = holder.map(|holder| Arguments::of(&with_definitions(schema, &holder)));
        let of = match of {
            Some(Arguments { list, unfollowed }) => {
                if let Some(what) = unfollowed {
                    self.miss(&what);
                }
                list.into_iter().next().map_or(Form::Any, |element| self.form(element.kind))
            }
            None => Form::Any,
        };
        Form::List { of: Box::new(of), least, most }
    }
}

/// Writes the rules of one call.
struct Writer<'t> {
    text: &'t TextModel,
    idx: usize,
    count: usize,
    rules: String,
}

impl Writer<'_> {
    /// The name of a rule that there is not yet.
    fn named(&mut self) -> String {
        self.count += 1;
        format!("arg_{}_{}", self.idx, self.count)
    }

    /// The rule of a value, by its name or as it is.
    fn value(&mut self, form: &Form) -> String {
        match form {
            Form::Any => ANY.to_owned(),
            Form::AnyFields => ANY_FIELDS.to_owned(),
            Form::Words(words) => {
                let texts = words.iter().map(|word| format!("{word}{QUOTE}"));
                let quote = self.text.in_grammar(QUOTE);
                match is_token(&quote) {
                    true => format!("{quote} ({}) {quote}", either(words)),
                    false => format!("{quote} ({})", either(texts)),
                }
            }
            Form::Text { least, most } => {
                let name = self.named();
                let most = most.map_or_else(String::new, |most| most.to_string());
                self.rules += &text_rule(self.text, &name, &format!("{{{least},{most}}}"));
                let (head, body, tail) = between_quotes(self.text, &name);
                format!("{head} {body} {tail}")
            }
            Form::Plain(schema) => {
                let name = self.named();
                self.rules += &format!("{name}: %json {}\n", narrowed(schema.clone()));
                name
            }
            Form::List { of, least, most } => {
                let element = self.value(of);
                let name = self.named();
                self.rules += &format!("{name}: {element}\n");
                let body = match (least, most) {
                    (_, Some(0)) => String::new(),
                    (least, most) => {
                        let most = most.map_or_else(String::new, |most| (most - 1).to_string());
                        let fewest = least.saturating_sub(1);
                        let optional = if *least == 0 { "?" } else { "" };
                        format!(" ({name} (\",\" {name}){{{fewest},{most}}}){optional}")
                    }
                };
                format!("\"[\"{body} \"]\"")
            }
            Form::Fields(fields) => self.fields(fields),
        }
    }

    /// Those of an object, of which some may be missing.
    fn fields(&mut self, fields: &[Field]) -> String {
        let own = self.named();
        let required = fields.iter().map(|field| field.is_required);
        let prefixes = [format!("{own}_field_"), format!("{own}_rest_")];
        let (body, rules) = in_order(required, &prefixes, ",");
        self.rules += &rules;
        for (at, Field { name, form, .. }) in fields.iter().enumerate() {
            let value = self.value(form);
            let head = json!(format!("{name}:"));
            self.rules += &format!("{own}_field_{at}: {head} {value}\n");
        }
        format!("\"{{\"{body} \"}}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(property: Value, want: Form, missed: Option<&str>) {
        let schema = json!({
            "type": "object", "properties": { "x": property }, "required": ["x"],
            "$defs": { "loop": { "type": "array", "items": { "$ref": "#/$defs/loop" } } },
        });
        let mut reader = Reader::default();
        let field = Field { name: "x".to_owned(), is_required: true, form: want };
        assert_eq!(reader.object(&schema), Form::Fields(vec![field]), "{schema}");
        assert_eq!(reader.unfollowed.as_deref(), missed, "{schema}");
        assert_eq!(unfollowed(&schema).as_deref(), missed, "{schema}");
    }

    fn list(of: Form, least: u64, most: Option<u64>) -> Form {
        Form::List { of: Box::new(of), least, most }
    }

    #[test]
    fn schemas_are_followed_within_lists_and_objects() {
        const TEXT: Form = Form::Text { least: 0, most: None };
        check(json!({ "type": "string" }), TEXT, None);
        let texts = json!({ "type": "array", "items": { "enum": ["a"] }, "minItems": 1 });
        check(texts, list(Form::Words(vec!["a".to_owned()]), 1, None), None);
        check(json!({ "type": "array" }), list(Form::Any, 0, None), None);
        check(json!({ "type": "object" }), Form::AnyFields, None);
        check(json!({}), Form::Any, None);
        let closed = json!({ "type": "object", "additionalProperties": false });
        check(closed, Form::Fields(Vec::new()), None);
        let inner = json!({ "type": "object", "properties": { "b": { "type": "string" },
            "A": { "type": "array", "items": { "type": "string" }, "maxItems": 2 } } });
        let field = |name: &str, form| Field { name: name.to_owned(), is_required: false, form };
        let fields = vec![field("A", list(TEXT, 0, Some(2))), field("b", TEXT)];
        check(inner, Form::Fields(fields), None);
        for plain in [json!({ "enum": [1, null] }), json!({ "type": ["integer", "null"] })] {
            let mut reader = Reader::default();
            let form = reader.form(Kind::Json(plain.clone()));
            assert_eq!((form, reader.unfollowed), (Form::Plain(plain), None));
        }
    }

    #[test]
    fn what_is_not_followed_is_named() {
        check(json!({ "type": ["string", "integer"] }), Form::Any, Some("type"));
        let either = json!({ "anyOf": [{ "type": "string" }, { "type": "integer" }] });
        check(either, Form::Any, Some("anyOf"));
        check(json!({ "enum": ["a", 1] }), Form::Any, Some("enum"));
        let unique = json!({ "type": "array", "uniqueItems": true });
        check(unique, list(Form::Any, 0, None), Some("uniqueItems"));
        let named = json!({ "type": "object", "properties": { "a:b": {} } });
        check(named, Form::AnyFields, Some("properties"));
        let endless = (0..DEPTH_MAX).fold(Form::Any, |of, _| list(of, 0, None));
        check(json!({ "$ref": "#/$defs/loop" }), endless, Some("type"));
    }
}
