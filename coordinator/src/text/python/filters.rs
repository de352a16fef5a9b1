//! Filters and tests that Jinja has beside those of the engine, or has otherwise.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value, filters};

use super::arguments::{integer, length, most, needed, placed, text, wrong};
use super::numbers;
use super::texts::{self, PAD_MAX, trimmed};

/// What the length of a text is let be above what it is cut to.
const LEEWAY: i64 = 5;

pub(super) fn add(environment: &mut Environment<'static>) {
    for name in ["length", "count"] {
        environment.add_filter(name, length_of);
    }
    for name in ["default", "d"] {
        environment.add_filter(name, default);
    }
    for name in ["escape", "e"] {
        environment.add_filter(name, |value: &Value| match value.is_safe() {
            true => value.clone(),
            false => escaped(value),
        });
    }
    environment.add_filter("forceescape", |value: &Value| escaped(value));
    environment.add_filter("string", |value: Value| match value.kind() {
        ValueKind::String => value,
        _ => shown(&value).into(),
    });
    environment.add_filter("first", |value: &Value| match value.is_undefined() {
        true => Ok(Value::UNDEFINED),
        false => filters::first(value),
    });
    environment.add_filter("last", |value: Value| match value.kind() {
        ValueKind::Undefined => Ok(Value::UNDEFINED),
        ValueKind::Map => Ok(value.try_iter()?.last().unwrap_or_default()),
        _ => filters::last(value),
    });
    environment.add_filter("items", |value: &Value| match value.is_undefined() {
        true => Ok(Value::from_iter::<[Value; 0]>([])),
        false => filters::items(value),
    });
    environment.add_filter("map", map);
    environment.add_filter("int", numbers::int);
    environment.add_filter("float", numbers::float);
    environment.add_filter("replace", replace);
    environment.add_filter("trim", trim);
    environment.add_filter("indent", indent);
    environment.add_filter("truncate", truncate);
    environment.add_filter("center", |value: &Value, args: Rest<ValueOrKwargs>| {
        let [width] = placed(&args.into_values(), ["width"])?;
        let width = width.unwrap_or_else(|| 80.into());
        texts::method(&shown(value), "center", &[width]).map(Option::unwrap_or_default)
    });
    environment.add_filter("wordcount", |value: &Value| {
        let text = shown(value);
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.filter(|word| !word.is_empty()).count()
    });
    environment.add_filter("urlencode", urlencode);
    environment.add_filter("striptags", minijinja_contrib::filters::striptags);
    environment.add_filter("filesizeformat", minijinja_contrib::filters::filesizeformat);
    let [sort, unique, min, max] = [
        Value::from_function(filters::sort),
        Value::from_function(filters::unique),
        Value::from_function(filters::min),
        Value::from_function(filters::max),
    ];
    named(environment, "sort", sort, ["reverse", "case_sensitive", "attribute"]);
    named(environment, "unique", unique, ["case_sensitive", "attribute"]);
    named(environment, "min", min, ["case_sensitive", "attribute"]);
    named(environment, "max", max, ["case_sensitive", "attribute"]);
    let dictsort = Value::from_function(filters::dictsort);
    named(environment, "dictsort", dictsort, ["case_sensitive", "by", "reverse"]);
    let [batch, slice] =
        [Value::from_function(filters::batch), Value::from_function(filters::slice)];
    in_place(environment, "batch", batch, ["linecount", "fill_with"]);
    in_place(environment, "slice", slice, ["slices", "fill_with"]);
}

pub(super) fn add_tests(environment: &mut Environment<'static>) {
    // As Python has them: `none` holds nothing, and texts and mappings have places.
    environment.add_test("iterable", |value: &Value| {
        !matches!(value.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number)
    });
    environment.add_test("sequence", |value: &Value| {
        let kind = value.kind();
        matches!(kind, ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
    });
    // What is undefined can be called in Jinja, and fails only then.
    environment.add_test("callable", |value: &Value| {
        matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined)
    });
}

