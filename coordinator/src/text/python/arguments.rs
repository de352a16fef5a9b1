//! Arguments as Python takes them: in their place or by their name.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Value};

/// The arguments of a call by the `names` of its parameters; `None` where one is not given.
///
/// # Errors
/// More of them than there are names, a name that is none of these, one that is given twice.
pub(super) fn placed<const N: usize>(
    args: &[Value],
    names: [&str; N],
) -> Result<[Option<Value>; N], Error> {
    let (args, named): (&[Value], Kwargs) = from_args(args)?;
    if args.len() > N {
        let what = format!("{} arguments, at most {N} of which are known", args.len());
        return Err(Error::new(ErrorKind::TooManyArguments, what));
    }
    let mut values = [const { None }; N];
    for (idx, (value, name)) in values.iter_mut().zip(names).enumerate() {
        *value = match (args.get(idx), named.has(name)) {
            (Some(_), true) => {
                let what = format!("{name} is given twice");
                return Err(Error::new(ErrorKind::TooManyArguments, what));
            }
            (Some(given), false) => Some(given.clone()),
            (None, true) => Some(named.get::<Value>(name)?),
            (None, false) => None,
        };
    }
    match named.args().find(|name| !names.contains(name)) {
        Some(name) => {
            let what = format!("the argument {name} is not known");
            Err(Error::new(ErrorKind::TooManyArguments, what))
        }
        None => Ok(values),
    }
}

/// An integer, unless there is none or `none`.
pub(super) fn integer(name: &str, value: Option<&Value>) -> Result<Option<i64>, Error> {
    let Some(value) = value.filter(|value| !value.is_none()) else { return Ok(None) };
    let number = i64::try_from(value.clone()).map_err(|_| wrong(name, value, "an integer"))?;
    Ok(Some(number))
}

/// A length, of which those below zero are zero.
pub(super) fn length(name: &str, value: Option<&Value>) -> Result<Option<usize>, Error> {
    let number = integer(name, value)?;
    Ok(number.map(|number| usize::try_from(number).unwrap_or(0)))
}

/// A number of times, of which those below zero are any.
pub(super) fn most(name: &str, value: Option<&Value>) -> Result<usize, Error> {
    let number = integer(name, value)?;
    Ok(number.and_then(|number| usize::try_from(number).ok()).unwrap_or(usize::MAX))
}

/// A text, unless there is none or `none`.
pub(super) fn text<'a>(name: &str, value: Option<&'a Value>) -> Result<Option<&'a str>, Error> {
    let Some(value) = value.filter(|value| !value.is_none()) else { return Ok(None) };
    value.as_str().map(Some).ok_or_else(|| wrong(name, value, "a text"))
}

/// A text that there must be.
pub(super) fn needed<'a>(name: &str, value: Option<&'a Value>) -> Result<&'a str, Error> {
    let missing = || Error::new(ErrorKind::MissingArgument, format!("{name} is not given"));
    text(name, value)?.ok_or_else(missing)
}

/// A text to cut at, which there is something of.
pub(super) fn separator<'a>(name: &str, value: &'a str) -> Result<&'a str, Error> {
    let empty = || wrong(name, &Value::from(value), "a separator");
    (!value.is_empty()).then_some(value).ok_or_else(empty)
}

/// An argument that is not what it must be.
pub(super) fn wrong(name: &str, value: &Value, bound: &str) -> Error {
    let value = match value.kind() {
        ValueKind::String | ValueKind::Number | ValueKind::Bool => format!("{value:?}"),
        kind => format!("of the kind {kind}"),
    };
    Error::new(ErrorKind::InvalidOperation, format!("{name} = {value}: must be {bound}"))
}
