//! Numbers as Python reads them, and its operator `%`, which texts have too.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind, Value};

use super::arguments::{integer, placed, wrong};
use super::filters::shown;
use super::texts::{PAD_MAX, trimmed};

pub(super) fn int(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [other, base] = placed(&args.into_values(), ["default", "base"])?;
    let base = integer("base", base.as_ref())?.unwrap_or(10);
    let whole = |x: f64| x.is_finite().then(|| Value::from(x as i128));
    let number = match value.kind() {
        ValueKind::Bool => Some(u64::from(value.is_true()).into()),
        ValueKind::Number if value.is_integer() => Some(value.clone()),
        ValueKind::Number => f64::try_from(value.clone()).ok().and_then(whole),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            let number = integer_in(text, base).map(Value::from);
            number.or_else(|| float_in(text).and_then(whole))
        }
        _ => None,
    };
    Ok(number.or(other).unwrap_or_else(|| 0.into()))
}

pub(super) fn float(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [other] = placed(&args.into_values(), ["default"])?;
    let number = match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::String => float_in(value.as_str().unwrap_or_default()),
        _ => None,
    };
    Ok(number.map(Value::from).or(other).unwrap_or_else(|| 0.0.into()))
}

/// Digits without what may stand between them, and around.
fn digits(text: &str) -> Option<String> {
    let text = trimmed(text, None, true, true);
    let is_apart = |part: &str| {
        let is_digit = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        is_digit(part.chars().next()) && is_digit(part.chars().next_back())
    };
    let is_number =
        !text.contains('_') || text.trim_start_matches(['+', '-']).split('_').all(is_apart);
    is_number.then(|| text.replace('_', ""))
}

fn integer_in(text: &str, base: i64) -> Option<i128> {
    let text = digits(text)?.to_lowercase();
    let (is_below, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
    };
    let prefixes = [(2, "0b"), (8, "0o"), (16, "0x")];
    let prefixed = prefixes.into_iter().find_map(|(prefix_base, prefix)| {
        let is_it = base == 0 || base == prefix_base;
        digits.strip_prefix(prefix).filter(|_| is_it).map(|digits| (prefix_base, digits))
    });
    let (base, digits) = prefixed.unwrap_or((if base == 0 { 10 } else { base }, digits));
    let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base))?;
    // A second sign would be one of the parser's.
    let is_digits = !digits.starts_with(['+', '-']);
    let number = i128::from_str_radix(digits, base).ok().filter(|_| is_digits)?;
    Some(if is_below { -number } else { number })
}

fn float_in(text: &str) -> Option<f64> {
    digits(text)?.parse().ok()
}

/// What Python's `left % right` is: a text with values put in, or what a division leaves over.
pub(super) fn percent(left: &Value, right: &Value) -> Result<Value, Error> {
    match left.as_str() {
        Some(text) => put_in(text, right).map(Value::from),
        None => remainder(left, right),
    }
}

/// Of the sign of what is divided by.
fn remainder(left: &Value, right: &Value) -> Result<Value, Error> {
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    let is_whole = |value: &Value| value.kind() == ValueKind::Bool || value.is_integer();
    if !is_number(left) || !is_number(right) {
        let (left, right) = (left.kind(), right.kind());
        let what = format!("tried to use % operator on unsupported types {left} and {right}");
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    }
    let none = || {
        let what = format!("unable to calculate {left} % {right}");
        Error::new(ErrorKind::InvalidOperation, what)
    };
    if is_whole(left) && is_whole(right) {
        let whole = |value: &Value| match value.kind() {
            ValueKind::Bool => Ok(i128::from(value.is_true())),
            _ => i128::try_from(value.clone()),
        };
        let (left, right) = (whole(left)?, whole(right)?);
        let over = left.checked_rem(right).ok_or_else(none)?;
        let is_other_side = over != 0 && (over < 0) != (right < 0);
        let over = if is_other_side { over + right } else { over };
        return Ok(i64::try_from(over).map_or_else(|_| over.into(), Value::from));
    }
    let [left, right] = [left, right].map(|value| match value.kind() {
        ValueKind::Bool => Ok(f64::from(u8::from(value.is_true()))),
        _ => f64::try_from(value.clone()),
    });
    let (left, right) = (left?, right?);
    if right == 0.0 {
        return Err(none());
    }
    let over = left % right;
    let is_other_side = over != 0.0 && (over < 0.0) != (right < 0.0);
    Ok(Value::from(if is_other_side { over + right } else { over.abs().copysign(right) }))
}

/// One place of a text that a value is put in: `%[(name)][flags][width][.precision]kind`.
struct Place<'a> {
    name: Option<&'a str>,
    flags: &'a str,
    width: &'a str,
    precision: Option<&'a str>,
    kind: char,
    /// The text behind it.
    rest: &'a str,
}