/// The engine's filter `name`, which wants arguments by their names, with these in their places.
fn named<const N: usize>(
    environment: &mut Environment<'static>,
    name: &'static str,
    filter: Value,
    names: [&'static str; N],
) {
    let with_names = move |state: &mut State, value: Value, args: Rest<ValueOrKwargs>| {
        let given = names.into_iter().zip(placed(&args.into_values(), names)?);
        let given: Kwargs = given.filter_map(|(name, value)| Some((name, value?))).collect();
        filter.call(state, &[value, given.into()])
    };
    environment.add_filter(name, with_names);
}

/// The engine's filter `name`, which wants arguments in their places, with these names of them.
fn in_place<const N: usize>(
    environment: &mut Environment<'static>,
    name: &'static str,
    filter: Value,
    names: [&'static str; N],
) {
    let in_places = move |state: &mut State, value: Value, args: Rest<ValueOrKwargs>| {
        let given = placed(&args.into_values(), names)?.map(|value| value.unwrap_or(().into()));
        filter.call(state, &[&[value], given.as_slice()].concat())
    };
    environment.add_filter(name, in_places);
}

/// A value as Python writes it: large and small numbers with an exponent.
pub(super) fn shown(value: &Value) -> String {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    let value_alone = std::slice::from_ref(value);
    let float = is_float.then(|| format(FormatStyle::StrFormat, "{}", value_alone).ok());
    float.flatten().unwrap_or_else(|| value.to_string())
}

/// A text that is as safe as the value that it was made of.
fn safe_as(value: &Value, text: String) -> Value {
    if value.is_safe() { Value::from_safe_string(text) } else { text.into() }
}

fn length_of(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

fn default(value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [other, is_lax] = placed(&args.into_values(), ["default_value", "boolean"])?;
    let is_lax = is_lax.is_some_and(|is_lax| is_lax.is_true());
    let is_missing = value.is_undefined() || is_lax && !value.is_true();
    Ok(if is_missing { other.unwrap_or_else(|| "".into()) } else { value })
}

/// The engine's passes over what the filter of each is told by name.
fn map(state: &mut State, value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    match args.split_first() {
        Some((filter, rest)) if filter.as_str().is_some() => {
            let filter = filter.as_str().unwrap_or_default();
            let of = |item: Value| state.apply_filter(filter, &[&[item], rest].concat());
            value.try_iter()?.map(of).collect::<Result<Vec<_>, _>>().map(Value::from)
        }
        _ => {
            let map = Value::from_function(filters::map);
            map.call(state, &[&[value], args.as_slice()].concat())
        }
    }
}

fn replace(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let [old, new, count] = placed(&args.into_values(), ["old", "new", "count"])?;
    let [old, new] = [("old", old), ("new", new)].map(|(name, value)| match value {
        Some(value) => Ok(shown(&value)),
        None => needed(name, None).map(str::to_owned),
    });
    Ok(shown(value).replacen(&old?, &new?, most("count", count.as_ref())?))
}

fn trim(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [chars] = placed(&args.into_values(), ["chars"])?;
    let text = trimmed(&shown(value), text("chars", chars.as_ref())?, true, true).to_owned();
    Ok(safe_as(value, text))
}

fn indent(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [width, first, blank] = placed(&args.into_values(), ["width", "first", "blank"])?;
    let [first, blank] = [first, blank].map(|it| it.is_some_and(|it| it.is_true()));
    let pad = match width.as_ref().and_then(Value::as_str) {
        Some(pad) => pad.to_owned(),
        None => " ".repeat(length("width", width.as_ref())?.unwrap_or(4).min(PAD_MAX)),
    };
    let text = shown(value) + "\n";
    let mut indented = String::new();
    for (idx, (line, _)) in texts::lines(&text).into_iter().enumerate() {
        indented.push_str(if idx > 0 { "\n" } else { "" });
        let is_moved = if idx == 0 { first } else { blank || !line.is_empty() };
        indented.push_str(if is_moved { &pad } else { "" });
        indented.push_str(line);
    }
    Ok(safe_as(value, indented))
}

fn truncate(value: &Value, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let [most, kills, end, leeway] =
        placed(&args.into_values(), ["length", "killwords", "end", "leeway"])?;
    let most = length("length", most.as_ref())?.unwrap_or(255);
    let end = text("end", end.as_ref())?.unwrap_or("...");
    let leeway = integer("leeway", leeway.as_ref())?.unwrap_or(LEEWAY);
    let end_length = end.chars().count();
    let Some(kept) = most.checked_sub(end_length) else {
        return Err(wrong("length", &most.into(), &format!("at least {end_length}")));
    };
    let text = shown(value);
    let leeway = usize::try_from(leeway).unwrap_or(0);
    if text.chars().count() <= most.saturating_add(leeway) {
        return Ok(text);
    }
    let kept = text.char_indices().nth(kept).map_or(text.as_str(), |(at, _)| &text[..at]);
    let kept = match kept.rsplit_once(' ').filter(|_| !kills.is_some_and(|it| it.is_true())) {
        Some((words, _)) => words,
        None => kept,
    };
    Ok(format!("{kept}{end}"))
}

/// As HTML has it, in the entities that Jinja writes.
fn escaped(value: &Value) -> Value {
    let entity = |c: char| -> String {
        match c {
            '&' => "&amp;".to_owned(),
            '<' => "&lt;".to_owned(),
            '>' => "&gt;".to_owned(),
            '"' => "&#34;".to_owned(),
            '\'' => "&#39;".to_owned(),
            _ => c.to_string(),
        }
    };
    Value::from_safe_string(shown(value).chars().map(entity).collect())
}

fn urlencode(value: &Value) -> Result<String, Error> {
    let quoted = |text: &str, is_query: bool| -> String {
        let byte = |byte: u8| match byte {
            b' ' if is_query => "+".to_owned(),
            b'/' if !is_query => "/".to_owned(),
            b'_' | b'.' | b'-' | b'~' => char::from(byte).to_string(),
            _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        };
        text.bytes().map(byte).collect()
    };
    let pair = |(name, value): (Value, Value)| {
        format!("{}={}", quoted(&shown(&name), true), quoted(&shown(&value), true))
    };
    let pairs: Vec<(Value, Value)> = match value.kind() {
        ValueKind::Map => {
            let entry = |name: Value| Ok((name.clone(), value.get_item(&name)?));
            value.try_iter()?.map(entry).collect::<Result<_, Error>>()?
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let both = |both: Value| Ok((both.get_item(&0.into())?, both.get_item(&1.into())?));
            value.try_iter()?.map(both).collect::<Result<_, Error>>()?
        }
        _ => return Ok(quoted(&shown(value), false)),
    };
    Ok(pairs.into_iter().map(pair).collect::<Vec<_>>().join("&"))
}
