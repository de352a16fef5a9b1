//! Methods that Python's values have and templates call.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

/// Calls `method` of `value`, where Jinja has none of this name.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match (value.as_str(), value.kind()) {
        (Some(text), _) => of_text(text, method, args)?,
        (None, ValueKind::Seq) if method == "index" => {
            let (wanted,): (Value,) = from_args(args)?;
            let found = value.try_iter()?.position(|item| item == wanted);
            Some(found.map(Value::from).ok_or_else(|| not_found(&wanted))?)
        }
        (None, ValueKind::Map | ValueKind::Seq) if method == "copy" => {
            from_args::<()>(args)?;
            Some(value.clone())
        }
        _ => None,
    };
    own.map_or_else(|| pycompat::unknown_method_callback(state, value, method, args), Ok)
}

fn of_text(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "partition" | "rpartition" => {
            let (by,): (&str,) = from_args(args)?;
            let is_first = method == "partition";
            let cut = if is_first { text.split_once(by) } else { text.rsplit_once(by) };
            let whole = if is_first { [text, "", ""] } else { ["", "", text] };
            let parts = cut.map_or(whole, |(before, behind)| [before, by, behind]);
            parts.into_iter().map(Value::from).collect()
        }
        "rsplit" => {
            let (by, most): (Option<&str>, Option<i64>) = from_args(args)?;
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX - 1);
            let mut parts = match by {
                Some(by) => text.rsplitn(most + 1, by).map(Value::from).collect::<Vec<_>>(),
                None => by_space(text, most).into_iter().map(Value::from).collect(),
            };
            parts.reverse();
            parts.into()
        }
        "index" => {
            let (wanted,): (&str,) = from_args(args)?;
            let at = text.find(wanted).ok_or_else(|| not_found(&Value::from(wanted)))?;
            Value::from(text[..at].chars().count())
        }
        "casefold" => text.to_lowercase().into(),
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['-', '+'])));
            let width = width.min(PAD_MAX).saturating_sub(sign.len());
            format!("{sign}{digits:0>width$}").into()
        }
        "ljust" | "rjust" => {
            let (width, fill): (usize, Option<&str>) = from_args(args)?;
            let missing = width.min(PAD_MAX).saturating_sub(text.chars().count());
            let pad = fill.unwrap_or(" ").repeat(missing);
            if method == "ljust" { format!("{text}{pad}") } else { format!("{pad}{text}") }.into()
        }
        _ => return Ok(None),
    }))
}

/// No template pads to more.
const PAD_MAX: usize = 1 << 12;

/// The parts between white space, the last one first, of at most `most` cuts.
fn by_space(text: &str, most: usize) -> Vec<&str> {
    let (mut rest, mut parts) = (text.trim(), Vec::new());
    while !rest.is_empty() {
        match rest.rsplit_once(char::is_whitespace).filter(|_| parts.len() < most) {
            Some((before, last)) => {
                parts.push(last);
                rest = before.trim_end();
            }
            None => {
                parts.push(rest);
                break;
            }
        }
    }
    parts
}

fn not_found(wanted: &Value) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{wanted:?} is not in it"))
}

#[cfg(test)]
mod tests {
    use minijinja::Environment;

    fn check(expression: &str, want: &str) {
        let mut environment = Environment::new();
        environment.set_unknown_method_callback(super::method);
        let rendered = environment.render_str(&format!("{{{{ {expression} }}}}"), ());
        assert_eq!(rendered.unwrap(), want, "{expression}");
    }

    #[test]
    fn methods_are_python_s() {
        check("'<think>a'.removeprefix('<think>')", "a");
        check("'ab'.removesuffix('x') ~ 'ab'.removesuffix('b')", "aba");
        check("'a=b=c'.partition('=') | join('|')", "a|=|b=c");
        check("'a=b=c'.rpartition('=') | join('|')", "a=b|=|c");
        check("'abc'.partition('=') | join('|')", "abc||");
        check("'abc'.rpartition('=') | join('|')", "||abc");
        check("'a,b,c'.rsplit(',', 1) | join('|')", "a,b|c");
        check("' a  b c '.rsplit() | join('|')", "a|b|c");
        check("' a  b c '.rsplit(none, 1) | join('|')", "a  b|c");
        check("'éa'.index('a') ~ [3, 4].index(4)", "11");
        check("'7'.zfill(3) ~ '-7'.zfill(3) ~ 'x'.ljust(2, '.') ~ 'x'.rjust(2)", "007-07x. x");
        check("{'a': 1}.copy().a ~ 'ÄB'.casefold() ~ 'a'.upper()", "1äbA");
    }
}