impl<'a> Place<'a> {
    /// Of a text that begins behind the `%`.
    fn of(text: &'a str) -> Result<Self, Error> {
        let wrong = |what: &str| {
            let what = format!("\"%{}\": {what}", text.chars().take(8).collect::<String>());
            Error::new(ErrorKind::InvalidOperation, what)
        };
        let (name, rest) = match text.strip_prefix('(') {
            Some(rest) => {
                let (name, rest) = rest.split_once(')').ok_or_else(|| wrong("no end of a name"))?;
                (Some(name), rest)
            }
            None => (None, text),
        };
        let until = |rest: &'a str, is_in: fn(char) -> bool| {
            rest.split_at(rest.find(|c: char| !is_in(c)).unwrap_or(rest.len()))
        };
        let number = |rest: &'a str| match rest.strip_prefix('*') {
            Some(behind) => ("*", behind),
            None => until(rest, |c| c.is_ascii_digit()),
        };
        let (flags, rest) = until(rest, |c| "#0- +".contains(c));
        let (width, rest) = number(rest);
        let (precision, rest) = match rest.strip_prefix('.').map(number) {
            Some((precision, rest)) => (Some(precision), rest),
            None => (None, rest),
        };
        let rest = rest.strip_prefix(['h', 'l', 'L']).unwrap_or(rest);
        let kind = rest.chars().next().ok_or_else(|| wrong("no kind of what is put in"))?;
        if !"diouxXeEfFgGcrsa%".contains(kind) {
            return Err(wrong("not a kind of what is put in"));
        }
        Ok(Self { name, flags, width, precision, kind, rest: &rest[1..] })
    }

    /// `value` as it stands here, in as much room as `width` and `precision` say.
    fn filled(&self, value: &Value, width: &str, precision: Option<&str>) -> Result<String, Error> {
        let (kind, value) = match self.kind {
            'r' | 'a' => {
                let list = Value::from(vec![value.clone()]).to_string();
                ('s', list.trim_start_matches('[').strip_suffix(']').unwrap_or(&list).into())
            }
            's' => ('s', shown(value).into()),
            'd' | 'i' | 'u' => (
                'd',
                match f64::try_from(value.clone()) {
                    Ok(x) if !value.is_integer() && x.is_finite() => Value::from(x as i128),
                    _ => value.clone(),
                },
            ),
            kind => (kind, value.clone()),
        };
        let precision = precision.map_or(String::new(), |precision| format!(".{precision}"));
        let place = format!("%{}{width}{precision}{kind}", self.flags);
        format(FormatStyle::Printf, &place, &[value])
    }
}

/// Python's `text % values`.
fn put_in(text: &str, values: &Value) -> Result<String, Error> {
    let is_several = values.downcast_object_ref::<Tuple>().is_some();
    let mut several = if is_several { values.try_iter()?.collect() } else { vec![values.clone()] };
    several.reverse();
    let mut next = || {
        let missing = || Error::new(ErrorKind::MissingArgument, "too few values for what % names");
        several.pop().ok_or_else(missing)
    };
    let room = |room: &str, value: Option<Value>| -> Result<String, Error> {
        let value = value.unwrap_or_else(|| room.into());
        let number: i128 =
            if room.is_empty() { 0 } else { value.to_string().parse().unwrap_or(-1) };
        let is_room = (0..=PAD_MAX as i128).contains(&number);
        let bound = || wrong("width or precision", &value, &format!("at most {PAD_MAX}"));
        is_room.then(|| value.to_string()).ok_or_else(bound)
    };
    let (mut shown, mut rest) = (String::new(), text);
    let mut names_values = false;
    while let Some((before, behind)) = rest.split_once('%') {
        let place = Place::of(behind)?;
        (shown, rest) = (shown + before, place.rest);
        if place.kind == '%' {
            shown.push('%');
            continue;
        }
        let starred = |part: &str| part == "*";
        let width = starred(place.width).then(&mut next).transpose()?;
        let width = room(place.width, width)?;
        let precision = match place.precision {
            Some(precision) => {
                let value = starred(precision).then(&mut next).transpose()?;
                Some(room(precision, value)?)
            }
            None => None,
        };
        let value = match place.name {
            Some(name) => {
                names_values = true;
                let value = values.get_attr(name)?;
                let missing =
                    || Error::new(ErrorKind::MissingArgument, format!("{name} is not given"));
                (!value.is_undefined()).then_some(value).ok_or_else(missing)?
            }
            None => next()?,
        };
        shown += &place.filled(&value, &width, precision.as_deref())?;
    }
    // What has fields or places may stand behind a text that names none of it; what is undefined
    // counts as such.
    let has_parts = values.as_object().is_some() || values.is_undefined();
    let may_be_left = names_values || !is_several && has_parts;
    match several.is_empty() || may_be_left {
        true => Ok(shown + rest),
        false => Err(Error::new(ErrorKind::TooManyArguments, "more values than % names")),
    }
}
