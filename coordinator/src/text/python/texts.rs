//! Methods that Python's texts have.

use minijinja::value::{Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Value};

use super::arguments::{integer, length, most, needed, placed, separator, text, wrong};

/// No template pads to more.
pub(super) const PAD_MAX: usize = 1 << 12;

/// Calls `method` of `text`; `None` where it is not one of these.
pub(super) fn method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    for group in [cut, stripped, found, padded, told] {
        if let Some(value) = group(text, method, args)? {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

fn cut(whole: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "split" | "rsplit" => {
            let [sep, times] = placed(args, ["sep", "maxsplit"])?;
            let times = most("maxsplit", times.as_ref())?;
            let is_last = method == "rsplit";
            let mut parts: Vec<&str> = match (text("sep", sep.as_ref())?, is_last) {
                (None, is_last) => by_space(whole, times, is_last),
                (Some(sep), false) => {
                    whole.splitn(times.saturating_add(1), separator("sep", sep)?).collect()
                }
                (Some(sep), true) => {
                    whole.rsplitn(times.saturating_add(1), separator("sep", sep)?).collect()
                }
            };
            if is_last {
                parts.reverse();
            }
            parts.into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let [sep] = placed(args, ["sep"])?;
            let sep = separator("sep", needed("sep", sep.as_ref())?)?;
            let is_first = method == "partition";
            let cut = if is_first { whole.split_once(sep) } else { whole.rsplit_once(sep) };
            let uncut = if is_first { [whole, "", ""] } else { ["", "", whole] };
            let parts = cut.map_or(uncut, |(before, behind)| [before, sep, behind]);
            Tuple::from(parts.map(Value::from)).into()
        }
        "splitlines" => {
            let [keeps] = placed(args, ["keepends"])?;
            let keeps = keeps.is_some_and(|keeps| keeps.is_true());
            let shown = |(line, end): (&str, &str)| match keeps {
                true => Value::from(format!("{line}{end}")),
                false => Value::from(line),
            };
            lines(whole).into_iter().map(shown).collect()
        }
        _ => return Ok(None),
    }))
}

fn stripped(whole: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = placed(args, ["chars"])?;
            let chars = text("chars", chars.as_ref())?;
            trimmed(whole, chars, method != "rstrip", method != "lstrip").into()
        }
        "removeprefix" => {
            let [prefix] = placed(args, ["prefix"])?;
            whole.strip_prefix(needed("prefix", prefix.as_ref())?).unwrap_or(whole).into()
        }
        "removesuffix" => {
            let [suffix] = placed(args, ["suffix"])?;
            whole.strip_suffix(needed("suffix", suffix.as_ref())?).unwrap_or(whole).into()
        }
        "replace" => {
            let [old, new, count] = placed(args, ["old", "new", "count"])?;
            let (old, new) = (needed("old", old.as_ref())?, needed("new", new.as_ref())?);
            whole.replacen(old, new, most("count", count.as_ref())?).into()
        }
        _ => return Ok(None),
    }))
}

fn found(whole: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    if !matches!(
        method,
        "find" | "rfind" | "index" | "rindex" | "count" | "startswith" | "endswith"
    ) {
        return Ok(None);
    }
    let [wanted, start, end] = placed(args, ["sub", "start", "end"])?;
    let (start, end) = (integer("start", start.as_ref())?, integer("end", end.as_ref())?);
    let within = window(whole, start, end);
    if matches!(method, "startswith" | "endswith") {
        let Some(wanted) = wanted else {
            return Err(Error::new(ErrorKind::MissingArgument, "sub is not given"));
        };
        let is_it = |wanted: &Value| -> Result<bool, Error> {
            let wanted = needed("sub", Some(wanted))?;
            Ok(within.is_some_and(|(_, within)| match method {
                "startswith" => within.starts_with(wanted),
                _ => within.ends_with(wanted),
            }))
        };
        if !matches!(wanted.kind(), ValueKind::Seq | ValueKind::Iterable) {
            return Ok(Some(is_it(&wanted)?.into()));
        }
        let mut is_any = false;
        for wanted in wanted.try_iter()? {
            is_any |= is_it(&wanted)?;
        }
        return Ok(Some(is_any.into()));
    }
    let wanted = needed("sub", wanted.as_ref())?;
    if method == "count" {
        return Ok(Some(within.map_or(0, |(_, within)| within.matches(wanted).count()).into()));
    }
    let at = within.and_then(|(before, within)| {
        let at = if method.starts_with('r') { within.rfind(wanted) } else { within.find(wanted) };
        Some(before + within[..at?].chars().count())
    });
    match (at, method) {
        (Some(at), _) => Ok(Some(at.into())),
        (None, "find" | "rfind") => Ok(Some((-1).into())),
        (None, _) => Err(super::not_found(&wanted.into())),
    }
}

fn padded(whole: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "zfill" => {
            let [width] = placed(args, ["width"])?;
            let width = length("width", width.as_ref())?.unwrap_or(0).min(PAD_MAX);
            let (sign, digits) = whole.split_at(usize::from(whole.starts_with(['-', '+'])));
            let width = width.saturating_sub(sign.len());
            format!("{sign}{digits:0>width$}").into()
        }
        "center" | "ljust" | "rjust" => {
            let [width, fill] = placed(args, ["width", "fillchar"])?;
            let fill = fill.as_ref().map_or(Ok(" "), |fill| needed("fillchar", Some(fill)))?;
            if fill.chars().count() != 1 {
                return Err(wrong("fillchar", &fill.into(), "one character"));
            }
            let width = length("width", width.as_ref())?.unwrap_or(0).min(PAD_MAX);
            let missing = width.saturating_sub(whole.chars().count());
            let before = match method {
                "ljust" => 0,
                "rjust" => missing,
                // Which side has the odd one hangs on the width: so does Python.
                _ => missing / 2 + (missing & width & 1),
            };
            let (before, behind) = (fill.repeat(before), fill.repeat(missing - before));
            format!("{before}{whole}{behind}").into()
        }
        "expandtabs" => {
            let [size] = placed(args, ["tabsize"])?;
            let size = length("tabsize", size.as_ref())?.unwrap_or(8).min(PAD_MAX);
            let (mut shown, mut column) = (String::new(), 0);
            for c in whole.chars() {
                match c {
                    '\t' if size == 0 => {}
                    '\t' => {
                        let missing = size - column % size;
                        shown.extend(std::iter::repeat_n(' ', missing));
                        column += missing;
                    }
                    _ => {
                        shown.push(c);
                        column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
                    }
                }
            }
            shown.into()
        }
        _ => return Ok(None),
    }))
}

/// What a text is like, and how else it is written.
fn told(whole: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let is_all = |is_it: fn(char) -> bool| !whole.is_empty() && whole.chars().all(is_it);
    let value: Value = match method {
        "title" => titled(whole).into(),
        "casefold" => whole.to_lowercase().replace('ß', "ss").into(),
        "swapcase" => {
            let swapped = |c: char| -> String {
                if c.is_uppercase() {
                    c.to_lowercase().collect()
                } else {
                    c.to_uppercase().collect()
                }
            };
            whole.chars().map(swapped).collect::<String>().into()
        }
        "isspace" => is_all(is_space).into(),
        "isdecimal" => is_all(|c| c.is_ascii_digit()).into(),
        _ => return Ok(None),
    };
    from_args::<()>(args)?;
    Ok(Some(value))
}

/// White space as Python's texts have it: what separates files and records is some too.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

/// `whole` without what it begins and ends with of `chars`, or of white space.
pub(super) fn trimmed<'a>(
    whole: &'a str,
    chars: Option<&str>,
    at_start: bool,
    at_end: bool,
) -> &'a str {
    let goes = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let whole = if at_start { whole.trim_start_matches(goes) } else { whole };
    if at_end { whole.trim_end_matches(goes) } else { whole }
}

/// Letters behind others are small, and those behind anything else are not.
fn titled(whole: &str) -> String {
    let (mut shown, mut is_behind) = (String::new(), false);
    for c in whole.chars() {
        if is_behind {
            shown.extend(c.to_lowercase());
        } else {
            // Of letters that are several as capitals, the first one is.
            let mut capitals = c.to_uppercase();
            shown.extend(capitals.next());
            shown.extend(capitals.flat_map(char::to_lowercase));
        }
        is_behind = c.is_lowercase() || c.is_uppercase();
    }
    shown
}

/// The parts between white space, of at most `times` cuts; those from the end in that order.
fn by_space(whole: &str, times: usize, from_end: bool) -> Vec<&str> {
    let side = |rest| trimmed(rest, None, !from_end, from_end);
    let (mut rest, mut parts) = (side(whole), Vec::new());
    while !rest.is_empty() {
        let cut = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = cut.filter(|_| parts.len() < times) else {
            parts.push(rest);
            break;
        };
        if from_end {
            let behind = at + rest[at..].chars().next().map_or(0, char::len_utf8);
            parts.push(&rest[behind..]);
            rest = side(&rest[..at]);
        } else {
            parts.push(&rest[..at]);
            rest = side(&rest[at..]);
        }
    }
    parts
}

/// Lines and what ends them.
pub(super) fn lines(whole: &str) -> Vec<(&str, &str)> {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let (mut rest, mut lines) = (whole, Vec::new());
    while !rest.is_empty() {
        let Some(at) = rest.find(ends) else {
            lines.push((rest, ""));
            break;
        };
        let end = match rest[at..].starts_with("\r\n") {
            true => 2,
            false => rest[at..].chars().next().map_or(0, char::len_utf8),
        };
        lines.push((&rest[..at], &rest[at..at + end]));
        rest = &rest[at + end..];
    }
    lines
}

/// The characters from `start` to `end`, which count from the end below zero, and how many there
/// are before them.
fn window(whole: &str, start: Option<i64>, end: Option<i64>) -> Option<(usize, &str)> {
    if start.is_none() && end.is_none() {
        return Some((0, whole));
    }
    let count = whole.chars().count();
    let place = |place: i64| match usize::try_from(place) {
        Ok(place) => place,
        Err(_) => count.saturating_sub(usize::try_from(place.unsigned_abs()).unwrap_or(count)),
    };
    let (start, end) = (start.map_or(0, place), end.map_or(count, place).min(count));
    if start > end {
        return None;
    }
    let byte = |place: usize| whole.char_indices().nth(place).map_or(whole.len(), |(at, _)| at);
    Some((start, &whole[byte(start)..byte(end)]))
}
